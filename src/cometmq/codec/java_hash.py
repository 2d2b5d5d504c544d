"""Java's ``String.hashCode`` and the three numbers RocketMQ derives from it.

``h = 31 * h + u`` over the UTF-16 code units, wrapped to a signed 32-bit integer
(``java.lang.String``; docs/internals/protocol.md#tag-hash).  A character outside the basic plane
counts as its two surrogates, and hashing UTF-8 bytes instead (as the Go client does) gives other
numbers.
"""

import struct
from functools import lru_cache
from typing import Final

__all__ = ["index_key_hash", "java_hash", "tags_code"]

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
# Tags are few and repeat with every message; 8,192 short strings stay below 1 MB.
_TAG_CACHE_COUNT: Final = 8192


def java_hash(text: str) -> int:
    """Return Java's ``hashCode`` of a string as a signed 32-bit integer; ``""`` gives 0."""
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & _MASK
    else:
        raw = text.encode("utf-16-be", "surrogatepass")
        for unit in struct.unpack(f">{len(raw) // 2}H", raw):
            value = (31 * value + unit) & _MASK
    return value - ((value & _SIGN) << 1)


@lru_cache(maxsize=_TAG_CACHE_COUNT)
def tags_code(tags: str | None) -> int:
    """Return the consume-queue tag code of a TAGS property; absent and empty give 0."""
    return java_hash(tags) if tags else 0


def index_key_hash(key: str) -> int:
    """Return the non-negative key hash of an index entry; -2**31 has no absolute value: 0."""
    value = java_hash(key)
    if value >= 0:
        return value
    return 0 if value == -_SIGN else -value
