"""Reading a queue by a filter over properties: bitmaps first, then the records that may match.

It reads in blocks and stops before anything unusual (damaged units or records, a log that was
cut), which reader.py reads unit by unit.  The caller passes the filter: `match` decides about a
record, `hint` states what its bitmap must contain.

Theory: the bitmaps of a block are adjacent and of one size, so a few operations over columns of
bytes decide about a thousand messages (`units_that_may_match`).  Only records that may match are
read.  Every read examines a bounded number of units and of records, since the loop waits for it,
and returns the offset it reached, so a consumer of rare messages makes progress.
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
"""Units that bitmaps decide about in one read: half a millisecond."""
BLOCK_UNITS: Final = 1024
_SINGLY_UNITS: Final = 64
_SINGLY_MAX: Final = 1024
"""Units of one read whose extensions may be read one by one."""
_TOGETHER: Final = 32
"""Records that are read at once where they lie close together."""
_SEARCHED_MAX: Final = 4096
"""Units of one read whose records are searched: a bound on the turn of the loop."""
_SPARSE: Final = 4
"""Records are read one by one when their span is more than this many times their bytes."""
_WARM_BYTES_MAX: Final = 32 << 20
_BLOCKING_MAX: Final = 64
"""Cold records of one read that may block, though a worker should have warmed them."""
_EXT_BYTES_MAX: Final = 32_767
_CODE: Final = struct.Struct(">q")
_MAGIC: Final = b"\xda"
"""First byte of both magics, which follow the size of a record."""
_MAGIC_POSITION: Final = 4


class _End(Enum):
    """Why a read stops before the end of a block."""

    ENOUGH = 0
    COLD = 1
    UNUSUAL = 2


class _FilteredRead:
    """One filtered read: its limits, and the records picked so far."""

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
        """Read from a queue offset on; None when the first unit must be read by reader.py."""
        most = _SEARCHED_MAX if needles else self._records_max
        count = min(end - queue_offset, most if hint is None else UNITS_MAX)
        progress = _FilteredRead(
            max_count, max_bytes, match, needles, self._records_max, allow_cold=allow_cold
        )
        examined = 0
        while examined < count:
            here, units = queue_offset + examined, min(BLOCK_UNITS, count - examined)
            part = self._queues.units(queue, here, units, may_block=allow_cold)
            if part is None or len(part) != units * CQ_UNIT_BYTES:
                break
            places: Sequence[int] | None = range(units)
            if hint is not None:
                places = self._may_match(queue, part, hint, progress, may_block=allow_cold)
            if places is None:
                if not examined:
                    return ColdRead([partial(self._warm_ext, queue, part)])
                break
            done, why = self._take(progress, part, places)
            if why is _End.COLD and not (progress.picked or allow_cold):
                return ColdRead([partial(self._warm, part, [one for one in places if one >= done])])
            examined += units if why is None else done
            if why is not None:
                break
        if not examined:
            return None
        status = GetStatus.FOUND if progress.picked else GetStatus.NO_MATCHED_MESSAGE
        following = queue_offset + examined
        picked = progress.picked
        return GetResult(status, following, first, end, picked, len(picked), progress.byte_count)

    # -- records -----------------------------------------------------------------------------

    def _take(
        self, progress: _FilteredRead, part: bytes, places: Sequence[int]
    ) -> tuple[int, _End | None]:
        """Evaluate the records of these units; return the unit it stopped at, and why."""
        begin, count = 0, len(places)
        while begin < count:
            together = min(progress.together, count - begin)
            group = places[begin : begin + together]
            positions, sizes = _columns(part, group)
            records = self._records(progress, positions, sizes)
            if records is None:
                done, why = self._take_singly(progress, group, positions, sizes)
                if why is not None:
                    return done, why
            else:
                for index, record in records:
                    if progress.records_left <= 0 or progress.is_full(len(record)):
                        return group[index], _End.ENOUGH
                    progress.records_left -= 1
                    if progress.match(record):
                        progress.picked.append(record)
                        progress.byte_count += len(record)
            begin += together
        return 0, None

    def _take_singly(
        self,
        progress: _FilteredRead,
        group: Sequence[int],
        positions: Sequence[PhysicalOffset],
        sizes: Sequence[int],
    ) -> tuple[int, _End | None]:
        """As `_take`, for records that are cold, damaged, large or far from each other."""
        around, base = self._around(positions, sizes)
        for place, position, size in zip(group, positions, sizes, strict=True):
            if progress.records_left <= 0 or progress.is_full(size):
                return place, _End.ENOUGH
            if not self._is_usual(position, size):
                return place, _End.UNUSUAL
            start = position - base
            if around is not None and start >= 0 and start + size <= len(around):
                record = around[start : start + size]
            else:
                found = self._log.read_resident(position, size)
                if found is None:
                    if progress.blocking_left <= 0:
                        return place, _End.COLD
                    progress.blocking_left -= 1
                    found = self._log.read(position, size)
                record = found
            if not self._runs.holds(record, 0, position, size):
                return place, _End.UNUSUAL
            progress.records_left -= 1
            if progress.match(record):
                progress.picked.append(record)
                progress.byte_count += size
        return 0, None

    def _records(
        self, progress: _FilteredRead, positions: Sequence[PhysicalOffset], sizes: Sequence[int]
    ) -> list[tuple[int, memoryview]] | None:
        """Return the records that may match, with their numbers; None: read them one by one."""
        byte_count = sum(sizes)
        if progress.needles and byte_count > SEARCHED_BYTES_MAX:
            return None
        chunks = self._runs.chunks(positions, sizes, byte_count)
        if chunks is None:
            return None
        raw = _whole(chunks)
        # Of adjacent records only the first and the last were checked; a record whose page was
        # lost must not be skipped as one that does not match.
        ends = list(accumulate(sizes, initial=0))
        view = memoryview(raw)
        if bytes(map(view[_MAGIC_POSITION:].__getitem__, ends[:-1])) != _MAGIC * len(sizes):
            return None
        del ends[0]
        numbers: Sequence[int] = range(len(ends))
        if progress.needles:
            numbers = records_with(progress.needles, raw, ends)
            if is_in_vain(len(numbers), len(ends)):
                progress.needles = ()
            progress.together = SEARCHED_TOGETHER if 8 * len(numbers) <= len(ends) else _TOGETHER
        return [(number, view[ends[number] - sizes[number] : ends[number]]) for number in numbers]

    def _is_usual(self, position: int, size: int) -> bool:
        if position < self._log.min_offset or not 0 < size < PRE_BLANK_SIZE:
            return False
        return not (self._runs.damaged and self._runs.touches_damage(position, position + size))

    def _around(
        self, positions: Sequence[PhysicalOffset], sizes: Sequence[int]
    ) -> tuple[memoryview | None, int]:
        """Return the bytes around these records and their position; None when far apart."""
        base = positions[0]
        span = positions[-1] + sizes[-1] - base
        if len(sizes) < 2 or base < self._log.min_offset or not 0 < span <= SPAN_BYTES_MAX:
            return None, base
        if span > _SPARSE * sum(sizes):
            return None, base
        return self._log.read_resident(base, span), base

    def _warm(self, part: bytes, places: Sequence[int]) -> None:
        """In a worker: bring these records into memory."""
        left = _WARM_BYTES_MAX
        for place in places[: self._records_max]:
            position, size, _ = CQ_UNIT.unpack_from(part, place * CQ_UNIT_BYTES)
            if position >= 0 and 0 < size < PRE_BLANK_SIZE:
                left -= len(self._log.read(position, size))
            if left <= 0:
                return

    # -- bitmaps -----------------------------------------------------------------------------

    def may_match(self, queue: ConsumeQueue, part: bytes, hint: BitmapHint) -> Sequence[int]:
        """In a worker: numbers of the units whose messages may match."""
        progress = _FilteredRead(0, 0, lambda _: True, (), 0, allow_cold=True)
        found = self._may_match(queue, part, hint, progress, may_block=True)
        return range(len(part) // CQ_UNIT_BYTES) if found is None else found

    def _may_match(
        self,
        queue: ConsumeQueue,
        part: bytes,
        hint: BitmapHint,
        progress: _FilteredRead,
        *,
        may_block: bool,
    ) -> Sequence[int] | None:
        """Numbers of the units whose messages may match; None when reading may block."""
        count = len(part) // CQ_UNIT_BYTES
        marks = part[CODE_POSITION::CQ_UNIT_BYTES].count(ADDRESS_MARK)
        if not marks:
            return range(count)
        if marks == count:
            first, last = _address(part, 0), _address(part, count - 1)
            unit_bytes = CQ_EXT_HEAD_BYTES + hint.bitmap_bytes
            if last - first == (count - 1) * unit_bytes:
                length = count * unit_bytes
                raw = self._ext.read(queue, first, length, may_block=may_block)
                if raw is None:
                    return None
                places = units_that_may_match(raw, count, hint)
                if places is not None:
                    return places
        if count <= _SINGLY_UNITS:
            return self._singly(queue, part, hint, progress, may_block=may_block)
        half = count // 2
        found: list[int] = []
        for begin, stop in ((0, half), (half, count)):
            inner = part[begin * CQ_UNIT_BYTES : stop * CQ_UNIT_BYTES]
            places_there = self._may_match(queue, inner, hint, progress, may_block=may_block)
            if places_there is None:
                return None
            found += [begin + place for place in places_there]
        return found

    def _singly(
        self,
        queue: ConsumeQueue,
        part: bytes,
        hint: BitmapHint,
        progress: _FilteredRead,
        *,
        may_block: bool,
    ) -> Sequence[int] | None:
        """As `_may_match`, for units with no extension or with extensions of other sizes."""
        count = len(part) // CQ_UNIT_BYTES
        if progress.singly_left <= 0:
            # The records decide; they are bounded too.
            return range(count)
        progress.singly_left -= count
        found: list[int] = []
        for place in range(count):
            if part[place * CQ_UNIT_BYTES + CODE_POSITION] != ADDRESS_MARK:
                found.append(place)
                continue
            length = CQ_EXT_HEAD_BYTES + hint.bitmap_bytes
            raw = self._ext.read(queue, _address(part, place), length, may_block=may_block)
            if raw is None:
                return None
            try:
                unit = decode_cq_ext_unit(raw)[0] if raw else None
            except CodecError:
                unit = None
            if hint.may_match(unit):
                found.append(place)
        return found

    def with_codes(
        self, queue: ConsumeQueue, raw: bytes | bytearray, unreadable: int
    ) -> bytes | None:
        """Units with tags codes in place of the addresses; None when reading may block.

        `unreadable` is the code of those whose extension cannot be read.
        """
        changed = bytearray(raw)
        ext: bytes | bytearray = b""
        base = 0
        for at in range(CODE_POSITION, len(raw), CQ_UNIT_BYTES):
            if raw[at] != ADDRESS_MARK:
                continue
            position = decode_cq_ext_address(_CODE.unpack_from(raw, at)[0])
            if not 0 <= position - base <= len(ext) - CQ_EXT_HEAD_BYTES:
                found = self._ext.read(queue, position, _EXT_BYTES_MAX, may_block=False)
                if found is None:
                    return None
                ext, base = found, position
            code = unreadable
            if position - base + CQ_EXT_HEAD_BYTES <= len(ext):
                size, its_code, _, _ = CQ_EXT_HEAD.unpack_from(ext, position - base)
                code = its_code if size >= CQ_EXT_HEAD_BYTES else unreadable
            _CODE.pack_into(changed, at, code)
        return bytes(changed)

    def _warm_ext(self, queue: ConsumeQueue, part: bytes) -> None:
        """In a worker: bring the extension of these units into memory."""
        marks = [
            place
            for place in range(len(part) // CQ_UNIT_BYTES)
            if part[place * CQ_UNIT_BYTES + CODE_POSITION] == ADDRESS_MARK
        ]
        if marks:
            first, last = _address(part, marks[0]), _address(part, marks[-1])
            length = min(last - first + _EXT_BYTES_MAX, _WARM_BYTES_MAX)
            if length > 0:
                self._ext.read(queue, first, length, may_block=True)


def _columns(part: bytes, numbers: Sequence[int]) -> tuple[Sequence[PhysicalOffset], Sequence[int]]:
    """Return positions and sizes of the units with these numbers."""
    if isinstance(numbers, range):
        flat = units_struct(len(numbers)).unpack_from(part, numbers[0] * CQ_UNIT_BYTES)
        return flat[0::3], flat[1::3]
    units = [CQ_UNIT.unpack_from(part, number * CQ_UNIT_BYTES) for number in numbers]
    return [unit[0] for unit in units], [unit[1] for unit in units]


def _whole(chunks: list[memoryview]) -> bytes | bytearray:
    """The bytes of adjacent chunks."""
    whole = chunks[0].obj
    if len(chunks) == 1 and isinstance(whole, bytes | bytearray) and len(whole) == len(chunks[0]):
        return whole
    return b"".join(chunks)


def _address(part: bytes, place: int) -> int:
    """The position in the extension that a unit's address says."""
    return decode_cq_ext_address(_CODE.unpack_from(part, place * CQ_UNIT_BYTES + CODE_POSITION)[0])
