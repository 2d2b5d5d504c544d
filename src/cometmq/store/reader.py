"""Reading queues: `get` with every status of RocketMQ, times, and the repair of wrong units.

Job: turn (queue, queue offset) into records of the log.  It must not change what is stored,
except for a unit that provably does not point at its record: that is derived again.

A unit read from a file is a claim about the log.  Adjacent units whose ends and starts meet
form a run; the first and the last record of each run are compared with their units (size and
physical offset), which catches any single wrong unit, since a wrong one breaks the chain.  Java
serves whatever bytes a wrong unit points at.
"""

from __future__ import annotations

import logging
import struct
from operator import add, ne
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.codec.consume_queue import (
    CQ_UNIT,
    CQ_UNIT_BYTES,
    PRE_BLANK_SIZE,
    decode_cq_ext_address,
    decode_cq_ext_unit,
    is_cq_ext_address,
)
from cometmq.codec.stored_message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION_V4,
    decode_message,
)
from cometmq.errors import CodecError, StoreCorrupt
from cometmq.model.flags import BORN_HOST_V6
from cometmq.store.commit_log import log_file_name
from cometmq.store.repair import find_record
from cometmq.store.results import ColdRead, GetResult, GetStatus, TimeBoundary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.commit_log import CommitLog
    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.disk import Disk

__all__ = ["QueueReader"]

_LOG: Final = logging.getLogger("cometmq.store")
# Of a record's head: total size, magic, physical offset (at 28).
_CHECK: Final = struct.Struct(">ii20xq")
_CHECK_BYTES: Final = 36
assert _CHECK.size == _CHECK_BYTES == PHYSICAL_OFFSET_POSITION + 8
# total, magic, crc, queue id, flag, queue offset, physical offset, sys flag, born ms.
_HEAD: Final = struct.Struct(">iiiiiqqiq")
_LONG: Final = struct.Struct(">q")
_HEAD_TO_STORE_TIME_BYTES: Final = STORE_TIMESTAMP_POSITION_V4 + 12 + 8
_MANY_UNITS: Final = [struct.Struct(">" + "qiq" * count) for count in range(65)]
_MAGICS: Final = frozenset({MAGIC_V1, MAGIC_V2})
_FILTER_BLOCK_UNITS: Final = 64
# Tags codes are 32-bit; smaller numbers are addresses in extension files.
_EXT_ADDRESS_MAX: Final = -(1 << 31) - 1
# Records of one answer that lie within this many bytes are read together.
_SPAN_BYTES_MAX: Final = 512 << 10
# Lost records are logged once each, and no more than this many.
_REPORTED_MAX: Final = 10_000


def _units_struct(count: int) -> struct.Struct:
    """Layout of several units in a row; the usual counts are ready made."""
    if count < len(_MANY_UNITS):
        return _MANY_UNITS[count]
    return struct.Struct(">" + "qiq" * count)


def _select(
    raw: bytes | bytearray,
    start: int,
    count: int,
    codes: frozenset[int],
    max_count: int,
    max_bytes: int,
) -> tuple[list[int], list[int], int] | None:
    """Units whose tags code is wanted: positions, sizes, and how many were looked at.

    None when there are extension addresses among the codes, which need a look elsewhere.
    """
    positions: list[int] = []
    sizes: list[int] = []
    byte_count = 0
    done = 0
    while done < count:
        block = min(_FILTER_BLOCK_UNITS, count - done)
        units = _MANY_UNITS[block].unpack_from(raw, (start + done) * CQ_UNIT_BYTES)
        block_codes = units[2::3]
        if min(block_codes) <= _EXT_ADDRESS_MAX:
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


class _Cold(Exception):
    """A read would block; carries what reads the bytes."""

    def __init__(self, read: Callable[[], object]) -> None:
        super().__init__("cold")
        self.read = read


class _Request(NamedTuple):
    """One `get` after its offset was found to be in the queue."""

    queue: ConsumeQueue
    queue_offset: int
    first: int
    end: int
    max_count: int
    max_bytes: int
    codes: frozenset[int] | None
    match: Callable[[memoryview], bool] | None
    allow_cold: bool


