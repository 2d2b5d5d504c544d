"""Blocks of staged messages: taken apart, checked, and read back from the log.

Job: what a block may hold, and its messages in the slices that are appended.  It must not put
anything.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.state import Refusal
from cometmq.codec.batch import decode_batch
from cometmq.codec.properties import PROPERTIES_BYTES_MAX, find_property
from cometmq.codec.stored_message import decode_message
from cometmq.errors import ResponseCode, StoreCorrupt

if TYPE_CHECKING:
    from cometmq.broker.staged_tokens import StagedBlock
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
"""Messages appended in one turn of the loop: some three milliseconds of work."""
SLICE_BYTES: Final = 256 * 1024
_TOTAL: Final = struct.Struct(">i")
_unpack_item: Final = struct.Struct(">i12xi").unpack_from
_HEAD_BYTES: Final = 20

_SPECIAL: Final = {
    b"TIMER_DELIVER_MS": "delivery at an exact time",
    b"TIMER_DELAY_MS": "delivery at an exact time",
    b"TIMER_DELAY_SEC": "delivery at an exact time",
    b"DELAY": "a delay level",
    b"TRAN_MSG": "a transaction",
}
"""Properties by which a broker treats a message otherwise, and what they ask for."""
_NOTHING_SPECIAL: Final = (None, b"0", b"false")


class StagedSlice(NamedTuple):
    """Messages of a block that are appended together."""

    first: int
    """Number of the first one within its block."""
    rows: int
    packed: bytes
    """As they were staged: laid out as in SEND_BATCH_MESSAGE."""


class StagedSlices(NamedTuple):
    """What is left of a block, and where it came from."""

    slices: list[StagedSlice]
    born_ms: int
    born_host: bytes


def check_block(data: bytes) -> int:
    """How many messages a block has.

    Raises:
        CodecError: its lengths do not fit.
        Refusal: a message asks for something that a batch cannot give.
    """
    # One look at all of them: the usual block has none of these names in it anywhere.
    suspects = [name for name in _SPECIAL if name + b"\x01" in data]
    if not suspects:
        rows = _count(data)
        if rows:
            return rows
    # What is unusual is found, or explained, at leisure.
    items = decode_batch(data)
    for number, (_, body, properties) in enumerate(items):
        if not body:
            raise _illegal(number, "it has no body; send at least one byte")
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise _illegal(
                number,
                f"its properties have {len(properties)} bytes, {PROPERTIES_BYTES_MAX} are allowed",
            )
        for name in suspects:
            if find_property(properties, name) not in _NOTHING_SPECIAL:
                raise _illegal(
                    number,
                    f"{_SPECIAL[name]} ({name.decode()}) is not supported for staged messages by "
                    "this version of CometMQ; send it with a Producer, or without",
                )
    return len(items)


def _count(data: bytes) -> int:
    """How many messages a block has; 0 when it is not sound, or one has no body."""
    position = rows = 0
    end = len(data)
    try:
        while position < end:
            total, body_bytes = _unpack_item(data, position)
            tail = position + _HEAD_BYTES + body_bytes
            properties_bytes = data[tail] << 8 | data[tail + 1]
            if (
                body_bytes <= 0
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
    """Flag, body and properties of each message of a block, read back from the log.  May block.

    Raises:
        StoreCorrupt, CodecError: it is not there any more as it was.
    """
    return decode_batch(_read(store, block).body)


def read_slices(store: MessageStore, block: StagedBlock, first: int) -> StagedSlices:
    """A block from its message number `first` on, in slices.  May block: for a worker.

    Raises as `read_items`.
    """
    message = _read(store, block)
    slices = cut(message.body, first)
    return StagedSlices(slices, message.born_timestamp_ms, message.born_host)


def cut(packed: bytes, first: int) -> list[StagedSlice]:
    """Slices of a packed batch from its message number `first` on, cut between messages."""
    slices: list[StagedSlice] = []
    position = begin = count = skipped = 0
    end = len(packed)
    while position < end:
        (size,) = _TOTAL.unpack_from(packed, position)
        if skipped < first:
            skipped += 1
            position += size
            begin = position
            continue
        if count and (count == SLICE_ROWS or position + size - begin > SLICE_BYTES):
            slices.append(StagedSlice(first, count, packed[begin:position]))
            first += count
            skipped = first
            begin, count = position, 0
        count += 1
        position += size
    if count:
        slices.append(StagedSlice(first, count, packed[begin:position]))
    return slices


def _read(store: MessageStore, block: StagedBlock) -> StoredMessage:
    found = store.message_at(block.physical_offset)
    if found is None:
        raise StoreCorrupt(
            f"no staged block is at physical offset {block.physical_offset} any more"
        )
    return decode_message(found)
