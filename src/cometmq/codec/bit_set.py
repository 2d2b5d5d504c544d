"""Java's ``BitSet`` as bytes and as the base64 text that BATCH_ACK_MESSAGE carries.

Little-endian: bit i is bit ``i % 8`` of byte ``i // 8``, and trailing zero bytes are left out
(``java.util.BitSet.toByteArray``; wire.md 3.11).
"""

import base64
import binascii
from collections.abc import Iterable

from cometmq.errors import CodecError, LocalProtocolError

__all__ = ["decode_bit_set", "encode_bit_set"]


def encode_bit_set(bits: Iterable[int]) -> str:
    """Return the base64 text of a set of non-negative numbers."""
    value = 0
    for bit in bits:
        if bit < 0:
            raise LocalProtocolError(f"bit {bit} of a bit set is negative")
        value |= 1 << bit
    return base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode()


def decode_bit_set(text: str) -> list[int]:
    """Return the numbers of a bit set in ascending order; raises CodecError when it is none."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CodecError(f"{text[:80]!r} is no bit set in base64: {error}") from None
    return [
        8 * position + bit
        for position, byte in enumerate(raw)
        for bit in range(8)
        if byte >> bit & 1
    ]
