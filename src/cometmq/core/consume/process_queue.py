"""The progress of a consumer in one queue: pulled and unfinished offsets, and the commit offset.

This is the bookkeeping of ``ProcessQueue`` of RocketMQ 5.4.0: flow control and the commit offset.
It stores offsets only (the consumer has the messages), does no I/O and reads no clock.

Messages arrive in the order of their queue offsets and finish in any order.  An offset is
*outstanding* from its pull until its message is finished.  The commit offset is the smallest
outstanding offset, or the next offset to pull if none is outstanding.  An answer that skipped
filtered messages moves the next offset to pull without adding anything.

    committed ≤ next_outstanding ≤ pulled (the next offset to pull)

The outstanding offsets are the keys of one dict, whose insertion order is the order of offsets.  So
adding, finishing and counting a whole pull cost one C call each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.model.offsets import ConsumerOffset

__all__ = ["FlowLimits", "ProcessQueue"]

COUNT_MAX: Final = 1_000
SIZE_BYTES_MAX: Final = 100 * 1024 * 1024
SPAN_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Java's thresholds per queue, at which a queue stops pulling.

    ``count_max`` and ``size_bytes_max`` limit the messages and bytes that are outstanding.
    ``span_max`` limits the distance between the smallest and the largest outstanding offset, and so
    the messages that are consumed again after a crash while one handler hangs.
    """

    count_max: int = COUNT_MAX
    size_bytes_max: int = SIZE_BYTES_MAX
    span_max: int = SPAN_MAX


class ProcessQueue:
    """Progress of one queue in one consumer.

    ``pull_offset`` is the next offset to pull.  ``dropped`` says that this consumer no longer owns
    the queue, so it may not commit offsets of it any more.  ``is_paused`` says that no handler may
    start on its messages; those under way end as usual.
    """

    __slots__ = (
        "_outstanding",
        "broker_max_offset",
        "dropped",
        "finished_count",
        "handler_s",
        "is_paused",
        "last_consume_ms",
        "last_pull_ms",
        "pull_offset",
        "size_bytes",
    )

    def __init__(self, pull_offset: int, now_ms: int) -> None:
        self._outstanding: dict[int, int] = {}
        self.pull_offset = pull_offset
        self.size_bytes = 0
        self.finished_count = 0
        self.handler_s = 0.0
        """Seconds its messages spent in the handler."""
        self.broker_max_offset = pull_offset
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms
        self.dropped = False
        self.is_paused = False

    @property
    def count(self) -> int:
        """How many messages are outstanding."""
        return len(self._outstanding)

    @property
    def first_outstanding(self) -> int | None:
        """The smallest outstanding offset."""
        return next(iter(self._outstanding), None)

    @property
    def last_outstanding(self) -> int | None:
        """The largest outstanding offset."""
        return next(reversed(self._outstanding), None)

    @property
    def commit_offset(self) -> ConsumerOffset:
        """The offset below which every message is finished or was filtered out."""
        for queue_offset in self._outstanding:
            return ConsumerOffset(queue_offset)
        return ConsumerOffset(self.pull_offset)

    @property
    def span(self) -> int:
        """Distance between the smallest and the largest outstanding offset."""
        first = self.first_outstanding
        last = self.last_outstanding
        return 0 if first is None or last is None else last - first

    @property
    def ahead(self) -> int:
        """Distance between the smallest outstanding offset and the next offset to pull.

        A crash repeats at most this many messages; unlike `span` it counts finished ones too.
        """
        for queue_offset in self._outstanding:
            return self.pull_offset - queue_offset
        return 0

    def add(
        self, queue_offsets: Sequence[int], sizes: Sequence[int], next_offset: int, now_ms: int
    ) -> None:
        """Add the messages of one pull: ascending offsets, their sizes, the next offset to pull."""
        self._outstanding.update(zip(queue_offsets, sizes, strict=True))
        self.size_bytes += sum(sizes)
        self.pull_offset = next_offset
        self.last_pull_ms = now_ms

    def skip_to(self, next_offset: int, now_ms: int) -> None:
        """Continue at ``next_offset``, because no message before it matches."""
        self.pull_offset = next_offset
        self.last_pull_ms = now_ms

    def finish(self, queue_offset: int) -> None:
        """Note that a message is done, or is in the retry topic; other offsets are ignored."""
        size = self._outstanding.pop(queue_offset, None)
        if size is not None:
            self.size_bytes -= size
            self.finished_count += 1

    def finish_all(self, queue_offsets: Iterable[int]) -> None:
        """Note that many messages are done."""
        pop = self._outstanding.pop
        size_bytes = 0
        count = 0
        for queue_offset in queue_offsets:
            size = pop(queue_offset, None)
            if size is not None:
                size_bytes += size
                count += 1
        self.size_bytes -= size_bytes
        self.finished_count += count

    def room(self, limits: FlowLimits) -> tuple[int, int]:
        """How many messages and bytes may still be pulled before a limit; never negative."""
        held = len(self._outstanding)
        count = min(limits.count_max - held, limits.span_max - (self.span if held else 0))
        return max(0, count), max(0, limits.size_bytes_max - self.size_bytes)

    def blocked_by(self, limits: FlowLimits) -> str | None:
        """None if the queue may pull, else a text with the limit it has reached and its value."""
        count = len(self._outstanding)
        if count >= limits.count_max:
            return f"{count} messages held, limit {limits.count_max}"
        if self.size_bytes >= limits.size_bytes_max:
            return f"{self.size_bytes} bytes held, limit {limits.size_bytes_max}"
        if count and self.span >= limits.span_max:
            return f"offset span {self.span}, limit {limits.span_max}"
        return None
