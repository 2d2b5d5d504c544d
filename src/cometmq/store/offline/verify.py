"""Checks every record, unit and index entry of a store directory: `cometmq store verify`.

A finding states what is wrong, in which file and at which position.  Nothing is repaired.  The
store may be ours or Java's.  In the store of a running broker, bytes that are being written may
look damaged.

The check proves that

- every byte of the log belongs to a sound record, a BLANK or the unwritten end;
- every unit leads to the record of its queue and queue offset, and has its tags code;
- every record that belongs in a queue has its unit;
- every index entry leads to a record with a key of its hash, and every chain of entries is whole;
- every key of a record in the indexed part of the log has its entry;
- every block of a sealed log file has its digest (scrub/digests.py).

The units in the unit journal of a killed broker (unit_journal.py) are checked too.  They are not
missing: opening the store brings them into the queues' files.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from cometmq import native
from cometmq.codec.consume_queue import (
    CQ_UNIT,
    CQ_UNIT_BYTES,
    PRE_BLANK_SIZE,
    decode_cq_ext_address,
    decode_cq_ext_unit,
    is_cq_ext_address,
)
from cometmq.codec.index import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT,
    entry_position,
    slot_position,
)
from cometmq.codec.java_hash import index_key_hash
from cometmq.errors import CodecError
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.checkpoint import SIDE_FILE_NAME, SideState, load_side_file
from cometmq.store.base.config import DELAYS_MS_DEFAULT
from cometmq.store.base.dispatch import queue_tags_code
from cometmq.store.index.keys import record_key_texts
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.reader import LogReader, ScannedRecord
from cometmq.store.offline.directory import OfflineQueue, OfflineStore
from cometmq.store.queue.unit_journal import saved_units
from cometmq.store.scrub.check import find_rotten

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.disk import Disk
    from cometmq.store.offline.directory import OfflineIndex

    Progress = Callable[[str, int, int], None]

__all__ = ["Finding", "FindingKind", "VerifyReport", "verify_store"]

_PROGRESS_EVERY: Final = 4096
# Of a failing disk, which could give millions, only these are listed; the others are counted.
_FINDINGS_MAX: Final = 10_000
_READ_ENTRIES: Final = 4096
# The log between the records of that many entries is read at once, if it is no longer than this.
_SPAN_BYTES_MAX: Final = 16 << 20
# So many bytes behind the begin of the last of these records are read too.
_RECORD_BYTES_USUAL: Final = 64 << 10
_SLOT_BYTES: Final = 4
_SCHEDULE: Final = SCHEDULE_TOPIC.encode()


class FindingKind(Enum):
    """What a finding means for the messages of the store."""

    DAMAGE = "damage"
    """Bytes are wrong; a message may be lost."""
    MISSING = "missing"
    """A unit or an index entry is missing; opening the store derives it again."""
    STALE = "stale"
    """A unit or an index entry leads behind the end of the log."""
    NOTE = "note"
    """A fact about the store; nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the check, about a position in a file."""

    kind: FindingKind
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.path}, position {self.position}: {self.text}"


@dataclass(slots=True)
class VerifyReport:
    """The result of a check."""

    root: str
    findings: list[Finding] = field(default_factory=list)
    """The first findings, up to 10,000."""
    finding_count: int = 0
    """How many findings there are in all."""
    records: int = 0
    units: int = 0
    index_entries: int = 0
    log_start: int = 0
    log_end: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether all findings are notes."""
        return all(finding.kind is FindingKind.NOTE for finding in self.findings)


