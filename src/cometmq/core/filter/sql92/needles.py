"""Bytes without which a message cannot match a filter: what lets a reader pass it by unread.

Job: from a filter's tree, texts of which every message that matches has at least one in its
property string.  It must not read messages.

Theory: ``region = 'eu'`` needs the bytes ``region 0x01 eu``; ``amount > 10`` needs ``amount 0x01``
and behind it a number, written in one of many ways: that needle is a regular expression
(`sql92_number_search`).  One search over the bytes of a message costs a tenth of reading its
properties.
Of the parts of an AND the one that is likely to be the rarest is taken, of an OR all are.
"Perhaps" is always safe: who has a needle is evaluated.  A needle that ends with 0x02 is a whole
value; a record may end where its 0x02 would stand.  Nothing is known of a part that holds for a
message without its properties (``IS NULL``, ``a = b``).
"""

from __future__ import annotations

import re
from functools import reduce
from math import inf
from typing import TYPE_CHECKING, Final

from cometmq.core.filter.sql92.number_search import Bounds, search_of
from cometmq.core.filter.sql92.tree import (
    Comparison,
    Inclusion,
    Literal,
    LiteralKind,
    Logic,
    Node,
    Not,
    NullTest,
    Property,
    TextSearch,
    negated_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.codec.properties import Needle

__all__ = ["NEEDLES_MAX", "any_of", "needles_of"]

NEEDLES_MAX: Final = 8
"""More searches than these cost as much as they save."""
_REPLACEMENT: Final = "\ufffd"
"""What bytes that are no UTF-8 are read as: a text with it says nothing about bytes."""
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_Needles = frozenset[bytes | Bounds] | None


def needles_of(node: Node) -> tuple[Needle, ...]:
    """Texts of which a message that matches has one; none when nothing is known."""
    found = _needles(node)
    if found is None or len(found) > NEEDLES_MAX:
        return ()
    texts = sorted(one for one in found if isinstance(one, bytes))
    numbers = sorted(one for one in found if isinstance(one, Bounds))
    return (*texts, *map(search_of, numbers))


def any_of(needles: tuple[Needle, ...]) -> re.Pattern[bytes] | None:
    """One expression for all needles, of one property string; None when there are none."""
    if not needles:
        return None
    return re.compile(
        b"|".join(
            re.escape(one.removesuffix(b"\x02")) if isinstance(one, bytes) else one.pattern
            for one in needles
        ),
        re.DOTALL,
    )


def _needles(node: Node) -> _Needles:
    match node:
        case Logic(is_and=True, operands=operands):
            known = [one for one in map(_needles, operands) if one is not None]
            return min([*known, *_met(known)], key=_commonness, default=None)
        case Logic(operands=operands):
            return _united(map(_needles, operands))
        case Inclusion(name=name, values=values, is_negated=False):
            return _united(_value(name, value) for value in values)
        case Inclusion(name=name):
            return _name(name)
        case TextSearch(operand=Property(name=name)):
            return _of_search(name, node)
        case Comparison(left_side=left_side, right_side=right_side):
            return _of_comparison(left_side, right_side, node.operator) or _of_comparison(
                right_side, left_side, _MIRRORED[node.operator]
            )
        case Not(operand=operand):
            return _of_not(operand)
    return None


def _of_comparison(one: Node, constant: Node, operator: str) -> _Needles:
    """Holds for a message that has the property, whatever side the constant stands on."""
    if not isinstance(one, Property):
        return None
    number = negated_number(constant)
    if number is not None:
        return _of_number(one.name, number, operator)
    if operator != "=" or not isinstance(constant, Literal):
        return None
    if constant.kind is LiteralKind.STRING:
        return _value(one.name, str(constant.value))
    return _name(one.name) if constant.kind is LiteralKind.BOOLEAN else None


def _of_number(name: str, number: Literal, operator: str) -> _Needles:
    value = number.value
    assert isinstance(value, int | float)
    encoded = _bytes(name)
    if encoded is None:
        return None
    is_whole = number.kind is not LiteralKind.DOUBLE
    low, high = -inf, inf
    if operator in ("=", ">", ">="):
        low = value + 1 if is_whole and operator == ">" else value
    if operator in ("=", "<", "<="):
        high = value - 1 if is_whole and operator == "<" else value
    (text,) = encoded
    return frozenset((Bounds(text, low, high, is_whole),))


def _met(parts: list[frozenset[bytes | Bounds]]) -> list[frozenset[bytes | Bounds]]:
    """For each property that several parts want a number of: what is in the bounds of all."""
    by_name: dict[bytes, list[Bounds]] = {}
    for part in parts:
        if len(part) == 1:
            (one,) = part
            if isinstance(one, Bounds):
                by_name.setdefault(one.name, []).append(one)
    return [
        frozenset((reduce(Bounds.within, several),))
        for several in by_name.values()
        if len(several) > 1
    ]


def _of_search(name: str, node: TextSearch) -> _Needles:
    if node.is_negated or not node.text:
        return _name(name)
    return _bytes(f"{name}\x01{node.text}" if node.operator == "STARTSWITH" else node.text)


def _of_not(operand: Node) -> _Needles:
    match operand:
        case NullTest(operand=Property(name=name)):
            return _name(name)
        # Null, and so no match, where the property is missing; not so with the sides exchanged.
        case Comparison(left_side=Property(name=name), right_side=Literal(kind=LiteralKind.STRING)):
            return _name(name)
    return None


def _united(parts: Iterable[_Needles]) -> _Needles:
    united: frozenset[bytes | Bounds] = frozenset()
    for one in parts:
        if one is None:
            return None
        united |= one
    return united


def _commonness(needles: frozenset[bytes | Bounds]) -> tuple[int, int, float]:
    """A guess which part is the rarest: values before names, few before many, long before short."""
    return (
        max(map(_rank, needles), default=0),
        len(needles),
        min(map(_width, needles), default=0),
    )


def _rank(needle: bytes | Bounds) -> int:
    if isinstance(needle, Bounds):
        return 2 if needle.is_open else 1 if needle.low < needle.high else 0
    return 3 if needle.endswith(b"\x01") else 0


def _width(needle: bytes | Bounds) -> float:
    """Less is rarer: of texts the longer ones, of numbers those with closer bounds."""
    if not isinstance(needle, Bounds):
        return -float(len(needle))
    return needle.high - needle.low if not needle.is_open else 0.0


def _value(name: str, value: str) -> _Needles:
    return _bytes(f"{name}\x01{value}\x02")


def _name(name: str) -> _Needles:
    return _bytes(f"{name}\x01")


def _bytes(text: str) -> frozenset[bytes] | None:
    if _REPLACEMENT in text:
        return None
    try:
        return frozenset((text.encode(),))
    except UnicodeEncodeError:
        return None
