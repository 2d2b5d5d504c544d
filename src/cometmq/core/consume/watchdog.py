"""Whether a consumer still makes progress, judged per queue against the broker's end offset.

Job: compare two looks at a queue and say what is wrong, with the numbers that prove it.
Must not: do I/O, read a clock, or restart anything; the client acts on the verdict.

Theory: a queue is healthy when its pull offset moves, when nothing is left to pull, or when it
waits for handlers that do finish.  Alive is not the same as healthy: the dangerous consumers of
this world are connected, heartbeat, and deliver nothing.

    left to pull | held | pull moved | handlers finished | verdict
    -------------+------+------------+-------------------+------------------------------
    no           | 0    | -          | -                 | IDLE
    any          | any  | yes        | any               | HEALTHY
    any          | > 0  | no         | yes               | HEALTHY
    any          | > 0  | no         | no                | HANDLERS_STUCK
    yes          | 0    | no         | -                 | PULL_STUCK: restart the pull loop
"""

from dataclasses import dataclass
from enum import Enum

from cometmq.model import MessageQueue

__all__ = ["QueueHealth", "QueueSample", "QueueWatch"]


class QueueHealth(Enum):
    """What a look at a queue found."""

    HEALTHY = "healthy"
    IDLE = "idle"
    PULL_STUCK = "pull stuck"
    HANDLERS_STUCK = "handlers stuck"


@dataclass(frozen=True, slots=True)
class QueueSample:
    """One look at a queue: the consumer's side, and the end the broker reports."""

    pull_offset: int
    in_hand_count: int
    finished_count: int
    broker_max_offset: int

    @property
    def lag(self) -> int:
        """Messages the broker has that were never pulled."""
        return max(0, self.broker_max_offset - self.pull_offset)


class QueueWatch:
    """QueueSample of one queue over time; one `look` per watchdog round."""

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
        """For how long nothing has moved."""
        return now_ms - self._still_since_ms

    def describe(self, now_ms: int) -> str:
        """The measured values for a log line."""
        last = self._last
        if last is None:
            return f"{self.queue}: not looked at yet"
        return (
            f"{self.queue}: no progress for {self.still_ms(now_ms)} ms, pull offset "
            f"{last.pull_offset}, broker's end {last.broker_max_offset} (lag {last.lag}), "
            f"{last.in_hand_count} messages held, {last.finished_count} finished so far"
        )

    def restarted(self, now_ms: int) -> None:
        """The pull loop was restarted; give it a new period of patience."""
        self._still_since_ms = now_ms
