"""Reads a queue by a filter over properties: first the bitmaps, then the records that may match.

The caller passes the filter: `match` decides about a record, and `hint` states what the bitmap of a
matching message contains.  Units are read in blocks.  A read ends before damaged units or records
and where the log was cut; reader.py reads these unit by unit.

The bitmaps of a block are adjacent and of one size, so a few operations over columns of bytes
decide about a thousand messages (`units_that_may_match`).  Only records that may match are read.

A read examines a bounded number of units and records, since the loop waits for it.  Its result
states the offset it reached, so a consumer of rare messages makes progress.
"""

from __future__ import annotations

import struct
from enum import Enum
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import (
    CQ_EXT_HEAD,
    CQ_EXT_HEAD_BYTES,
    CQ_UNIT,
    CQ_UNIT_BYTES,
    PRE_BLANK_SIZE,
    decode_cq_ext_address,
    decode_cq_ext_unit,
    units_struct,
)
from cometmq.codec.cq_ext import units_that_may_match
from cometmq.errors import CodecError
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.results import ColdRead, GetResult, GetStatus
from cometmq.store.log.record_runs import SPAN_BYTES_MAX
from cometmq.store.queue.extension import ADDRESS_MARK, CODE_POSITION
from cometmq.store.read.record_search import (
    SEARCHED_BYTES_MAX,
    SEARCHED_TOGETHER,
    is_in_vain,
    records_with,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.codec.cq_ext import BitmapHint
    from cometmq.codec.properties import Needle
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.record_runs import RecordRuns
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.extension import QueueExt

__all__ = ["FilteredReader"]

UNITS_MAX: Final = 8192
"""Units that one read examines by bitmaps: half a millisecond."""
BLOCK_UNITS: Final = 1024
_SINGLY_UNITS: Final = 64
"""A block is halved down to this size before extension units are read one by one."""
_SINGLY_MAX: Final = 1024
"""Extension units that one read reads one by one."""
_TOGETHER: Final = 32
"""Records that are read at once where they lie close together."""
_SEARCHED_MAX: Final = 4096
"""Units that one read examines by searching records for needles."""
_SPARSE: Final = 4
"""Records are read one by one when their span is more than this many times their bytes."""
_WARM_BYTES_MAX: Final = 32 << 20
_BLOCKING_MAX: Final = 64
"""Cold records that one read with `allow_cold` reads, although a worker has warmed them."""
_EXT_BYTES_MAX: Final = 32_767
_CODE: Final = struct.Struct(">q")
_MAGIC: Final = b"\xda"
"""First byte of both magics, which follow the size of a record."""
_MAGIC_POSITION: Final = 4


class _End(Enum):
    """Why a read ends before the end of a block."""

    FULL = 0
    """A limit of the read is reached."""
    COLD = 1
    """The next record is not in memory."""
    UNSOUND = 2
    """The next unit or its record is damaged."""


class _FilteredRead:
    """The state of one filtered read: its limits, and the records picked so far."""

    def __init__(
        self,
        max_count: int,
        max_bytes: int,
        match: Callable[[memoryview], bool],
        needles: tuple[Needle, ...],
        records_max: int,
        *,
        allow_cold: bool,
    ) -> None:
        self.max_count = max_count
        self.max_bytes = max_bytes
        self.match = match
        self.needles = needles
        self.together = _TOGETHER
        self.records_left = records_max
        self.singly_left = _SINGLY_MAX
        self.blocking_left = _BLOCKING_MAX if allow_cold else 0
        self.picked: list[memoryview] = []
        self.byte_count = 0

    def is_full(self, size: int) -> bool:
        """Whether a further record would exceed the limits."""
        picked = self.picked
        return bool(picked) and (
            len(picked) >= self.max_count or self.byte_count + size > self.max_bytes
        )


class FilteredReader:
    """Reads the queues of one store by filters."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        runs: RecordRuns,
        ext: QueueExt,
        records_max: int,
    ) -> None:
        self._log = log
        self._queues = queues
        self._runs = runs
        self._ext = ext
        self._records_max = records_max

    def get(
        self,
        queue: ConsumeQueue,
        queue_offset: QueueOffset,
        max_count: int,
        max_bytes: int,
        match: Callable[[memoryview], bool],
        hint: BitmapHint | None,
        needles: tuple[Needle, ...],
        first: int,
        end: int,
        *,
        allow_cold: bool,
    ) -> GetResult | ColdRead | None:
        """Read a queue from an offset on; see `MessageStore.get` for most arguments.

        Args:
            first: the queue's first offset, for the result.
            end: the offset behind the queue's last visible message.

        Returns None when reader.py must read the first unit.
        """
        units_max = _SEARCHED_MAX if needles else self._records_max
        count = min(end - queue_offset, units_max if hint is None else UNITS_MAX)
        read = _FilteredRead(
            max_count, max_bytes, match, needles, self._records_max, allow_cold=allow_cold
        )
        examined = 0
        while examined < count:
            block_offset, block_units = queue_offset + examined, min(BLOCK_UNITS, count - examined)
            block = self._queues.units(queue, block_offset, block_units, may_block=allow_cold)
            if block is None or len(block) != block_units * CQ_UNIT_BYTES:
                break
            numbers: Sequence[int] | None = range(block_units)
            if hint is not None:
                numbers = self._may_match(queue, block, hint, read, may_block=allow_cold)
            if numbers is None:
                if not examined:
                    return ColdRead([partial(self._warm_ext, queue, block)])
                break
            reached, end_reason = self._take(read, block, numbers)
            if end_reason is _End.COLD and not (read.picked or allow_cold):
                unread = [number for number in numbers if number >= reached]
                return ColdRead([partial(self._warm, block, unread)])
            examined += block_units if end_reason is None else reached
            if end_reason is not None:
                break
        if not examined:
            return None
        status = GetStatus.FOUND if read.picked else GetStatus.NO_MATCHED_MESSAGE
        following = queue_offset + examined
        picked = read.picked
        return GetResult(status, following, first, end, picked, len(picked), read.byte_count)

    # -- records -----------------------------------------------------------------------------

    def _take(
        self, read: _FilteredRead, block: bytes, numbers: Sequence[int]
    ) -> tuple[int, _End | None]:
        """Pick the matching records of the units with these numbers in a block.

        Returns the number of the unit at which the read ends, and why; the reason is None when it
        goes on.
        """
        begin, count = 0, len(numbers)
        while begin < count:
            together = min(read.together, count - begin)
            group = numbers[begin : begin + together]
            positions, sizes = _columns(block, group)
            records = self._records(read, positions, sizes)
            if records is None:
                reached, end_reason = self._take_singly(read, group, positions, sizes)
                if end_reason is not None:
                    return reached, end_reason
            else:
                for index, record in records:
                    if read.records_left <= 0 or read.is_full(len(record)):
                        return group[index], _End.FULL
                    read.records_left -= 1
                    if read.match(record):
                        read.picked.append(record)
                        read.byte_count += len(record)
            begin += together
        return 0, None

    def _take_singly(
        self,
        read: _FilteredRead,
        group: Sequence[int],
        positions: Sequence[PhysicalOffset],
        sizes: Sequence[int],
    ) -> tuple[int, _End | None]:
        """As `_take`, for records that are cold, damaged, large or far from each other."""
        around, base = self._around(positions, sizes)
        for number, position, size in zip(group, positions, sizes, strict=True):
            if read.records_left <= 0 or read.is_full(size):
                return number, _End.FULL
            if not self._is_sound(position, size):
                return number, _End.UNSOUND
            start = position - base
            if around is not None and start >= 0 and start + size <= len(around):
                record = around[start : start + size]
            else:
                resident = self._log.read_resident(position, size)
                if resident is None:
                    if read.blocking_left <= 0:
                        return number, _End.COLD
                    read.blocking_left -= 1
                    resident = self._log.read(position, size)
                record = resident
            if not self._runs.holds(record, 0, position, size):
                return number, _End.UNSOUND
            read.records_left -= 1
            if read.match(record):
                read.picked.append(record)
                read.byte_count += size
        return 0, None

    def _records(
        self, read: _FilteredRead, positions: Sequence[PhysicalOffset], sizes: Sequence[int]
    ) -> list[tuple[int, memoryview]] | None:
        """Return index and bytes of the records that may match; None: read them one by one."""
        byte_count = sum(sizes)
        if read.needles and byte_count > SEARCHED_BYTES_MAX:
            return None
        chunks = self._runs.chunks(positions, sizes, byte_count)
        if chunks is None:
            return None
        raw = _whole(chunks)
        # `chunks` checks only the first and the last of adjacent records.  A record whose page was
        # lost must not pass for one that does not match, so the magic of each is checked.
        ends = list(accumulate(sizes, initial=0))
        view = memoryview(raw)
        if bytes(map(view[_MAGIC_POSITION:].__getitem__, ends[:-1])) != _MAGIC * len(sizes):
            return None
        del ends[0]
        numbers: Sequence[int] = range(len(ends))
        if read.needles:
            numbers = records_with(read.needles, raw, ends)
            if is_in_vain(len(numbers), len(ends)):
                read.needles = ()
            read.together = SEARCHED_TOGETHER if 8 * len(numbers) <= len(ends) else _TOGETHER
        return [(number, view[ends[number] - sizes[number] : ends[number]]) for number in numbers]

    def _is_sound(self, position: int, size: int) -> bool:
        """Return whether a unit leads into the log, and to no damaged part of it."""
        if position < self._log.min_offset or not 0 < size < PRE_BLANK_SIZE:
            return False
        return not (self._runs.damaged and self._runs.touches_damage(position, position + size))

    def _around(
        self, positions: Sequence[PhysicalOffset], sizes: Sequence[int]
    ) -> tuple[memoryview | None, int]:
        """Return the bytes from the first to the last record, and their position.

        The bytes are None when the records are too far apart, or not in memory.
        """
        base = positions[0]
        span = positions[-1] + sizes[-1] - base
        if len(sizes) < 2 or base < self._log.min_offset or not 0 < span <= SPAN_BYTES_MAX:
            return None, base
        if span > _SPARSE * sum(sizes):
            return None, base
        return self._log.read_resident(base, span), base

    def _warm(self, block: bytes, numbers: Sequence[int]) -> None:
        """In a worker: bring the records of units into memory."""
        bytes_left = _WARM_BYTES_MAX
        for number in numbers[: self._records_max]:
            position, size, _ = CQ_UNIT.unpack_from(block, number * CQ_UNIT_BYTES)
            if position >= 0 and 0 < size < PRE_BLANK_SIZE:
                bytes_left -= len(self._log.read(position, size))
            if bytes_left <= 0:
                return

    # -- bitmaps -----------------------------------------------------------------------------

    def may_match(self, queue: ConsumeQueue, block: bytes, hint: BitmapHint) -> Sequence[int]:
        """Return the numbers of the units whose messages may match.  Blocks: for a worker."""
        read = _FilteredRead(0, 0, lambda _: True, (), 0, allow_cold=True)
        numbers = self._may_match(queue, block, hint, read, may_block=True)
        return range(len(block) // CQ_UNIT_BYTES) if numbers is None else numbers

    def _may_match(
        self,
        queue: ConsumeQueue,
        block: bytes,
        hint: BitmapHint,
        read: _FilteredRead,
        *,
        may_block: bool,
    ) -> Sequence[int] | None:
        """Return the numbers of the units whose messages may match; None when it would block."""
        count = len(block) // CQ_UNIT_BYTES
        address_count = block[CODE_POSITION::CQ_UNIT_BYTES].count(ADDRESS_MARK)
        if not address_count:
            return range(count)
        if address_count == count:
            first, last = _address(block, 0), _address(block, count - 1)
            unit_bytes = CQ_EXT_HEAD_BYTES + hint.bitmap_bytes
            if last - first == (count - 1) * unit_bytes:
                length = count * unit_bytes
                raw = self._ext.read(queue, first, length, may_block=may_block)
                if raw is None:
                    return None
                numbers = units_that_may_match(raw, count, hint)
                if numbers is not None:
                    return numbers
        if count <= _SINGLY_UNITS:
            return self._may_match_singly(queue, block, hint, read, may_block=may_block)
        half = count // 2
        result: list[int] = []
        for begin, stop in ((0, half), (half, count)):
            part = block[begin * CQ_UNIT_BYTES : stop * CQ_UNIT_BYTES]
            part_numbers = self._may_match(queue, part, hint, read, may_block=may_block)
            if part_numbers is None:
                return None
            result += [begin + number for number in part_numbers]
        return result

    def _may_match_singly(
        self,
        queue: ConsumeQueue,
        block: bytes,
        hint: BitmapHint,
        read: _FilteredRead,
        *,
        may_block: bool,
    ) -> Sequence[int] | None:
        """As `_may_match`, for units without extension, or with extensions of other sizes."""
        count = len(block) // CQ_UNIT_BYTES
        if read.singly_left <= 0:
            # Let the records decide: their number is bounded too.
            return range(count)
        read.singly_left -= count
        numbers: list[int] = []
        for number in range(count):
            if block[number * CQ_UNIT_BYTES + CODE_POSITION] != ADDRESS_MARK:
                numbers.append(number)
                continue
            length = CQ_EXT_HEAD_BYTES + hint.bitmap_bytes
            raw = self._ext.read(queue, _address(block, number), length, may_block=may_block)
            if raw is None:
                return None
            try:
                unit = decode_cq_ext_unit(raw)[0] if raw else None
            except CodecError:
                unit = None
            if hint.may_match(unit):
                numbers.append(number)
        return numbers

    def with_codes(
        self, queue: ConsumeQueue, raw: bytes | bytearray, unreadable: int
    ) -> bytes | None:
        """Return units in which tags codes replace the addresses; None when reading may block.

        Args:
            unreadable: the code of units whose extension cannot be read.
        """
        changed = bytearray(raw)
        ext: bytes | bytearray = b""
        base = 0
        for at in range(CODE_POSITION, len(raw), CQ_UNIT_BYTES):
            if raw[at] != ADDRESS_MARK:
                continue
            position = decode_cq_ext_address(_CODE.unpack_from(raw, at)[0])
            if not 0 <= position - base <= len(ext) - CQ_EXT_HEAD_BYTES:
                resident = self._ext.read(queue, position, _EXT_BYTES_MAX, may_block=False)
                if resident is None:
                    return None
                ext, base = resident, position
            code = unreadable
            if position - base + CQ_EXT_HEAD_BYTES <= len(ext):
                size, ext_code, _, _ = CQ_EXT_HEAD.unpack_from(ext, position - base)
                code = ext_code if size >= CQ_EXT_HEAD_BYTES else unreadable
            _CODE.pack_into(changed, at, code)
        return bytes(changed)

    def _warm_ext(self, queue: ConsumeQueue, block: bytes) -> None:
        """In a worker: bring the extension of these units into memory."""
        extended = [
            number
            for number in range(len(block) // CQ_UNIT_BYTES)
            if block[number * CQ_UNIT_BYTES + CODE_POSITION] == ADDRESS_MARK
        ]
        if extended:
            first, last = _address(block, extended[0]), _address(block, extended[-1])
            length = min(last - first + _EXT_BYTES_MAX, _WARM_BYTES_MAX)
            if length > 0:
                self._ext.read(queue, first, length, may_block=True)


def _columns(
    block: bytes, numbers: Sequence[int]
) -> tuple[Sequence[PhysicalOffset], Sequence[int]]:
    """Return the positions and the sizes that the units with these numbers state."""
    if isinstance(numbers, range):
        flat = units_struct(len(numbers)).unpack_from(block, numbers[0] * CQ_UNIT_BYTES)
        return flat[0::3], flat[1::3]
    units = [CQ_UNIT.unpack_from(block, number * CQ_UNIT_BYTES) for number in numbers]
    return [unit[0] for unit in units], [unit[1] for unit in units]


def _whole(chunks: list[memoryview]) -> bytes | bytearray:
    """Return the bytes of adjacent chunks, without a copy if they are one buffer."""
    whole = chunks[0].obj
    if len(chunks) == 1 and isinstance(whole, bytes | bytearray) and len(whole) == len(chunks[0]):
        return whole
    return b"".join(chunks)


def _address(block: bytes, number: int) -> int:
    """Return the position in the extension to which a unit leads."""
    code_position = number * CQ_UNIT_BYTES + CODE_POSITION
    return decode_cq_ext_address(_CODE.unpack_from(block, code_position)[0])
