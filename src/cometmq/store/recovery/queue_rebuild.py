"""Derives units from records during recovery: gives each scanned record its unit in its queue.

Records come in log order.  With q for the record's queue offset, u for the unit that the queue has
at q, and max for the queue's end, the cases are:

==========================  =================================================================
q == max                    a unit is appended
q < max, u leads to it      nothing is done; a wrong tags code of u is corrected
q < max, u leads to no      u is corrected
sound record of q
q < max, u leads to a       nothing is done: u is the newer one (Java gives offsets again after
later record                it has lost the end of a queue)
q == 0, u leads to an       the queue was removed and has begun again: it is emptied, and a
earlier record              unit is appended
q < max, u leads to an      a unit is appended at max, so that readers see the message, as in
earlier record              Java
q > max, queue empty        earlier records have expired: the queue begins at q
q > max                     units are missing: the scan began too late (`QueueGap`), or records
                            were damaged, and units that lead to the damage stand for them
==========================  =================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES, CqUnit, is_cq_ext_address
from cometmq.codec.stored_message import RECORD_BYTES_MIN
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.dispatch import is_code_wrong, queue_tags_code
from cometmq.store.log.reader import LogReader
from cometmq.store.queue.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.reader import ScannedRecord
    from cometmq.store.queue.consume_queue import ConsumeQueues
    from cometmq.store.queue.writer import QueueWriter

__all__ = ["QueueGap", "QueueRebuild"]

# The units in a queue's files are read in blocks of this many.
_BLOCK_UNITS: Final = 512
# Derived units are written when so many bytes of them wait.
_WAITING_BYTES_MAX: Final = 32 << 20
# With a gap of more messages than this, the record's queue offset is taken for damaged.
_GAP_MAX: Final = 1_000_000


# The queue of records that belong to no queue.
_NO_QUEUE: Final = ConsumeQueue("", 0, "")


class QueueGap(Exception):
    """A queue lacks the units before a record; the text names the queue."""


class QueueRebuild:
    """Derives the units of the records of one scan.

    Args:
        floors: by deleted topic, the physical offset below which records do not belong to it.
        damages: gets a text for each damage.
    """

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        delays_ms: tuple[int, ...],
        floors: dict[str, int],
        damages: list[str],
    ) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._writer = writer
        self._delays_ms = delays_ms
        self._floors = floors
        self._damages = damages
        self._queue_by_key: dict[tuple[bytes, int], ConsumeQueue] = {}
        """By topic and queue id of records."""
        self.plain_queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        """Those of them whose units have the hash of the tags; `LogReader.scan` reads these."""
        self._blocks: dict[ConsumeQueue, tuple[int, bytes]] = {}
        """By queue: the block of units that was read last, and its first queue offset."""
        self._waiting_bytes = 0
        self.is_gap_final = False
        """Whether scanning from an earlier file cannot fill a gap."""
        self.damaged_at: tuple[int, int] | None = None
        """Physical offset and size of the last damaged stretch that the scan skipped."""
        self.has_lost_addresses = False
        """Whether extension units may be lost to which units have addresses."""
        self.units_built = 0
        self.ends: dict[ConsumeQueue, int] = {}
        """Queue offset behind the last scanned record of each queue."""

    def dispatch(self, record: ScannedRecord) -> None:
        """Give a record its unit, as in the table above.

        Raises:
            QueueGap: units before it are missing, and scanning from an earlier file may give them.
        """
        queue = self._queue_by_key.get((record.topic, record.queue_id))
        if queue is None:
            queue = self._find_queue(record)
        if not record.is_queued or queue is _NO_QUEUE:
            return
        queue_offset = record.queue_offset
        if queue_offset > queue.max:
            self._bridge_gap(queue, record)
        elif queue_offset < queue.max and self._needs_no_unit(queue, record):
            self.ends[queue] = queue_offset + 1
            return
        self._append(queue, record.physical_offset, record.size, self._code(record))
        self.ends[queue] = queue.max

    def forget_queues(self) -> None:
        """Look queues up again, and read units again: the store has gone on since."""
        self._queue_by_key.clear()
        self._blocks.clear()

    def _code(self, record: ScannedRecord) -> int:
        return queue_tags_code(record.topic, record.properties, record.store_ms, self._delays_ms)

    def _find_queue(self, record: ScannedRecord) -> ConsumeQueue:
        """Return the queue of a record, made if needed; _NO_QUEUE when it belongs to none."""
        try:
            topic = record.topic.decode()
        except UnicodeDecodeError:
            topic = ""
        if not topic or "/" in topic or topic in {".", ".."} or record.queue_id < 0:
            self._damages.append(
                f"{self._log.where(record.physical_offset)}: topic {record.topic!r}, queue id"
                f" {record.queue_id} have no queue; the record is passed over"
            )
            return _NO_QUEUE
        if record.physical_offset < self._floors.get(topic, 0):
            return _NO_QUEUE
        queue = self._queues.find(topic, record.queue_id)
        if queue is None:
            queue = self._queues.add(topic, record.queue_id)
        self._queue_by_key[record.topic, record.queue_id] = queue
        if topic != SCHEDULE_TOPIC and topic.isascii():
            self.plain_queues[record.topic, record.queue_id] = queue
        return queue

    def dispatch_run(self, units_of: list[tuple[ConsumeQueue, int, bytes]]) -> bool:
        """Give the records of a scanned stretch their units, if all are new or all are right.

        Args:
            units_of: each queue, the queue offset of its first record, and the records' units.

        Returns False when `dispatch` has to look at each record; then nothing was done.
        """
        new: list[tuple[ConsumeQueue, int, bytes]] = []
        for queue, first, units in units_of:
            if first == queue.max:
                new.append((queue, first, units))
                continue
            count = len(units) // CQ_UNIT_BYTES
            if (
                first + count > queue.max
                or self._queues.units(queue, QueueOffset(first), count, may_block=True) != units
            ):
                return False
        for queue, first, units in units_of:
            self.ends[queue] = first + len(units) // CQ_UNIT_BYTES
        for queue, _, units in new:
            self._append_units(queue, units)
        return True

    def _append(
        self, queue: ConsumeQueue, physical_offset: PhysicalOffset, size: int, code: int
    ) -> None:
        self._append_units(queue, CQ_UNIT.pack(physical_offset, size, code))

    def _append_units(self, queue: ConsumeQueue, units: bytes) -> None:
        count = len(units) // CQ_UNIT_BYTES
        last, size, _ = CQ_UNIT.unpack_from(units, len(units) - CQ_UNIT_BYTES)
        queue.tail += units
        queue.max += count
        queue.last_physical_end = last + size
        self.units_built += count
        if not queue.is_dirty:
            first, _, _ = CQ_UNIT.unpack_from(units)
            self._writer.mark(queue, first, 0)
        self._waiting_bytes += len(units)
        if self._waiting_bytes > _WAITING_BYTES_MAX:
            self._writer.write_all()
            self._waiting_bytes = 0

    def _bridge_gap(self, queue: ConsumeQueue, record: ScannedRecord) -> None:
        """Bring the queue's end to a record's queue offset."""
        queue_offset = record.queue_offset
        is_empty = queue.min == queue.max and not queue.tail
        if not self.is_gap_final:
            raise QueueGap(f"{queue.path} lacks queue offsets {queue.max} to {queue_offset - 1}")
        if is_empty:
            queue.min = queue.max = queue.written = queue_offset
            position = queue_offset * CQ_UNIT_BYTES
            queue.first_start = position - position % self._queues.file_bytes
            return
        missing = queue_offset - queue.max
        if missing > _GAP_MAX:
            self._damages.append(
                f"{self._log.where(record.physical_offset)}: queue offset {queue_offset} follows"
                f" {queue.max - 1} in {queue.path}; the record is placed at {queue.max}"
            )
            return
        # Without a damaged stretch, they lead into this record, where no record begins.
        position, size = self.damaged_at or (record.physical_offset + 1, RECORD_BYTES_MIN)
        self._damages.append(
            f"{queue.path}: queue offsets {queue.max} to {queue_offset - 1} have no record;"
            f" readers skip them (damage at {self._log.where(PhysicalOffset(position))})"
        )
        for _ in range(missing):
            self._append(queue, PhysicalOffset(position), size, 0)

    def _needs_no_unit(self, queue: ConsumeQueue, record: ScannedRecord) -> bool:
        """Return whether a record below the queue's end needs no new unit; correct its old one."""
        queue_offset = record.queue_offset
        unit = self._unit(queue, queue_offset)
        if unit is None:
            return True
        position, size, code = unit
        if position == record.physical_offset and size == record.size:
            derived = self._code(record)
            if self.has_lost_addresses and is_cq_ext_address(code):
                self._rewrite(queue, record)
            elif is_code_wrong(record.topic, code, derived):
                self._damages.append(
                    f"{queue.path}: the unit of queue offset {queue_offset} has tags code {code},"
                    f" its record gives {derived}; corrected"
                )
                self._rewrite(queue, record)
            return True
        if queue_offset >= queue.min and not self._is_sound(queue, queue_offset, position, size):
            self._correct(queue, record)
            return True
        if position > record.physical_offset:
            return True
        if queue_offset == 0:
            self._restart(queue)
        return False

    def _is_sound(
        self, queue: ConsumeQueue, queue_offset: QueueOffset, position: int, size: int
    ) -> bool:
        """Return whether a unit leads to a record of this queue and queue offset."""
        record = LogReader(self._log, position, position + max(size, 1)).next_record()
        return (
            record is not None
            and record.size == size
            and record.queue_offset == queue_offset
            and record.queue_id == queue.queue_id
            and record.topic == queue.topic.encode()
        )

    def _unit(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> tuple[int, int, int] | None:
        """Return a unit: physical offset, size, tags code; None where its file is cut."""
        if queue_offset >= queue.written:
            at = (queue_offset - queue.written) * CQ_UNIT_BYTES
            return CQ_UNIT.unpack_from(queue.tail, at) if at < len(queue.tail) else None
        first, raw = self._blocks.get(queue, (0, b""))
        at = (queue_offset - first) * CQ_UNIT_BYTES
        if not 0 <= at <= len(raw) - CQ_UNIT_BYTES:
            count = min(_BLOCK_UNITS, queue.written - queue_offset)
            raw = self._queues.units(queue, queue_offset, count, may_block=True) or b""
            self._blocks[queue] = (queue_offset, raw)
            at = 0
            if len(raw) < CQ_UNIT_BYTES:
                return None
        return CQ_UNIT.unpack_from(raw, at)

    def _correct(self, queue: ConsumeQueue, record: ScannedRecord) -> None:
        self._damages.append(
            f"{queue.path}: the unit of queue offset {record.queue_offset} does not lead to its"
            f" record; corrected to physical offset {record.physical_offset}, size {record.size}"
        )
        self._rewrite(queue, record)

    def _rewrite(self, queue: ConsumeQueue, record: ScannedRecord) -> None:
        unit = CqUnit(record.physical_offset, record.size, self._code(record))
        self._queues.rewrite(queue, record.queue_offset, unit)
        self._blocks.pop(queue, None)
        if record.queue_offset == queue.max - 1:
            queue.last_physical_end = record.physical_offset + record.size
        self.units_built += 1

    def _restart(self, queue: ConsumeQueue) -> None:
        """Empty a queue that was removed and has begun again at queue offset 0."""
        self._queues.forget_files(queue.path)
        self._disk.remove_tree(queue.path)
        self._writer.forget(queue.path)
        self._blocks.pop(queue, None)
        queue.tail.clear()
        queue.min = queue.max = queue.written = queue.first_start = 0
