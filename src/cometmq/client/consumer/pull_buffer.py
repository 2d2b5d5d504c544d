"""What a pull consumer keeps between a pull and the program: batches, and a queue's offsets.

Job: two small values; the rules are in ``pull_consumer``.
Must not: decide anything.
"""

from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment

__all__ = ["PulledBatch", "QueueHold"]


class PulledBatch:
    """Messages of one pull, not yet handed out, and where the queue goes on after them."""

    __slots__ = ("assignment", "messages", "next_offset")

    def __init__(
        self, assignment: Assignment, messages: list[ReceivedMessage], next_offset: int
    ) -> None:
        self.assignment = assignment
        self.messages = messages
        self.next_offset = next_offset


class QueueHold:
    """What is known of one queue beside its loop."""

    __slots__ = ("buffered_count", "last", "position", "safe")

    def __init__(self, position: int) -> None:
        self.position = position
        self.safe = position
        self.buffered_count = 0
        self.last: PulledBatch | None = None
