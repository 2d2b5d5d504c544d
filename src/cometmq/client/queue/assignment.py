"""One queue assigned to a consumer, with its pull loop and its counters."""

from typing import Any, NamedTuple

from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.pull_loop import PullLoop
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.consume.watchdog import QueueWatch
from cometmq.model import MessageQueue

__all__ = ["Assignment", "Sample"]


class Sample(NamedTuple):
    """The counters of a queue at one time; see `Assignment.sample`."""

    at_ms: int = 0
    finished: int = 0
    failed: int = 0
    handler_s: float = 0.0
    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0


class Assignment:
    """One queue of this consumer."""

    __slots__ = (
        "committed",
        "failed_count",
        "loop",
        "process_queue",
        "queue",
        "sampled",
        "set_aside",
        "state",
        "watch",
    )

    def __init__(self, loop: PullLoop, watch: QueueWatch) -> None:
        self.queue: MessageQueue = loop.queue
        self.process_queue: ProcessQueue = loop.process_queue
        self.loop = loop
        self.watch = watch
        self.committed = -1
        """The offset last handed to the offset store."""
        self.failed_count = 0
        self.sampled = Sample()
        """The counters at the watchdog's last check, for rates."""
        self.set_aside: list[ReceivedMessage] = []
        """Pulled messages that wait for the end of a pause."""
        self.state: Any = None
        """State that the kind of consumer adds per queue; set when the queue is added."""

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
