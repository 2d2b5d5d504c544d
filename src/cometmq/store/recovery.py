"""Recovery: bring log, queues and index of a store directory into agreement at load.

Job: find where the log ends, have the missing units and index entries derived, cut what points
beyond the end.  It must not invent records, and loses none that is provably sound.

With our side file, when it is proven to fit::

    scan from `derived` (process died) or `synced` (power cut: the boot id changed)

Proof: it was written by the process that left `abort` (or by a clean close), `checkpoint` holds
the time it says (Java moves it), and the log has the marked record with the same head.  Each
queue's last unit is compared with the file.

Java's way otherwise (``CommitLog.recoverNormally``/``recoverAbnormally``; store.md 2.11)::

    clean stop   begin at the last file whose first record the queues know
    crash        begin at the last file stored 3 s before the checkpoint's times

Ours does better where Java loses: units that are missing in the scanned part are rebuilt after a
clean stop too; a gap in a queue or an index that is behind makes the scan begin earlier; a
damaged record that is followed by sound ones that were provably in the log is stepped over, and
is not the end of everything.  Sound records behind the end are kept in a file of their own
before their place is cleared.

A start on the same boot reads the records behind `derived` only, and checks the CRC of the last one
only.  That is enough: stores into a mapping are in the page cache at once and in one piece each,
whatever ends the process, and records are copied one after the other.  So all but the last were
copied in full, and only the last can be torn (`_is_torn`).  What a disk or memory damages later
is not a matter of how a process ended: readers compare records with their units, and `cometmq
store verify` checks everything.

What is provably in the log: after our process died and the machine did not (same boot id), all
of it, since the page cache outlives a process and holds every store of a mapping in full; after a
power cut, what was flushed; after Java's crash, what was stored before its checkpoint.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreCorrupt
from cometmq.store.checkpoint import (
    FINGERPRINT_BYTES,
    SIDE_FILE_NAME,
    SideState,
    fingerprint,
    load_side_file,
)
from cometmq.store.commit_log import NEXT_FILE_NAME, log_file_name
from cometmq.store.dispatch import index_keys_of
from cometmq.store.file_sizes import check_file_sizes
from cometmq.store.layout_check import check_layout
from cometmq.store.log_reader import BLOCK_BYTES, LogReader, ScannedRecord, data_blocks
from cometmq.store.queue_loader import QueueLoader
from cometmq.store.queue_rebuild import QueueGap, QueueRebuild
from cometmq.store.results import RecoveryReport
from cometmq.store.unit_replay import file_saved_units
from cometmq.store.unsynced import is_marked_unsynced, write_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.codec.checkpoint import Checkpoint
    from cometmq.store.checkpoint import JavaCheckpoint
    from cometmq.store.commit_log import CommitLog, MappedFile
    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.disk import Disk
    from cometmq.store.index_service import IndexService
    from cometmq.store.queue_writer import QueueWriter

    Progress = Callable[[str, int, int], None]

__all__ = ["Recovery"]

_LOG: Final = logging.getLogger("cometmq.store")
_PROGRESS_EVERY_RECORDS: Final = 1 << 16
# Keys of so many messages may wait until the store serves; a worker takes them up then.
_INDEX_WAITING_MAX: Final = 100_000
_ZEROS: Final = bytes(BLOCK_BYTES)
_NAME_DIGITS: Final = 20
# Damages are reported one by one up to this many.
_DAMAGES_MAX: Final = 1000
_ZERO_STEP: Final = bytes(16)
_LONG_MAX: Final = (1 << 63) - 1


class Recovery:
    """One run over one store directory."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        index: IndexService,
        java: JavaCheckpoint,
        clock: Callable[[], int],
        process_id: int,
    ) -> None:
        self._config = config
        self._disk = disk
        self._log = log
        self._queues = queues
        self._writer = writer
        self._index = index
        self._java = java
        self._clock = clock
        self._process_id = process_id
        self._progress: Progress | None = None
        self.report = RecoveryReport(mode="empty")
        self._loader = QueueLoader(disk, queues, self.report.damages)
        self._index_from = 0
        self._proven_end = 0
        self._proven_ms = _LONG_MAX
        self._is_cache_whole = False
        self._flushed_most = _LONG_MAX
        self._is_crc_known = True
        self._is_unsynced = False
        self.floors: dict[str, int] = {}
        self.damaged: list[tuple[int, int]] = []
        """Stretches of the log that were passed over, from and to."""
        self.flushed = 0
        """The log is known to be on stable storage up to here."""

    def run(self, progress: Progress | None = None) -> RecoveryReport:
        """Recover; afterwards log, queues and index are open and agree."""
        started_ms = self._clock()
        report = self.report
        self._progress = progress
        check_layout(self._disk, self._config.root)
        abort = self._abort()
        is_unsynced = self._is_unsynced = is_marked_unsynced(self._disk, self._config.root)
        checkpoint = self._java.load()
        self._disk.remove(f"{self._config.root}/{NEXT_FILE_NAME}")
        self._open_log()
        check_file_sizes(self._disk, self._config)
        index_end = self._index.load(report.damages) if self._index.is_enabled else -1
        state = self._trusted_state(abort, checkpoint)
        if isinstance(state, SideState):
            report.mode = "checkpoint"
            start = self._begin_with(state, index_end)
        else:
            report.reason = state
            start = self._begin_as_java(abort is not None, checkpoint, index_end)
        end = self._scan_until_whole(start)
        self._finish(end)
        if is_unsynced:
            count = write_again(self._disk, self._config.root, self._log, self.flushed)
            report.damages.append(
                f"a sync failed in the life before: {count} bytes of the log behind physical"
                f" offset {self.flushed} were written again and checked"
            )
        if abort is not None:
            self._distrust_queue_files()
        report.queues = sum([len(queues) for queues in self._queues.topics.values()])
        report.elapsed_ms = self._clock() - started_ms
        for damage in report.damages[:_DAMAGES_MAX]:
            _LOG.error("%s", damage)
        return report

    def _abort(self) -> str | None:
        """What the crash marker says; None when there is none."""
        try:
            return self._disk.read_bytes(f"{self._config.root}/abort").decode("ascii", "replace")
        except FileNotFoundError:
            return None

    # -- log files -----------------------------------------------------------------------

    def _open_log(self) -> None:
        log, disk = self._log, self._disk
        names = [n for n in disk.listdir(log.path) if len(n) == _NAME_DIGITS and n.isdigit()]
        if names and disk.size(f"{log.path}/{names[-1]}") == 0:
            disk.remove(f"{log.path}/{names.pop()}")
        sizes = {disk.size(f"{log.path}/{name}") for name in names}
        expected = log.file_bytes
        is_alone_and_cut = len(names) == 1 and max(sizes) < expected
        if sizes and expected not in sizes and len(sizes) == 1 and not is_alone_and_cut:
            raise StoreCorrupt(
                f"the files of {log.path} are {sizes.pop()} bytes long, mappedFileSizeCommitLog"
                f" says {expected}; set it to the size the store was made with"
            )
        for name in names:
            self._open_log_file(name)

    def _open_log_file(self, name: str) -> None:
        log = self._log
        start = int(name)
        if log.files and start != log.files[-1].end:
            raise StoreCorrupt(
                f"{log.path} has no file {log_file_name(log.files[-1].end)} before {name};"
                " put it back, or move the older files away to go on without their messages"
            )
        path = f"{log.path}/{name}"
        size = self._disk.size(path)
        if size != log.file_bytes:
            self.report.damages.append(
                f"{path} is {size} bytes long, expected {log.file_bytes}:"
                " what was cut off is lost, the file is filled with zeros"
            )
            file = self._disk.open_log(path, log.file_bytes, create=True)
            if file.size() < log.file_bytes:
                file.resize(log.file_bytes)
            file.close()
        log.open_existing(start)

    # -- where to begin ------------------------------------------------------------------

    def _trusted_state(self, abort: str | None, checkpoint: Checkpoint) -> SideState | str:
        """The side file, if it fits this directory; else a sentence saying why it does not."""
        state = load_side_file(self._disk, f"{self._config.root}/{SIDE_FILE_NAME}")
        if isinstance(state, str):
            return state
        heading, now = state.heading, state.progress
        if now.is_clean:
            if abort is not None:
                return "another process crashed here after our clean stop"
        elif abort is None or abort.strip() != str(heading.get("process_id")):
            return "another process wrote here after us"
        is_told = checkpoint.physic_timestamp_ms in {now.physic_ms, state.previous_physic_ms}
        # A power cut may keep one of the two files and lose the other's last writes.
        if not is_told and (now.is_clean or self._is_same_boot(state)):
            return "another process moved the checkpoint after us"
        self._is_cache_whole = self._is_same_boot(state)
        self._flushed_most = now.flushed
        sizes = (self._log.file_bytes, self._queues.file_bytes)
        if (heading.get("log_file_bytes"), heading.get("queue_file_bytes")) != sizes:
            return "file sizes were changed"
        if now.mark >= 0:
            if fingerprint(self._log.read(now.mark, FINGERPRINT_BYTES)) != now.mark_crc:
                return f"the log changed at {self._log.where(now.mark)}"
        elif now.derived > self._log.min_offset:
            return "it knows no record of the log"
        if not self._log.min_offset <= now.derived <= self._log_limit():
            return f"the log does not reach {now.derived}"
        return state

    def _log_limit(self) -> int:
        return self._log.files[-1].end if self._log.files else 0

    def _is_same_boot(self, state: SideState) -> bool:
        if self._is_unsynced:
            # The page cache may have dropped what it could not write: as after a power cut.
            return False
        boot_id = self._disk.boot_id()
        return bool(boot_id) and state.heading.get("boot_id") == boot_id

    def _begin_with(self, state: SideState, index_end: int) -> int:
        """Load queues as the side file has them; where the scan begins."""
        now = state.progress
        self.floors = state.floors
        self.flushed = now.flushed
        self._proven_end = self._log_limit() if self._is_cache_whole else now.flushed
        is_synced = bool(now.is_clean) and min(now.synced, now.index_synced) >= now.derived
        is_whole = self._is_cache_whole or (is_synced and not self._is_unsynced)
        # The page cache outlived the process: only the record it died over can be torn.
        self._is_crc_known = not is_whole
        self._writer.synced_position = now.synced
        self._index.synced_position = now.index_synced
        # Units may be on the platter before their records are: then both are read again.
        certain = max(min(now.synced, now.flushed), self._log.min_offset)
        start = now.derived if is_whole else certain
        self.report.scan_start = start
        if is_whole and not now.is_clean:
            fault = file_saved_units(
                self._disk,
                self._config.root,
                state,
                self._log.min_offset,
                self._queues,
                self._writer,
            )
            if fault is not None:
                self.report.reason = fault
                return self._begin_anew()
        for place, (key, end) in enumerate(state.queues.items()):
            if self._progress is not None and place % 1024 == 0:
                self._progress("queues", place, len(state.queues))
            queue = self._queues.add(*key)
            self._loader.load_known(queue, end.end)
            if not is_whole and end.last_physical_end > start:
                self._loader.cut_to(queue, self._loader.end_below(queue, start))
            elif queue.last_physical_end != end.last_physical_end:
                self.report.reason = f"{queue.path} does not end where it did"
                return self._begin_anew()
        if not is_whole:
            self._loader.load_unknown(start, self.floors)
        if self._index.is_enabled:
            if not now.is_clean or self._is_unsynced:
                self._index.distrust_full_files(self._java.value.index_timestamp_ms)
            start = min(start, self._begin_index(state, index_end, is_whole))
        # What the side file says of the index may be older than the oldest log file.
        return max(start, self._log.min_offset)

    def _begin_anew(self) -> int:
        """Queue files were changed: prove all of them against the whole log."""
        self.report.mode = "normal"
        self._queues.topics.clear()
        # These are queue objects whose ends are void now: zeroing behind them would clear units.
        self._loader.with_rests.clear()
        self._loader.load_all(self._progress)
        if self._index.is_enabled:
            self._index.cut_unsound(self.report.damages)
            self._index_from = self._index.resume_at
        return self._log.min_offset

    def _begin_index(self, state: SideState, index_end: int, is_whole: bool) -> int:
        now = state.progress
        if not is_whole:
            last = self._index.cut(now.index_synced)
            self._index.distrust_slots(1)
            if self._index.is_damaged or last < 0 <= now.index_end:
                # Files that had entries are gone: all behind the last entry is indexed again.
                self._index_from = self._index.resume_at
                return max(self._log.min_offset, last)
            # Where a record begins: anything else would look like the end of the log.
            self._index_from = now.index_synced
            return now.index_synced
        newest = self._index.newest
        if newest is not None and not now.is_clean:
            # The number speaks of the file that was the newest when it was written.
            is_same = newest.header.begin_physical_offset < now.index_end
            self._index.distrust_slots(now.index_slots_count if is_same else 1)
        if index_end < now.index_end:
            # Files were removed or damaged: what they had is still in the log.
            self._index_from = self._index.resume_at
            return max(self._log.min_offset, index_end)
        self._index_from = max(now.indexed, self._index.resume_at)
        return now.indexed

    def _begin_as_java(self, is_crash: bool, checkpoint: Checkpoint, index_end: int) -> int:
        """Load queues from their files; the start of the file the scan begins with."""
        log, report = self._log, self.report
        self._loader.load_all(self._progress)
        if not log.files:
            report.mode = "empty"
            return 0
        report.mode = "abnormal" if is_crash else "normal"
        known = max([queue.last_physical_end for queue in self._queues], default=0)
        self._proven_end = known
        if self._is_cache_whole:
            # Whatever made the side file unfit, the page cache took every record we stored.
            self._proven_end = self._log_limit()
        elif is_crash:
            # Units may have reached the disk before their records did.
            self._proven_ms = checkpoint.physic_timestamp_ms
        self.flushed = start = log.min_offset
        for mapped in reversed(log.files):
            first = LogReader(log, mapped.start, mapped.end).next_record()
            if first is None or first.physical_offset >= mapped.end or not first.store_ms:
                continue
            # Java syncs a file when it is full; of the last one nothing is known.
            self.flushed = max(self.flushed, min(mapped.start, self._flushed_most))
            is_early = (
                first.store_ms <= checkpoint.min_timestamp_ms
                if is_crash
                else first.physical_offset <= known
            )
            if is_early:
                start = mapped.start
                break
        if known == 0:
            start = log.min_offset
        if self._index.is_enabled:
            if is_crash or self._is_unsynced:
                index_end = self._index.cut_unsound(report.damages)
            self._index_from = self._index.resume_at
            start = min(start, max(log.min_offset, index_end))
        return start

    # -- scan ----------------------------------------------------------------------------

    def _scan_until_whole(self, start: int) -> int:
        """Scan, beginning a file earlier each time a queue turns out to lack older units."""
        log = self._log
        while True:
            self.report.scan_start = start
            try:
                return self._scan(start, is_gap_final=start <= log.min_offset)
            except QueueGap as gap:
                earlier = [file.start for file in log.files if file.start < start]
                self.report.damages.append(f"{gap}: the log is read from an earlier file")
                start = earlier[-1] if earlier else log.min_offset
                self._index_from = max(self._index_from, self._indexed_now())
                self._queues.topics.clear()
                self._loader.with_rests.clear()
                self._queues.close()
                self._writer.discard()
                self._loader.load_all(self._progress)

    def _indexed_now(self) -> int:
        self._index.drain_all()
        return self._index.resume_at

    def _scan(self, start: int, *, is_gap_final: bool) -> int:
        """Read the log from `start`, dispatch every record; the end of the log."""
        log, report = self._log, self.report
        config = self._config
        rebuild = QueueRebuild(
            self._disk,
            log,
            self._queues,
            self._writer,
            config.delays_ms,
            self.floors,
            report.damages,
        )
        rebuild.is_gap_final = is_gap_final
        reader = LogReader(
            log,
            start,
            self._log_limit(),
            is_crc_checked=self._is_crc_known and config.is_crc_checked_on_recover,
            is_record_crc_forced=config.is_record_crc_forced,
        )
        report.records_scanned = 0
        last: ScannedRecord | None = None
        while True:
            record = reader.next_record()
            if record is None:
                record = self._step_over(reader, rebuild)
                if record is None:
                    break
            # One behind, because the last one is looked at more closely.
            if last is not None:
                self._take(last, rebuild)
            last = record
        end = reader.position
        if last is not None:
            if self._is_torn(last) or not (self._is_crc_known or reader.check_crc(last)):
                end = last.physical_offset
            else:
                self._take(last, rebuild)
        report.units_built = rebuild.units_built
        self._cut_strangers(rebuild, start)
        return end

    def _cut_strangers(self, rebuild: QueueRebuild, start: int) -> None:
        """Units of the scanned part that no record stands for: a power cut brought them back."""
        for queue in self._queues:
            end = rebuild.ends.get(queue)
            if end is None:
                if queue.last_physical_end <= start:
                    continue
                end = self._loader.end_below(queue, start)
            if queue.tail:
                continue
            end = self._behind_damage(queue, end)
            if end < queue.max:
                self.report.damages.append(
                    f"{queue.path}: units from queue offset {end} to {queue.max - 1} have no"
                    " record in the log; cut"
                )
                self._loader.cut_to(queue, end)
                self._loader.with_rests.append(queue)

    def _behind_damage(self, queue: ConsumeQueue, end: int) -> int:
        """The end of a queue whose last records are damaged: they keep their numbers."""
        while end < queue.max:
            unit = self._queues.unit(queue, end)
            if unit is None or not any(
                first <= unit.physical_offset < last for first, last in self.damaged
            ):
                break
            end += 1
        return end

    def _take(self, record: ScannedRecord, rebuild: QueueRebuild) -> None:
        report = self.report
        report.records_scanned += 1
        if self._progress is not None and report.records_scanned % _PROGRESS_EVERY_RECORDS == 0:
            self._progress("log", record.physical_offset, self._log_limit())
        rebuild.dispatch(record)
        if self._index.is_enabled and record.physical_offset >= self._index_from:
            keys = index_keys_of(record.properties)
            if keys is not None and record.sys_flag & 0xC != 0xC:
                pending = self._index.pending
                topic = record.topic.decode("utf-8", "replace")
                pending.append((topic, record.physical_offset, record.store_ms, keys))
                report.index_entries_built += 1
                if len(pending) >= _INDEX_WAITING_MAX:
                    self._index.drain_all()

    def _step_over(self, reader: LogReader, rebuild: QueueRebuild) -> ScannedRecord | None:
        """At a fault: the next sound record, if the log provably went on behind the fault."""
        if reader.fault is None:
            return None
        place, fault = reader.position, reader.fault
        if place >= self._proven_end:
            return None
        record = reader.resync(self._proven_end)
        # Messages of the checkpoint's own millisecond may have come after it.
        if record is None or record.store_ms >= self._proven_ms:
            reader.position = place
            return None
        rebuild.damaged_at = (place, record.physical_offset - place)
        self.damaged.append((place, record.physical_offset))
        rebuild.is_gap_final = True
        self.report.damages.append(
            f"{self._log.where(place)}: {fault}; {record.physical_offset - place} bytes are"
            " damaged and passed over"
        )
        return record

    def _is_torn(self, record: ScannedRecord) -> bool:
        """Whether the last record lost its tail: its properties end in zeros (Java takes it)."""
        properties = record.properties
        # A copy to memory may do the end before the middle, in steps of 16 bytes and more.
        is_cut = properties[-1:] == b"\0" or 0 in record.topic or _ZERO_STEP in properties
        if not is_cut or record.physical_offset < self.flushed:
            return False
        following = record.physical_offset + record.size
        head = self._log.read(following, 8)
        return head == bytes(len(head))

    # -- end -----------------------------------------------------------------------------

    def _finish(self, end: int) -> None:
        """Cut queues, index and log to the end that was found, and write what was derived."""
        self.report.scan_end = end
        if self._index.is_enabled:
            self._index.cut(end)
        for queue in self._queues:
            self._cut_queue(queue, end)
        self._truncate_log(end)
        self._log.seek(end)
        self._writer.write_all()
        for queue in self._loader.with_rests:
            self._loader.zero_behind(queue)
        for queue in self._queues:
            queue.visible = queue.max

    def _distrust_queue_files(self) -> None:
        """What the dead process wrote may be in the page cache only, whoever stops next."""
        for queue in self._queues:
            self._writer.distrust(
                [f"{queue.path}/{log_file_name(start)}" for start in self._loader.starts(queue)]
            )

    def _cut_queue(self, queue: ConsumeQueue, end: int) -> None:
        if queue.last_physical_end <= end:
            return
        place = self._loader.end_below(queue, end)
        self.report.damages.append(
            f"{queue.path}: {queue.max - place} units point behind the log's end {end}; cut"
        )
        self._loader.cut_to(queue, place)
        self._loader.with_rests.append(queue)

    def _truncate_log(self, end: int) -> None:
        """Clear what lies behind the end, so that no stale record is ever taken for a new one."""
        log = self._log
        while log.files and log.files[-1].start > end:
            self._remove_file(log.files.pop())
        if not log.files or end >= log.files[-1].end:
            return
        mapped = log.files[-1]
        blocks = data_blocks(mapped.file, end - mapped.start, mapped.size)
        if not blocks:
            return
        self._keep_sound_records(mapped, end, mapped.start + blocks[-1] + len(_ZEROS))
        for block in blocks:
            raw = mapped.file.read(block, min(len(_ZEROS), mapped.size - block))
            if raw.count(0) != len(raw):
                mapped.file.write(block, _ZEROS[: len(raw)])
                self.report.truncated_bytes += len(raw.strip(b"\0"))

    def _keep_sound_records(self, mapped: MappedFile, end: int, limit: int) -> None:
        """Copy what is cut off when it holds sound records: nobody can prove they count."""
        limit = min(limit, mapped.end)
        reader = LogReader(self._log, end, mapped.end)
        first = reader.next_record() or reader.resync(limit)
        if first is None:
            return
        last = first
        while (record := reader.next_record()) is not None and record.physical_offset < limit:
            last = record
        raw = self._log.read(end, last.physical_offset + last.size - end)
        path = f"{self._config.root}/cometmq.cut-{log_file_name(end)}"
        self._disk.write_atomic(path, bytes(raw))
        self.report.damages.append(
            f"{self._log.where(end)}: the log ends here; {len(raw)} bytes behind it with sound"
            f" records were moved to {path}"
        )

    def _remove_file(self, mapped: MappedFile) -> None:
        """A file behind the end: empty ones were reserved, others are kept under another name."""
        first = mapped.file.next_data(0)
        head = b"" if first is None else mapped.file.read(0, 4096)
        if head.count(0) == len(head):
            self._disk.remove(mapped.path)
            return
        target = f"{self._config.root}/cometmq.cut-{log_file_name(mapped.start)}"
        self._disk.rename(mapped.path, target)
        self.report.damages.append(
            f"{mapped.path} lies behind the log's end and was moved to {target}"
        )
