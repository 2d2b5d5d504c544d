"""Stores a copy of a stored message with other properties.

Delayed, moved, checked and resumed messages are copied like this: body, flags, sender and number of
tries stay the same; tags code and index keys follow from the new properties.
"""

from __future__ import annotations

from cometmq.broker.base.state import BrokerState
from cometmq.codec.java_hash import tags_code
from cometmq.codec.stored_message import StoredMessage
from cometmq.store.base.dispatch import index_keys_of
from cometmq.store.base.results import PutResult

__all__ = ["put_again"]


def put_again(
    state: BrokerState,
    topic: str,
    queue_id: int,
    message: StoredMessage,
    raw: bytes,
    now_ms: int,
    *,
    prepared_offset: int = 0,
) -> PutResult:
    """Append `message` with the property string `raw`; raises as `MessageStore.put`."""
    keys = index_keys_of(raw)
    return state.store.put(
        topic,
        queue_id,
        message.body,
        raw,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=prepared_offset,
        tags_code=tags_code(None if keys is None else keys[2]),
        store_ms=now_ms,
        index_keys=keys,
    )
