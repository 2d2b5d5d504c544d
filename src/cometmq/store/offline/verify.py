"""Checks every record, unit and index entry of a store directory: `cometmq store verify`.

A finding states what is wrong, in which file and at which position; nothing is repaired.  Any
directory can be checked, also Java's; in the store of a running broker, bytes that are just being
written may be reported.

What is proved: every byte of the log belongs to a sound record, a BLANK or the unwritten end;
every unit leads to the record of its queue and number, with its tags code; every queued record
has its unit; every index entry leads to a record that has such a key, in a chain that is whole;
every key of a record in the indexed part has its entry.

Units in the unit journal of a killed broker (unit_journal.py) are proved like those in queue files
and are not reported as lost: opening the store files them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

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
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.checkpoint import SIDE_FILE_NAME, SideState, load_side_file
from cometmq.store.base.config import DELAYS_MS_DEFAULT
from cometmq.store.base.dispatch import queue_tags_code
from cometmq.store.index.keys import record_key_texts
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.reader import LogReader, ScannedRecord
from cometmq.store.offline.directory import OfflineQueue, OfflineStore
from cometmq.store.queue.unit_journal import saved_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.disk import Disk
    from cometmq.store.offline.directory import OfflineIndex

    Progress = Callable[[str, int, int], None]

__all__ = ["Finding", "FindingKind", "VerifyReport", "verify_store"]

_PROGRESS_EVERY: Final = 4096
# A rotten disk would give millions of lines; the counts go on.
_FINDINGS_MAX: Final = 10_000
_READ_ENTRIES: Final = 4096


class FindingKind(Enum):
    """What a finding means for the reader's data."""

    DAMAGE = "damage"
    """Bytes are not what they must be; a message may be lost."""
    MISSING = "missing"
    """A unit or an index entry is missing; opening the store derives it again."""
    STALE = "stale"
    """A unit or an index entry leads behind the end or before the begin of the log."""
    NOTE = "note"
    """Worth knowing; nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    kind: FindingKind
    path: str
    position: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.path}, position {self.position}: {self.text}"


@dataclass(slots=True)
class VerifyReport:
    """The whole check."""

    root: str
    findings: list[Finding] = field(default_factory=list)
    finding_count: int = 0
    records: int = 0
    units: int = 0
    index_entries: int = 0
    log_start: int = 0
    log_end: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing but notes was found."""
        return all(finding.kind is FindingKind.NOTE for finding in self.findings)


@dataclass(slots=True)
class _InLog:
    """What the log says of one queue."""

    first: int
    end: int
    count: int
    last_physical_offset: int


def verify_store(
    disk: Disk,
    root: str,
    progress: Progress | None = None,
    *,
    delays_ms: tuple[int, ...] = DELAYS_MS_DEFAULT,
) -> VerifyReport:
    """Check a store directory.

    Raises:
        StoreError: the directory is no store.
    """
    return _Verifier(disk, root, progress, delays_ms).run()


