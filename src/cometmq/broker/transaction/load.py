"""Finds out at a start which transactions are open, by reading the store.

It reads half messages and op messages from the offsets of their group on, and the end of the log
for committed messages whose op message was not written before a crash.  It writes nothing.

Half messages lie in queue 0 of ``RMQ_SYS_TRANS_HALF_TOPIC``, op messages, which name ended ones, in
queue 0 of ``RMQ_SYS_TRANS_OP_HALF_TOPIC``; the offsets of group ``CID_RMQ_SYS_TRANS`` say from
where on to read both (docs/internals/delivery.md#half-messages).

An op message is written some seconds after the ends that it names, so a crash loses some.  A
committed message itself names its half message, in PREPARED_TX_OFFSET, and so does one that was
given up.  Each op message of this broker names every end before it, so the ends that no op message
names lie behind the last op message in the log.  The search begins a few op messages earlier for a
Java broker, whose batches overlap.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from cometmq.codec.properties import find_property
from cometmq.codec.stored_message import (
    RecordHeader,
    StoredMessage,
    decode_message,
    decode_messages,
    read_record_header,
)
from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.transaction.open_transactions import (
    HalfMessage,
    OpenHalves,
    decode_op_body,
    half_of,
)
from cometmq.errors import CodecError, StoreError
from cometmq.model.flags import TRANSACTION_COMMIT, TRANSACTION_MASK
from cometmq.model.names import HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.store.base.results import GetResult, GetStatus
from cometmq.store.message_store import MessageStore

__all__ = ["TRANSACTION_GROUP", "LoadedTransactions", "load_transactions"]

log = logging.getLogger("cometmq.broker")

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Its offsets say how far the check-back has come (TransactionalMessageUtil.buildConsumerGroup)."""
_READ_COUNT: Final = 1024
_READ_BYTES: Final = 1 << 22
_OP_SLACK: Final = 4
"""The search for committed messages begins so many op messages before the last one."""


class LoadedTransactions(msgspec.Struct):
    """The transactions of a store at the start."""

    halves: OpenHalves
    half_next: int
    """Consumer offset of the group in the half queue."""
    op_next: int
    """Consumer offset of the group in the op queue."""
    ops: deque[tuple[int, int]]
    """Of each op message from `op_next` on: its queue offset, and the highest offset it names."""
    unnamed_ended: list[int]
    """Queue offsets of half messages that are ended though no op message names them."""


def load_transactions(store: MessageStore, offsets: ConsumerOffsetTable) -> LoadedTransactions:
    """Read everything from the offsets of the group on.  Blocks; before the broker serves."""
    half_next = _position(store, offsets, HALF_TOPIC)
    op_next = _position(store, offsets, OP_HALF_TOPIC)
    ops: deque[tuple[int, int]] = deque()
    ended: set[int] = set()
    last_ops: deque[int] = deque(maxlen=_OP_SLACK)
    for message in _messages(store, OP_HALF_TOPIC, op_next):
        named = decode_op_body(message.body)
        ops.append((message.queue_offset, max(named, default=-1)))
        ended.update(queue_offset for queue_offset in named if queue_offset >= half_next)
        last_ops.append(message.physical_offset)
    loaded = LoadedTransactions(OpenHalves(), half_next, op_next, ops, [])
    _take_halves(store, loaded, ended)
    first = loaded.halves.first()
    if first is not None:
        begin = max(first.physical_offset, last_ops[0] if last_ops else 0)
        _drop_settled(store, loaded, begin)
    return loaded


def _position(store: MessageStore, offsets: ConsumerOffsetTable, topic: str) -> int:
    """Return the consumer offset of the group, bounded to the messages that the queue has."""
    stored = offsets.query(TRANSACTION_GROUP, topic, 0)
    low, high = store.min_queue_offset(topic, 0), store.max_queue_offset(topic, 0)
    if stored is not None and not low <= stored <= high:
        log.warning(
            "%s continues in %s at %d: its stored offset %d is outside %d..%d",
            TRANSACTION_GROUP,
            topic,
            min(max(stored, low), high),
            stored,
            low,
            high,
        )
    return low if stored is None else min(max(stored, low), high)


