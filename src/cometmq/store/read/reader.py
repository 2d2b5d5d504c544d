"""Reading queues: `get` with every status of RocketMQ.

It turns a queue and a queue offset into records of the log, and changes no file itself: when a unit
does not lead to its record, a worker derives the unit again (queue/mender.py), and the read waits
for it as for cold bytes.

The usual read (all in memory, units and records agree) is one pass over runs of records
(record_runs.py); every other read goes unit by unit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from cometmq.codec.consume_queue import (
    CQ_UNIT,
    CQ_UNIT_BYTES,
    PRE_BLANK_SIZE,
    is_cq_ext_address,
    units_struct,
)
from cometmq.codec.stored_message import MAGIC_BLANK, decode_message
from cometmq.errors import CodecError, StoreCorrupt
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.results import ColdRead, GetResult, GetStatus
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.record_runs import (
    RECORD_CHECK,
    RECORD_MAGICS,
    SPAN_BYTES_MAX,
    RecordRuns,
    inner_fault,
    record_fault,
    select_units,
)
from cometmq.store.read.filtered_reader import FilteredReader
from cometmq.store.read.span_reader import SpanReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.codec.cq_ext import BitmapHint
    from cometmq.codec.properties import Needle
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.extension import QueueExt
    from cometmq.store.queue.mender import QueueMender
    from cometmq.store.queue.search import QueueSearch

__all__ = ["MessageReader"]

_LOG: Final = logging.getLogger("cometmq.store")
# A read that may wait derives units again so often, besides once for each message it wants.
_MENDS_MAX: Final = 8


class _Cold(Exception):
    """A read would block; carries what reads the bytes."""

    def __init__(self, read: Callable[[], object]) -> None:
        super().__init__("cold")
        self.read = read


class _Mended(Exception):
    """Units were derived again, or are known to be lost: read them once more."""


class _GetRequest(NamedTuple):
    """One `get` after its offset was found to be in the queue."""

    queue: ConsumeQueue
    queue_offset: QueueOffset
    first: int
    end: int
    max_count: int
    max_bytes: int
    codes: frozenset[int] | None
    match: Callable[[memoryview], bool] | None
    allow_cold: bool


class MessageReader:
    """Reads records and times through the queues."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        search: QueueSearch,
        mender: QueueMender,
        ext: QueueExt,
    ) -> None:
        self._log = log
        self._queues = queues
        self._search = search
        self._mender = mender
        self._runs = RecordRuns(log)
        self._count_max = config.transfer_count_max
        self._bytes_max = config.transfer_bytes_max
        self._filter_units = config.filter_units_max
        self._ext = ext
        self._filtered = FilteredReader(log, queues, self._runs, ext, config.filter_units_max)
        self.spans = SpanReader(log, queues, self._runs, self._filtered.may_match)
        self.confirmed_offset: Callable[[], int] = lambda: self._log.wrote

    def distrust(self, stretches: list[tuple[int, int]]) -> None:
        """Look closely at what lies in these stretches of the log, from and to."""
        self._runs.damaged = stretches

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
        hint: BitmapHint | None,
        needles: tuple[Needle, ...],
        allow_cold: bool,
    ) -> GetResult | ColdRead:
        """See `MessageStore.get`."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.visible == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        end = queue.visible
        first = queue.min
        if queue.min_checked_at != self._log.min_offset:
            known = self._search.known_min(queue)
            if known is None and not allow_cold:
                return ColdRead([lambda: self._search.min_of(queue)])
            # Else files expired once more while a worker looked: what is gone is skipped.
            first = queue.min if known is None else known
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
            elif codes is None:
                read = self._filtered.get(
                    queue,
                    QueueOffset(queue_offset),
                    max_count,
                    max_bytes,
                    match,
                    hint,
                    needles,
                    first,
                    end,
                    allow_cold=allow_cold,
                )
                if read is not None:
                    return read
            request = _GetRequest(
                queue,
                QueueOffset(queue_offset),
                first,
                end,
                max_count,
                max_bytes,
                codes,
                match,
                allow_cold,
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
            units = units_struct(count).unpack_from(raw, start * CQ_UNIT_BYTES)
            positions: Sequence[PhysicalOffset] = units[0::3]
            sizes: Sequence[int] = units[1::3]
            following = queue_offset + count
        else:
            selected = select_units(raw, start, count, codes, max_count, max_bytes)
            if selected is None:
                part = raw[start * CQ_UNIT_BYTES : (start + count) * CQ_UNIT_BYTES]
                plain = self._filtered.with_codes(queue, part, min(codes))
                if plain is None:
                    return None
                selected = select_units(plain, 0, count, codes, max_count, max_bytes)
            if selected is None:
                return None
            positions, sizes, examined = selected
            following = queue_offset + examined
            if not positions:
                return GetResult(GetStatus.NO_MATCHED_MESSAGE, following, first, end)
        byte_count = sum(sizes)
        if byte_count > max_bytes and len(sizes) > 1:
            return None
        chunks = self._runs.chunks(positions, sizes, byte_count)
        if chunks is None:
            return None
        return GetResult(GetStatus.FOUND, following, first, end, chunks, len(sizes), byte_count)

    def _get_slowly(self, request: _GetRequest) -> GetResult:
        """Unit by unit: filters, limits, cold, removed and damaged records."""
        for _ in range(request.max_count + _MENDS_MAX):
            self._mender.settle()
            try:
                return self._get_one_by_one(request)
            except _Mended:
                continue
        position = request.queue_offset * CQ_UNIT_BYTES
        place = position % self._queues.file_bytes
        raise StoreCorrupt(
            f"{request.queue.path}/{log_file_name(position - place)}, position {place}: queue"
            f" offset {request.queue_offset} cannot be read, and deriving it from the commit log"
            " did not help; look at the disk"
        )

    def _mend(self, queue: ConsumeQueue, queue_offset: QueueOffset, allow_cold: bool) -> NoReturn:
        """Have a worker derive units again, or do it here where waiting is allowed."""
        if not allow_cold:
            raise _Cold(lambda: self._mender.mend(queue, queue_offset))
        self._mender.mend(queue, queue_offset)
        raise _Mended

    def _get_one_by_one(self, request: _GetRequest) -> GetResult:
        queue, first, end = request.queue, request.first, request.end
        is_filtered = request.codes is not None or request.match is not None
        wanted = min(
            end - request.queue_offset, self._filter_units if is_filtered else request.max_count
        )
        raw = self._units(queue, request.queue_offset, wanted, request.allow_cold)
        if len(raw) < CQ_UNIT_BYTES:
            # Java answers OFFSET_FOUND_NULL and goes on with the next file: messages are lost.
            self._mend(queue, request.queue_offset, request.allow_cold)
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
        self, request: _GetRequest, raw: bytes
    ) -> tuple[list[tuple[QueueOffset, PhysicalOffset, int]], GetStatus, int]:
        """Choose units: (queue offset, position, size) of each, a status if none, the next."""
        picks: list[tuple[QueueOffset, PhysicalOffset, int]] = []
        status = GetStatus.NO_MATCHED_MESSAGE
        codes, match = request.codes, request.match
        min_physical = self._log.min_offset
        is_min_known = request.queue.min_checked_at == min_physical
        byte_count = 0
        examined: int = request.queue_offset
        for position, size, code in CQ_UNIT.iter_unpack(raw[: len(raw) // 20 * 20]):
            if picks and (len(picks) >= request.max_count or byte_count + size > request.max_bytes):
                break
            examined += 1
            if not (position >= min_physical and 0 < size < PRE_BLANK_SIZE):
                # A worker may have found the queue's first offset since this read began.
                is_before_min = not is_min_known or examined <= request.queue.min
                is_removed = position < min_physical and size > 0 and is_before_min
                if is_removed or self._mender.is_lost(request.queue, QueueOffset(examined - 1)):
                    status = GetStatus.MESSAGE_WAS_REMOVING
                    continue
                if picks:
                    # What is sound goes first; the next read begins here.
                    return picks, status, examined - 1
                self._mend(request.queue, QueueOffset(examined - 1), request.allow_cold)
            if codes is not None and code not in codes and not self._is_ext_wanted(request, code):
                continue
            if match is not None:
                chunk = self._sound_chunk(
                    request.queue, QueueOffset(examined - 1), position, size, request.allow_cold
                )
                if chunk is not None and not match(chunk):
                    continue
            picks.append((QueueOffset(examined - 1), position, size))
            byte_count += size
        return picks, status, examined

    def _is_ext_wanted(self, request: _GetRequest, address: int) -> bool:
        if not is_cq_ext_address(address):
            return False
        real = self.ext_tags_code(request.queue, address)
        # An extension unit that cannot be read filters nothing out: the client looks again.
        return real is None or request.codes is None or real in request.codes

    def _chunks(
        self,
        picks: list[tuple[QueueOffset, PhysicalOffset, int]],
        queue: ConsumeQueue,
        allow_cold: bool,
    ) -> list[memoryview | None]:
        """The records of the picked units, None for each that is damaged beyond repair."""
        if not picks:
            return []
        base = picks[0][1]
        span = picks[-1][1] + picks[-1][2] - base
        around: memoryview | None = None
        if 0 < span <= SPAN_BYTES_MAX and base >= 0:
            # One read for all: records of one queue lie close together in the log.
            around = self._log.read_resident(base, span)
        chunks: list[memoryview | None] = []
        for queue_offset, position, size in picks:
            start = position - base
            if around is not None and start >= 0 and 0 < size <= len(around) - start:
                chunk = around[start : start + size]
                is_doubtful = self._runs.touches_damage(position, position + size)
                if not is_doubtful and self._runs.holds(chunk, 0, position, size):
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
        unit = self._ext.unit(queue, address)
        return None if unit is None else unit.tags_code

    # -- records -------------------------------------------------------------------------

    def _sound_chunk(
        self,
        queue: ConsumeQueue,
        queue_offset: QueueOffset,
        position: PhysicalOffset,
        size: int,
        allow_cold: bool,
    ) -> memoryview | None:
        """The record of a unit; None when it is lost.

        Raises _Cold when bytes or the repair of the unit would have to be waited for, _Mended
        when it was repaired.
        """
        log = self._log
        fault = "the unit is not a valid one"
        if position >= 0 and 0 < size < PRE_BLANK_SIZE:
            chunk = log.read_resident(position, size)
            if chunk is None:
                if not allow_cold and log.file_at(position) is not None:
                    raise _Cold(lambda: self._warm(queue, queue_offset, position, size))
                chunk = log.read(position, size)
            found = record_fault(chunk, position, size)
            if found is None and self._runs.touches_damage(position, position + size):
                found = inner_fault(chunk)
            if found is None:
                return chunk
            fault = found
        if not self._mender.is_lost(queue, queue_offset):
            _LOG.warning("%s, queue offset %d: %s", queue.path, queue_offset, fault)
            self._mend(queue, queue_offset, allow_cold)
        return None

    def _warm(
        self, queue: ConsumeQueue, queue_offset: QueueOffset, position: PhysicalOffset, size: int
    ) -> None:
        """In a worker: bring a record into memory, and its unit right if it is not the one."""
        if record_fault(self._log.read(position, size), position, size) is not None:
            self._mender.mend(queue, queue_offset)

    def message_at(self, physical_offset: PhysicalOffset) -> memoryview | None:
        """See `MessageStore.message_at`."""
        log = self._log
        if not log.min_offset <= physical_offset < self.confirmed_offset():
            return None
        # What fills the end of a file may be shorter than any record.
        head = bytes(log.read(physical_offset, RECORD_CHECK.size)).ljust(RECORD_CHECK.size, b"\0")
        total, magic, own_offset = RECORD_CHECK.unpack(head)
        if magic == MAGIC_BLANK:
            return None
        if magic in RECORD_MAGICS and own_offset == physical_offset and total > 0:
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
