"""Filtered spans: a worker gathers a queue's records and joins the matching ones in one buffer.

One request examines a bounded number of messages.  The span's `following` lies behind all of them,
also where the span has no record.

A worker that evaluates records holds the interpreter's lock.  It releases the lock every few
hundred records, so the loop never waits for the whole span.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

import numpy as np

from cometmq.store.read.record_search import (
    SEARCHED_BYTES_MAX,
    SEARCHED_TOGETHER,
    is_in_vain,
    records_with,
)
from cometmq.store.read.span import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.codec.properties import Needle
    from cometmq.store.read.span import SpanWindows, SpanWish

__all__ = ["EXAMINED_MAX", "Sieve", "filter_span"]

EXAMINED_MAX: Final = 16_384
"""Messages examined for one span, so that no request keeps a worker busy for long."""
_EXAMINED_BYTES_MAX: Final = 16 << 20
STEP_MAX: Final = 4096
_STEP_BYTES: Final = 2 << 20


class Sieve:
    """Evaluates a filter and collects the matching records, up to a count and a size.

    Args:
        let_go: called every few hundred records; lets other threads run.
    """

    def __init__(
        self,
        match: Callable[[memoryview], bool],
        needles: tuple[Needle, ...],
        max_count: int,
        max_bytes: int,
        let_go: Callable[[], None],
    ) -> None:
        self._match = match
        self._let_go = let_go
        self._needles = needles
        self.max_count = max_count
        self._max_bytes = max_bytes
        self.records: list[bytes] = []
        """The matching records."""
        self.byte_count = 0

    def take(self, data: bytearray, begin: int, sizes: list[int]) -> int | None:
        """Collect the matching ones of the adjacent records in `data` from `begin` on.

        Returns the number of the first record for which there is no room; None when all fit.
        """
        for first in range(0, len(sizes), SEARCHED_TOGETHER):
            bounds = list(accumulate(sizes[first : first + SEARCHED_TOGETHER], initial=begin))
            no_room_for = self._take_some(data, bounds)
            if no_room_for is not None:
                return first + no_room_for
            begin = bounds[-1]
            self._let_go()
        return None

    def _take_some(self, data: bytearray, bounds: list[int]) -> int | None:
        """As `take`; `bounds` has the begin of each record, and the end of the last one."""
        count = len(bounds) - 1
        numbers: Sequence[int] = range(count)
        begin, end = bounds[0], bounds[-1]
        if self._needles and end - begin <= SEARCHED_BYTES_MAX:
            numbers = records_with(self._needles, data, bounds[1:], begin)
            if is_in_vain(len(numbers), count):
                self._needles = ()
        records, match = self.records, self._match
        with memoryview(data) as view:
            for number in numbers:
                start, end = bounds[number], bounds[number + 1]
                size = end - start
                if records and (
                    len(records) >= self.max_count or self.byte_count + size > self._max_bytes
                ):
                    return number
                with view[start:end] as record:
                    if match(record):
                        records.append(record.tobytes())
                        self.byte_count += size
        return None


def filter_span(
    windows: SpanWindows,
    gather: Callable[[int, int, int], Span | None],
    wish: SpanWish,
    sieve: Sieve,
) -> Span | None:
    """Return the span that was asked for; None when reader.py must read its first unit.

    Args:
        gather: called with two queue offsets and a number of bytes; returns the records between
            the offsets that may match, of at most so many bytes, as a span with sizes and offsets.
    """
    first, end = wish.queue_offset, wish.end
    here: int = first
    examined_bytes = 0
    step = min(max(sieve.max_count, SEARCHED_TOGETHER), STEP_MAX)
    while here < end and here - first < EXAMINED_MAX and examined_bytes < _EXAMINED_BYTES_MAX:
        span = gather(here, min(end, here + step), _STEP_BYTES)
        if span is None:
            break
        sizes = np.frombuffer(span.data, ">i4", span.record_count, span.start).tolist()
        begin = span.start + span.sizes_bytes
        no_room_for = sieve.take(span.data, begin, sizes)
        examined_bytes += span.end - begin
        windows.keep_buffer(span.data)
        if no_room_for is not None:
            here = here + no_room_for if span.offsets is None else span.offsets[no_room_for]
            break
        here = span.following
        step = min(2 * step, STEP_MAX)
    if here == first:
        return None
    return _joined(windows, sieve, here, wish.head_bytes, has_sizes=wish.has_sizes)


def _joined(
    windows: SpanWindows, sieve: Sieve, following: int, head_bytes: int, *, has_sizes: bool
) -> Span:
    """Return the collected records as a span."""
    count = len(sieve.records)
    sizes_bytes = 4 * count if has_sizes else 0
    start = head_bytes + sizes_bytes
    end = start + sieve.byte_count
    data = windows.buffer(end)
    data[start:end] = b"".join(sieve.records)
    if has_sizes:
        np.frombuffer(data, ">i4", count, head_bytes)[:] = [len(each) for each in sieve.records]
    return Span(data, head_bytes, end, sizes_bytes, count, following)
