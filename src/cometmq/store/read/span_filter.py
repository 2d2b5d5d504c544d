"""Filtered spans: a worker gathers a queue's records and keeps those that match.

It gathers, searches and evaluates records, and joins the matching ones in one buffer; the number
of messages examined for one request is bounded.

A worker that evaluates holds Python's lock, so it releases the lock every few hundred records: the
loop waits for that many at most, not for the whole span.  Examined messages that do not match count
as read: the span's `following` is behind them, also when it has no record.
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

__all__ = ["LOOKED_MAX", "Sieve", "filter_span"]

LOOKED_MAX: Final = 16_384
"""Messages looked at for one span, so that no request holds a worker for long."""
_LOOKED_BYTES_MAX: Final = 16 << 20
STEP_MAX: Final = 4096
_STEP_BYTES: Final = 2 << 20


class Sieve:
    """What was kept so far, and whether there is room for more."""

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
        self.kept: list[bytes] = []
        self.byte_count = 0

    def take(self, data: bytearray, begin: int, sizes: list[int]) -> int | None:
        """Keep what matches of the records from `begin` on.

        The number of the first record there is no room for; None: all fit.
        """
        for first in range(0, len(sizes), SEARCHED_TOGETHER):
            ends = list(accumulate(sizes[first : first + SEARCHED_TOGETHER], initial=begin))
            left_out = self._take_some(data, ends)
            if left_out is not None:
                return first + left_out
            begin = ends[-1]
            # Whoever waits for the interpreter's lock gets it here.
            self._let_go()
        return None

    def _take_some(self, data: bytearray, places: list[int]) -> int | None:
        """As `take`; `places` is where each record begins, and the end of the last."""
        count = len(places) - 1
        numbers: Sequence[int] = range(count)
        begin, end = places[0], places[-1]
        if self._needles and end - begin <= SEARCHED_BYTES_MAX:
            numbers = records_with(self._needles, data, places[1:], begin)
            if is_in_vain(len(numbers), count):
                self._needles = ()
        kept, match = self.kept, self._match
        with memoryview(data) as view:
            for number in numbers:
                start, end = places[number], places[number + 1]
                size = end - start
                if kept and (
                    len(kept) >= self.max_count or self.byte_count + size > self._max_bytes
                ):
                    return number
                with view[start:end] as record:
                    if match(record):
                        kept.append(record.tobytes())
                        self.byte_count += size
        return None


def filter_span(
    windows: SpanWindows,
    gather: Callable[[int, int, int], Span | None],
    wish: SpanWish,
    sieve: Sieve,
) -> Span | None:
    """The span that is wanted; None where its first unit wants the closer look.

    Args:
        gather: gives what may match from an offset to another, within so many bytes of records,
            as a span with sizes and offsets.
    """
    first, end = wish.queue_offset, wish.end
    here: int = first
    looked_bytes = 0
    step = min(max(sieve.max_count, SEARCHED_TOGETHER), STEP_MAX)
    while here < end and here - first < LOOKED_MAX and looked_bytes < _LOOKED_BYTES_MAX:
        span = gather(here, min(end, here + step), _STEP_BYTES)
        if span is None:
            break
        sizes = np.frombuffer(span.data, ">i4", span.record_count, span.start).tolist()
        begin = span.start + span.sizes_bytes
        left_out = sieve.take(span.data, begin, sizes)
        looked_bytes += span.end - begin
        windows.keep_buffer(span.data)
        if left_out is not None:
            here = here + left_out if span.offsets is None else span.offsets[left_out]
            break
        here = span.following
        step = min(2 * step, STEP_MAX)
    if here == first:
        return None
    return _joined(windows, sieve, here, wish.head_bytes, has_sizes=wish.has_sizes)


def _joined(
    windows: SpanWindows, sieve: Sieve, following: int, head_bytes: int, *, has_sizes: bool
) -> Span:
    """What was kept, as a span."""
    count = len(sieve.kept)
    sizes_bytes = 4 * count if has_sizes else 0
    start = head_bytes + sizes_bytes
    end = start + sieve.byte_count
    data = windows.buffer(end)
    data[start:end] = b"".join(sieve.kept)
    if has_sizes:
        np.frombuffer(data, ">i4", count, head_bytes)[:] = [len(one) for one in sieve.kept]
    return Span(data, head_bytes, end, sizes_bytes, count, following)
