"""Packed batches: the messages of SEND_BATCH_MESSAGE become records in one loop.

A packed batch (codec/batch.py) is split, checked and encoded in one visit of each message.  For a
batch that is not simple (record_encoder.py) or not sound the result is None: `Appender.put_packed`
then encodes it in the general form, or raises what is wrong.

The length of a message's properties and the properties are adjacent, and the same bytes, in a
packed batch and in a record.  Here both are one piece, the message's *tail*::

    packed   |total |0 |0 |flag |body_length |body...|        |plen |properties...|
    record   |head ................ body_length |body...|topic...|plen |properties...|
                                                              ^ tail ............^
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from cometmq.codec.batch import BATCH_ITEM_OVERHEAD_BYTES
from cometmq.codec.consume_queue import units_struct
from cometmq.codec.stored_message import HEAD_WITH_ORIGIN_V4
from cometmq.store.append.record_encoder import LENGTHS_COUNT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.queue.consume_queue import ConsumeQueue

__all__ = ["PackedRecords", "encode_packed", "pack_units"]

# Unsigned: a negative length is a huge one, and nothing of that length is there.
_unpack_item: Final = struct.Struct(">I8xiI").unpack_from
_pack_head: Final = HEAD_WITH_ORIGIN_V4.pack
_HEAD_BYTES: Final = 20
_CRC_MASK: Final = 0x7FFFFFFF
_TAIL_HEAD_BYTES: Final = 2
# What a tail of each length has to begin with; shorter ones are none.
_TAIL_HEADS: Final = (None, None, *(count.to_bytes(2, "big") for count in range(LENGTHS_COUNT)))


class PackedRecords(NamedTuple):
    """The records of a packed batch."""

    records: bytes
    positions: list[int]
    """Physical offset of each."""
    sizes: list[int]
    tails: list[bytes]
    """Length of properties (2 bytes) and properties of each."""


def encode_packed(
    queue: ConsumeQueue,
    packed: bytes,
    position: int,
    body_bytes_max: int,
    sys_flag: int,
    born_ms: int,
    origin: bytes,
) -> PackedRecords | None:
    """Records of a packed batch that begins at a physical offset; None: not simple or not sound.

    `origin` is what `RecordEncoder.origin` gave for the connection.
    """
    place = 0
    end = len(packed)
    if end > body_bytes_max:
        # No body can be too long then.
        return None
    first = position
    queue_offset = queue.max
    magic, queue_id, topic_part = queue.magic, queue.queue_id, queue.topic_part
    # What a record is longer than its item.
    longer = queue.fixed_bytes - BATCH_ITEM_OVERHEAD_BYTES
    parts: list[bytes] = []
    sizes: list[int] = []
    tails: list[bytes] = []
    tail_heads = _TAIL_HEADS
    try:
        while place < end:
            total, flag, body_bytes = _unpack_item(packed, place)
            body_start = place + _HEAD_BYTES
            tail_start = body_start + body_bytes
            place += total
            tail = packed[tail_start:place]
            # One check for all lengths: the message must end exactly where the next one begins.
            if tail[:_TAIL_HEAD_BYTES] != tail_heads[len(tail)]:
                return None
            body = packed[body_start:tail_start]
            size = longer + total
            parts += (
                _pack_head(
                    size, magic, crc32(body) & _CRC_MASK, queue_id, flag, queue_offset, position,
                    sys_flag, born_ms, origin, body_bytes,
                ),
                body,
                topic_part,
                tail,
            )  # fmt: skip
            sizes.append(size)
            tails.append(tail)
            position += size
            queue_offset += 1
    except (struct.error, IndexError):
        # A head that is cut, or properties that are longer than simple ones.
        return None
    if place != end or not sizes:
        return None
    positions = list(accumulate(sizes[:-1], initial=first))
    return PackedRecords(b"".join(parts), positions, sizes, tails)


def pack_units(positions: Sequence[int], sizes: Sequence[int], codes: Sequence[int]) -> bytes:
    """Consume-queue units of records, in a row."""
    count = len(positions)
    flat: list[int] = [0] * (3 * count)
    flat[0::3] = positions
    flat[1::3] = sizes
    flat[2::3] = codes
    return units_struct(count).pack(*flat)
