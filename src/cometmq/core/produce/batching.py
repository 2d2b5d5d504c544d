"""Cuts messages into batches that a broker accepts.

The messages of a batch have one topic, one queue and one WAIT setting; none is delayed or goes to
a retry topic; and the body has at most ``maxMessageSize`` bytes (``MessageBatch`` and
``SendMessageProcessor`` of RocketMQ 5.4.0).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cometmq.errors import LocalProtocolError
from cometmq.model import Message
from cometmq.model.names import RETRY_PREFIX

__all__ = [
    "BATCH_ITEM_OVERHEAD_BYTES",
    "MESSAGE_BYTES_MAX",
    "check_batch",
    "common_group",
    "split_by_size",
]

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Default ``maxMessageSize``, the limit of a batch body as a whole too."""
BATCH_ITEM_OVERHEAD_BYTES: Final = 22
"""totalSize, magic, bodyCRC, flag and body length (4 each), properties length (2)."""


def check_batch(messages: Sequence[Message]) -> str:
    """The common topic of the messages.

    Raises:
        LocalProtocolError: they cannot travel in one batch; the text names message and cause.
    """
    if not messages:
        raise LocalProtocolError("an empty batch cannot be sent; give at least one message")
    first = messages[0]
    if first.topic.startswith(RETRY_PREFIX):
        raise LocalProtocolError(f"batches to the retry topic {first.topic} are not supported")
    for index, message in enumerate(messages):
        if message.topic != first.topic:
            raise LocalProtocolError(
                f"message {index} of the batch goes to {message.topic}, the first to "
                f"{first.topic}; a batch has one topic"
            )
        if message.is_delayed:
            how = (
                f"delay level {message.delay_level}"
                if message.delay_level
                else f"deliver_time_ms {message.deliver_time_ms}"
                if message.deliver_time_ms is not None
                else f"delay_ms {message.delay_ms}"
            )
            raise LocalProtocolError(
                f"message {index} of the batch has {how}; delayed messages travel one by one"
            )
        if message.wait_store_ok != first.wait_store_ok:
            raise LocalProtocolError(
                f"message {index} of the batch differs from the first in wait_store_ok"
            )
    return first.topic


def split_by_size(sizes: Iterable[int], limit_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs ``[begin, end)`` of items whose encoded sizes sum to at most ``limit_bytes``.

    An item that alone exceeds the limit gets a run of its own, so that the broker's refusal (or
    the caller's check) concerns it and not its neighbours.
    """
    begin = 0
    total = 0
    index = -1
    for index, size in enumerate(sizes):
        if total + size > limit_bytes and index > begin:
            yield begin, index
            begin = index
            total = 0
        total += size
    if index >= begin:
        yield begin, index + 1


def common_group(messages: Sequence[Message]) -> str | None:
    """Return the message group of all messages; None if they have none or different ones."""
    group = messages[0].message_group
    if group and all(message.message_group == group for message in messages):
        return group
    return None
