"""One queue in a consumer's hands, and its counters.

Job: what the parts of a consumer share about a queue.
Must not: decide or send anything.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.consume.watchdog import QueueWatch
from cometmq.model import MessageQueue

if TYPE_CHECKING:
    from cometmq.client.queue.pull_loop import PullLoop

__all__ = ["Assignment", "Sample"]


class Sample(NamedTuple):
    """What a queue's counters were at a moment (ms); see `Assignment.sample`."""

    at_ms: int = 0
    finished: int = 0
    failed: int = 0
    handler_s: float = 0.0
    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0


class Assignment:
    """One queue in our hands."""

    __slots__ = (
        "committed",
        "failed_count",
        "loop",
        "process_queue",
        "queue",
        "sampled",
        "state",
        "watch",
    )

    def __init__(self, queue: MessageQueue, process_queue: ProcessQueue, watch: QueueWatch) -> None:
        self.queue = queue
        self.process_queue = process_queue
        self.watch = watch
        self.committed = -1
        """The offset last handed to the offset store."""
        self.failed_count = 0
        self.sampled = Sample()
        """The counters at the watchdog's last look, for rates."""
        self.loop: PullLoop = None  # type: ignore[assignment]
        self.state: Any = None
        """What the kind of consumer keeps per queue."""

    def sample(self, now_ms: int) -> Sample:
        """The counters now."""
        process_queue, loop = self.process_queue, self.loop
        return Sample(
            now_ms,
            process_queue.finished_count,
            self.failed_count,
            process_queue.handler_s,
            loop.pull_count,
            loop.pull_s,
            loop.pulled_count,
        )
