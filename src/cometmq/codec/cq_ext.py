"""Extension files of a consume queue: units one behind the other, and how a file ends.

Job: walk a file's bytes, and say what goes where when one is written.  Unit and address are in
`cometmq.codec.consume_queue`.

A file of F bytes; its name is its first position in the sequence of files::

    0       20           54                          F-4   F
    |unit   |unit        |...       |-1|             |     |

A unit of s bytes at position p fits when ``s <= F - p - 4``.  Where the next one does not fit, the
short -1 is written and the rest of the file is left; the four bytes are always free for it.  What
was never written is zeros.  Units need not be of one size: 20 bytes without a bitmap, more with.
Source: ConsumeQueueExt of RocketMQ 5.4, and the files its broker left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from cometmq.codec.consume_queue import CQ_EXT_END_BLANK, CqExtUnit, decode_cq_ext_unit

__all__ = [
    "CQ_EXT_BITMAP_BYTES_MAX",
    "CQ_EXT_END_BLANK_BYTES",
    "PlacedCqExtUnit",
    "encode_cq_ext_end_blank",
    "has_cq_ext_room",
    "walk_cq_ext",
]

CQ_EXT_END_BLANK_BYTES: Final = 4
CQ_EXT_BITMAP_BYTES_MAX: Final = 32_767 - 20
"""A unit's size is a signed short."""
_SHORT: Final = struct.Struct(">h")


class PlacedCqExtUnit(NamedTuple):
    """A unit with its place in the sequence of files, in bytes."""

    file_position: int
    unit_bytes: int
    unit: CqExtUnit


def has_cq_ext_room(position: int, unit_bytes: int, file_bytes: int) -> bool:
    """Whether a unit goes behind what a file has; else the end blank does, and a new file."""
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
        CodecError: a unit does not decode; what came before it was sound.
    """
    position = 0
    while position + _SHORT.size <= len(buffer):
        if _SHORT.unpack_from(buffer, position)[0] <= 0:
            return
        unit, unit_bytes = decode_cq_ext_unit(buffer, position)
        yield PlacedCqExtUnit(first_position + position, unit_bytes, unit)
        position += unit_bytes