@dataclass(slots=True)
class _QueueInLog:
    """The records of one queue in the log."""

    end: int
    """Queue offset behind the last one."""
    count: int
    proven: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end, queue offsets, of units that are exactly those that the log gives."""

    def add_proven(self, begin: int, end: int) -> None:
        """Note proven units; usually they continue those that were proven last."""
        if self.proven and self.proven[-1][1] == begin:
            begin, _ = self.proven.pop()
        self.proven.append((begin, end))


def verify_store(
    disk: Disk,
    root: str,
    progress: Progress | None = None,
    *,
    delays_ms: tuple[int, ...] = DELAYS_MS_DEFAULT,
) -> VerifyReport:
    """Check a store directory.

    Args:
        progress: called with a text, the number done and the total (0 for unknown).
        delays_ms: the delay levels of the broker, from which due times follow.

    Raises:
        StoreError: the path is not a directory.
    """
    report = _Verifier(disk, root, progress, delays_ms).run()
    for block in find_rotten(disk, f"{root}/commitlog", root, progress):
        report.finding_count += 1
        text = f"{block.size} bytes are not those that were sealed: the disk changed them"
        report.findings.append(Finding(FindingKind.DAMAGE, block.path, block.position, text))
    return report


class _Verifier:
    def __init__(
        self, disk: Disk, root: str, progress: Progress | None, delays_ms: tuple[int, ...]
    ) -> None:
        self._disk = disk
        self._store = OfflineStore(disk, root)
        self._progress = progress
        self._delays_ms = delays_ms
        self._in_log: dict[tuple[bytes, int], _QueueInLog] = {}
        """By topic and queue id."""
        self._plain_queues: dict[tuple[bytes, int], tuple[str, int, _QueueInLog]] = {}
        """Those of them whose units have the hash of the tags, for `LogReader.scan`."""
        self._journaled: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        """By topic and queue id: runs of units in the journal, with their first queue offset."""
        self._indexed_spans: list[tuple[int, int]] = []
        """First and last physical offset in each index file."""
        self._expected_entries = 0
        """How many index entries the records in these spans must have."""
        self.report = VerifyReport(root)

    def run(self) -> VerifyReport:
        self._check_log()
        self._check_queues()
        self._check_index()
        return self.report

    def _add(self, kind: FindingKind, path: str, position: int, text: str) -> None:
        self.report.finding_count += 1
        if len(self.report.findings) < _FINDINGS_MAX:
            self.report.findings.append(Finding(kind, path, position, text))

    def _report_progress(self, part: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(part, done, total)

    # -- log -----------------------------------------------------------------------------

    def _check_log(self) -> None:
        store, report = self._store, self.report
        report.log_start = report.log_end = store.log_start
        self._check_log_files()
        self._indexed_spans = [
            (index.header.begin_physical_offset, index.header.end_physical_offset)
            for index in store.indexes()
            if index.header is not None and index.header.index_count > 1
        ]
        # The size of the queues' files is that of the first one.
        next((queue for queue in store.queues() if queue.files), None)
        reader = LogReader(store, store.log_start, store.log_limit)
        while True:
            self._count_stretches(reader)
            record = reader.next_record()
            if record is None:
                if reader.fault is None:
                    report.log_end = reader.position
                    return
                record = self._skip_damage(reader)
                if record is None:
                    return
            self._count_record(record)

    def _check_log_files(self) -> None:
        store = self._store
        expected = store.log_file_bytes
        for before, file in zip([None, *store.log_files], store.log_files, strict=False):
            if file.size != expected:
                text = f"{file.size} bytes long, other files have {expected}"
                self._add(FindingKind.DAMAGE, file.path, min(file.size, expected or 0), text)
            if before is not None and file.start != before.end:
                text = f"the file before ends at {before.end}, this one begins at {file.start}"
                self._add(FindingKind.DAMAGE, file.path, 0, text)

    def _skip_damage(self, reader: LogReader) -> ScannedRecord | None:
        """At a fault, return the next sound record behind it; None at the end of the log."""
        store, report = self._store, self.report
        physical_offset, fault = PhysicalOffset(reader.position), reader.fault
        is_unwritten = reader.is_unwritten
        path, position = store.where(physical_offset)
        record = reader.resync(store.log_limit)
        file = store.file_at(physical_offset)
        if record is None:
            report.log_end = physical_offset
            if not is_unwritten and file is not None:
                text = f"{fault}; the log ends here (a torn record, or damage)"
                self._add(FindingKind.DAMAGE, path, position, text)
            return None
        damaged_bytes = record.physical_offset - physical_offset
        text = f"{fault}; {damaged_bytes} bytes up to the next sound record"
        self._add(FindingKind.DAMAGE, path, position, text)
        return record

    def _count_stretches(self, reader: LogReader) -> None:
        """As `_count_record`, for as many records as the native core takes at once."""
        report = self.report
        while True:
            keys_use, end = self._keys_use(reader.position)
            stretch = reader.scan(end, keys_use, self._plain_queues)
            if stretch is None:
                return
            report.log_end, count, units_of, entry_count, _ = stretch
            report.records += count
            self._expected_entries += entry_count
            self._report_progress("log", report.log_end, self._store.log_limit)
            for (topic, queue_id, in_log), first, units in units_of:
                unit_count = len(units) // CQ_UNIT_BYTES
                if first == 0:
                    in_log.end = in_log.count = 0
                in_log.end = max(in_log.end, first + unit_count)
                in_log.count += unit_count
                if self._store.units_at(topic, queue_id, first, unit_count) == units:
                    in_log.add_proven(first, first + unit_count)

    def _keys_use(self, position: int) -> tuple[int, int]:
        """Return whether index entries are expected at a physical offset, and up to which one."""
        ends = [last + 1 for first, last in self._indexed_spans if first <= position <= last]
        if ends:
            return native.COUNT_KEYS, min(ends)
        return native.NO_KEYS, min(
            [first for first, _ in self._indexed_spans if first > position],
            default=self._store.log_limit,
        )

    def _count_record(self, record: ScannedRecord) -> None:
        """Note what follows from a sound record for its queue and for the index."""
        report = self.report
        report.records += 1
        report.log_end = record.physical_offset + record.size
        if report.records % _PROGRESS_EVERY == 0:
            self._report_progress("log", record.physical_offset, self._store.log_limit)
        if record.is_queued:
            key = (record.topic, record.queue_id)
            in_log = self._in_log.get(key)
            if in_log is None:
                in_log = self._in_log[key] = _QueueInLog(0, 0)
                if record.topic != _SCHEDULE and record.topic.isascii():
                    name = record.topic.decode()
                    self._plain_queues[key] = name, record.queue_id, in_log
            if record.queue_offset == 0:
                # The queue begins, maybe again after it was removed.
                in_log.end = in_log.count = 0
            in_log.end = max(in_log.end, record.queue_offset + 1)
            in_log.count += 1
        offset = record.physical_offset
        if record.sys_flag & 0xC != 0xC and any(
            first <= offset <= last for first, last in self._indexed_spans
        ):
            self._expected_entries += len(record_key_texts(record))

    # -- queues --------------------------------------------------------------------------

    def _check_queues(self) -> None:
        unchecked = dict(self._in_log)
        self._load_journal()
        for done, queue in enumerate(self._store.queues()):
            self._report_progress("queues", done, 0)
            unchecked.pop((queue.topic.encode(), queue.queue_id), None)
            self._check_queue(queue)
        for topic, queue_id in sorted(self._journaled):
            # A queue with all its units in the journal has no directory yet.
            if unchecked.pop((topic.encode(), queue_id), None) is not None:
                path = f"{self._store.root}/consumequeue/{topic}/{queue_id}"
                self._check_queue(OfflineQueue(topic, queue_id, path, []))
        for (raw_topic, queue_id), in_log in sorted(unchecked.items()):
            name = raw_topic.decode("utf-8", "replace")
            path = f"{self._store.root}/consumequeue/{name}/{queue_id}"
            text = f"no queue, and the log has {in_log.count} messages for it"
            self._add(FindingKind.MISSING, path, 0, text)

    def _load_journal(self) -> None:
        """Read the units in the journal whose generation the side file names."""
        root = self._store.root
        state = load_side_file(self._disk, f"{root}/{SIDE_FILE_NAME}")
        if not isinstance(state, SideState):
            return
        generation = int(state.heading.get("units_generation", 0))
        for topic, queue_id, first, units in saved_units(self._disk, root, generation):
            self._journaled.setdefault((topic, queue_id), []).append((first, units))

    def _check_journaled(self, queue: OfflineQueue, end: int) -> int:
        """Check the queue's units in the journal behind those in files; return the new end."""
        begin = end
        for first, units in self._journaled.get((queue.topic, queue.queue_id), ()):
            if first > end:
                break
            for number in range(end - first, len(units) // CQ_UNIT_BYTES):
                unit = CQ_UNIT.unpack_from(units, number * CQ_UNIT_BYTES)
                self._check_unit(queue, QueueOffset(first + number), *unit)
                end = first + number + 1
        if end > begin:
            path, position = _unit_position(queue, QueueOffset(begin))
            text = (
                f"{end - begin} units are in the unit journal; opening the store brings them here"
            )
            self._add(FindingKind.NOTE, path, position, text)
        return end

    def _check_queue(self, queue: OfflineQueue) -> None:
        expected_bytes = self._store.queue_file_bytes
        findings_before = self.report.finding_count
        for before, file in zip([None, *queue.files], queue.files, strict=False):
            if file.size != expected_bytes:
                text = f"{file.size} bytes long, other files have {expected_bytes}"
                self._add(FindingKind.DAMAGE, file.path, file.size, text)
            if before is not None and before.start + (expected_bytes or 0) != file.start:
                text = f"the file before begins at {before.start}"
                self._add(FindingKind.DAMAGE, file.path, 0, text)
        is_regular = self.report.finding_count == findings_before
        in_log = self._in_log.get((queue.topic.encode(), queue.queue_id))
        end = self._check_units(queue, in_log.proven if in_log and is_regular else [])
        end = self._check_journaled(queue, end)
        if in_log is not None and end < in_log.end:
            path, position = _unit_position(queue, QueueOffset(end))
            count, last = in_log.end - end, in_log.end - 1
            text = f"{count} units are missing: the log has queue offset {last}"
            self._add(FindingKind.MISSING, path, position, text)

    def _check_units(self, queue: OfflineQueue, proven: list[tuple[int, int]]) -> int:
        """Check the units in the queue's files; return the queue offset behind the last one.

        Args:
            proven: begin and end of units that are right, as `_QueueInLog.proven`.
        """
        end = queue.first
        zeros_from: int | None = None
        proven = sorted(proven)
        proven_number = 0
        for first, raw in queue.blocks():
            queue_offset, block_end = first, first + len(raw) // CQ_UNIT_BYTES
            while queue_offset < block_end:
                while proven_number < len(proven) and proven[proven_number][1] <= queue_offset:
                    proven_number += 1
                begin, proven_end = (
                    proven[proven_number] if proven_number < len(proven) else (block_end, block_end)
                )
                if begin <= queue_offset:
                    self._end_zeros(queue, zeros_from, queue_offset)
                    zeros_from = None
                    end = min(proven_end, block_end)
                    self._count_units(end - queue_offset)
                    queue_offset = end
                    continue
                physical_offset, size, code = CQ_UNIT.unpack_from(
                    raw, (queue_offset - first) * CQ_UNIT_BYTES
                )
                queue_offset += 1
                if physical_offset == 0 and size == 0 and code == 0:
                    if zeros_from is None:
                        zeros_from = queue_offset - 1
                    continue
                self._end_zeros(queue, zeros_from, queue_offset - 1)
                zeros_from = None
                end = queue_offset
                if size != PRE_BLANK_SIZE:
                    self._check_unit(queue, QueueOffset(queue_offset - 1), physical_offset, size,
                                     code)  # fmt: skip
        return end

    def _end_zeros(self, queue: OfflineQueue, zeros_from: int | None, queue_offset: int) -> None:
        """Report zeros that begin at a queue offset and end before another one, if there are."""
        if zeros_from is not None:
            path, position = _unit_position(queue, QueueOffset(zeros_from))
            text = f"queue offsets {zeros_from} to {queue_offset - 1} are zeros"
            self._add(FindingKind.DAMAGE, path, position, text)

    def _count_units(self, count: int) -> None:
        report = self.report
        before = report.units // _PROGRESS_EVERY
        report.units += count
        if report.units // _PROGRESS_EVERY > before:
            self._report_progress("units", report.units, report.records)

    def _check_unit(
        self,
        queue: OfflineQueue,
        queue_offset: QueueOffset,
        physical_offset: PhysicalOffset,
        size: int,
        code: int,
    ) -> None:
        report, store = self.report, self._store
        self._count_units(1)
        path, position = _unit_position(queue, queue_offset)
        who = f"the unit of queue offset {queue_offset}"
        if physical_offset < 0 or size <= 0:
            text = f"{who} has physical offset {physical_offset}, size {size}"
            self._add(FindingKind.DAMAGE, path, position, text)
            return
        if physical_offset + size <= store.log_start:
            return
        if physical_offset >= report.log_end:
            text = f"{who} leads to {physical_offset}, the log ends at {report.log_end}"
            self._add(FindingKind.STALE, path, position, text)
            return
        reader = LogReader(
            store, physical_offset, physical_offset + max(1, size), is_crc_checked=False
        )
        record = reader.next_record()
        if record is None or record.physical_offset != physical_offset:
            text = f"{who} leads to {physical_offset}, where no sound record begins"
            self._add(FindingKind.DAMAGE, path, position, text)
            return
        self._check_record_of_unit(queue, queue_offset, size, code, record, path, position)

    def _check_record_of_unit(
        self,
        queue: OfflineQueue,
        queue_offset: QueueOffset,
        size: int,
        code: int,
        record: ScannedRecord,
        path: str,
        position: int,
    ) -> None:
        """Compare a unit, at this path and position, with the record to which it leads."""
        who = f"the unit of queue offset {queue_offset}"
        if record.size != size:
            text = f"{who} says size {size}, the record has {record.size}"
            self._add(FindingKind.DAMAGE, path, position + 8, text)
        if (record.topic, record.queue_id) != (queue.topic.encode(), queue.queue_id):
            text = f"{who} leads to a record of {record.topic!r}, queue {record.queue_id}"
            self._add(FindingKind.DAMAGE, path, position, text)
            return
        if record.queue_offset != queue_offset:
            text = f"{who} leads to a record that says queue offset {record.queue_offset}"
            self._add(FindingKind.NOTE, path, position, text)
        actual = self._ext_code(queue, code) if is_cq_ext_address(code) else code
        expected = queue_tags_code(
            record.topic, record.properties, record.store_ms, self._delays_ms
        )
        if actual is None:
            text = f"{who} leads to an extension unit that cannot be read"
            self._add(FindingKind.DAMAGE, path, position + 12, text)
        elif actual != expected:
            text = f"{who} has tags code {actual}, its record gives {expected}"
            self._add(FindingKind.DAMAGE, path, position + 12, text)

    def _ext_code(self, queue: OfflineQueue, address: int) -> int | None:
        """Return the tags code in the extension unit at an address; None when it is unreadable."""
        position = decode_cq_ext_address(address)
        base = f"{self._store.root}/consumequeue_ext/{queue.topic}/{queue.queue_id}"
        names = [name for name in self._disk.listdir(base) if int(name) <= position]
        if not names:
            return None
        path = f"{base}/{names[-1]}"
        file = self._disk.open_random(path, self._disk.size(path), create=False)
        try:
            return decode_cq_ext_unit(file.read(position - int(names[-1]), 32767))[0].tags_code
        except CodecError:
            return None

    # -- index ---------------------------------------------------------------------------

    def _check_index(self) -> None:
        indexes = self._store.indexes()
        total = sum([index.header.index_count - 1 for index in indexes if index.header])
        for index in indexes:
            self._check_index_file(index, total)
        report = self.report
        if self._indexed_spans and report.index_entries < self._expected_entries:
            text = (
                f"{report.index_entries} entries, the records between give"
                f" {self._expected_entries} (a broker before 5.4 does not index tags)"
            )
            self._add(FindingKind.MISSING, f"{self._store.root}/index", 0, text)

    def _check_index_file(self, index: OfflineIndex, total: int) -> None:
        header = index.header
        if header is None:
            text = f"{index.size} bytes long, too short for a head"
            self._add(FindingKind.DAMAGE, index.path, 0, text)
            return
        if index.slot_count is None or index.entry_count is None:
            if header.index_count > 1:
                text = "the number of its slots cannot be found out; its head is damaged"
                self._add(FindingKind.DAMAGE, index.path, 0, text)
            return
        if header.index_count > index.entry_count:
            text = f"its head counts {header.index_count} entries of {index.entry_count}"
            self._add(FindingKind.DAMAGE, index.path, 36, text)
            return
        newest_of = array("i", bytes(index.slot_count * _SLOT_BYTES))
        assert newest_of.itemsize == _SLOT_BYTES
        for first in range(1, header.index_count, _READ_ENTRIES):
            count = min(_READ_ENTRIES, header.index_count - first)
            raw = index.file.read(
                entry_position(first, index.slot_count), count * INDEX_ENTRY_BYTES
            )
            self._check_entries(index, index.slot_count, first, raw, newest_of)
            self._report_progress("index", self.report.index_entries, total)
        self._check_slots(index, index.slot_count, newest_of)

    def _check_entries(
        self, index: OfflineIndex, slot_count: int, first: int, raw: bytes, newest_of: array[int]
    ) -> None:
        """Check a block of entries, of which the first one has number `first`."""
        done, count, end = 0, len(raw) // INDEX_ENTRY_BYTES, 0
        log, log_position, block = b"", 0, raw
        while done < count:
            if native.check_entries is not None:
                if done >= end:
                    log, log_position, end = self._log_of_entries(raw, done, count)
                    block = raw[: end * INDEX_ENTRY_BYTES]
                sound = native.check_entries(
                    block, done, first + done, newest_of, self._store.log_start, log, log_position
                )
                self.report.index_entries += sound
                done += sound
                if done >= end:
                    continue
            entry = INDEX_ENTRY.unpack_from(raw, done * INDEX_ENTRY_BYTES)
            self._check_entry(index, slot_count, first + done, entry, newest_of)
            done += 1

    def _log_of_entries(self, raw: bytes, done: int, count: int) -> tuple[bytes, int, int]:
        """Read the log to which entries lead, from the one of index `done` on.

        Returns the bytes, their physical offset, and the index behind the last entry that leads to
        them; more entries may, if they are not in the log's order.
        """
        store, log_end = self._store, self.report.log_end
        _, begin, _, _ = INDEX_ENTRY.unpack_from(raw, done * INDEX_ENTRY_BYTES)
        while count > done + 1:
            _, last, _, _ = INDEX_ENTRY.unpack_from(raw, (count - 1) * INDEX_ENTRY_BYTES)
            if begin <= last < begin + _SPAN_BYTES_MAX:
                break
            count -= (count - done) // 2
        _, last, _, _ = INDEX_ENTRY.unpack_from(raw, (count - 1) * INDEX_ENTRY_BYTES)
        begin = max(begin, store.log_start)
        if not begin <= last < log_end:
            return b"", 0, count
        size = min(last, begin + _SPAN_BYTES_MAX) + _RECORD_BYTES_USUAL - begin
        return store.read(PhysicalOffset(begin), min(size, log_end - begin)), begin, count

    def _check_entry(
        self,
        index: OfflineIndex,
        slot_count: int,
        number: int,
        entry: tuple[int, int, int, int],
        newest_of: array[int],
    ) -> None:
        """Check an entry; `newest_of` has the newest entry of each slot so far."""
        key_hash, physical_offset, delta, previous = entry
        report, store = self.report, self._store
        report.index_entries += 1
        position = entry_position(number, slot_count)
        slot = key_hash % slot_count
        before = newest_of[slot]
        newest_of[slot] = number
        if previous != before:
            text = f"entry {number} points back to {previous}, its bucket's last one was {before}"
            self._add(FindingKind.DAMAGE, index.path, position + 16, text)
        if delta < 0:
            text = f"entry {number} has a time difference of {delta} s"
            self._add(FindingKind.DAMAGE, index.path, position + 12, text)
        if physical_offset < store.log_start:
            return
        if physical_offset >= report.log_end:
            text = f"entry {number} leads to {physical_offset}, the log ends at {report.log_end}"
            self._add(FindingKind.STALE, index.path, position + 4, text)
            return
        reader = LogReader(store, physical_offset, physical_offset + 1, is_crc_checked=False)
        record = reader.next_record()
        if record is None or record.physical_offset != physical_offset:
            text = f"entry {number} leads to {physical_offset}, where no sound record begins"
            self._add(FindingKind.DAMAGE, index.path, position + 4, text)
        elif key_hash not in {index_key_hash(text) for text in record_key_texts(record)}:
            text = f"entry {number} has hash {key_hash}, no key of its record has that"
            self._add(FindingKind.DAMAGE, index.path, position, text)

    def _check_slots(self, index: OfflineIndex, slot_count: int, newest_of: array[int]) -> None:
        raw = index.file.read(INDEX_HEADER_BYTES, slot_count * _SLOT_BYTES)
        raw = raw[: len(raw) // _SLOT_BYTES * _SLOT_BYTES]
        actual = array("i", raw)
        if sys.byteorder == "little":
            actual.byteswap()
        if actual == newest_of[: len(actual)]:
            return
        for slot, (newest,) in enumerate(INDEX_SLOT.iter_unpack(raw)):
            expected = newest_of[slot]
            if newest != expected:
                text = f"slot {slot} leads to entry {newest}, its bucket's newest is {expected}"
                self._add(FindingKind.DAMAGE, index.path, slot_position(slot), text)


def _unit_position(queue: OfflineQueue, queue_offset: QueueOffset) -> tuple[str, int]:
    """Return the path of the file with a unit, and the unit's position in the file."""
    position = queue_offset * CQ_UNIT_BYTES
    for file in queue.files:
        if file.start <= position < file.start + file.size:
            return file.path, position - file.start
    return f"{queue.path}/{log_file_name(position)}", 0