def _take_halves(store: MessageStore, loaded: LoadedTransactions, ended: set[int]) -> None:
    """Fill the table; a half message that was put back replaces its earlier record."""
    halves = loaded.halves
    newest: dict[int, HalfMessage] = {}
    by_id: dict[bytes, HalfMessage] = {}
    for message in _messages(store, HALF_TOPIC, loaded.half_next):
        raw = message.raw_properties
        half = half_of(
            message.queue_offset, message.physical_offset, message.born_timestamp_ms, raw
        )
        uniq_key = find_property(raw, b"UNIQ_KEY") or b""
        earlier = newest.get(half.first_offset)
        if earlier is None and half.check_count:
            # A Java broker does not say which record it put back.  That one has the same id and
            # fewer checks.
            same_id = by_id.get(uniq_key)
            if same_id is not None and same_id.check_count < half.check_count:
                earlier = same_id
        if half.queue_offset not in ended:
            if earlier is not None:
                halves.replace(earlier, half)
                if earlier.queue_offset not in ended:
                    loaded.unnamed_ended.append(earlier.queue_offset)
            else:
                halves.add(half)
                if half.first_offset >= 0:
                    # The first record lies before what is read, and the producer may still name it.
                    halves.add_earlier_offset(half, half.first_offset)
        elif earlier is not None and halves.at(earlier.queue_offset) is not None:
            # It was ended at its newer offset before an op message named the older one.
            halves.remove(earlier)
            loaded.unnamed_ended.append(earlier.queue_offset)
        newest[half.first_offset if half.first_offset >= 0 else half.queue_offset] = half
        if uniq_key:
            by_id[uniq_key] = half


def _drop_settled(store: MessageStore, loaded: LoadedTransactions, begin: int) -> None:
    """Take out each half message that a committed or given-up message at the log's end names."""
    by_physical_offset = {
        half.physical_offset: half
        for queue_offset in loaded.halves.offsets()
        if (half := loaded.halves.at(queue_offset)) is not None
    }
    physical_offset, end = begin, store.max_physical_offset
    file_bytes = store.config.commit_log_file_bytes
    while physical_offset < end:
        try:
            record = store.message_at(physical_offset)
            if record is None:
                physical_offset = (physical_offset // file_bytes + 1) * file_bytes
                continue
            header = read_record_header(record)
        except (StoreError, CodecError) as error:
            log.error(
                "the log cannot be read at %d for transactions that were committed behind it: %s;"
                " their producers are asked again",
                physical_offset,
                error,
            )
            return
        half = by_physical_offset.get(header.prepared_transaction_offset)
        if half is not None and _settles(header, record):
            del by_physical_offset[half.physical_offset]
            loaded.halves.remove(half)
            loaded.unnamed_ended.append(half.queue_offset)
        physical_offset += header.total_size


def _settles(header: RecordHeader, record: memoryview) -> bool:
    """Whether a record that names a half message, or the offset 0, commits it or gives it up."""
    if header.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
        return True
    is_named = header.prepared_transaction_offset > 0
    return is_named and decode_message(record).topic == TRANS_CHECK_MAX_TIME_TOPIC


def _messages(store: MessageStore, topic: str, start: int) -> Iterator[StoredMessage]:
    """All readable messages of queue 0 from an offset on."""
    queue_offset, end = start, store.max_queue_offset(topic, 0)
    while queue_offset < end:
        try:
            result = store.get(topic, 0, queue_offset, _READ_COUNT, _READ_BYTES, allow_cold=True)
        except StoreError as error:
            log.error("%s cannot be read at %d: %s", topic, queue_offset, error)
            return
        if not isinstance(result, GetResult) or result.next_queue_offset <= queue_offset:
            return
        if result.status is GetStatus.FOUND:
            try:
                yield from decode_messages(b"".join(result.chunks))
            except CodecError as error:
                log.error(
                    "%s: messages %d to %d cannot be decoded: %s; run cometmq store verify",
                    topic,
                    queue_offset,
                    result.next_queue_offset - 1,
                    error,
                )
        queue_offset = result.next_queue_offset
