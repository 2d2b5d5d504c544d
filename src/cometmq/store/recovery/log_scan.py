"""Scans the log at load, and derives the units and index entries that are missing.

The scan goes from a physical offset to the end of the log.  It begins again a file earlier when a
queue lacks older units, and skips damage if the log provably goes on behind it.  recovery.py
decides where the scan begins; queue_rebuild.py decides which unit a record gets.

The CRC of every record is checked, unless the page cache has survived since the records were
written.  In that case only the last record can be torn (`_is_torn`): records are copied to the
mapping one after the other, and what was copied is in the page cache, however the process ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq import native
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.dispatch import index_keys_of
from cometmq.store.log.reader import LogReader, ScannedRecord
from cometmq.store.recovery.queue_rebuild import QueueGap, QueueRebuild

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk
    from cometmq.store.base.results import RecoveryReport
    from cometmq.store.index.service import IndexService
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.loader import QueueLoader
    from cometmq.store.queue.writer import QueueWriter

    Progress = Callable[[str, int, int], None]

__all__ = ["LogProof", "LogScan"]

_PROGRESS_EVERY_RECORDS: Final = 1 << 16
# Keys of so many messages may wait to be indexed when the store begins to serve.
_INDEX_WAITING_MAX: Final = 100_000
_ZERO_STEP: Final = bytes(16)
_LONG_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class LogProof:
    """What is known about the log before it is read.

    The log provably had the records below `end` that were stored before `before_ms`.
    """

    end: int = 0
    """A physical offset."""
    before_ms: int = _LONG_MAX
    """A store time."""
    flushed: int = 0
    """The log is on stable storage up to this physical offset."""
    is_whole: bool = False
    """Whether every record but the last one was copied in full; then only its CRC is checked."""


class LogScan:
    """Scans the log of one store, at one start."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        index: IndexService,
        loader: QueueLoader,
        report: RecoveryReport,
    ) -> None:
        self._config = config
        self._disk = disk
        self._log = log
        self._queues = queues
        self._writer = writer
        self._index = index
        self._loader = loader
        self._report = report
        self._floors: dict[str, int] = {}
        self._progress: Progress | None = None
        self.proof = LogProof()
        self.has_lost_addresses = False
        """Whether a power cut may have taken extension units that units lead to."""
        self.index_from = 0
        """Records from this physical offset on get index entries."""
        self.damaged: list[tuple[int, int]] = []
        """Damaged stretches of the log that were skipped, begin and end."""

    def run(self, start: int, floors: dict[str, int], progress: Progress | None) -> int:
        """Scan from a physical offset, or from an earlier file if a queue lacks older units.

        Args:
            floors: by deleted topic, the physical offset below which records do not belong to it.

        Returns the end of the log.
        """
        self._floors, self._progress = floors, progress
        log = self._log
        while True:
            self._report.scan_start = start
            try:
                return self._scan(start, is_gap_final=start <= log.min_offset)
            except QueueGap as gap:
                earlier = [file.start for file in log.files if file.start < start]
                self._report.damages.append(f"{gap}: the log is read from an earlier file")
                start = earlier[-1] if earlier else log.min_offset
                self.index_from = max(self.index_from, self._indexed_now())
                self._queues.topics.clear()
                self._loader.with_excess.clear()
                self._queues.close()
                self._writer.discard()
                self._loader.load_all(self._progress)

    def _indexed_now(self) -> int:
        """Index all pending messages; return the offset of the first record to index next."""
        self._index.drain_all()
        return self._index.resume_at

    def _scan(self, start: int, *, is_gap_final: bool) -> int:
        """Read the log from `start` and process every record; return the end of the log."""
        log, report = self._log, self._report
        config = self._config
        is_crc_known = not self.proof.is_whole
        rebuild = QueueRebuild(
            self._disk,
            log,
            self._queues,
            self._writer,
            config.delays_ms,
            self._floors,
            report.damages,
        )
        rebuild.is_gap_final = is_gap_final
        rebuild.has_lost_addresses = self.has_lost_addresses
        reader = LogReader(
            log,
            start,
            self._log.end_of_files,
            is_crc_checked=is_crc_known and config.is_crc_checked_on_recover,
            is_record_crc_forced=config.is_record_crc_forced,
        )
        report.records_scanned = 0
        last: ScannedRecord | None = None
        stretch_end = 0
        while True:
            if reader.position >= stretch_end:
                start_of_stretch = reader.position
                stretch = self._scan_stretch(reader, rebuild)
                if stretch is not None:
                    # A sound record follows the one before, which is so not the log's last.
                    if last is not None:
                        self._take(last, rebuild)
                        last = None
                    if not self._take_stretch(stretch, rebuild):
                        reader.position, stretch_end = start_of_stretch, stretch[0]
            record = reader.next_record()
            if record is None:
                record = self._skip_damage(reader, rebuild)
                if record is None:
                    break
            # Each record is processed after the next one is read, since the last one is checked.
            if last is not None:
                self._take(last, rebuild)
            last = record
        end = reader.position
        if last is not None:
            if self._is_torn(last) or not (is_crc_known or reader.check_crc(last)):
                end = last.physical_offset
            else:
                self._take(last, rebuild)
        report.units_built = rebuild.units_built
        self._cut_units_without_record(rebuild, start)
        return end

    def _cut_units_without_record(self, rebuild: QueueRebuild, start: int) -> None:
        """Cut units behind the last scanned record of their queue, which a power cut can leave."""
        for queue in self._queues:
            end = rebuild.ends.get(queue)
            if end is None:
                if queue.last_physical_end <= start:
                    continue
                end = self._loader.end_below(queue, PhysicalOffset(start))
            if queue.tail:
                continue
            end = self._behind_damage(queue, end)
            if end < queue.max:
                self._report.damages.append(
                    f"{queue.path}: units from queue offset {end} to {queue.max - 1} have no"
                    " record in the log; cut"
                )
                self._loader.cut_to(queue, end)
                self._loader.with_excess.append(queue)

    def _behind_damage(self, queue: ConsumeQueue, end: int) -> int:
        """Return the end of a queue with its damaged last records, which keep queue offsets."""
        while end < queue.max:
            unit = self._queues.unit(queue, QueueOffset(end))
            if unit is None or not any(
                first <= unit.physical_offset < last for first, last in self.damaged
            ):
                break
            end += 1
        return end

    def _take(self, record: ScannedRecord, rebuild: QueueRebuild) -> None:
        """Give a record its unit and its index entries, if they are missing."""
        report = self._report
        report.records_scanned += 1
        if self._progress is not None and report.records_scanned % _PROGRESS_EVERY_RECORDS == 0:
            self._progress("log", record.physical_offset, self._log.end_of_files)
        rebuild.dispatch(record)
        if self._index.is_enabled and record.physical_offset >= self.index_from:
            keys = index_keys_of(record.properties)
            if keys is not None and record.sys_flag & 0xC != 0xC:
                pending = self._index.pending
                topic = record.topic.decode("utf-8", "replace")
                pending.append((topic, record.physical_offset, record.store_ms, keys))
                report.index_entries_built += 1
                if len(pending) >= _INDEX_WAITING_MAX:
                    self._index.drain_all()

    def _scan_stretch(self, reader: LogReader, rebuild: QueueRebuild) -> native.ScannedRun | None:
        """Read many plain records at once; None where each has to be read by itself."""
        keys_use, end = native.NO_KEYS, reader.end
        if self._index.is_enabled:
            if reader.position >= self.index_from:
                keys_use = native.LIST_KEYS
            else:
                end = self.index_from
        return reader.scan(end, keys_use, rebuild.plain_queues)

    def _take_stretch(self, stretch: native.ScannedRun, rebuild: QueueRebuild) -> bool:
        """As `_take`, for many records; return False, with nothing done, if each needs it."""
        end, count, units_of, _, keys = stretch
        if not rebuild.dispatch_run(units_of):
            return False
        report = self._report
        before = report.records_scanned // _PROGRESS_EVERY_RECORDS
        report.records_scanned += count
        if (
            self._progress is not None
            and report.records_scanned // _PROGRESS_EVERY_RECORDS > before
        ):
            self._progress("log", end, self._log.end_of_files)
        self._index.pending += keys
        report.index_entries_built += len(keys)
        if len(self._index.pending) >= _INDEX_WAITING_MAX:
            self._index.drain_all()
        return True

    def _skip_damage(self, reader: LogReader, rebuild: QueueRebuild) -> ScannedRecord | None:
        """At a fault, return the next sound record if the log provably went on behind the fault."""
        if reader.fault is None:
            return None
        begin, fault = reader.position, reader.fault
        if begin >= self.proof.end:
            return None
        record = reader.resync(self.proof.end)
        # A message of the checkpoint's millisecond may have come after the checkpoint.
        if record is None or record.store_ms >= self.proof.before_ms:
            reader.position = begin
            return None
        damaged_bytes = record.physical_offset - begin
        rebuild.damaged_at = (begin, damaged_bytes)
        self.damaged.append((begin, record.physical_offset))
        rebuild.is_gap_final = True
        self._report.damages.append(
            f"{self._log.where(PhysicalOffset(begin))}: {fault};"
            f" {damaged_bytes} bytes are damaged and passed over"
        )
        return record

    def _is_torn(self, record: ScannedRecord) -> bool:
        """Return whether the last record was copied in part, by zeros in topic or properties.

        Java accepts such a record.
        """
        properties = record.properties
        # The copy may write the end before the middle, in steps of 16 bytes or more.
        is_cut = properties[-1:] == b"\0" or 0 in record.topic or _ZERO_STEP in properties
        if not is_cut or record.physical_offset < self.proof.flushed:
            return False
        following = record.physical_offset + record.size
        head = self._log.read(PhysicalOffset(following), 8)
        return head == bytes(len(head))
