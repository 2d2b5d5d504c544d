"""Compares two values of an SQL92 filter, in all combinations of their kinds.

Generated code covers the frequent comparisons; this module has the others: two literals, and a
condition beside a value.

Source: ComparisonExpression of RocketMQ 5.4.  Values of two kinds are brought to one: a text to the
number or Boolean beside it (on its left or right; but a Boolean on the *left* of a text makes Java
throw), a smaller number to the wider kind.  A Boolean and a number are never equal.
"""

from __future__ import annotations

from math import isnan

from cometmq.core.base.java_number import parse_double, parse_integer, parse_long
from cometmq.core.filter.sql92.tree import Literal, LiteralKind
from cometmq.errors import NotComparable

__all__ = [
    "are_equal",
    "compare_doubles",
    "compare_literals",
    "order_texts",
    "parse_boolean",
    "refuse_text",
]

_PARSERS = {
    LiteralKind.INTEGER: parse_integer,
    LiteralKind.LONG: parse_long,
    LiteralKind.DOUBLE: parse_double,
}


def parse_boolean(text: str) -> bool:
    """Parse as ``Boolean.valueOf`` does: TRUE for "true" in any case, else FALSE."""
    return text.lower() == "true"


def refuse_text(text: str) -> bool:
    """Refuse a Boolean on the left of a text, as Java does.

    Raises:
        NotComparable: always.
    """
    raise NotComparable(f"a Boolean on the left cannot be compared with the text {text[:80]!r}")


def compare_doubles(left_side: float, right_side: float) -> int:
    """``Double.compareTo``: not-a-number is greatest and equal to itself, -0.0 is below 0.0."""
    if left_side < right_side:
        return -1
    if left_side > right_side:
        return 1
    return _rank(left_side) - _rank(right_side)


def _rank(value: float) -> int:
    if isnan(value):
        return 2
    if value == 0.0:
        return 0 if str(value).startswith("-") else 1
    return 1


def order_texts(left_side: str, right_side: str) -> int:
    """Compare two properties as numbers.

    Raises:
        NotComparable: one of them is not a number.
    """
    return compare_doubles(parse_double(left_side), parse_double(right_side))


def compare_literals(left_side: Literal, right_side: Literal) -> int:
    """The sign of Java's ``compareTo`` of two literals.

    Raises:
        NotComparable: Java would throw.
    """
    first, second = left_side.value, right_side.value
    if left_side.kind is LiteralKind.BOOLEAN and right_side.kind is LiteralKind.STRING:
        refuse_text(str(second))
    if isinstance(first, str) and not isinstance(second, str):
        first = _PARSERS[right_side.kind](first) if right_side.is_number else parse_boolean(first)
    elif isinstance(second, str) and not isinstance(first, str):
        second = _PARSERS[left_side.kind](second)
    elif (
        LiteralKind.BOOLEAN in (left_side.kind, right_side.kind)
        and left_side.kind is not right_side.kind
    ):
        return -1
    if isinstance(first, str) or isinstance(second, str):
        return (str(first) > str(second)) - (str(first) < str(second))

    if isinstance(first, float) or isinstance(second, float):
        return compare_doubles(float(first), float(second))
    return (first > second) - (first < second)


def are_equal(
    left_side: bool | int | float | str | None, right_side: bool | int | float | str | None
) -> bool | None:
    """``=`` where at least one side is a condition's result or null.

    Raises:
        NotComparable: Java would throw.
    """
    if left_side is None:
        return True if right_side is None else None
    if right_side is None:
        return False
    if isinstance(left_side, bool):
        if isinstance(right_side, str):
            return refuse_text(right_side)
        return left_side is right_side
    if isinstance(left_side, str) and isinstance(right_side, bool):
        return parse_boolean(left_side) is right_side
    return False
