"""Parses numbers as Java's ``Integer.valueOf``, ``Long.valueOf`` and ``Double.valueOf`` do.

SQL92 filters convert properties this way.  Python's ``int`` and ``float`` accept more (white space
around, ``1_000``, ``inf``) and less (``1d``, ``0x1p3``).
"""

from __future__ import annotations

import re
from typing import Final

from cometmq.errors import NotComparable

__all__ = ["parse_double", "parse_integer", "parse_long"]

_WHOLE: Final = re.compile(r"[+-]?\d+")
_DOUBLE: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEX_DOUBLE: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_NAMED: Final = {
    f"{sign}{word}": float(f"{sign}{word}")
    for sign in ("", "+", "-")
    for word in ("NaN", "Infinity")
}
# Java's trim() removes every character up to the space, control characters included.
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_INTEGER_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
# int() refuses more than 4,300 digits; a number that fits has only zeros beyond these.
_DIGITS_READ: Final = 40


def _whole(text: str, greatest: int, kind: str) -> int:
    # Digits of other scripts count, but only those that are one UTF-16 unit: Java looks at units.
    if _WHOLE.fullmatch(text) is None or not (text.isascii() or max(text) <= "\uffff"):
        raise NotComparable(f"{text[:80]!r} is not a whole number that Java's {kind} accepts")
    if len(text) > _DIGITS_READ:
        rest = text[:-_DIGITS_READ].lstrip("+-")
        if any(int(digit) for digit in rest):
            raise NotComparable(f"a number of {len(text)} digits does not fit Java's {kind}")
        text = ("-" if text[0] == "-" else "") + text[-_DIGITS_READ:].lstrip("+-")
    value = int(text)
    if not -greatest - 1 <= value <= greatest:
        raise NotComparable(f"{text} does not fit Java's {kind}, whose greatest is {greatest}")
    return value


def parse_integer(text: str) -> int:
    """Parse as ``Integer.valueOf`` does.

    Raises:
        NotComparable: ``Integer.valueOf`` throws.
    """
    return _whole(text, _INTEGER_MAX, "Integer")


def parse_long(text: str) -> int:
    """Parse as ``Long.valueOf`` does.

    Raises:
        NotComparable: ``Long.valueOf`` throws.
    """
    return _whole(text, _LONG_MAX, "Long")


def parse_double(text: str) -> float:
    """Parse as ``Double.valueOf`` does.

    Raises:
        NotComparable: ``Double.valueOf`` throws.
    """
    # Most texts have digits and points only; float() reads those as Java does, or refuses them.
    if not text.strip("0123456789."):
        try:
            return float(text)
        except ValueError:
            raise NotComparable(f"{text[:80]!r} is no number, as Java's Double wants it") from None
    trimmed = text.strip(_TRIMMED)
    match = _DOUBLE.fullmatch(trimmed)
    if match is not None:
        return float(match.group(1))
    if trimmed in _NAMED:
        return _NAMED[trimmed]
    match = _HEX_DOUBLE.fullmatch(trimmed)
    if match is None:
        raise NotComparable(f"{text[:80]!r} is no number, as Java's Double wants it")
    try:
        return float.fromhex(match.group(1))
    except OverflowError:
        return float("-inf") if trimmed.startswith("-") else float("inf")
