"""Leases: a long task neither holds up its message queue nor runs twice when queues move.

RocketMQ stores one offset for a message queue, so a message that stays unsettled for hours would
hold back the offset, and would come again with every later one after a crash or a rebalance.  So a
message that is unsettled for a while is replaced by a timed copy, and counts as consumed.  While
the worker lives, it moves the copy to a later time; when the message is settled, it recalls the
copy.  A worker that dies leaves the copy, which comes when it is due.

Recalling needs a broker of CometMQ, or of RocketMQ 5.4 and later.  At other brokers there are no
leases.
"""

from typing import Final

from cometmq import Message
from cometmq.errors import RemoteError, SendFailed
from cometmq.sync import Producer

__all__ = ["Leases", "are_supported"]

RELEASE_MS: Final = 1_000
PROBE_MS: Final = 10_000


class Leases:
    """Makes, extends and ends the leases of one queue.

    Args:
        producer: sends the copies.
        topic, tag: where the copies go.
        after_s: how long a message is unsettled before it gets a lease.
        for_s: how long a lease lasts without an extension.
    """

    def __init__(
        self, producer: Producer, topic: str, tag: str, *, after_s: float, for_s: float
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._tag = tag
        self.after_s = after_s
        self.for_s = for_s

    def _copy(self, body: bytes, delay_ms: int) -> Message:
        return Message(self._topic, body, tags=self._tag, delay_ms=delay_ms)

    def begin(self, body: bytes) -> str | None:
        """Send a copy that is due at the lease's end, and return its handle.

        Raises:
            CometError: as `cometmq.sync.Producer.send`.
        """
        return self._producer.send(self._copy(body, int(self.for_s * 1000))).recall_handle

    def extend(self, handle: str, body: bytes) -> str | None:
        """Move the copy to the end of another such time.

        Raises:
            CometError: as `cometmq.sync.Producer.reschedule`.
        """
        copy = self._copy(body, int(self.for_s * 1000))
        return self._producer.reschedule(handle, copy).recall_handle

    def release(self, handle: str, body: bytes) -> None:
        """Let the copy come soon.

        Raises:
            CometError: as `cometmq.sync.Producer.reschedule`.
        """
        self._producer.reschedule(handle, self._copy(body, RELEASE_MS))

    def end(self, handle: str) -> None:
        """Recall the copy.

        Raises:
            CometError: as `cometmq.sync.Producer.recall`.
        """
        self._producer.recall(self._topic, handle)


def are_supported(producer: Producer, topic: str) -> bool:
    """Whether the broker recalls timed messages: tried with one that nobody reads.

    Raises:
        CometError: no broker answers.
    """
    try:
        result = producer.send(Message(topic, b"probe", tags="%-probe", delay_ms=PROBE_MS))
        producer.recall(topic, result.recall_handle)
    except (RemoteError, SendFailed):  # timers or recalls are not known, or switched off
        return False
    return True
