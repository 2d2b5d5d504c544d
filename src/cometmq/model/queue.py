"""A message queue: the unit of order, of allocation and of offsets."""

from typing import NamedTuple

__all__ = ["MessageQueue"]


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; sorts as Java's ``MessageQueue.compareTo`` does.

    A named tuple, because queues are dictionary keys on every path of the client and a tuple
    hashes and compares in C.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"
