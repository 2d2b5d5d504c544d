"""Derives units of a live queue from the log again: files that were cut, removed or changed.

Given a queue offset whose unit does not lead to its record, the mender corrects the units around it
in the queue's file and remembers which records are lost.  It runs in a worker, since it walks the
log, and does not touch units that are in memory only.

The walk begins at the record of the nearest earlier unit that holds, searched 1, 2, 4, 8 ... units
back, and ends where units hold again, so a few pulls make a cut file whole::

    units   [sound][sound][cut off ...                       ][sound][sound] ...
                   ^ begin        ^ asked for                        ^ end
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES, PRE_BLANK_SIZE, CqUnit
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.dispatch import is_code_wrong, queue_tags_code
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.reader import LogReader

if TYPE_CHECKING:
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, RandomFile
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.reader import ScannedRecord
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.writer import QueueWriter

__all__ = ["QueueMender"]

_LOG: Final = logging.getLogger("cometmq.store")
# Bytes of the log read behind the wanted record at most, since a pull waits for the walk.
_WALK_BYTES_MAX: Final = 64 << 20
_BLOCK_UNITS: Final = 512
_LOGGED_MAX: Final = 10_000
# After so many right units in a row the following ones count as right.
_SOUND_UNITS: Final = 64


class _Units:
    """A queue's units as its files have them, read in blocks."""

    def __init__(self, queues: ConsumeQueues, queue: ConsumeQueue) -> None:
        self._queues = queues
        self._queue = queue
        self._first = 0
        self._raw = b""

    def is_right(self, number: int, unit: CqUnit, topic: bytes) -> bool:
        """Return whether the unit at a queue offset is this one, as far as can be told."""
        at = (number - self._first) * CQ_UNIT_BYTES
        if not 0 <= at < len(self._raw):
            raw = self._queues.units(self._queue, number, _BLOCK_UNITS, may_block=True)
            self._first, self._raw, at = number, raw or b"", 0
        if at + CQ_UNIT_BYTES > len(self._raw):
            return False
        position, size, code = CQ_UNIT.unpack_from(self._raw, at)
        return (position, size) == unit[:2] and not is_code_wrong(topic, code, unit.tags_code)


