"""Needles: bytes of which every message that matches a filter contains at least one.

A reader skips a message whose property string contains no needle; any other message it evaluates.
One search over a message's bytes costs a tenth of decoding its properties.

``region = 'eu'`` needs the bytes ``region 0x01 eu``.  ``amount > 10`` needs ``amount 0x01`` and a
number behind it, which has many spellings, so that needle is a regular expression
(`number_search`).  An AND uses the needles of its operand that is likely to be the rarest, an OR
those of all its operands.  A needle that ends with 0x02 is a whole value; at the end of a record
the 0x02 may be missing.  A condition that can hold for a message without the property (``IS NULL``,
``a = b``) has no needles.
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
"""More searches than this cost as much as they save."""
_REPLACEMENT: Final = "\ufffd"
"""Stands for any bytes that are not UTF-8, so a text with it gives no needle."""
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_Needles = frozenset[bytes | Bounds] | None


def needles_of(node: Node) -> tuple[Needle, ...]:
    """Return the needles of a filter; none when a match may lack them all."""
    needles = _needles(node)
    if needles is None or len(needles) > NEEDLES_MAX:
        return ()
    texts = sorted(needle for needle in needles if isinstance(needle, bytes))
    numbers = sorted(needle for needle in needles if isinstance(needle, Bounds))
    return (*texts, *map(search_of, numbers))


def any_of(needles: tuple[Needle, ...]) -> re.Pattern[bytes] | None:
    """Return one regular expression for all needles; None without needles."""
    if not needles:
        return None
    return re.compile(
        b"|".join(
            re.escape(needle.removesuffix(b"\x02")) if isinstance(needle, bytes) else needle.pattern
            for needle in needles
        ),
        re.DOTALL,
    )


def _needles(node: Node) -> _Needles:
    match node:
        case Logic(is_and=True, operands=operands):
            parts = [part for part in map(_needles, operands) if part is not None]
            return min([*parts, *_intersections(parts)], key=_commonness, default=None)
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


def _of_comparison(operand: Node, constant: Node, operator: str) -> _Needles:
    """Return the needles of a property compared to a constant, else None."""
    if not isinstance(operand, Property):
        return None
    number = negated_number(constant)
    if number is not None:
        return _of_number(operand.name, number, operator)
    if operator != "=" or not isinstance(constant, Literal):
        return None
    if constant.kind is LiteralKind.STRING:
        return _value(operand.name, str(constant.value))
    return _name(operand.name) if constant.kind is LiteralKind.BOOLEAN else None


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


def _intersections(parts: list[frozenset[bytes | Bounds]]) -> list[frozenset[bytes | Bounds]]:
    """Intersect the bounds of each property that several operands of an AND compare to a number."""
    by_name: dict[bytes, list[Bounds]] = {}
    for part in parts:
        if len(part) == 1:
            (needle,) = part
            if isinstance(needle, Bounds):
                by_name.setdefault(needle.name, []).append(needle)
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
        # Without the property this is null, and so no match; not so with the sides exchanged.
        case Comparison(left_side=Property(name=name), right_side=Literal(kind=LiteralKind.STRING)):
            return _name(name)
    return None


def _united(parts: Iterable[_Needles]) -> _Needles:
    united: frozenset[bytes | Bounds] = frozenset()
    for part in parts:
        if part is None:
            return None
        united |= part
    return united


def _commonness(needles: frozenset[bytes | Bounds]) -> tuple[int, int, float]:
    """Guess how common needles are: values before names, few before many, long before short."""
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
    """Return less for a rarer needle: a longer text, or a number with closer bounds."""
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
