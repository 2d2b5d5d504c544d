"""Consume-queue unit and its optional extension: the position of a queue's message in the log.

Unit, 20 bytes, big-endian (``ConsumeQueue``; docs/internals/store.md#consume-queue)::

    0                8        12               20
    |physical_offset |size    |tags_code       |

A unit is valid when physical_offset >= 0 and size > 0; unwritten space is zeros.  A queue whose
head is lost begins with pre-blank units (0, 0x7FFFFFFF, 0), which pass that test.

Extension unit, 20 bytes and more (``ConsumeQueueExt.CqExtUnit``;
docs/internals/store.md#extension-units)::

    0    2                10               18   20
    |size|tags_code       |store_time_ms   |bits|bitmap...|

Its address is stored in the unit's tags_code as ``file_position + Long.MIN_VALUE``.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from cometmq.errors import CodecError
from cometmq.model.offsets import PhysicalOffset

__all__ = [
    "CQ_EXT_ADDRESS_MAX",
    "CQ_EXT_END_BLANK",
    "CQ_EXT_HEAD",
    "CQ_EXT_HEAD_BYTES",
    "CQ_UNIT",
    "CQ_UNIT_BYTES",
    "CQ_UNIT_FIELDS",
    "PRE_BLANK_SIZE",
    "CqExtUnit",
    "CqUnit",
    "decode_cq_ext_address",
    "decode_cq_ext_unit",
    "encode_cq_ext_address",
    "encode_cq_ext_unit",
    "encode_pre_blank_unit",
    "is_cq_ext_address",
    "units_struct",
]

CQ_UNIT: Final = struct.Struct(
    ">"
    "q"  # physical_offset
    "i"  # size: bytes of the record
    "q"  # tags_code: Java hash of TAGS, delivery time of a delayed message, or extension address
)
CQ_UNIT_BYTES: Final = 20
CQ_UNIT_FIELDS: Final = [("position", ">i8"), ("size", ">i4"), ("code", ">i8")]
"""The same layout for a structured array of numpy."""
_UNITS: Final = [struct.Struct(">" + "qiq" * count) for count in range(257)]
PRE_BLANK_SIZE: Final = 0x7FFFFFFF

CQ_EXT_HEAD: Final = struct.Struct(
    ">"
    "h"  # size: bytes of this unit
    "q"  # tags_code
    "q"  # store_time_ms
    "h"  # bitmap bytes
)
CQ_EXT_HEAD_BYTES: Final = 20
# Written as a short where the rest of an extension file stays empty.
CQ_EXT_END_BLANK: Final = -1
_LONG_MIN: Final = -(2**63)
# Tag codes are 32-bit, so every number below them is free to mean an address.
CQ_EXT_ADDRESS_MAX: Final = -(2**31) - 1


class CqUnit(NamedTuple):
    """One consume-queue unit."""

    physical_offset: PhysicalOffset
    size: int
    tags_code: int

    @property
    def is_valid(self) -> bool:
        """Whether the unit points at a record; by its fields a pre-blank unit does too."""
        return self.physical_offset >= 0 and self.size > 0


class CqExtUnit(NamedTuple):
    """One unit of a consume-queue extension file."""

    tags_code: int
    store_time_ms: int
    bitmap: bytes


def units_struct(count: int) -> struct.Struct:
    """Return the layout of several units in a row; the usual counts are prepared."""
    return _UNITS[count] if count < len(_UNITS) else _many_units(count)


@lru_cache(maxsize=64)
def _many_units(count: int) -> struct.Struct:
    return struct.Struct(">" + "qiq" * count)


def encode_pre_blank_unit() -> bytes:
    """Return the unit that fills the lost head of a queue's first file."""
    return CQ_UNIT.pack(0, PRE_BLANK_SIZE, 0)


def is_cq_ext_address(tags_code: int) -> bool:
    """Whether a unit's tags_code is the address of an extension unit."""
    return tags_code <= CQ_EXT_ADDRESS_MAX


def encode_cq_ext_address(file_position: int) -> int:
    """Return the tags_code that points at a byte of the extension files."""
    return file_position + _LONG_MIN


def decode_cq_ext_address(tags_code: int) -> int:
    """Return the byte of the extension files a tags_code points at."""
    return tags_code - _LONG_MIN


def encode_cq_ext_unit(tags_code: int, store_time_ms: int, bitmap: bytes = b"") -> bytes:
    """Return the bytes of an extension unit."""
    size = CQ_EXT_HEAD_BYTES + len(bitmap)
    return CQ_EXT_HEAD.pack(size, tags_code, store_time_ms, len(bitmap)) + bitmap


def decode_cq_ext_unit(
    buffer: bytes | bytearray | memoryview, position: int = 0
) -> tuple[CqExtUnit, int]:
    """Return the extension unit at a position and its size.

    Raises:
        CodecError: its size does not fit its bitmap or the buffer.
    """
    if position < 0 or position + CQ_EXT_HEAD_BYTES > len(buffer):
        raise CodecError(
            f"consume-queue extension unit at position {position} needs {CQ_EXT_HEAD_BYTES}"
            f" bytes, the buffer has {len(buffer)}"
        )
    size, code, store_time_ms, bitmap_bytes = CQ_EXT_HEAD.unpack_from(buffer, position)
    end = position + size
    if bitmap_bytes < 0 or size != CQ_EXT_HEAD_BYTES + bitmap_bytes or end > len(buffer):
        raise CodecError(
            f"consume-queue extension unit at position {position}: size {size} does not fit its"
            f" bitmap of {bitmap_bytes} bytes in a buffer of {len(buffer)}"
        )
    bitmap = bytes(buffer[position + CQ_EXT_HEAD_BYTES : end])
    return CqExtUnit(code, store_time_ms, bitmap), size
