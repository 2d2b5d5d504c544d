"""SQL92 filters over the properties of messages.

`compile_expression` turns the text of a filter into one Python function that tells whether a
message matches.  The module knows no brokers, subscriptions or stored bytes.

Properties are text.  A condition over them is TRUE, FALSE or null, and only TRUE matches.  Where
RocketMQ's Java throws, for example because a property is not a number, the message does not match
either.  `parser` has the grammar and `compiler` the evaluation.
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
    Null,
    Property,
)

__all__ = ["Expression", "compile_expression"]

_CACHE_COUNT: Final = 256
"""Filters kept compiled. A broker sees one per group and topic, again with each heartbeat or
pull; RocketMQ keeps 100."""


class Expression:
    """A compiled filter; `compile_expression` makes it."""

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
    """Compile the text of a filter.

    Raises:
        ExpressionIllegal: the text is not a filter; the error has line and column.
    """
    return Expression(text)


def _names(node: Node) -> list[str]:
    match node:
        case Property(name=name) | Inclusion(name=name):
            return [name]
        case Literal() | Null():
            return []
        case Logic(operands=operands):
            return [name for operand in operands for name in _names(operand)]
        case Comparison(left_side=left_side, right_side=right_side):
            return [*_names(left_side), *_names(right_side)]
        case _:
            return _names(node.operand)
