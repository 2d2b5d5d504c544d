"""Which of many records may match a filter, by one search over all of their bytes.

Job: numbers of the records that have one of a filter's needles.  It must not decide: what it finds
is evaluated, what it does not find cannot match.

Theory: see `cometmq.core.sql92_needles`.  Bodies are searched too, at about half a nanosecond a
byte; so it pays for records up to some KiB, where reading the properties of one costs thousands.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

__all__ = ["SEARCHED_BYTES_MAX", "SEARCHED_TOGETHER", "is_in_vain", "places_with"]

SEARCHED_TOGETHER: Final = 256
"""Records that are searched at once."""
SEARCHED_BYTES_MAX: Final = SEARCHED_TOGETHER * 2048
"""More bytes than these are not searched: the bodies would cost more than the properties."""
_VALUE_END: Final = b"\x02"


def places_with(needles: tuple[bytes, ...], raw: bytes | bytearray, ends: list[int]) -> list[int]:
    """Numbers of the records in `raw`, which end there, that have one of the needles."""
    found: set[int] = set()
    for needle in needles:
        bare = needle.removesuffix(_VALUE_END)
        at = raw.find(bare)
        while at >= 0:
            number = bisect_right(ends, at)
            after = at + len(bare)
            if bare is needle or after >= ends[number] or raw.startswith(_VALUE_END, after):
                found.add(number)
                after = ends[number]
            at = raw.find(bare, after)
    return sorted(found)


def is_in_vain(found: int, count: int) -> bool:
    """Whether so many of the records have a needle that the next ones are better not searched."""
    return 2 * found > count