class QueueMender:
    """Mends the queues of one store."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._writer = writer
        self._file_bytes = config.queue_file_bytes
        self._delays_ms = config.delays_ms
        # One walk at a time: a second caller finds its unit mended.
        self._job = threading.Lock()
        self._is_closed = False
        self._logged: set[int] = set()
        self._lost: dict[ConsumeQueue, list[tuple[int, int]]] = {}
        self._changed: list[tuple[ConsumeQueue, str]] = []

    def is_lost(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> bool:
        """Return whether the log was searched for this message in vain."""
        return any(first <= queue_offset < end for first, end in self._lost.get(queue, ()))

    def stop(self) -> None:
        """End the walk under way, wait for it, and let no other begin."""
        self._is_closed = True
        with self._job:
            pass

    def settle(self) -> None:
        """On the loop, before units are read: drop what was read of mended files before."""
        while self._changed:
            queue, path = self._changed.pop()
            self._queues.forget_files(queue.path)
            self._writer.distrust([path])

    def mend(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> None:
        """Correct the unit and others near it, or remember that its record is lost."""
        with self._job:
            if queue.is_gone or self._is_closed:
                return
            if self.is_lost(queue, queue_offset):
                self._make_whole(queue, queue_offset, queue_offset + 1)
            elif not self._holds(queue, queue_offset):
                self._walk(queue, queue_offset)

    def _walk(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> None:
        written, last = queue.written, queue.max
        begin, position = self._begin(queue, queue_offset)
        reader = LogReader(self._log, position, self._log.wrote, is_crc_checked=False)
        stored = _Units(self._queues, queue)
        found: dict[int, CqUnit] = {}
        wrong: set[int] = set()
        sound = 0
        end = last
        while (record := self._next(reader, queue)) is not None and record.queue_offset < last:
            number = record.queue_offset
            if number < begin:
                continue
            unit = self._unit_of(record)
            if stored.is_right(number, unit, record.topic):
                sound += 1
            elif number < written:
                wrong.add(number)
                sound = 0
            else:
                continue
            found[number] = unit
            is_far = record.physical_offset - position > _WALK_BYTES_MAX
            if number > queue_offset and (sound >= _SOUND_UNITS or is_far):
                # Later units hold, or are mended when they are read.
                end = number + 1
                break
        if not self._is_closed:
            self._write(queue, {number: found[number] for number in sorted(wrong)})
            self._remember(queue, begin, end, found)

    def _next(self, reader: LogReader, queue: ConsumeQueue) -> ScannedRecord | None:
        """Return the queue's next record, skipping damage and records of other queues."""
        topic = queue.topic.encode()
        while not self._is_closed:
            record = reader.next_record()
            if record is None and reader.fault is not None:
                place, fault = reader.position, reader.fault
                record = reader.resync(reader.end)
                self._log_damage(
                    place, fault, reader.end if record is None else record.physical_offset
                )
            if record is None:
                return None
            if record.queue_id == queue.queue_id and record.topic == topic and record.is_queued:
                return record
        return None

    def _log_damage(self, place: int, fault: str, end: int) -> None:
        """Log each damaged stretch once."""
        if place not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add(place)
            _LOG.error(
                "%s: %s; %d bytes are damaged",
                self._log.where(PhysicalOffset(place)),
                fault,
                end - place,
            )

    def _begin(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> tuple[int, int]:
        """Return the first doubtful queue offset, and the earliest position of its record."""
        step = 1
        while queue_offset - step >= queue.min:
            earlier = queue_offset - step
            if self._holds(queue, QueueOffset(earlier)):
                unit = self._queues.unit(queue, QueueOffset(earlier))
                if unit is not None:
                    return earlier + 1, unit.physical_offset + unit.size
            step *= 2
        return queue.min, self._log.min_offset

    def _holds(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> bool:
        """Return whether a unit leads to the record of this queue and queue offset."""
        unit = self._queues.unit(queue, queue_offset)
        if unit is None or not unit.is_valid or unit.size == PRE_BLANK_SIZE:
            return False
        end = unit.physical_offset + unit.size
        reader = LogReader(self._log, unit.physical_offset, end, is_crc_checked=False)
        record = reader.next_record()
        return (
            record is not None
            and record.size == unit.size
            and record.queue_offset == queue_offset
            and record.queue_id == queue.queue_id
            and record.topic == queue.topic.encode()
        )

    def _unit_of(self, record: ScannedRecord) -> CqUnit:
        code = queue_tags_code(record.topic, record.properties, record.store_ms, self._delays_ms)
        return CqUnit(record.physical_offset, record.size, code)

    def _write(self, queue: ConsumeQueue, wrong: dict[int, CqUnit]) -> None:
        """Write units to the queue's files, adjacent ones at once; they ascend by queue offset."""
        numbers = list(wrong)
        place = 0
        while place < len(numbers):
            first = numbers[place]
            start = first * CQ_UNIT_BYTES // self._file_bytes * self._file_bytes
            units: list[bytes] = []
            while (
                place < len(numbers)
                and numbers[place] == first + len(units)
                and numbers[place] * CQ_UNIT_BYTES < start + self._file_bytes
            ):
                units.append(CQ_UNIT.pack(*wrong[numbers[place]]))
                place += 1
            file = self._file(queue, start)
            file.write(first * CQ_UNIT_BYTES - start, b"".join(units))
            self._changed.append((queue, file.path))
            _LOG.error(
                "%s: units of queue offsets %d to %d were missing or wrong; derived from the log"
                " again",
                file.path,
                first,
                first + len(units) - 1,
            )

    def _file(self, queue: ConsumeQueue, start: int) -> RandomFile:
        path = f"{queue.path}/{log_file_name(start)}"
        # Never make the directory: it is missing only when the topic was deleted.
        file = self._disk.open_random(path, self._file_bytes, create=True)
        if file.size() < self._file_bytes:
            file.resize(self._file_bytes)
        return file

    def _remember(
        self, queue: ConsumeQueue, begin: int, end: int, found: dict[int, CqUnit]
    ) -> None:
        """Remember as lost the queue offsets whose records the walk did not meet."""
        first = begin
        for number in [*sorted(number for number in found if number < end), end]:
            if number > first:
                self._make_whole(queue, first, number)
                self._lost.setdefault(queue, []).append((first, number))
                _LOG.error(
                    "%s: the records of queue offsets %d to %d are lost and skipped",
                    queue.path,
                    first,
                    number - 1,
                )
            first = number + 1

    def _make_whole(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """Give files their full size where units are lost, so that readers can go on."""
        position = first * CQ_UNIT_BYTES // self._file_bytes * self._file_bytes
        while position < min(end, queue.written) * CQ_UNIT_BYTES:
            self._changed.append((queue, self._file(queue, position).path))
            position += self._file_bytes
