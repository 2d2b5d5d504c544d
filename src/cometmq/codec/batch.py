"""Body of SEND_BATCH_MESSAGE: small messages back to back, without topic or queue.

Per message, big-endian (``MessageDecoder.encodeMessage``; docs/internals/protocol.md#batch-body)::

    0      4      8      12     16            20        20+b   22+b
    |total |magic |crc   |flag  |body_length  |body...  |plen  |properties...|

magic and crc are 0 here; the broker computes the CRC and adds queue, offsets, times and hosts
from the request.
"""

import struct
from collections.abc import Iterable
from typing import Final

from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.errors import CodecError, LocalProtocolError

__all__ = ["BATCH_ITEM_OVERHEAD_BYTES", "decode_batch", "encode_batch"]

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES_LENGTH: Final = struct.Struct(">h")
_HEAD_BYTES: Final = 20
BATCH_ITEM_OVERHEAD_BYTES: Final = 22


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the batch body of (flag, body, encoded properties) items.

    Raises:
        LocalProtocolError: the properties of an item are too long.
    """
    parts: list[bytes] = []
    for flag, body, properties in items:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise LocalProtocolError(
                f"message {len(parts) // 4} of the batch has {len(properties)} bytes of"
                f" properties; the limit is {PROPERTIES_BYTES_MAX}"
            )
        total = BATCH_ITEM_OVERHEAD_BYTES + len(body) + len(properties)
        parts += (
            _HEAD.pack(total, 0, 0, flag, len(body)),
            body,
            _PROPERTIES_LENGTH.pack(len(properties)),
            properties,
        )
    return b"".join(parts)


def decode_batch(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (flag, body, encoded properties) of every message of a batch body.

    Raises:
        CodecError: the lengths do not fit, or the body is empty: a batch without messages has no
            answer. The text names message and byte.
    """
    items: list[tuple[int, bytes, bytes]] = []
    position = 0
    end = len(body)
    while position < end:
        if position + BATCH_ITEM_OVERHEAD_BYTES > end:
            raise _broken(items, position, f"{end - position} bytes left, at least 22 needed")
        total, _, _, flag, body_bytes = _HEAD.unpack_from(body, position)
        item_end = position + total
        body_start = position + _HEAD_BYTES
        body_end = body_start + body_bytes
        if body_bytes < 0 or item_end > end or body_end + 2 > item_end:
            raise _broken(
                items, position, f"total {total}, body {body_bytes}, {end - position} bytes left"
            )
        properties_bytes = (body[body_end] << 8) | body[body_end + 1]
        properties_start = body_end + 2
        if properties_start + properties_bytes != item_end:
            raise _broken(
                items,
                position,
                f"total {total} but body {body_bytes} and properties {properties_bytes}",
            )
        items.append((flag, body[body_start:body_end], body[properties_start:item_end]))
        position = item_end
    if not items:
        raise CodecError("the batch body is empty; a batch holds at least one message")
    return items


def _broken(items: list[tuple[int, bytes, bytes]], position: int, reason: str) -> CodecError:
    return CodecError(f"batch message {len(items)} at byte {position} is broken: {reason}")
