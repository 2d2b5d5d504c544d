"""Regular expressions that search property strings for a number within bounds.

An expression for ``name 0x01 number`` matches every text that Java reads as a number within the
bounds.  It may match others: `cometmq.core.filter.sql92.compiler` evaluates the message then.

Nearly all numbers are written as plain digits.  Of these the expression matches exactly those
within the bounds, with or without leading zeros.  It matches every number that is written
differently: with a plus sign or digits of other scripts, and for doubles also with an exponent, a
suffix, hexadecimal digits, white space or a name such as NaN.  The expression ignores the digits
after the point of a fraction.  Many such digits may round the number up to the next whole number,
so the bounds of doubles are wider by one.

A value ends at 0x02 or at the end of its record.  In the second case the size of the next record
follows, whose first byte is not a digit.
"""

from __future__ import annotations

import re
from math import floor, inf
from typing import Final, NamedTuple

__all__ = ["Bounds", "search_of"]

_EXACT_MAX: Final = 10**15
"""Up to here a double is exact to its digits before the point; beyond, bounds are not looked at."""
_ODD_WHOLE: Final = rb"-?[0-9]*[\x80-\xff]|\+"
_ODD_DOUBLE: Final = rb"-?[0-9]*(?:\.[0-9]*)?[^0-9.\x02\x00-]|-?\."


class Bounds(NamedTuple):
    """An interval of numbers of one property."""

    name: bytes
    low: float
    """Infinite where there is no bound. Both bounds belong to it."""
    high: float
    is_whole: bool
    """Java reads the property as Integer or Long: nothing with a point is a number then."""

    def within(self, other: Bounds) -> Bounds:
        """The intersection of both intervals."""
        return Bounds(
            self.name,
            max(self.low, other.low),
            min(self.high, other.high),
            self.is_whole or other.is_whole,
        )

    @property
    def is_open(self) -> bool:
        """Whether a bound is missing."""
        return self.low == -inf or self.high == inf


def search_of(bounds: Bounds) -> re.Pattern[bytes]:
    """The expression; it matches in each property string that has a number within the bounds."""
    forms = [
        (b"", _digits(bounds.low, bounds.high, is_whole=bounds.is_whole)),
        (b"-", _digits(-bounds.high, -bounds.low, is_whole=bounds.is_whole)),
    ]
    parts = [sign + b"0*" + digits + b"(?![0-9])" for sign, digits in forms if digits]
    parts.append(_ODD_WHOLE if bounds.is_whole else _ODD_DOUBLE)
    return re.compile(re.escape(bounds.name) + rb"\x01(?:" + b"|".join(parts) + b")", re.DOTALL)


def _digits(low: float, high: float, *, is_whole: bool) -> bytes:
    """Expression for the digits before the point of the numbers in the bounds; empty without any.

    It has no signs: negative numbers get an expression of their own, from their magnitudes.
    """
    if high < 0:
        return b""
    least = 0 if low <= 0 else int(min(low, _EXACT_MAX)) if is_whole else _below(low)
    if high >= _EXACT_MAX:
        return _at_least(str(least))
    most = floor(high)
    return _between(str(least), str(most)) if least <= most else b""


def _below(low: float) -> int:
    """The smallest whole number to which a fraction may be added that rounds up to ``low``."""
    return max(0, floor(min(low, _EXACT_MAX)) - 1)


def _at_least(least: str) -> bytes:
    longer = b"[1-9][0-9]{%d,}" % len(least)
    return b"(?:%s|%s)" % (_same_length(least, "9" * len(least)), longer)


def _between(least: str, most: str) -> bytes:
    """Whole numbers from `least` to `most`, by their count of digits."""
    parts = []
    for count in range(len(least), len(most) + 1):
        first = least if count == len(least) else "1" + "0" * (count - 1)
        last = most if count == len(most) else "9" * count
        parts.append(_same_length(first, last))
    return b"(?:%s)" % b"|".join(parts)


def _same_length(least: str, most: str) -> bytes:
    """Digits from `least` to `most`, both of one length."""
    count = len(least)
    if not count:
        return b""
    if least == "0" * count and most == "9" * count:
        return b"[0-9]{%d}" % count
    first, last = least[0], most[0]
    if first == last:
        return first.encode() + _same_length(least[1:], most[1:])
    parts = [first.encode() + _same_length(least[1:], "9" * (count - 1))]
    if int(last) - int(first) > 1:
        between = f"[{int(first) + 1}-{int(last) - 1}]".encode()
        parts.append(between + _same_length("0" * (count - 1), "9" * (count - 1)))
    parts.append(last.encode() + _same_length("0" * (count - 1), most[1:]))
    return b"(?:%s)" % b"|".join(parts)
