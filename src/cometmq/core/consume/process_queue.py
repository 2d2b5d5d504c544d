"""What a consumer holds of one queue: pulled, not yet finished, and how far it may commit.

Job: the bookkeeping of ``ProcessQueue`` of RocketMQ 5.4.0: flow control and the commit offset.
Must not: hold messages (their consumer does), do I/O or read a clock.

Theory: messages arrive in the order of their queue offsets and finish in any order.  What may be
committed is the smallest offset that is still outstanding, or the offset after the last pull if
nothing is; an answer that skipped filtered messages moves that end on without adding anything.

    committed ≤ next_outstanding ≤ pulled (the next offset to pull)

The outstanding offsets are the keys of one dict (insertion order is offset order), so adding,
finishing and looking at a whole pull cost one C call each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["FlowLimits", "ProcessQueue"]

COUNT_MAX: Final = 1_000
SIZE_BYTES_MAX: Final = 100 * 1024 * 1024
SPAN_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """When a queue stops pulling: Java's thresholds per queue.

    ``count_max`` messages or ``size_bytes_max`` bytes held, or ``span_max`` between the smallest
    and the largest held offset: the span bounds what a crash repeats when one handler hangs.
    """

    count_max: int = COUNT_MAX
    size_bytes_max: int = SIZE_BYTES_MAX
    span_max: int = SPAN_MAX


class ProcessQueue:
    """Progress of one queue in one consumer.

    ``pull_offset`` is the next offset to pull; ``dropped`` says that the queue was given away and
    nothing it holds may be committed any more.
    """

    __slots__ = (
        "_outstanding",
        "broker_max_offset",
        "dropped",
        "finished_count",
        "handler_s",
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

    @property
    def count(self) -> int:
        """Messages pulled and not finished."""
        return len(self._outstanding)

    @property
    def first_outstanding(self) -> int | None:
        """The smallest unfinished offset."""
        return next(iter(self._outstanding), None)

    @property
    def last_outstanding(self) -> int | None:
        """The largest unfinished offset."""
        return next(reversed(self._outstanding), None)

    @property
    def commit_offset(self) -> int:
        """Every message below this offset is finished (or was filtered out)."""
        for queue_offset in self._outstanding:
            return queue_offset
        return self.pull_offset

    @property
    def span(self) -> int:
        """Distance between the smallest and the largest unfinished offset."""
        first = self.first_outstanding
        last = self.last_outstanding
        return 0 if first is None or last is None else last - first

    @property
    def ahead(self) -> int:
        """Distance between the smallest unfinished offset and the next to pull.

        A crash repeats at most so many messages; unlike `span` it counts finished ones.
        """
        for queue_offset in self._outstanding:
            return self.pull_offset - queue_offset
        return 0

    def add(
        self, queue_offsets: Sequence[int], sizes: Sequence[int], next_offset: int, now_ms: int
    ) -> None:
        """Take in one pull: ascending offsets, the bytes of each, and where to pull next."""
        self._outstanding.update(zip(queue_offsets, sizes, strict=True))
        self.size_bytes += sum(sizes)
        self.pull_offset = next_offset
        self.last_pull_ms = now_ms

    def skip_to(self, next_offset: int, now_ms: int) -> None:
        """The broker had nothing that matches up to ``next_offset``."""
        self.pull_offset = next_offset
        self.last_pull_ms = now_ms

    def finish(self, queue_offset: int) -> None:
        """One message is done (or went to the retry topic); unknown offsets are ignored."""
        size = self._outstanding.pop(queue_offset, None)
        if size is not None:
            self.size_bytes -= size
            self.finished_count += 1

    def finish_all(self, queue_offsets: Iterable[int]) -> None:
        """Many messages are done."""
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
        """How many messages and bytes may come before a limit is reached; never negative."""
        held = len(self._outstanding)
        count = min(limits.count_max - held, limits.span_max - (self.span if held else 0))
        return max(0, count), max(0, limits.size_bytes_max - self.size_bytes)

    def blocked_by(self, limits: FlowLimits) -> str | None:
        """None if the queue may pull, else which limit it has reached, with both numbers."""
        count = len(self._outstanding)
        if count >= limits.count_max:
            return f"{count} messages held, limit {limits.count_max}"
        if self.size_bytes >= limits.size_bytes_max:
            return f"{self.size_bytes} bytes held, limit {limits.size_bytes_max}"
        if count and self.span >= limits.span_max:
            return f"offset span {self.span}, limit {limits.span_max}"
        return None
