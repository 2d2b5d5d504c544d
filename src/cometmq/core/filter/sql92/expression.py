"""SQL92 filters over the properties of messages.

Job: a filter's text becomes something that says of a message whether it matches.  It must not know
brokers, subscriptions or stored bytes.

Theory: properties are text.  A condition over them is TRUE, FALSE or null; only TRUE matches.  So
does nothing whose comparison makes no sense: where RocketMQ's Java throws, because a property is
no number, say, the message does not match either.  `sql92_parser` has the grammar, `sql92_compiler`
the evaluation; a filter is turned into one Python function when it is first seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from cometmq.codec.properties import Needle
from cometmq.core.filter.sql92.compiler import Evaluate, Matches, compile_evaluation, compile_match
from cometmq.core.filter.sql92.needles import needles_of
from cometmq.core.filter.sql92.parser import parse
from cometmq.core.filter.sql92.tree import (
    Comparison,
    Inclusion,
    Literal,
    Logic,
    Node,
    Property,
)

__all__ = ["Expression", "compile_expression"]

_CACHE_COUNT: Final = 256
"""Filters kept compiled. A broker sees one per group and topic, again with each heartbeat or
pull; RocketMQ keeps 100."""


class Expression:
    """A filter, ready for use; make one with `compile_expression`."""

    __slots__ = ("_evaluate", "_tree", "matches", "needles", "properties", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._tree = parse(text)
        self.matches: Matches = compile_match(self._tree)
        """Say whether a message with these properties matches. Never raises."""
        self.properties: frozenset[str] = frozenset(_names(self._tree))
        """The names of the properties it looks at."""
        self.needles: tuple[Needle, ...] = needles_of(self._tree)
        """What of a message's bytes it needs to match, one of these; none when nothing is known."""
        self._evaluate: Evaluate | None = None

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Give TRUE, FALSE or null (None), which `matches` does not tell apart.

        Raises:
            NotComparable: a property does not fit what it is compared with; no match.
        """
        if self._evaluate is None:
            self._evaluate = compile_evaluation(self._tree)
        return self._evaluate(properties)


@lru_cache(maxsize=_CACHE_COUNT)
def compile_expression(text: str) -> Expression:
    """Make a filter of its text.

    Raises:
        ExpressionIllegal: the text is not a filter; line, column, what was expected and found.
    """
    return Expression(text)


def _names(node: Node) -> list[str]:
    match node:
        case Property(name=name) | Inclusion(name=name):
            return [name]
        case Literal():
            return []
        case Logic(operands=operands):
            return [name for operand in operands for name in _names(operand)]
        case Comparison(left_side=left_side, right_side=right_side):
            return [*_names(left_side), *_names(right_side)]
        case _:
            return _names(node.operand)
