"""Whether a consumer still makes progress, judged per queue against the broker's end offset.

A `QueueWatch` compares two samples of a queue; the client acts on the result.  A queue is healthy
when its pull offset moves, when there is nothing to pull, or when handlers finish messages.  A
consumer that is connected and sends heartbeats may still deliver nothing.

    to pull      | in hand | pull moved | handlers finished | health
    -------------+---------+------------+-------------------+------------------------------
    no           | 0       | -          | -                 | IDLE
    any          | any     | yes        | any               | HEALTHY
    any          | > 0     | no         | yes               | HEALTHY
    any          | > 0     | no         | no                | HANDLERS_STUCK
    yes          | 0       | no         | -                 | PULL_STUCK: restart the pull loop
"""

from dataclasses import dataclass
from enum import Enum

from cometmq.model import MessageQueue

__all__ = ["QueueHealth", "QueueSample", "QueueWatch"]


class QueueHealth(Enum):
    """Whether a queue makes progress, and the cause if it does not."""

    HEALTHY = "healthy"
    IDLE = "idle"
    PULL_STUCK = "pull stuck"
    HANDLERS_STUCK = "handlers stuck"


@dataclass(frozen=True, slots=True)
class QueueSample:
    """A queue at one moment: the consumer's offsets and counts, and the broker's end offset."""

    pull_offset: int
    in_hand_count: int
    finished_count: int
    broker_max_offset: int

    @property
    def lag(self) -> int:
        """Messages the broker has that were never pulled."""
        return max(0, self.broker_max_offset - self.pull_offset)


class QueueWatch:
    """Watches one queue; each round of the watchdog calls `judge` once."""

    __slots__ = ("_last", "_patience_ms", "_still_since_ms", "queue")

    def __init__(self, queue: MessageQueue, patience_ms: int, now_ms: int) -> None:
        self.queue = queue
        self._patience_ms = patience_ms
        self._last: QueueSample | None = None
        self._still_since_ms = now_ms

    def judge(self, progress: QueueSample, now_ms: int) -> QueueHealth:
        """Judge the queue; it counts as stuck only after ``patience_ms`` without any change."""
        last = self._last
        self._last = progress
        if progress.in_hand_count == 0 and progress.lag == 0:
            self._still_since_ms = now_ms
            return QueueHealth.IDLE
        if (
            last is None
            or progress.pull_offset != last.pull_offset
            or progress.finished_count != last.finished_count
        ):
            self._still_since_ms = now_ms
            return QueueHealth.HEALTHY
        if now_ms - self._still_since_ms < self._patience_ms:
            return QueueHealth.HEALTHY
        return QueueHealth.HANDLERS_STUCK if progress.in_hand_count else QueueHealth.PULL_STUCK

    def still_ms(self, now_ms: int) -> int:
        """How long the queue has made no progress."""
        return now_ms - self._still_since_ms

    def describe(self, now_ms: int) -> str:
        """The measured values for a log line."""
        last = self._last
        if last is None:
            return f"{self.queue}: not sampled yet"
        return (
            f"{self.queue}: no progress for {self.still_ms(now_ms)} ms, pull offset "
            f"{last.pull_offset}, broker's end {last.broker_max_offset} (lag {last.lag}), "
            f"{last.in_hand_count} messages held, {last.finished_count} finished so far"
        )

    def restarted(self, now_ms: int) -> None:
        """Start a new period of patience after a restart of the pull loop."""
        self._still_since_ms = now_ms
