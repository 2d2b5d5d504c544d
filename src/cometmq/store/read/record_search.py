"""Searches many adjacent records for the needles of a filter, all bytes in one search.

A record that matches a filter contains one of the filter's needles
(`cometmq.core.filter.sql92.needles`).  So only the records with a needle need to be evaluated.

The search covers the bodies too, at about half a nanosecond a byte.  That pays for records up to
some KiB, since evaluating one costs thousands of nanoseconds.  For larger records the filter
itself cuts out the properties and searches them alone.
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
"""Records of more bytes than this are not searched: their bodies would cost too much."""
_VALUE_END: Final = b"\x02"
_FIND_BYTES_MAX: Final = 29_999
"""Bytes of one call of `find`: for more, CPython uses another method, a quarter slower."""
_MISSES_MAX: Final = 4
"""After this many longer values that begin with the needle, its separator is searched for too."""


def records_with(
    needles: tuple[Needle, ...], raw: bytes | bytearray, ends: Sequence[int], start: int = 0
) -> list[int]:
    """Return the numbers of the records in `raw` that have one of the needles.

    The records lie next to each other from `start` on; `ends` has the end of each.
    """
    matches: set[int] = set()
    for needle in needles:
        if isinstance(needle, bytes):
            _find_text(needle, raw, ends, start, matches)
        else:
            _find_numbers(needle, raw, ends, start, matches)
    return sorted(matches)


def _find_text(
    needle: bytes, raw: bytes | bytearray, ends: Sequence[int], start: int, matches: set[int]
) -> None:
    """Add to `matches` the numbers of the records that contain a text.

    A text that ends with the separator of values is also contained in a record that ends with it
    and without a separator.
    """
    bare = needle.removesuffix(_VALUE_END)
    is_value = bare is not needle
    end, misses = ends[-1], 0
    here, window = start, max(_FIND_BYTES_MAX, 2 * len(needle))
    while True:
        # Windows overlap, so that a needle across the border of two lies in one of them.
        stop = min(end, here + window)
        at = raw.find(bare, here, stop)
        if at < 0:
            if stop == end:
                return
            here = stop - len(bare) + 1
            continue
        after = at + len(bare)
        # The last value of a record may lack the separator.
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
        matches.add(number)
        here = ends[number]
        if here == end:
            return


def _are_all_ended(raw: bytes | bytearray, ends: Sequence[int]) -> bool:
    """Return whether every record ends with the separator, as those of most senders do."""
    return bytes([raw[end - 1] for end in ends]) == _VALUE_END * len(ends)


def _find_numbers(
    needle: re.Pattern[bytes],
    raw: bytes | bytearray,
    ends: Sequence[int],
    start: int,
    matches: set[int],
) -> None:
    """Add to `matches` the numbers of the records in which a pattern matches."""
    search = needle.search
    stop = ends[-1]
    match = search(raw, start, stop)
    while match is not None:
        number = bisect_right(ends, match.start())
        matches.add(number)
        match = search(raw, ends[number], stop)


def is_in_vain(match_count: int, count: int) -> bool:
    """Return whether so many records have a needle that searching the next ones does not pay."""
    return 2 * match_count > count
