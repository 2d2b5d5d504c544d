"""Encodes packed batches: one loop turns the messages of SEND_BATCH_MESSAGE into records.

The loop splits, checks and encodes each message of a packed batch (codec/batch.py).  It returns
None for a batch that is not simple (record_encoder.py) or not sound; `Appender.put_packed` then
encodes the batch in the general form, or raises an error that says what is wrong.

A message ends with the length of its properties and the properties, in a packed batch and in a
record with the same bytes.  These bytes are the message's *tail*::

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
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.codec.stored_message import HEAD_WITH_ORIGIN_V4

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.queue.consume_queue import ConsumeQueue

__all__ = ["PackedRecords", "encode_packed", "pack_units"]

# Unsigned, so a negative length is a huge one, for which the batch is too short.
_unpack_item: Final = struct.Struct(">I8xiI").unpack_from
_pack_head: Final = HEAD_WITH_ORIGIN_V4.pack
_HEAD_BYTES: Final = 20
_CRC_MASK: Final = 0x7FFFFFFF
_TAIL_HEAD_BYTES: Final = 2


class PackedRecords(NamedTuple):
    """The records of a packed batch."""

    records: bytes
    positions: list[int]
    """Physical offset of each record."""
    sizes: list[int]
    tails: list[bytes]
    """The tail of each message: length of the properties (2 bytes) and properties."""


def encode_packed(
    queue: ConsumeQueue,
    packed: bytes,
    position: int,
    body_bytes_max: int,
    sys_flag: int,
    born_ms: int,
    origin: bytes,
) -> PackedRecords | None:
    """Encode a packed batch; return None when it is not simple or not sound.

    Args:
        position: physical offset of the first record.
        origin: the result of `RecordEncoder.origin` for the connection.
    """
    at = 0
    end = len(packed)
    if end > body_bytes_max:
        # A body may be too long; in a shorter batch none is.
        return None
    first = position
    queue_offset = queue.max
    magic, queue_id, topic_part = queue.magic, queue.queue_id, queue.topic_part
    # A record has so many bytes more than its message in the batch.
    excess = queue.fixed_bytes - BATCH_ITEM_OVERHEAD_BYTES
    parts: list[bytes] = []
    sizes: list[int] = []
    tails: list[bytes] = []
    try:
        while at < end:
            total, flag, body_bytes = _unpack_item(packed, at)
            body_start = at + _HEAD_BYTES
            tail_start = body_start + body_bytes
            at += total
            tail = packed[tail_start:at]
            # This one check covers all lengths: they must add up to the message's total.
            properties_bytes = int.from_bytes(tail[:_TAIL_HEAD_BYTES], "big")
            if (
                properties_bytes != len(tail) - _TAIL_HEAD_BYTES
                or properties_bytes > PROPERTIES_BYTES_MAX
            ):
                return None
            body = packed[body_start:tail_start]
            size = excess + total
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
    except struct.error:
        # The last head is cut.
        return None
    if at != end or not sizes:
        return None
    positions = list(accumulate(sizes[:-1], initial=first))
    return PackedRecords(b"".join(parts), positions, sizes, tails)


def pack_units(positions: Sequence[int], sizes: Sequence[int], codes: Sequence[int]) -> bytes:
    """Return the consume-queue units of records, joined."""
    count = len(positions)
    flat: list[int] = [0] * (3 * count)
    flat[0::3] = positions
    flat[1::3] = sizes
    flat[2::3] = codes
    return units_struct(count).pack(*flat)
