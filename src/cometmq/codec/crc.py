"""CRC-32 as RocketMQ stores it: the zlib polynomial with the top bit cleared.

Besides the body CRC a broker can end the properties of a record with a CRC over the whole
record (``enabledAppendPropCRC``; docs/internals/store.md#property-crc), always the last 20 bytes::

    0        8    9           19   20
    |__CRC32#|0x01|10 digits  |0x02|

The digits are decimal, least significant first, zero-filled: 1234567890 is ``0987654321``.
"""

import zlib
from typing import Final

__all__ = [
    "CRC_TAIL_BYTES",
    "body_crc",
    "decode_crc_tail",
    "encode_crc_tail",
    "is_record_crc_right",
]

CRC_TAIL_BYTES: Final = 20
_TAIL_HEAD: Final = b"__CRC32#\x01"
_MASK: Final = 0x7FFFFFFF


def body_crc(body: bytes | bytearray | memoryview) -> int:
    """Return CRC-32 of the bytes with bit 31 cleared; no bytes give 0."""
    return zlib.crc32(body) & _MASK


def encode_crc_tail(crc: int) -> bytes:
    """Return the 20-byte property entry that carries a record CRC."""
    return b"__CRC32#\x01%b\x02" % f"{crc & _MASK:010d}"[::-1].encode()


def decode_crc_tail(record: bytes | bytearray | memoryview) -> int | None:
    """Return the CRC a record ends with, or None when its last 20 bytes are no CRC entry."""
    tail = bytes(record[-CRC_TAIL_BYTES:])
    digits = tail[9:19]
    if len(tail) != CRC_TAIL_BYTES or not tail.startswith(_TAIL_HEAD) or tail[19] != 2:
        return None
    return int(digits[::-1]) if digits.isdigit() else None


def is_record_crc_right(record: bytes | bytearray | memoryview) -> bool | None:
    """Return whether the record matches its own CRC tail, None when it carries none."""
    expected = decode_crc_tail(record)
    if expected is None:
        return None
    return body_crc(record[:-CRC_TAIL_BYTES]) == expected
