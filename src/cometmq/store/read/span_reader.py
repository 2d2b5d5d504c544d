"""Reads long spans of one queue: MiBs of its records, gathered from mapped log files.

Spans are read by workers, since cold bytes block.  The caller states the offset up to which readers
may see the queue, and no span passes it.  The first span imports numpy, so a broker without bulk
reads stays small.  While numpy copies, other threads run.

A span ends before the first unit that is unsound or does not lead to its record.  When that is the
very first unit there is no span, and the caller reads with `MessageStore.get`, which repairs units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.codec.consume_queue import CQ_UNIT_BYTES
from cometmq.model.offsets import QueueOffset
from cometmq.store.read.span import SpanWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.codec.cq_ext import BitmapHint
    from cometmq.codec.properties import Needle
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.record_runs import RecordRuns
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.read.span import Span, SpanWish

__all__ = ["SpanReader"]


class SpanReader(SpanWindows):
    """Reads spans of the queues of one store."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        runs: RecordRuns,
        may_match: Callable[[ConsumeQueue, bytes, BitmapHint], Sequence[int]] | None = None,
    ) -> None:
        """Make a reader.

        Args:
            may_match: returns the numbers of the units whose messages may match, by bitmaps.
        """
        super().__init__(log, queues, runs)
        self._may_match = may_match

    def read(self, wish: SpanWish, codes: frozenset[int] | None) -> Span | None:
        """Return a span.  Blocks: for a worker.

        Args:
            codes: the tags codes that are wanted; None for all.  A unit with the address of an
                extension unit counts as wanted.

        Returns None when the queue does not exist or its first unit is not sound.
        """
        from cometmq.store.read.span_gather import gather_span

        return gather_span(self, wish, codes)

    def read_matching(
        self,
        wish: SpanWish,
        match: Callable[[memoryview], bool],
        hint: BitmapHint | None,
        needles: tuple[Needle, ...],
        *,
        let_go: Callable[[], None],
    ) -> Span | None:
        """Return a span of the records that match a filter; see `MessageStore.get`.  Blocks.

        A bounded number of messages is examined, so the span may have no record; its `following`
        says how far the read came.

        Args:
            let_go: called every few hundred records, so that other threads can run.
        """
        from cometmq.store.read.span_filter import Sieve, filter_span
        from cometmq.store.read.span_gather import gather_span

        by_bitmap = self._may_match if hint is not None else None

        def may_match(queue: ConsumeQueue, raw: bytes) -> Sequence[int]:
            if by_bitmap is None or hint is None:
                return range(len(raw) // CQ_UNIT_BYTES)
            return by_bitmap(queue, raw, hint)

        def gather(first: int, last: int, byte_count: int) -> Span | None:
            part = wish._replace(
                queue_offset=QueueOffset(first),
                end=last,
                max_count=last - first,
                max_bytes=byte_count,
                head_bytes=0,
                has_sizes=True,
            )
            return gather_span(self, part, None, may_match)

        sieve = Sieve(match, needles, wish.max_count, wish.max_bytes, let_go)
        return filter_span(self, gather, wish, sieve)
