"""RocketMQ's Bloom filter: a bitmap per message that says which groups' filters may match it.

Each pair of consumer group and topic has a few bit positions.  They are those that a Java broker
writes into ``consumerFilter.json`` and uses in the extension of its consume queues.

A broker that stores a message evaluates the filter of every group and sets the bits of those that
match.  A pull skips each message whose bitmap lacks one of its group's bits, without reading the
log.  The bits of several groups may cover those of another group, so a message whose bits are all
set only *may* match: the filter itself decides.

Sizes from the error rate f in percent and the expected number of groups n::

    k = ceil(ln(f/100) / ln(1/2))                     bits per group
    m = n * log2(100/f) * log2(e), up to whole bytes  bits of a bitmap

The defaults (20, 32) give k = 3, m = 112.  The key ``group#topic`` is hashed by MurmurHash3 (x64,
128 bits, seed 0); the first eight bytes are h1 (low) and h2 (high), and position i of k is
``h1 + i * h2`` as a wrapping 32-bit number, inverted where negative, modulo m.  Bit b is bit b % 8,
counted from the lowest, of byte b // 8.  Source: BloomFilter and BitsArray of RocketMQ 5.4, and
Guava's Hashing.murmur3_128.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cometmq.codec.cq_ext import CQ_EXT_BITMAP_BYTES_MAX
from cometmq.errors import ConfigError

__all__ = ["BloomFilter", "BloomKey"]

_MASK: Final = 0xFFFFFFFFFFFFFFFF
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F


@dataclass(frozen=True, slots=True)
class BloomKey:
    """The bit positions of one group and topic, and the size of the bitmaps they fit."""

    bit_count: int
    positions: tuple[int, ...]
    mask: int = field(init=False, repr=False, compare=False)
    """The positions as a number; a bitmap is a little-endian number."""

    def __post_init__(self) -> None:
        mask = 0
        # A file may contain anything: an invalid key gets no bits, and `is_valid` refuses it.
        if self.bit_count <= 8 * CQ_EXT_BITMAP_BYTES_MAX:
            for position in self.positions:
                mask |= 1 << position if 0 <= position < self.bit_count else 0
        object.__setattr__(self, "mask", mask)


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def _murmur3_low64(data: bytes) -> int:
    """Return the first half of MurmurHash3 x64 128 with seed 0, unsigned."""
    first = second = 0
    whole = len(data) // 16 * 16
    for start in range(0, whole, 16):
        low = int.from_bytes(data[start : start + 8], "little")
        high = int.from_bytes(data[start + 8 : start + 16], "little")
        first ^= _rotate(low * _C1 & _MASK, 31) * _C2 & _MASK
        first = ((_rotate(first, 27) + second) * 5 + 0x52DCE729) & _MASK
        second ^= _rotate(high * _C2 & _MASK, 33) * _C1 & _MASK
        second = ((_rotate(second, 31) + first) * 5 + 0x38495AB5) & _MASK
    tail = data[whole:]
    first ^= _rotate(int.from_bytes(tail[:8], "little") * _C1 & _MASK, 31) * _C2 & _MASK
    second ^= _rotate(int.from_bytes(tail[8:], "little") * _C2 & _MASK, 33) * _C1 & _MASK
    first ^= len(data)
    second ^= len(data)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    return (_mix(first) + _mix(second)) & _MASK


class BloomFilter:
    """Makes bit positions and bitmaps of one size."""

    def __init__(self, error_percent: int = 20, expected_count: int = 32) -> None:
        """Take RocketMQ's `maxErrorRateOfBloomFilter` and `expectConsumerNumUseFilter`.

        Raises:
            ConfigError: the rate is outside 1 to 99 percent, or the number of groups is below 1 or
                too high for the bitmaps.
        """
        if not 1 <= error_percent < 100:
            raise ConfigError(f"maxErrorRateOfBloomFilter={error_percent} is not within 1 to 99")
        if expected_count < 1:
            raise ConfigError(f"expectConsumerNumUseFilter={expected_count} is not 1 or more")
        self.error_percent = error_percent
        self.expected_count = expected_count
        rate = error_percent / 100.0
        # Divisions and products in Java's order: another rounding could change the result of ceil.
        self.hash_count = math.ceil(math.log(rate) / math.log(0.5))
        log2_rate = math.log(1 / rate) / math.log(2)
        bits = math.ceil(expected_count * log2_rate * (math.log(math.e) / math.log(2)))
        self.bit_count = 8 * math.ceil(bits / 8)
        if self.bit_count > 8 * CQ_EXT_BITMAP_BYTES_MAX:
            raise ConfigError(
                f"expectConsumerNumUseFilter={expected_count} with maxErrorRateOfBloomFilter="
                f"{error_percent} needs {self.bit_count} bits per message, a unit has room for"
                f" {8 * CQ_EXT_BITMAP_BYTES_MAX}; lower the first or raise the second"
            )

    def key(self, group: str, topic: str) -> BloomKey:
        """Return the bits of a group's subscription to a topic."""
        return self.key_of(f"{group}#{topic}")

    def key_of(self, text: str) -> BloomKey:
        """Return the bits of any text."""
        hashed = _murmur3_low64(text.encode("utf-8", "replace"))
        low, high = hashed & 0xFFFFFFFF, hashed >> 32
        positions: list[int] = []
        for number in range(1, self.hash_count + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            if combined & 0x80000000:
                combined ^= 0xFFFFFFFF
            positions.append(combined % self.bit_count)
        return BloomKey(self.bit_count, tuple(positions))

    def is_valid(self, key: BloomKey | None) -> bool:
        """Whether a key, perhaps read from a file, fits bitmaps of this size."""
        return (
            key is not None
            and key.bit_count == self.bit_count
            and len(key.positions) == self.hash_count
            and all(0 <= position < self.bit_count for position in key.positions)
        )

    def bitmap(self, keys: Iterable[BloomKey]) -> bytes:
        """Return the bitmap with the bits of these keys set."""
        bits = 0
        for key in keys:
            bits |= key.mask
        return bits.to_bytes(self.bit_count // 8, "little")

    def is_hit(self, key: BloomKey, bitmap: bytes) -> bool:
        """Whether all bits of a key are set: True means perhaps, False certainly not.

        A bitmap of another size comes from other settings and says nothing, so it is a hit.
        """
        if 8 * len(bitmap) != self.bit_count or key.bit_count != self.bit_count:
            return True
        return int.from_bytes(bitmap, "little") & key.mask == key.mask