class QueueReader:
    """Reads records and times through the queues."""

    def __init__(
        self, config: StoreConfig, disk: Disk, log: CommitLog, queues: ConsumeQueues
    ) -> None:
        self._log = log
        self._queues = queues
        self._disk = disk
        self._count_max = config.transfer_count_max
        self._bytes_max = config.transfer_bytes_max
        self._filter_units = config.filter_units_max
        self._ext_path = f"{config.root}/consumequeue_ext"
        self._ext_file_bytes = config.consume_queue_ext_file_bytes
        self._delays_ms = config.delays_ms
        self._reported: set[str] = set()
        self.damaged: list[tuple[int, int]] = []
        """Stretches of the log known to be damaged: what lies there is looked at closely."""
        self.confirmed_offset: Callable[[], int] = lambda: self._log.wrote

    # -- get -----------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        match: Callable[[memoryview], bool] | None,
        allow_cold: bool,
    ) -> GetResult | ColdRead:
        """See `MessageStore.get`."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.visible == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        end = queue.visible
        first = queue.min if queue.min_checked_at == self._log.min_offset else self.min_of(queue)
        if queue_offset < first:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, first, first, end)
        if queue_offset >= end:
            if queue_offset == end:
                return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, queue_offset, first, end)
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, end, first, end)
        max_count = max(1, min(max_count, self._count_max))
        max_bytes = min(max_bytes, self._bytes_max)
        try:
            if match is None:
                found = self._get_quickly(
                    queue, queue_offset, max_count, max_bytes, codes, first, end
                )
                if found is not None:
                    return found
            request = _Request(
                queue, queue_offset, first, end, max_count, max_bytes, codes, match, allow_cold
            )
            return self._get_slowly(request)
        except _Cold as cold:
            return ColdRead([cold.read])

    def _get_quickly(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        first: int,
        end: int,
    ) -> GetResult | None:
        """The common case: all in memory, units and records agree.  None: go slowly."""
        count = end - queue_offset
        limit = max_count if codes is None else self._filter_units
        count = min(count, limit)
        start = queue_offset - queue.written
        raw: bytes | bytearray = queue.tail
        if start < 0:
            found = self._queues.units(queue, queue_offset, count, may_block=False)
            if found is None or len(found) < count * CQ_UNIT_BYTES:
                return None
            raw, start = found, 0
        if codes is None:
            units = _units_struct(count).unpack_from(raw, start * CQ_UNIT_BYTES)
            positions: Sequence[int] = units[0::3]
            sizes: Sequence[int] = units[1::3]
            following = queue_offset + count
        else:
            selected = _select(raw, start, count, codes, max_count, max_bytes)
            if selected is None:
                return None
            positions, sizes, examined = selected
            following = queue_offset + examined
            if not positions:
                return GetResult(GetStatus.NO_MATCHED_MESSAGE, following, first, end)
        byte_count = sum(sizes)
        if byte_count > max_bytes and len(sizes) > 1:
            return None
        chunks = self._runs(positions, sizes, byte_count)
        if chunks is None:
            return None
        return GetResult(GetStatus.FOUND, following, first, end, chunks, len(sizes), byte_count)

    def _runs(
        self, positions: Sequence[int], sizes: Sequence[int], byte_count: int
    ) -> list[memoryview] | None:
        """Chunks of the log for these records, adjacent ones in one; None when in doubt."""
        start, last = positions[0], positions[-1]
        span = last + sizes[-1] - start
        if span < byte_count or start < self._log.min_offset:
            return None
        if self.damaged and self._touches_damage(start, start + span):
            return None
        around: memoryview | None = None
        if span <= _SPAN_BYTES_MAX or span == byte_count:
            around = self._log.read_resident(start, span)
            if around is None or len(around) != span:
                return None
            if span == byte_count:
                is_sound = self._holds(around, 0, start, sizes[0]) and (
                    self._holds(around, last - start, last, sizes[-1])
                )
                return [around] if is_sound else None
            # Where records of other queues lie between most of them, runs would be single ones.
            if span > 2 * byte_count or self._are_apart(positions, sizes):
                return self._apart(around, start, positions, sizes)
        chunks: list[memoryview] = []
        run_start, run_end, run_first, place, size = start, start, sizes[0], start, sizes[0]
        for position, length in zip(positions, sizes, strict=True):
            if position != run_end:
                chunk = self._run(around, start, run_start, run_end, run_first, place, size)
                if chunk is None:
                    return None
                chunks.append(chunk)
                run_start, run_end, run_first = position, position, length
            place, size = position, length
            run_end += length
        chunk = self._run(around, start, run_start, run_end, run_first, place, size)
        if chunk is None:
            return None
        chunks.append(chunk)
        return chunks

    @staticmethod
    def _are_apart(positions: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether less than two thirds of the records meet the one before."""
        breaks: int = sum(map(ne, map(add, positions, sizes), positions[1:]))
        return breaks * 3 > len(positions)

    @staticmethod
    def _apart(
        around: memoryview, base: int, positions: Sequence[int], sizes: Sequence[int]
    ) -> list[memoryview] | None:
        """Records with others' between them, cut out of one read; None when one is not sound.

        Queues that are written in turn look like this, so a pull of 32 comes here: flat loops,
        since anything per record shows in the pulls a second.
        """
        if min(positions) < base or min(sizes) < _CHECK_BYTES:
            return None
        chunks = [
            around[position - base : position - base + size]
            for position, size in zip(positions, sizes, strict=True)
        ]
        look = _CHECK.unpack_from
        try:
            for chunk, position, size in zip(chunks, positions, sizes, strict=True):
                total, _, own_offset = look(chunk)
                if own_offset != position or total != size:
                    return None
        except struct.error:
            # A unit that leads beyond what was read.
            return None
        return chunks

    def _touches_damage(self, start: int, end: int) -> bool:
        return any(first < end and start < last for first, last in self.damaged)

    def _run(
        self,
        around: memoryview | None,
        base: int,
        start: int,
        end: int,
        first_size: int,
        last: int,
        last_size: int,
    ) -> memoryview | None:
        """One run of adjacent records, if its first and its last one are what the units say."""
        if end <= start:
            return None
        if around is not None:
            if start < base or end - base > len(around):
                return None
            chunk = around[start - base : end - base]
        else:
            found = self._log.read_resident(start, end - start)
            if found is None or len(found) != end - start:
                return None
            chunk = found
        if not self._holds(chunk, 0, start, first_size):
            return None
        if last != start and not self._holds(chunk, last - start, last, last_size):
            return None
        return chunk

    @staticmethod
    def _holds(chunk: memoryview, at: int, position: int, size: int) -> bool:
        """Whether the record with this physical offset and size stands in the chunk."""
        if at < 0 or size < _CHECK_BYTES or at + size > len(chunk):
            return False
        total, magic, own_offset = _CHECK.unpack_from(chunk, at)
        return bool(total == size and own_offset == position and magic in _MAGICS)

    def _get_slowly(self, request: _Request) -> GetResult:
        """Unit by unit: filters, limits, cold, removed and damaged records."""
        queue, first, end = request.queue, request.first, request.end
        is_filtered = request.codes is not None or request.match is not None
        wanted = min(
            end - request.queue_offset, self._filter_units if is_filtered else request.max_count
        )
        raw = self._units(queue, request.queue_offset, wanted, request.allow_cold)
        if len(raw) < CQ_UNIT_BYTES:
            # Java answers OFFSET_FOUND_NULL and goes on with the next file: messages are lost.
            position = request.queue_offset * CQ_UNIT_BYTES
            place = position % self._queues.file_bytes
            raise StoreCorrupt(
                f"{queue.path}/{log_file_name(position - place)}, position {place}: the file was"
                f" cut or removed, queue offset {request.queue_offset} cannot be found; restart"
                " the broker, which derives the queue from the commit log again"
            )
        picks, status, examined = self._pick(request, raw)
        chunks = self._chunks(picks, queue, request.allow_cold)
        if None in chunks:
            status = GetStatus.MESSAGE_WAS_REMOVING
        sound = [chunk for chunk in chunks if chunk is not None]
        if sound:
            status = GetStatus.FOUND
        count = len(sound)
        return GetResult(
            status, examined, first, end, sound, count, sum([len(chunk) for chunk in sound])
        )

    def _pick(
        self, request: _Request, raw: bytes
    ) -> tuple[list[tuple[int, int, int]], GetStatus, int]:
        """Choose units: (queue offset, position, size) of each, a status if none, the next."""
        picks: list[tuple[int, int, int]] = []
        status = GetStatus.NO_MATCHED_MESSAGE
        codes, match = request.codes, request.match
        min_physical = self._log.min_offset
        byte_count = 0
        examined = request.queue_offset
        for position, size, code in CQ_UNIT.iter_unpack(raw[: len(raw) // 20 * 20]):
            if picks and (len(picks) >= request.max_count or byte_count + size > request.max_bytes):
                break
            examined += 1
            if codes is not None and code not in codes and not self._is_ext_wanted(request, code):
                continue
            if 0 <= position < min_physical and size > 0:
                status = GetStatus.MESSAGE_WAS_REMOVING
                continue
            if match is not None:
                chunk = self._sound_chunk(
                    request.queue, examined - 1, position, size, request.allow_cold
                )
                if chunk is not None and not match(chunk):
                    continue
            picks.append((examined - 1, position, size))
            byte_count += size
        return picks, status, examined

    def _is_ext_wanted(self, request: _Request, address: int) -> bool:
        if not is_cq_ext_address(address):
            return False
        real = self.ext_tags_code(request.queue, address)
        # An extension unit that cannot be read filters nothing out: the client looks again.
        return real is None or request.codes is None or real in request.codes

    def _chunks(
        self, picks: list[tuple[int, int, int]], queue: ConsumeQueue, allow_cold: bool
    ) -> list[memoryview | None]:
        """The records of the picked units, None for each that is damaged beyond repair."""
        if not picks:
            return []
        base = picks[0][1]
        span = picks[-1][1] + picks[-1][2] - base
        around: memoryview | None = None
        if 0 < span <= _SPAN_BYTES_MAX and base >= 0:
            # One read for all: records of one queue lie close together in the log.
            around = self._log.read_resident(base, span)
        chunks: list[memoryview | None] = []
        for queue_offset, position, size in picks:
            start = position - base
            if around is not None and start >= 0 and 0 < size <= len(around) - start:
                chunk = around[start : start + size]
                is_doubtful = self._touches_damage(position, position + size)
                if not is_doubtful and self._holds(chunk, 0, position, size):
                    chunks.append(chunk)
                    continue
            chunks.append(self._sound_chunk(queue, queue_offset, position, size, allow_cold))
        return chunks

    def _units(self, queue: ConsumeQueue, first: int, count: int, allow_cold: bool) -> bytes:
        raw = self._queues.units(queue, first, count, may_block=allow_cold)
        if raw is None:
            start = first * CQ_UNIT_BYTES
            start -= start % self._queues.file_bytes
            file = self._queues.open_file(queue, start)
            place = first * CQ_UNIT_BYTES - start
            raise _Cold(lambda: None if file is None else file.read(place, count * CQ_UNIT_BYTES))
        return raw

    def ext_tags_code(self, queue: ConsumeQueue, address: int) -> int | None:
        """The tags code in the extension unit a unit points at; None when it is not readable."""
        position = decode_cq_ext_address(address)
        start = position - position % self._ext_file_bytes
        path = f"{self._ext_path}/{queue.topic}/{queue.queue_id}/{log_file_name(start)}"
        try:
            file = self._disk.open_random(path, self._ext_file_bytes, create=False)
            raw = file.read(position - start, 32767)
            return decode_cq_ext_unit(raw)[0].tags_code
        except (OSError, CodecError):
            return None

    # -- records -------------------------------------------------------------------------

    def _sound_chunk(
        self, queue: ConsumeQueue, queue_offset: int, position: int, size: int, allow_cold: bool
    ) -> memoryview | None:
        """The record of a unit, after a repair if the unit is wrong; None when it is damaged.

        Raises _Cold when the bytes would have to be waited for.
        """
        log = self._log
        fault = "the unit is not a valid one"
        if position >= 0 and 0 < size < PRE_BLANK_SIZE:
            chunk = log.read_resident(position, size)
            if chunk is None:
                if not allow_cold and log.file_at(position) is not None:
                    raise _Cold(lambda: log.read(position, size))
                chunk = log.read(position, size)
            found = self._record_fault(chunk, position, size)
            if found is None and self._touches_damage(position, position + size):
                found = self._inner_fault(chunk)
            if found is None:
                return chunk
            fault = found
        path = f"{queue.path}, queue offset {queue_offset}"
        unit = find_record(
            log, self._queues, queue, queue_offset, self.confirmed_offset(), self._delays_ms
        )
        if unit is None:
            if path not in self._reported and len(self._reported) < _REPORTED_MAX:
                self._reported.add(path)
                _LOG.error(
                    "%s: %s; the record at %s is lost and skipped",
                    path,
                    fault,
                    log.where(position),
                )
            return None
        _LOG.error(
            "%s: %s; corrected to physical offset %d, size %d",
            path,
            fault,
            unit.physical_offset,
            unit.size,
        )
        self._queues.rewrite(queue, queue_offset, unit)
        return log.read(unit.physical_offset, unit.size)

    @staticmethod
    def _inner_fault(chunk: memoryview) -> str | None:
        """Why the record cannot be decoded; a wrong body is the client's to notice."""
        try:
            decode_message(chunk)
        except CodecError as error:
            return str(error)
        return None

    @staticmethod
    def _record_fault(chunk: memoryview, position: int, size: int) -> str | None:
        """Why the bytes are not the record of this position and size; None when they are."""
        if len(chunk) < size or size < _CHECK_BYTES:
            return f"only {len(chunk)} of {size} bytes are there"
        total, magic, physical_offset = _CHECK.unpack_from(chunk, 0)
        if magic not in _MAGICS:
            return f"magic {magic & 0xFFFFFFFF:#010x} is not a record's"
        if total != size or physical_offset != position:
            return (
                f"the record there says size {total}, physical offset {physical_offset};"
                f" the unit says {size} and {position}"
            )
        return None

    def message_at(self, physical_offset: int) -> memoryview | None:
        """See `MessageStore.message_at`."""
        log = self._log
        if not log.min_offset <= physical_offset < self.confirmed_offset():
            return None
        head = log.read(physical_offset, _CHECK_BYTES)
        if len(head) == _CHECK_BYTES:
            total, magic, own_offset = _CHECK.unpack_from(head, 0)
            if magic == MAGIC_BLANK:
                return None
            if magic in _MAGICS and own_offset == physical_offset and total > 0:
                chunk = log.read(physical_offset, total)
                try:
                    decode_message(chunk)
                except CodecError as error:
                    raise StoreCorrupt(f"{log.where(physical_offset)}: {error}") from None
                return chunk
        raise StoreCorrupt(
            f"{log.where(physical_offset)}: no record begins here;"
            " the offset is wrong or the file is damaged (run `cometmq store verify`)"
        )

    def store_time(self, physical_offset: int) -> int:
        """Store time of the record at a physical offset; -1 when there is none (may block)."""
        head = self._log.read(physical_offset, _HEAD_TO_STORE_TIME_BYTES)
        if len(head) < _HEAD.size:
            return -1
        _, magic, _, _, _, _, own_offset, sys_flag, _ = _HEAD.unpack_from(head, 0)
        if magic not in _MAGICS or own_offset != physical_offset:
            return -1
        place = STORE_TIMESTAMP_POSITION_V4 + (12 if sys_flag & BORN_HOST_V6 else 0)
        if len(head) < place + 8:
            return -1
        return int(_LONG.unpack_from(head, place)[0])

    # -- offsets -------------------------------------------------------------------------

    def min_of(self, queue: ConsumeQueue) -> int:
        """The queue's first offset whose record the log still has (``correctMinOffset``)."""
        min_physical = self._log.min_offset
        if queue.min_checked_at == min_physical:
            return queue.min
        low, high = queue.min, queue.max
        while low < high:
            middle = (low + high) // 2
            unit = self._queues.unit(queue, middle)
            is_lost = (
                unit is None
                or unit.size == PRE_BLANK_SIZE
                # Zeros are damage in the middle of a queue; they say nothing of its beginning.
                or (unit.physical_offset < min_physical and unit.size > 0)
            )
            if is_lost:
                low = middle + 1
            else:
                high = middle
        queue.min = low
        queue.min_checked_at = min_physical
        return low

    def offset_by_time(self, queue: ConsumeQueue, time_ms: int, boundary: TimeBoundary) -> int:
        """See `MessageStore.queue_offset_by_time`."""
        first, end = self.min_of(queue), queue.visible
        if first >= end:
            return end
        # First offset whose store time is >= (LOWER) or > (UPPER) the wanted one.
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            at = self.time_at(queue, middle)
            if at < time_ms or (boundary is TimeBoundary.UPPER and at == time_ms):
                low = middle + 1
            else:
                high = middle
        if boundary is TimeBoundary.LOWER:
            return low
        return max(low - 1, first)

    def time_at(self, queue: ConsumeQueue, queue_offset: int) -> int:
        unit = self._queues.unit(queue, queue_offset)
        return -1 if unit is None or not unit.is_valid else self.store_time(unit.physical_offset)
