"""Blocks of staged messages: their checks, their reading from the log, and their slices.

A slice is a run of a block's messages that the publisher appends in one turn of the loop.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.base.state import Refusal
from cometmq.broker.delay.waiting_items import AT_ONCE, wait_of
from cometmq.broker.send.batch_keys import may_wait
from cometmq.codec.batch import decode_batch
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, find_property
from cometmq.codec.stored_message import decode_message
from cometmq.errors import ResponseCode, StoreCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.delay.waiting_items import Item
    from cometmq.broker.extensions.staging.tokens import StagedBlock
    from cometmq.codec.stored_message import StoredMessage
    from cometmq.store.message_store import MessageStore

__all__ = [
    "StagedSlice",
    "StagedSlices",
    "check_block",
    "cut",
    "read_items",
    "read_slices",
]

SLICE_ROWS: Final = 1024
"""Messages that the publisher appends in one turn of the loop: about three milliseconds of work."""
SLICE_BYTES: Final = 256 * 1024
_TOTAL: Final = struct.Struct(">i")
_unpack_item: Final = struct.Struct(">i12xi").unpack_from
_HEAD_BYTES: Final = 20

_TRANSACTION: Final = b"TRAN_MSG"


class StagedSlice(NamedTuple):
    """Messages of a block that are appended together."""

    first: int
    """Number of the first message within the block."""
    rows: int
    packed: bytes
    """The messages in the layout of SEND_BATCH_MESSAGE, as they were staged."""
    wait: int = AT_ONCE
    """How all messages of the slice wait (`waiting_items`)."""


class StagedSlices(NamedTuple):
    """The slices of a block that are still to be appended, and its producer's time and host."""

    slices: list[StagedSlice]
    born_ms: int
    born_host: bytes


def check_block(data: bytes, check: Callable[[list[Item]], object] | None = None) -> int:
    """Count the messages of a block; `check` gets the items when a message may ask to wait.

    Raises:
        CodecError: the lengths in the block contradict each other.
        Refusal: a message asks for something that a batch cannot give.
    """
    # One search over the whole block: the usual block has none of these names anywhere.
    has_transaction, has_wait = _TRANSACTION + b"\x01" in data, may_wait(data)
    if not has_transaction and not has_wait:
        rows = _count(data)
        if rows:
            return rows
    # The slow path decodes each message, finds the unusual one and explains it.
    items = decode_batch(data)
    for number, (_, _, properties) in enumerate(items):
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise _illegal(
                number,
                f"its properties have {len(properties)} bytes, {PROPERTIES_BYTES_MAX} are allowed",
            )
        if has_transaction and find_property(properties, _TRANSACTION) not in (None, b"false"):
            raise _illegal(
                number,
                "it is transactional (TRAN_MSG), and a staged batch is a transaction already: "
                "stage it without, or send it with a TransactionProducer",
            )
    if has_wait and check is not None:
        check(items)
    return len(items)


def _count(data: bytes) -> int:
    """Count the messages of a block; 0 when a length is wrong."""
    position = rows = 0
    end = len(data)
    try:
        while position < end:
            total, body_bytes = _unpack_item(data, position)
            tail = position + _HEAD_BYTES + body_bytes
            properties_bytes = data[tail] << 8 | data[tail + 1]
            if (
                body_bytes < 0
                or properties_bytes > PROPERTIES_BYTES_MAX
                or total != _HEAD_BYTES + body_bytes + 2 + properties_bytes
            ):
                return 0
            position += total
            rows += 1
    except (struct.error, IndexError):
        return 0
    return rows if position == end else 0


def _illegal(number: int, why: str) -> Refusal:
    return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"message {number} of the block is illegal: {why}")


def read_items(store: MessageStore, block: StagedBlock) -> list[tuple[int, bytes, bytes]]:
    """Flag, body and properties of each message of a block, read from the log.  May block.

    Raises:
        StoreCorrupt: the log has no record there.
        CodecError: the record or the block in it is damaged.
    """
    return decode_batch(_read(store, block).body)


def read_slices(store: MessageStore, block: StagedBlock, first: int, now_ms: int) -> StagedSlices:
    """The slices of a block from its message number `first` on.  May block, so a worker calls it.

    Raises:
        StoreCorrupt: the log has no record there.
        CodecError: the record or the block in it is damaged.
    """
    message = _read(store, block)
    slices = cut(message.body, first, now_ms)
    return StagedSlices(slices, message.born_timestamp_ms, message.born_host)


def cut(packed: bytes, first: int, now_ms: int) -> list[StagedSlice]:
    """Cut a packed batch, from its message number `first` on, into slices of whole messages.

    All messages of a slice wait in the same way.
    """
    slices: list[StagedSlice] = []
    position = begin = count = skipped = 0
    end = len(packed)
    is_mixed = may_wait(packed)
    wait = following = AT_ONCE
    while position < end:
        (size,) = _TOTAL.unpack_from(packed, position)
        if skipped < first:
            skipped += 1
            position += size
            begin = position
            continue
        if is_mixed:
            following = _wait_at(packed, position, size, now_ms)
        if count and (
            count == SLICE_ROWS or position + size - begin > SLICE_BYTES or following != wait
        ):
            slices.append(StagedSlice(first, count, packed[begin:position], wait))
            first += count
            skipped = first
            begin, count = position, 0
        wait = following
        count += 1
        position += size
    if count:
        slices.append(StagedSlice(first, count, packed[begin:position], wait))
    return slices


def _wait_at(packed: bytes, position: int, size: int, now_ms: int) -> int:
    """How the message at this position of a packed batch waits."""
    _, body_bytes = _unpack_item(packed, position)
    properties = packed[position + _HEAD_BYTES + body_bytes + 2 : position + size]
    return wait_of(properties, now_ms)


def _read(store: MessageStore, block: StagedBlock) -> StoredMessage:
    record = store.message_at(block.physical_offset)
    if record is None:
        raise StoreCorrupt(
            f"no staged block is at physical offset {block.physical_offset} any more"
        )
    # The CRC finds a damaged length before anyone cuts the block by it.
    return decode_message(record, check_crc=True)
