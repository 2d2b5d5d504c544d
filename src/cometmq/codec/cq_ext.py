"""Extension files of a consume queue: consecutive units, and the end of a file.

`cometmq.codec.consume_queue` has the layout of a unit and of its address.

A file of F bytes; its name is the position of its first byte in the sequence of files::

    0       20           54                          F-4   F
    |unit   |unit        |...       |-1|             |     |

A unit of s bytes at position p fits when ``s <= F - p - 4``. Where the next unit does not fit, the
short -1 ends the file; four bytes are always free for it. Bytes never written are zeros. A unit
without a bitmap has 20 bytes, others more. Source: ConsumeQueueExt of RocketMQ 5.4, and the files
its broker wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import compress
from typing import Final, NamedTuple

from cometmq.codec.consume_queue import (
    CQ_EXT_END_BLANK,
    CQ_EXT_HEAD_BYTES,
    CqExtUnit,
    decode_cq_ext_unit,
)

__all__ = [
    "CQ_EXT_BITMAP_BYTES_MAX",
    "CQ_EXT_END_BLANK_BYTES",
    "BitmapHint",
    "PlacedCqExtUnit",
    "encode_cq_ext_end_blank",
    "has_cq_ext_room",
    "uniform_count",
    "units_that_may_match",
    "walk_cq_ext",
]

CQ_EXT_END_BLANK_BYTES: Final = 4
CQ_EXT_BITMAP_BYTES_MAX: Final = 32_767 - 20
"""A unit's size is a signed short."""
_SHORT: Final = struct.Struct(">h")
_TIME: Final = struct.Struct(">q")
_TIME_POSITION: Final = 10
_IS_BIT_SET: Final = [bytes([value >> bit & 1 for value in range(256)]) for bit in range(8)]
"""For each bit of a byte: the table with which `bytes.translate` makes 1 of bytes that have it."""


class PlacedCqExtUnit(NamedTuple):
    """A unit with its position in the sequence of files, in bytes."""

    file_position: int
    unit_bytes: int
    unit: CqExtUnit


class BitmapHint(NamedTuple):
    """Which bits a unit's bitmap must have if its message may match a filter."""

    positions: tuple[int, ...]
    """Bits that are all set if the message matches."""
    bitmap_bytes: int
    """Bitmaps of another size belong to other filters and say nothing."""
    born_ms: int
    """Units of messages stored at this time or before say nothing: the filter is younger."""

    def may_match(self, unit: CqExtUnit | None) -> bool:
        """Return False if the message certainly does not match; None has no bitmap."""
        if unit is None or unit.store_time_ms <= self.born_ms:
            return True
        bitmap = unit.bitmap
        if len(bitmap) != self.bitmap_bytes:
            return True
        return all(bitmap[position >> 3] >> (position & 7) & 1 for position in self.positions)


def units_that_may_match(raw: bytes | bytearray, count: int, hint: BitmapHint) -> list[int] | None:
    """Return the indexes of the units in `raw` whose messages may match.

    `raw` holds `count` units one after the other. Returns None unless all of them have a bitmap of
    the hint's size. Equally long units are tested column by column, at 0.02 us a unit.
    """
    unit_bytes = CQ_EXT_HEAD_BYTES + hint.bitmap_bytes
    if len(raw) != count * unit_bytes or uniform_count(raw, unit_bytes) != count:
        return None
    bits = (1 << 8 * count) - 1
    for position in hint.positions:
        column = raw[CQ_EXT_HEAD_BYTES + (position >> 3) :: unit_bytes]
        bits &= int.from_bytes(column.translate(_IS_BIT_SET[position & 7]), "big")
    marks = bits.to_bytes(count, "big")
    # Units are written in the order of their messages: if the filter is older than the first and
    # the last unit, it is older than all.
    first_ms = _TIME.unpack_from(raw, _TIME_POSITION)[0]
    last_ms = _TIME.unpack_from(raw, (count - 1) * unit_bytes + _TIME_POSITION)[0]
    if first_ms > hint.born_ms and last_ms > hint.born_ms:
        return _marked(marks)
    starts = range(0, count * unit_bytes, unit_bytes)
    is_early = [
        _TIME.unpack_from(raw, start + _TIME_POSITION)[0] <= hint.born_ms for start in starts
    ]
    return [index for index in range(count) if is_early[index] or marks[index]]


def uniform_count(raw: bytes | bytearray, unit_bytes: int) -> int:
    """Return how many units at the front of `raw` have this size and a bitmap that fills it."""
    count = len(raw) // unit_bytes
    sizes = (unit_bytes >> 8, unit_bytes & 0xFF)
    bitmap = unit_bytes - CQ_EXT_HEAD_BYTES
    columns = ((0, sizes[0]), (1, sizes[1]), (18, bitmap >> 8), (19, bitmap & 0xFF))
    for position, expected in columns:
        column = raw[position : count * unit_bytes : unit_bytes]
        if column.count(expected) != len(column):
            count = len(column) - len(column.lstrip(bytes([expected])))
    return count


def _marked(marks: bytes) -> list[int]:
    """Return the indexes of the ones; usually they are few."""
    if 8 * marks.count(1) > len(marks):
        return list(compress(range(len(marks)), marks))
    indexes: list[int] = []
    index = marks.find(1)
    while index >= 0:
        indexes.append(index)
        index = marks.find(1, index + 1)
    return indexes


def has_cq_ext_room(position: int, unit_bytes: int, file_bytes: int) -> bool:
    """Whether a unit fits at this position of a file; otherwise the end blank goes there."""
    return unit_bytes <= file_bytes - position - CQ_EXT_END_BLANK_BYTES


def encode_cq_ext_end_blank() -> bytes:
    """Return the short that ends a file."""
    return _SHORT.pack(CQ_EXT_END_BLANK)


def walk_cq_ext(
    buffer: bytes | bytearray | memoryview, first_position: int = 0
) -> Iterator[PlacedCqExtUnit]:
    """Yield the units of one file up to its end blank or the first bytes never written.

    Args:
        buffer: the file, or its beginning.
        first_position: the number in the file's name.

    Raises:
        CodecError: a unit does not decode; the units before it were sound.
    """
    position = 0
    while position + _SHORT.size <= len(buffer):
        if _SHORT.unpack_from(buffer, position)[0] <= 0:
            return
        unit, unit_bytes = decode_cq_ext_unit(buffer, position)
        yield PlacedCqExtUnit(first_position + position, unit_bytes, unit)
        position += unit_bytes
