"""Which of many records may match a filter, by one search over all of their bytes.

The search returns the numbers of the records that have one of a filter's needles.  Those are then
evaluated; the others cannot match.

Theory: see `cometmq.core.filter.sql92.needles`.  Bodies are searched too, at about half a
nanosecond a byte.  That pays for records up to some KiB, since evaluating one costs thousands of
nanoseconds.  Of larger records the filter cuts out the properties and searches them alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from cometmq.codec.properties import Needle

__all__ = ["SEARCHED_BYTES_MAX", "SEARCHED_TOGETHER", "is_in_vain", "records_with"]

SEARCHED_TOGETHER: Final = 256
"""Records that are searched at once."""
SEARCHED_BYTES_MAX: Final = SEARCHED_TOGETHER * 2048
"""More bytes than these are not searched: the bodies would cost more than the properties."""
_VALUE_END: Final = b"\x02"
_FOUND_QUICKLY: Final = 29_999
"""CPython searches longer texts in another way, which took a quarter more."""
_MISSES_MAX: Final = 4
"""Longer values that begin as the one searched for: from here on its end is searched for too."""


def records_with(
    needles: tuple[Needle, ...], raw: bytes | bytearray, ends: Sequence[int], start: int = 0
) -> list[int]:
    """Return the numbers of the records in `raw` that have one of the needles.

    The records adjoin from `start` on; `ends` has the end of each.
    """
    found: set[int] = set()
    for needle in needles:
        if isinstance(needle, bytes):
            _find_text(needle, raw, ends, start, found)
        else:
            _find_numbers(needle, raw, ends, start, found)
    return sorted(found)


def _find_text(
    needle: bytes, raw: bytes | bytearray, ends: Sequence[int], start: int, found: set[int]
) -> None:
    bare = needle.removesuffix(_VALUE_END)
    is_value = bare is not needle
    end, misses = ends[-1], 0
    here, window = start, max(_FOUND_QUICKLY, 2 * len(needle))
    while True:
        # The stretches overlap, so that a needle across their border is within one.
        stop = min(end, here + window)
        at = raw.find(bare, here, stop)
        if at < 0:
            if stop == end:
                return
            here = stop - len(bare) + 1
            continue
        after = at + len(bare)
        # The last value of a record may end with it.
        if (
            is_value
            and not raw.startswith(_VALUE_END, after)
            and ends[bisect_left(ends, after)] != after
        ):
            misses += 1
            if misses == _MISSES_MAX and _are_all_ended(raw, ends):
                bare, is_value = needle, False
            here = at + 1
            continue
        number = bisect_right(ends, at)
        found.add(number)
        here = ends[number]
        if here == end:
            return


def _are_all_ended(raw: bytes | bytearray, ends: Sequence[int]) -> bool:
    """Return whether every record ends as a value does, as those of most senders do."""
    return bytes([raw[end - 1] for end in ends]) == _VALUE_END * len(ends)


def _find_numbers(
    needle: re.Pattern[bytes],
    raw: bytes | bytearray,
    ends: Sequence[int],
    start: int,
    found: set[int],
) -> None:
    search = needle.search
    stop = ends[-1]
    match = search(raw, start, stop)
    while match is not None:
        number = bisect_right(ends, match.start())
        found.add(number)
        match = search(raw, ends[number], stop)


def is_in_vain(found: int, count: int) -> bool:
    """Return whether so many records have a needle that searching the next ones does not pay."""
    return 2 * found > count
