"""Runs of records: the bytes that a pull sends, taken from the log without copies.

Given positions and sizes from units, `RecordRuns.chunks` returns the bytes of their records, if
these are in memory and are the records of the units.  Adjacent records are one chunk, a *run*.

A unit that was read from a file may be wrong.  In a run, each record begins where the one before
ends.  The first and the last record of each run are compared with their units (size and physical
offset).  That detects any single wrong unit, since it would not fit between its neighbours.  Java
serves the bytes to which a wrong unit leads.
"""

from __future__ import annotations

import struct
from operator import add, ne
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_EXT_ADDRESS_MAX, CQ_UNIT_BYTES, units_struct
from cometmq.codec.stored_message import (
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_POSITION,
    decode_message,
)
from cometmq.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.model.offsets import PhysicalOffset
    from cometmq.store.log.commit_log import CommitLog

__all__ = [
    "RECORD_CHECK",
    "RECORD_MAGICS",
    "SPAN_BYTES_MAX",
    "RecordRuns",
    "inner_fault",
    "record_fault",
    "select_units",
]

# Of a record's head: total size, magic, physical offset (at 28).
RECORD_CHECK: Final = struct.Struct(">ii20xq")
assert RECORD_CHECK.size == PHYSICAL_OFFSET_POSITION + 8
RECORD_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
# Records of one answer that lie within this many bytes are read together.
SPAN_BYTES_MAX: Final = 512 << 10
_FILTER_BLOCK_UNITS: Final = 64


def select_units(
    raw: bytes | bytearray,
    start: int,
    count: int,
    codes: frozenset[int],
    max_count: int,
    max_bytes: int,
) -> tuple[list[PhysicalOffset], list[int], int] | None:
    """Select the units with a wanted tags code: positions, sizes, and how many were examined.

    Returns None when a code is the address of an extension unit, or a unit is not a valid one.
    """
    positions: list[PhysicalOffset] = []
    sizes: list[int] = []
    byte_count = 0
    done = 0
    while done < count:
        block = min(_FILTER_BLOCK_UNITS, count - done)
        units = units_struct(block).unpack_from(raw, (start + done) * CQ_UNIT_BYTES)
        block_codes = units[2::3]
        if min(block_codes) <= CQ_EXT_ADDRESS_MAX or min(units[1::3]) <= 0:
            return None
        if not codes.isdisjoint(block_codes):
            for index, code in enumerate(block_codes):
                if code not in codes:
                    continue
                size = units[3 * index + 1]
                if sizes and (len(sizes) >= max_count or byte_count + size > max_bytes):
                    return positions, sizes, done + index
                positions.append(units[3 * index])
                sizes.append(size)
                byte_count += size
        done += block
    return positions, sizes, count


