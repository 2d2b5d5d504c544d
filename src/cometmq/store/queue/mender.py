"""Mends units of an open queue whose files were cut, removed or changed, with the log's help.

Given a queue offset whose unit does not lead to its record, the mender derives the units around it
from the log, corrects them in the queue's file, and remembers which records are lost.  It runs in a
worker, since it walks through the log, and leaves units in memory alone.

The walk begins behind the record of the nearest earlier sound unit, searched 1, 2, 4, 8 ... units
back.  It ends where units are sound again, so a few pulls mend a whole file::

    units   [sound][sound][cut off ...                       ][sound][sound] ...
                          ^ begin        ^ asked for                ^ end
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
# A walk ends after so many bytes of the log, since a pull waits for it.
_WALK_BYTES_MAX: Final = 64 << 20
_BLOCK_UNITS: Final = 512
_LOGGED_MAX: Final = 10_000
# After so many sound units in a row the walk ends.
_SOUND_UNITS: Final = 64


class _StoredUnits:
    """The units in a queue's files, read in blocks."""

    def __init__(self, queues: ConsumeQueues, queue: ConsumeQueue) -> None:
        self._queues = queues
        self._queue = queue
        self._first = 0
        self._raw = b""

    def has(self, queue_offset: int, unit: CqUnit, topic: bytes) -> bool:
        """Return whether the stored unit is this one, as far as that can be proved."""
        at = (queue_offset - self._first) * CQ_UNIT_BYTES
        if not 0 <= at < len(self._raw):
            raw = self._queues.units(self._queue, queue_offset, _BLOCK_UNITS, may_block=True)
            self._first, self._raw, at = queue_offset, raw or b"", 0
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
        self._delays_ms = config.delays_ms
        # One walk at a time: it often mends the unit of the next caller too.
        self._job = threading.Lock()
        self._is_closed = False
        self._logged: set[int] = set()
        """Physical offsets of the damaged stretches that were logged."""
        self._lost: dict[ConsumeQueue, list[tuple[int, int]]] = {}
        """Ranges of queue offsets, first and end, whose records the log does not have."""
        self._changed: list[tuple[ConsumeQueue, str]] = []
        """Files that were mended since the last `settle`."""

    def is_lost(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> bool:
        """Return whether a walk through the log did not meet the record of this queue offset."""
        return any(first <= queue_offset < end for first, end in self._lost.get(queue, ()))

    def stop(self) -> None:
        """End the walk under way, wait for that, and begin no other."""
        self._is_closed = True
        with self._job:
            pass

    def settle(self) -> None:
        """Drop what is cached of mended files, and have them synced; on the loop, before a read."""
        while self._changed:
            queue, path = self._changed.pop()
            self._queues.forget_files(queue.path)
            self._writer.distrust([path])

    def mend(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> None:
        """Correct the unit and those near it, or remember that its record is lost."""
        with self._job:
            if queue.is_gone or self._is_closed:
                return
            if self.is_lost(queue, queue_offset):
                self._restore_size(queue, queue_offset, queue_offset + 1)
            elif not self._is_sound(queue, queue_offset):
                self._walk(queue, queue_offset)

    def _walk(self, queue: ConsumeQueue, wanted_offset: QueueOffset) -> None:
        """Walk through the log, correct wrong units, and remember lost records."""
        written, queue_end = queue.written, queue.max
        begin, position = self._begin(queue, wanted_offset)
        reader = LogReader(self._log, position, self._log.wrote, is_crc_checked=False)
        stored = _StoredUnits(self._queues, queue)
        derived: dict[int, CqUnit] = {}
        wrong: set[int] = set()
        sound_count = 0
        end = queue_end
        while (
            record := self._next_record(reader, queue)
        ) is not None and record.queue_offset < queue_end:
            queue_offset = record.queue_offset
            if queue_offset < begin:
                continue
            unit = self._unit_of(record)
            if stored.has(queue_offset, unit, record.topic):
                sound_count += 1
            elif queue_offset < written:
                wrong.add(queue_offset)
                sound_count = 0
            else:
                continue
            derived[queue_offset] = unit
            is_far = record.physical_offset - position > _WALK_BYTES_MAX
            if queue_offset > wanted_offset and (sound_count >= _SOUND_UNITS or is_far):
                # Later units are sound, or are mended when they are read.
                end = queue_offset + 1
                break
        if not self._is_closed:
            self._write(
                queue, {queue_offset: derived[queue_offset] for queue_offset in sorted(wrong)}
            )
            self._remember_lost(queue, begin, end, derived)

    def _next_record(self, reader: LogReader, queue: ConsumeQueue) -> ScannedRecord | None:
        """Return the queue's next record, skipping damage and records of other queues."""
        topic = queue.topic.encode()
        while not self._is_closed:
            record = reader.next_record()
            if record is None and reader.fault is not None:
                begin, fault = reader.position, reader.fault
                record = reader.resync(reader.end)
                self._log_damage(
                    begin, fault, reader.end if record is None else record.physical_offset
                )
            if record is None:
                return None
            if record.queue_id == queue.queue_id and record.topic == topic and record.is_queued:
                return record
        return None

    def _log_damage(self, begin: int, fault: str, end: int) -> None:
        """Log each damaged stretch of the log once."""
        if begin not in self._logged and len(self._logged) < _LOGGED_MAX:
            self._logged.add(begin)
            _LOG.error(
                "%s: %s; %d bytes are damaged",
                self._log.where(PhysicalOffset(begin)),
                fault,
                end - begin,
            )

    def _begin(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> tuple[int, int]:
        """Return the queue offset and the physical offset at which the walk begins."""
        step = 1
        while queue_offset - step >= queue.min:
            earlier = queue_offset - step
            if self._is_sound(queue, QueueOffset(earlier)):
                unit = self._queues.unit(queue, QueueOffset(earlier))
                if unit is not None:
                    return earlier + 1, unit.physical_offset + unit.size
            step *= 2
        return queue.min, self._log.min_offset

    def _is_sound(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> bool:
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

    def _write(self, queue: ConsumeQueue, units: dict[int, CqUnit]) -> None:
        """Write units, by ascending queue offset, to the queue's files; adjacent ones at once."""
        offsets = list(units)
        index = 0
        while index < len(offsets):
            first = offsets[index]
            start = first * CQ_UNIT_BYTES // self._queues.file_bytes * self._queues.file_bytes
            packed: list[bytes] = []
            while (
                index < len(offsets)
                and offsets[index] == first + len(packed)
                and offsets[index] * CQ_UNIT_BYTES < start + self._queues.file_bytes
            ):
                packed.append(CQ_UNIT.pack(*units[offsets[index]]))
                index += 1
            file = self._file(queue, start)
            file.write(first * CQ_UNIT_BYTES - start, b"".join(packed))
            self._changed.append((queue, file.path))
            _LOG.error(
                "%s: units of queue offsets %d to %d were missing or wrong; derived from the log"
                " again",
                file.path,
                first,
                first + len(packed) - 1,
            )

    def _file(self, queue: ConsumeQueue, start: int) -> RandomFile:
        """Open the queue's file that begins at byte `start`, made or extended to its full size."""
        path = f"{queue.path}/{log_file_name(start)}"
        # The directory is not made: it is missing only where the topic was deleted.
        file = self._disk.open_random(path, self._queues.file_bytes, create=True)
        if file.size() < self._queues.file_bytes:
            file.resize(self._queues.file_bytes)
        return file

    def _remember_lost(
        self, queue: ConsumeQueue, begin: int, end: int, derived: dict[int, CqUnit]
    ) -> None:
        """Remember as lost the queue offsets from `begin` to `end` without a derived unit."""
        first = begin
        for queue_offset in [*sorted(offset for offset in derived if offset < end), end]:
            if queue_offset > first:
                self._restore_size(queue, first, queue_offset)
                self._lost.setdefault(queue, []).append((first, queue_offset))
                _LOG.error(
                    "%s: the records of queue offsets %d to %d are lost and skipped",
                    queue.path,
                    first,
                    queue_offset - 1,
                )
            first = queue_offset + 1

    def _restore_size(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """Give files their full size where units are lost, so that readers get behind them."""
        position = first * CQ_UNIT_BYTES // self._queues.file_bytes * self._queues.file_bytes
        while position < min(end, queue.written) * CQ_UNIT_BYTES:
            self._changed.append((queue, self._file(queue, position).path))
            position += self._queues.file_bytes
