"""Reads queues: `get` returns the records from a queue offset on, with the statuses of RocketMQ.

The usual read, with all bytes in memory and sound units, is one pass over runs of records
(record_runs.py, or the native core).  Every other read goes unit by unit.

The reader changes no file itself.  When a unit does not lead to its record, a worker derives the
unit from the log again (queue/mender.py), and the read waits for that as for cold bytes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from cometmq import native
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
# A read that may block has units mended up to this many times more than it has messages.
_MENDS_MAX: Final = 8


class _Cold(Exception):
    """A read would block; `read` reads the bytes, in a worker."""

    def __init__(self, read: Callable[[], object]) -> None:
        super().__init__("cold")
        self.read = read


class _Mended(Exception):
    """Units were mended, or found to be lost: read them once more."""


class _GetRequest(NamedTuple):
    """A `get` whose queue offset lies in the queue."""

    queue: ConsumeQueue
    queue_offset: QueueOffset
    first: int
    """First queue offset of the queue."""
    end: int
    """Queue offset behind the last visible message."""
    max_count: int
    max_bytes: int
    codes: frozenset[int] | None
    match: Callable[[memoryview], bool] | None
    allow_cold: bool


class MessageReader:
    """Reads records through the queues of one store.

    Args:
        confirmed_offset: the physical offset up to which readers see the log.
    """

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        queues: ConsumeQueues,
        search: QueueSearch,
        mender: QueueMender,
        ext: QueueExt,
        confirmed_offset: Callable[[], int],
    ) -> None:
        self._log = log
        self._queues = queues
        self._search = search
        self._mender = mender
        self._runs = RecordRuns(log)
        self._gather_natively = native.gather_records
        self._answer_natively = native.answer_pull
        self._count_max = config.transfer_count_max
        self._bytes_max = config.transfer_bytes_max
        self._filter_units = config.filter_units_max
        self._ext = ext
        self._filtered = FilteredReader(log, queues, self._runs, ext, config.filter_units_max)
        self.spans = SpanReader(log, queues, self._runs, self._filtered.may_match)
        self._confirmed_offset = confirmed_offset

    def distrust(self, stretches: list[tuple[int, int]]) -> None:
        """Check every record that touches one of these damaged stretches of the log."""
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
            resident_min = self._search.known_min(queue)
            if resident_min is None and not allow_cold:
                return ColdRead([lambda: self._search.min_of(queue)])
            # None though a worker has searched: files expired again.  Expired units are skipped.
            first = queue.min if resident_min is None else resident_min
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
                result = self._get_quickly(
                    queue, queue_offset, max_count, max_bytes, codes, first, end
                )
                if result is not None:
                    return result
            elif codes is None:
                filtered_result = self._filtered.get(
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
                if filtered_result is not None:
                    return filtered_result
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

    def answer(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        parts: tuple[bytes, ...],
        opaque: int,
    ) -> tuple[bytes, int, int, int] | GetStatus | None:
        """See `MessageStore.answer`."""
        queue = self._queues.find(topic, queue_id)
        if (
            queue is None
            or self._answer_natively is None
            or queue.min_checked_at != self._log.min_offset
        ):
            return None
        first, end = queue.min, queue.visible
        if not first <= queue_offset < end:
            return GetStatus.OFFSET_OVERFLOW_ONE if queue_offset == end else None
        max_count = max(1, min(max_count, self._count_max))
        count = min(end - queue_offset, max_count if codes is None else self._filter_units)
        units = self._resident_units(queue, queue_offset, count)
        if units is None:
            return None
        answered = self._answer_natively(
            *units,
            count,
            codes,
            max_count,
            min(max_bytes, self._bytes_max),
            SPAN_BYTES_MAX,
            self._runs.resident,
            parts,
            opaque,
            queue_offset,
            first,
            end,
        )
        if answered is None:
            return None
        frame, number, examined, byte_count = answered
        return frame, queue_offset + examined, number, byte_count

    def _resident_units(
        self, queue: ConsumeQueue, queue_offset: int, count: int
    ) -> tuple[bytes | bytearray, int] | None:
        """Return bytes with these units and the number of the first one in them.

        Returns None when they are not in memory.
        """
        start = queue_offset - queue.written
        if start >= 0:
            return queue.tail, start
        resident = self._queues.units(queue, queue_offset, count, may_block=False)
        if resident is None or len(resident) < count * CQ_UNIT_BYTES:
            return None
        return resident, 0

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
        """Read in the usual case: all bytes in memory, sound units.  Else return None."""
        count = end - queue_offset
        limit = max_count if codes is None else self._filter_units
        count = min(count, limit)
        units = self._resident_units(queue, queue_offset, count)
        if units is None:
            return None
        raw, start = units
        if self._gather_natively is not None:
            gathered = self._gather_natively(
                raw, start, count, codes, max_count, max_bytes, SPAN_BYTES_MAX, self._runs.resident
            )
            if gathered is not None:
                body, number, examined = gathered
                following = queue_offset + examined
                if not number:
                    return GetResult(GetStatus.NO_MATCHED_MESSAGE, following, first, end)
                return GetResult(GetStatus.FOUND, following, first, end, [body], number, len(body))
        return self._get_runs(
            queue, queue_offset, raw, start, count, max_count, max_bytes, codes, first, end
        )

    def _get_runs(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        raw: bytes | bytearray,
        start: int,
        count: int,
        max_count: int,
        max_bytes: int,
        codes: frozenset[int] | None,
        first: int,
        end: int,
    ) -> GetResult | None:
        """Read the records of `count` units, from the unit of number `start` in `raw` on."""
        if codes is None:
            units = units_struct(count).unpack_from(raw, start * CQ_UNIT_BYTES)
            positions: Sequence[PhysicalOffset] = units[0::3]
            sizes: Sequence[int] = units[1::3]
            following = queue_offset + count
        else:
            selected = select_units(raw, start, count, codes, max_count, max_bytes)
            if selected is None:
                part = raw[start * CQ_UNIT_BYTES : (start + count) * CQ_UNIT_BYTES]
                coded = self._filtered.with_codes(queue, part, min(codes))
                if coded is None:
                    return None
                selected = select_units(coded, 0, count, codes, max_count, max_bytes)
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
        """Read unit by unit, with cold, removed and damaged records.

        Raises:
            StoreCorrupt: a unit cannot be read although it was derived from the log again.
            _Cold: the read would block.
        """
        for _ in range(request.max_count + _MENDS_MAX):
            self._mender.settle()
            try:
                return self._get_one_by_one(request)
            except _Mended:
                continue
        position = request.queue_offset * CQ_UNIT_BYTES
        file_position = position % self._queues.file_bytes
        raise StoreCorrupt(
            f"{request.queue.path}/{log_file_name(position - file_position)}, position"
            f" {file_position}: queue offset {request.queue_offset} cannot be read, and deriving it"
            " from the commit log did not help; look at the disk"
        )

    def _mend(self, queue: ConsumeQueue, queue_offset: QueueOffset, allow_cold: bool) -> NoReturn:
        """Have a worker mend a unit, or mend it here where blocking is allowed.

        Raises:
            _Cold: a worker has to do it.
            _Mended: it is done.
        """
        if not allow_cold:
            raise _Cold(lambda: self._mender.mend(queue, queue_offset))
        self._mender.mend(queue, queue_offset)
        raise _Mended

    def _get_one_by_one(self, request: _GetRequest) -> GetResult:
        """Read unit by unit, until a unit has to be mended or the read would block."""
        queue, first, end = request.queue, request.first, request.end
        is_filtered = request.codes is not None or request.match is not None
        count = min(
            end - request.queue_offset, self._filter_units if is_filtered else request.max_count
        )
        raw = self._units(queue, request.queue_offset, count, request.allow_cold)
        if len(raw) < CQ_UNIT_BYTES:
            # Java answers OFFSET_FOUND_NULL and goes on with the next file: messages are lost.
            self._mend(queue, request.queue_offset, request.allow_cold)
        picks, status, following = self._pick(request, raw)
        chunks = self._chunks(picks, queue, request.allow_cold)
        if None in chunks:
            status = GetStatus.MESSAGE_WAS_REMOVING
        sound = [chunk for chunk in chunks if chunk is not None]
        if sound:
            status = GetStatus.FOUND
        byte_count = sum([len(chunk) for chunk in sound])
        return GetResult(status, following, first, end, sound, len(sound), byte_count)

    def _pick(
        self, request: _GetRequest, raw: bytes
    ) -> tuple[list[tuple[QueueOffset, PhysicalOffset, int]], GetStatus, int]:
        """Choose the units whose records go into the result.

        Returns queue offset, position and size of each; the status of a result without records;
        the queue offset behind the examined units.
        """
        picks: list[tuple[QueueOffset, PhysicalOffset, int]] = []
        status = GetStatus.NO_MATCHED_MESSAGE
        codes, match = request.codes, request.match
        min_physical = self._log.min_offset
        is_min_known = request.queue.min_checked_at == min_physical
        byte_count = 0
        following: int = request.queue_offset
        for position, size, code in CQ_UNIT.iter_unpack(raw[: len(raw) // 20 * 20]):
            if picks and (len(picks) >= request.max_count or byte_count + size > request.max_bytes):
                break
            queue_offset = QueueOffset(following)
            following += 1
            if not (position >= min_physical and 0 < size < PRE_BLANK_SIZE):
                # A worker may have found the queue's first offset since this read began.
                is_before_min = not is_min_known or queue_offset < request.queue.min
                is_removed = position < min_physical and size > 0 and is_before_min
                if is_removed or self._mender.is_lost(request.queue, queue_offset):
                    status = GetStatus.MESSAGE_WAS_REMOVING
                    continue
                if picks:
                    # Return the sound records; the next read begins at this unit.
                    return picks, status, queue_offset
                self._mend(request.queue, queue_offset, request.allow_cold)
            if codes is not None and code not in codes and not self._is_ext_wanted(request, code):
                continue
            if match is not None:
                chunk = self._sound_chunk(
                    request.queue, queue_offset, position, size, request.allow_cold
                )
                if chunk is not None and not match(chunk):
                    continue
            picks.append((queue_offset, position, size))
            byte_count += size
        return picks, status, following

    def _is_ext_wanted(self, request: _GetRequest, address: int) -> bool:
        """Return whether a code is the address of an extension unit with a wanted tags code."""
        if not is_cq_ext_address(address):
            return False
        tags_code = self._ext_tags_code(request.queue, address)
        # An extension unit that cannot be read filters nothing out: the client compares tags.
        return tags_code is None or request.codes is None or tags_code in request.codes

    def _chunks(
        self,
        picks: list[tuple[QueueOffset, PhysicalOffset, int]],
        queue: ConsumeQueue,
        allow_cold: bool,
    ) -> list[memoryview | None]:
        """Return the records of the picked units, None for each that is lost."""
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
        """Return units of a queue.

        Raises:
            _Cold: they are not in memory and the read must not block.
        """
        raw = self._queues.units(queue, first, count, may_block=allow_cold)
        if raw is None:
            start = first * CQ_UNIT_BYTES
            start -= start % self._queues.file_bytes
            file = self._queues.open_file(queue, start)
            position = first * CQ_UNIT_BYTES - start
            raise _Cold(
                lambda: None if file is None else file.read(position, count * CQ_UNIT_BYTES)
            )
        return raw

    def _ext_tags_code(self, queue: ConsumeQueue, address: int) -> int | None:
        """Return the tags code in the extension unit at an address; None when unreadable."""
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
        """Return the record of a unit; None when it is lost.

        Raises:
            _Cold: the read, or mending the unit, would block.
            _Mended: the unit was mended.
        """
        log = self._log
        unit_fault = "the unit is not a valid one"
        if position >= 0 and 0 < size < PRE_BLANK_SIZE:
            chunk = log.read_resident(position, size)
            if chunk is None:
                if not allow_cold and log.file_at(position) is not None:
                    raise _Cold(lambda: self._warm(queue, queue_offset, position, size))
                chunk = log.read(position, size)
            fault = record_fault(chunk, position, size)
            if fault is None and self._runs.touches_damage(position, position + size):
                fault = inner_fault(chunk)
            if fault is None:
                return chunk
            unit_fault = fault
        if not self._mender.is_lost(queue, queue_offset):
            _LOG.warning("%s, queue offset %d: %s", queue.path, queue_offset, unit_fault)
            self._mend(queue, queue_offset, allow_cold)
        return None

    def _warm(
        self, queue: ConsumeQueue, queue_offset: QueueOffset, position: PhysicalOffset, size: int
    ) -> None:
        """In a worker: bring a record into memory; mend the unit if it leads to no record."""
        if record_fault(self._log.read(position, size), position, size) is not None:
            self._mender.mend(queue, queue_offset)

    def message_at(self, physical_offset: PhysicalOffset) -> memoryview | None:
        """Return the record at a physical offset; see `MessageStore.message_at`.

        Raises:
            StoreCorrupt: no sound record begins there; the text names file and position.
        """
        log = self._log
        if not log.min_offset <= physical_offset < self._confirmed_offset():
            return None
        # The BLANK at the end of a file may be shorter than any record.
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