class RecordRuns:
    """Returns runs of records of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.damaged: list[tuple[int, int]] = []
        """Damaged stretches of the log, begin and end; a record that touches one is checked."""

    def chunks(
        self, positions: Sequence[PhysicalOffset], sizes: Sequence[int], byte_count: int
    ) -> list[memoryview] | None:
        """Return the bytes of these records, a chunk for each run.

        Returns None when they are not in memory, or a check fails.
        """
        start, last = positions[0], positions[-1]
        span = last + sizes[-1] - start
        if span < byte_count or start < self._log.min_offset:
            return None
        if self.damaged and self.touches_damage(start, start + span):
            return None
        around: memoryview | None = None
        if span <= SPAN_BYTES_MAX or span == byte_count:
            around = self._log.read_resident(start, span)
            if around is None or len(around) != span:
                return None
            if span == byte_count:
                is_sound = self.holds(around, 0, start, sizes[0]) and (
                    self.holds(around, last - start, last, sizes[-1])
                )
                return [around] if is_sound else None
            # With records of other queues between most of them, runs have one record each.
            if self._are_apart(positions, sizes):
                return self._apart(around, start, positions, sizes)
        chunks: list[memoryview] = []
        run_start, run_first, last_position, size = start, sizes[0], start, sizes[0]
        run_end: int = start
        for position, length in zip(positions, sizes, strict=True):
            if position != run_end:
                chunk = self._run(around, start, run_start, run_end, run_first, last_position, size)
                if chunk is None:
                    return None
                chunks.append(chunk)
                run_start, run_end, run_first = position, position, length
            last_position, size = position, length
            run_end += length
        chunk = self._run(around, start, run_start, run_end, run_first, last_position, size)
        if chunk is None:
            return None
        chunks.append(chunk)
        return chunks

    def resident(self, start: PhysicalOffset, size: int) -> memoryview | None:
        """Return bytes of the log without damage; None when they are not in memory or damaged."""
        if start < self._log.min_offset:
            return None
        if self.damaged and self.touches_damage(start, start + size):
            return None
        return self._log.view_resident(start, size)

    @staticmethod
    def _are_apart(positions: Sequence[int], sizes: Sequence[int]) -> bool:
        """Return whether more than a third of the records do not follow the one before."""
        breaks: int = sum(map(ne, map(add, positions, sizes), positions[1:]))
        return breaks * 3 > len(positions)

    @staticmethod
    def _apart(
        around: memoryview, base: int, positions: Sequence[int], sizes: Sequence[int]
    ) -> list[memoryview] | None:
        """Return a chunk for each record, cut out of one read; None when one is not sound.

        Pulls from queues that are written in turn come here, so the loops are flat: any work for
        each record costs pulls a second.
        """
        if min(positions) < base or min(sizes) < RECORD_CHECK.size:
            return None
        chunks = [
            around[position - base : position - base + size]
            for position, size in zip(positions, sizes, strict=True)
        ]
        unpack_head = RECORD_CHECK.unpack_from
        try:
            for chunk, position, size in zip(chunks, positions, sizes, strict=True):
                total, _, own_offset = unpack_head(chunk)
                if own_offset != position or total != size:
                    return None
        except struct.error:
            # A unit leads beyond the bytes that were read.
            return None
        return chunks

    def touches_damage(self, start: int, end: int) -> bool:
        """Return whether a damaged stretch of the log overlaps this one."""
        return any(first < end and start < last for first, last in self.damaged)

    def _run(
        self,
        around: memoryview | None,
        base: int,
        start: PhysicalOffset,
        end: int,
        first_size: int,
        last: int,
        last_size: int,
    ) -> memoryview | None:
        """Return one run, None when its first or last record is not that of its unit."""
        if end <= start:
            return None
        if around is not None:
            if start < base or end - base > len(around):
                return None
            chunk = around[start - base : end - base]
        else:
            resident = self._log.read_resident(start, end - start)
            if resident is None or len(resident) != end - start:
                return None
            chunk = resident
        if not self.holds(chunk, 0, start, first_size):
            return None
        if last != start and not self.holds(chunk, last - start, last, last_size):
            return None
        return chunk

    @staticmethod
    def holds(chunk: memoryview, at: int, position: int, size: int) -> bool:
        """Return whether the chunk has, at `at`, the record of this physical offset and size."""
        if at < 0 or size < RECORD_CHECK.size or at + size > len(chunk):
            return False
        total, magic, own_offset = RECORD_CHECK.unpack_from(chunk, at)
        return bool(total == size and own_offset == position and magic in RECORD_MAGICS)


def inner_fault(chunk: memoryview) -> str | None:
    """Return why a record cannot be decoded, None when it can; bodies are not checked."""
    try:
        decode_message(chunk)
    except CodecError as error:
        return str(error)
    return None


def record_fault(chunk: memoryview, position: int, size: int) -> str | None:
    """Return why bytes are not the record of this physical offset and size; None when they are."""
    if len(chunk) < size or size < RECORD_CHECK.size:
        return f"only {len(chunk)} of {size} bytes are there"
    total, magic, physical_offset = RECORD_CHECK.unpack_from(chunk, 0)
    if magic not in RECORD_MAGICS:
        return f"magic {magic & 0xFFFFFFFF:#010x} is not a record's"
    if total != size or physical_offset != position:
        return (
            f"the record there says size {total}, physical offset {physical_offset};"
            f" the unit says {size} and {position}"
        )
    return None
