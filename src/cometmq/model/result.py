"""Outcomes of sends and pulls. A status that is not an error is a value, not an exception."""

from enum import IntEnum
from typing import Final, NamedTuple

from cometmq.model.queue import MessageQueue

__all__ = ["FLUSHED_CODES", "PullStatus", "SendResult", "SendStatus"]


class SendStatus(IntEnum):
    """Response codes of a send after which the message *is* in the broker's log."""

    SEND_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


FLUSHED_CODES: Final = frozenset(int(status) for status in SendStatus) - {
    int(SendStatus.FLUSH_DISK_TIMEOUT)
}
"""Response codes after which a power cut of the broker loses the message only as its flush mode
allows; who moves a message and then gives up the original asks for these."""


class SendResult(NamedTuple):
    """Where a message was stored.

    ``message_id`` is the client's unique id (UNIQ_KEY), ``offset_message_id`` the broker's id,
    which holds its address and the position in the commit log; both are comma-joined for a batch.
    ``queue_offset`` is None for a delayed message, which gets its place in the queue only when it
    is due.  ``barrier`` says what the message had passed when the broker answered: ``flushed``,
    ``replicas=2`` (the master counts) or both; None where the broker's sends wait for nothing, and
    from RocketMQ's brokers, which do not say.
    """

    status: SendStatus
    message_id: str
    message_queue: MessageQueue
    queue_offset: int | None
    offset_message_id: str
    transaction_id: str | None = None
    recall_handle: str | None = None
    barrier: str | None = None


class PullStatus(IntEnum):
    """Outcome of a pull (response codes 0, 19, 20, 21)."""

    FOUND = 0
    NO_NEW_MSG = 19
    NO_MATCHED_MSG = 20
    OFFSET_ILLEGAL = 21