class _Verifier:
    def __init__(
        self, disk: Disk, root: str, progress: Progress | None, delays_ms: tuple[int, ...]
    ) -> None:
        self._disk = disk
        self._store = OfflineStore(disk, root)
        self._progress = progress
        self._delays_ms = delays_ms
        self._in_log: dict[tuple[bytes, int], _InLog] = {}
        self._saved: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
        self._key_counts: list[tuple[int, int]] = []
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

    def _tell(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    # -- log -----------------------------------------------------------------------------

    def _check_log(self) -> None:
        store, report = self._store, self.report
        report.log_start = report.log_end = store.log_start
        self._check_log_files()
        self._key_spans = [
            (index.header.begin_physical_offset, index.header.end_physical_offset)
            for index in store.indexes()
            if index.header is not None and index.header.index_count > 1
        ]
        self._expected_entries = 0
        reader = LogReader(store, store.log_start, store.log_limit)
        while True:
            record = reader.next_record()
            if record is None:
                if reader.fault is None:
                    report.log_end = reader.position
                    return
                record = self._pass_over(reader)
                if record is None:
                    return
            self._see(record)

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

    def _pass_over(self, reader: LogReader) -> ScannedRecord | None:
        """At a fault: the end of the log, or damage with sound records behind it."""
        store, report = self._store, self.report
        place, fault, is_unwritten = reader.position, reader.fault, reader.is_unwritten
        path, position = store.where(PhysicalOffset(place))
        record = reader.resync(store.log_limit)
        file = store.file_at(PhysicalOffset(place))
        if record is None:
            report.log_end = place
            if not is_unwritten and file is not None:
                text = f"{fault}; the log ends here (a torn record, or damage)"
                self._add(FindingKind.DAMAGE, path, position, text)
            return None
        text = f"{fault}; {record.physical_offset - place} bytes up to the next sound record"
        self._add(FindingKind.DAMAGE, path, position, text)
        return record

    def _see(self, record: ScannedRecord) -> None:
        report = self.report
        report.records += 1
        report.log_end = record.physical_offset + record.size
        if report.records % _PROGRESS_EVERY == 0:
            self._tell("log", record.physical_offset, self._store.log_limit)
        if record.is_queued:
            key = (record.topic, record.queue_id)
            seen = self._in_log.get(key)
            if seen is None:
                self._in_log[key] = _InLog(
                    record.queue_offset, record.queue_offset + 1, 1, record.physical_offset
                )
            else:
                if record.queue_offset == 0:
                    # The queue was removed and began again.
                    seen.first, seen.count = 0, 0
                    seen.end = 0
                seen.end = max(seen.end, record.queue_offset + 1)
                seen.count += 1
                seen.last_physical_offset = record.physical_offset
        offset = record.physical_offset
        if record.sys_flag & 0xC != 0xC and any(
            first <= offset <= last for first, last in self._key_spans
        ):
            self._expected_entries += len(record_key_texts(record))

    # -- queues --------------------------------------------------------------------------

    def _check_queues(self) -> None:
        unseen = dict(self._in_log)
        self._load_journal()
        for done, queue in enumerate(self._store.queues()):
            self._tell("queues", done, 0)
            unseen.pop((queue.topic.encode(), queue.queue_id), None)
            self._check_queue(queue)
        for topic, queue_id in sorted(self._saved):
            # Queues whose every unit is in the journal have no folder yet.
            if unseen.pop((topic.encode(), queue_id), None) is not None:
                path = f"{self._store.root}/consumequeue/{topic}/{queue_id}"
                self._check_queue(OfflineQueue(topic, queue_id, path, []))
        for (raw_topic, queue_id), seen in sorted(unseen.items()):
            name = raw_topic.decode("utf-8", "replace")
            path = f"{self._store.root}/consumequeue/{name}/{queue_id}"
            text = f"no queue, and the log has {seen.count} messages for it"
            self._add(FindingKind.MISSING, path, 0, text)

    def _load_journal(self) -> None:
        """Find the units that a kill left in the journal which the side file names."""
        root = self._store.root
        state = load_side_file(self._disk, f"{root}/{SIDE_FILE_NAME}")
        if not isinstance(state, SideState):
            return
        generation = int(state.heading.get("units_generation", 0))
        for topic, queue_id, first, units in saved_units(self._disk, root, generation):
            self._saved.setdefault((topic, queue_id), []).append((first, units))

    def _check_saved(self, queue: OfflineQueue, end: int) -> int:
        """Check the units behind those in files; the end with them."""
        begin = end
        for first, units in self._saved.get((queue.topic, queue.queue_id), ()):
            if first > end:
                break
            for place in range(end - first, len(units) // CQ_UNIT_BYTES):
                unit = CQ_UNIT.unpack_from(units, place * CQ_UNIT_BYTES)
                self._check_unit(queue, QueueOffset(first + place), *unit)
                end = first + place + 1
        if end > begin:
            path, position = _unit_place(queue, QueueOffset(begin))
            text = (
                f"{end - begin} units are in the unit journal; opening the store brings them here"
            )
            self._add(FindingKind.NOTE, path, position, text)
        return end

    def _check_queue(self, queue: OfflineQueue) -> None:
        expected_bytes = self._store.queue_file_bytes
        for before, file in zip([None, *queue.files], queue.files, strict=False):
            if file.size != expected_bytes:
                text = f"{file.size} bytes long, other files have {expected_bytes}"
                self._add(FindingKind.DAMAGE, file.path, file.size, text)
            if before is not None and before.start + (expected_bytes or 0) != file.start:
                text = f"the file before begins at {before.start}"
                self._add(FindingKind.DAMAGE, file.path, 0, text)
        end = queue.first
        hole: int | None = None
        for queue_offset, physical_offset, size, code in queue.units():
            if physical_offset == 0 and size == 0 and code == 0:
                if hole is None:
                    hole = queue_offset
                continue
            if hole is not None:
                path, position = _unit_place(queue, QueueOffset(hole))
                text = f"queue offsets {hole} to {queue_offset - 1} are zeros"
                self._add(FindingKind.DAMAGE, path, position, text)
                hole = None
            end = queue_offset + 1
            if size != PRE_BLANK_SIZE:
                self._check_unit(
                    queue, QueueOffset(queue_offset), PhysicalOffset(physical_offset), size, code
                )
        end = self._check_saved(queue, end)
        seen = self._in_log.get((queue.topic.encode(), queue.queue_id))
        if seen is not None and end < seen.end:
            path, position = _unit_place(queue, QueueOffset(end))
            text = f"{seen.end - end} units are missing: the log has queue offset {seen.end - 1}"
            self._add(FindingKind.MISSING, path, position, text)

    def _check_unit(
        self,
        queue: OfflineQueue,
        queue_offset: QueueOffset,
        physical_offset: PhysicalOffset,
        size: int,
        code: int,
    ) -> None:
        report, store = self.report, self._store
        report.units += 1
        if report.units % _PROGRESS_EVERY == 0:
            self._tell("units", report.units, report.records)
        path, position = _unit_place(queue, queue_offset)
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
        self._compare(queue, queue_offset, size, code, record, path, position)

    def _compare(
        self,
        queue: OfflineQueue,
        queue_offset: QueueOffset,
        size: int,
        code: int,
        record: ScannedRecord,
        path: str,
        position: int,
    ) -> None:
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
        place = decode_cq_ext_address(address)
        base = f"{self._store.root}/consumequeue_ext/{queue.topic}/{queue.queue_id}"
        names = [name for name in self._disk.listdir(base) if int(name) <= place]
        if not names:
            return None
        path = f"{base}/{names[-1]}"
        file = self._disk.open_random(path, self._disk.size(path), create=False)
        try:
            return decode_cq_ext_unit(file.read(place - int(names[-1]), 32767))[0].tags_code
        except CodecError:
            return None

    # -- index ---------------------------------------------------------------------------

    def _check_index(self) -> None:
        indexes = self._store.indexes()
        total = sum([index.header.index_count - 1 for index in indexes if index.header])
        for index in indexes:
            self._check_index_file(index, total)
        report = self.report
        if self._key_spans and report.index_entries < self._expected_entries:
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
        heads: dict[int, int] = {}
        for first in range(1, header.index_count, _READ_ENTRIES):
            count = min(_READ_ENTRIES, header.index_count - first)
            raw = index.file.read(
                entry_position(first, index.slot_count), count * INDEX_ENTRY_BYTES
            )
            raw = raw[: len(raw) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES]
            for place, entry in enumerate(INDEX_ENTRY.iter_unpack(raw)):
                self._check_entry(index, index.slot_count, first + place, entry, heads)
            self._tell("index", self.report.index_entries, total)
        self._check_slots(index, index.slot_count, heads)

    def _check_entry(
        self,
        index: OfflineIndex,
        slot_count: int,
        number: int,
        entry: tuple[int, int, int, int],
        heads: dict[int, int],
    ) -> None:
        key_hash, physical_offset, delta, previous = entry
        report, store = self.report, self._store
        report.index_entries += 1
        position = entry_position(number, slot_count)
        slot = key_hash % slot_count
        before = heads.get(slot, 0)
        heads[slot] = number
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

    def _check_slots(self, index: OfflineIndex, slot_count: int, heads: dict[int, int]) -> None:
        raw = index.file.read(INDEX_HEADER_BYTES, slot_count * 4)
        raw = raw[: len(raw) // 4 * 4]
        for slot, (newest,) in enumerate(INDEX_SLOT.iter_unpack(raw)):
            expected = heads.get(slot, 0)
            if newest != expected:
                text = f"slot {slot} leads to entry {newest}, its bucket's newest is {expected}"
                self._add(FindingKind.DAMAGE, index.path, slot_position(slot), text)


def _unit_place(queue: OfflineQueue, queue_offset: QueueOffset) -> tuple[str, int]:
    position = queue_offset * CQ_UNIT_BYTES
    for file in queue.files:
        if file.start <= position < file.start + file.size:
            return file.path, position - file.start
    return f"{queue.path}/{log_file_name(position)}", 0
