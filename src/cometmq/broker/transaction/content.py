"""What the commit of a half message stores, by the record of the half message.

REAL_TOPIC and REAL_QID name the queue that the producer chose; the commit is stored without them.
"""

from __future__ import annotations

from cometmq.broker.base.state import Refusal
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import find_property, remove_property
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.core.transaction.open_transactions import CommitContent, HalfMessage
from cometmq.errors import ResponseCode
from cometmq.store.base.dispatch import index_keys_of

__all__ = ["cached_content", "content_of"]


def cached_content(half: HalfMessage) -> CommitContent | None:
    """Return what is cached, decoded if it is a record; None if nothing is."""
    cached = half.cached
    return content_of(decode_message(cached)) if isinstance(cached, bytes) else cached


def content_of(message: StoredMessage) -> CommitContent:
    """Return what the commit of a half message stores, by its record.

    Raises:
        Refusal: it names no topic and queue.
    """
    topic, queue_id, raw = _take_destination(message.raw_properties)
    if topic is None or queue_id is None or not queue_id.isdigit():
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal: it names no topic and queue to be delivered to",
        )
    keys = index_keys_of(raw) or (None, None, None)
    return CommitContent(
        int(queue_id),
        message.body,
        raw,
        message.flag,
        message.sys_flag,
        message.born_host,
        message.reconsume_times,
        tags_code(keys[2]),
        keys,
    )


def _take_destination(raw: bytes) -> tuple[bytes | None, bytes | None, bytes]:
    """Return REAL_TOPIC, REAL_QID, and the property string without them."""
    # A half message that this broker stored and never put back has them at its end.
    head, _, tail = raw.rpartition(b"\x02REAL_TOPIC\x01")
    topic, _, rest = tail.partition(b"\x02REAL_QID\x01")
    queue_id, _, behind = rest.partition(b"\x02")
    if head and queue_id and not behind and b"REAL_" not in head and b"\x02" not in topic:
        return topic, queue_id, head + b"\x02"
    return (
        find_property(raw, b"REAL_TOPIC"),
        find_property(raw, b"REAL_QID"),
        remove_property(remove_property(raw, b"REAL_TOPIC"), b"REAL_QID"),
    )
