"""Recovery: makes log, queues and index of a store directory agree, at load.

Recovery finds the end of the log, derives missing units and index entries, and cuts those that lead
beyond the end.  It loses no record that is provably sound.

The order of a start, and the module of each step::

    read the file sizes from the files (`file_sizes`), open the log's files (`log_files`)
        --> decide whether the side file fits (`side_trust`)
        --> load the queues' ends (`queue.loader`), choose where to begin (here)
        --> read the log from there (`log_scan`), derive what is missing (`queue_rebuild`)
        --> cut queues and index (here) and the log (`log_files`) at the log's end

With a side file that fits, the scan begins at `derived` after a process died, and at `synced` after
a power cut (the boot id has changed).  Each queue's last unit is compared with its file.

Otherwise the scan begins as in Java (``CommitLog.recoverNormally``/``recoverAbnormally``;
docs/internals/store.md#recovery)::

    clean stop   at the last file whose first record has a unit
    crash        at the last file whose first record was stored 3 s before the checkpoint's times

Java loses messages in some cases, and this recovery does not.  It derives units that are missing in
the scanned part also after a clean stop.  It begins the scan earlier when a queue has a gap or the
index is behind.  It skips a damaged record if the log provably had sound records behind it, while
Java ends the log there.  It copies sound records behind the log's end to a file of their own before
it clears their bytes.

After a process died on the same boot, only the records behind `derived` are read, and only the CRC
of the last one is checked (`log_scan`).  Damage by disk or memory is detected elsewhere: readers
compare records with their units, and `cometmq store verify` checks everything.

The log provably has, after our process died on the same boot, everything that was written, since
the page cache outlives a process; after a power cut, everything that was flushed; after a crash of
Java, everything that was stored before its checkpoint.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.codec.java_hash import index_key_hash
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.base.results import RecoveryReport
from cometmq.store.index.keys import record_key_texts
from cometmq.store.log.commit_log import NEXT_FILE_NAME, log_file_name
from cometmq.store.log.reader import LogReader
from cometmq.store.log.unsynced import is_marked_unsynced, write_again
from cometmq.store.queue.loader import QueueLoader
from cometmq.store.recovery.file_sizes import fit_to_files
from cometmq.store.recovery.layout_check import check_layout
from cometmq.store.recovery.log_files import cut_log, open_log_files
from cometmq.store.recovery.log_scan import LogScan
from cometmq.store.recovery.side_trust import SideTrust, trust_side_file
from cometmq.store.recovery.unit_replay import file_saved_units

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.codec.checkpoint import Checkpoint
    from cometmq.store.base.checkpoint import JavaCheckpoint, SideState
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk
    from cometmq.store.index.service import IndexService
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.extension import QueueExt
    from cometmq.store.queue.writer import QueueWriter

    Progress = Callable[[str, int, int], None]

__all__ = ["Recovery"]

_LOG: Final = logging.getLogger("cometmq.store")
# Damages are reported one by one up to this many.
_DAMAGES_MAX: Final = 1000


class Recovery:
    """Recovers one store directory, once."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        ext: QueueExt,
        index: IndexService,
        java: JavaCheckpoint,
        clock: Callable[[], int],
        process_id: int,
    ) -> None:
        self.config = config
        """The settings, from `run` on with the sizes that the files have."""
        self._disk = disk
        self._log = log
        self._queues = queues
        self._writer = writer
        self._ext = ext
        self._index = index
        self._java = java
        self._clock = clock
        self._process_id = process_id
        self._progress: Progress | None = None
        self.report = RecoveryReport(mode="empty")
        self._loader = QueueLoader(disk, queues, self.report.damages)
        self._scan = LogScan(config, disk, log, queues, writer, index, self._loader, self.report)
        self._proof = self._scan.proof
        self._trust = SideTrust(None)
        self._is_unsynced = False
        self.floors: dict[str, int] = {}

    @property
    def damaged(self) -> list[tuple[int, int]]:
        """Damaged stretches of the log that were skipped, begin and end."""
        return self._scan.damaged

    @property
    def flushed(self) -> int:
        """Physical offset up to which the log is on stable storage."""
        return self._proof.flushed

    def run(self, progress: Progress | None = None) -> RecoveryReport:
        """Recover; afterwards log, queues and index are open and agree.

        Raises:
            StoreError: the store is of a kind that cannot be served.
            StoreCorrupt: a log file is missing, or the size of files is ambiguous.
        """
        started_ms = self._clock()
        report = self.report
        self._progress = progress
        check_layout(self._disk, self.config.root)
        self._fit_to_files()
        abort = self._abort()
        is_unsynced = self._is_unsynced = is_marked_unsynced(self._disk, self.config.root)
        checkpoint = self._java.load()
        self._remove_unfinished()
        open_log_files(self._log, self._disk, report.damages)
        index_end = self._index.load(report.damages) if self._index.is_enabled else -1
        trust = self._trust = trust_side_file(
            self._disk,
            self.config.root,
            self._log,
            self._queues.file_bytes,
            abort,
            checkpoint,
            is_unsynced=is_unsynced,
        )
        if trust.state is not None:
            report.mode = "checkpoint"
            start = self._begin_with(trust.state, index_end)
        else:
            report.reason = trust.reason
            start = self._begin_as_java(abort is not None, checkpoint, index_end)
        end = self._scan.run(start, self.floors, progress)
        self._finish(end)
        # A kill may have come between the failure of a sync and its mark.
        is_killed = abort is not None and trust.is_cache_whole
        count = 0
        if is_unsynced or is_killed:
            count = write_again(self._disk, self.config.root, self._log, self._proof.flushed)
        if is_unsynced:
            report.damages.append(
                f"a sync failed in the life before: {count} bytes of the log behind physical"
                f" offset {self._proof.flushed} were written again and checked"
            )
        if abort is not None:
            self._distrust_queue_files()
            report.is_whole = self._proof.is_whole
        report.queues = sum([len(queues) for queues in self._queues.topics.values()])
        report.elapsed_ms = self._clock() - started_ms
        for damage in report.damages[:_DAMAGES_MAX]:
            _LOG.error("%s", damage)
        return report

    def _remove_unfinished(self) -> None:
        """Delete files that a process was about to finish when it ended."""
        root = self.config.root
        self._disk.remove(f"{root}/{NEXT_FILE_NAME}")
        for name in self._disk.listdir(root):
            if name.startswith("cometmq.") and name.endswith(".tmp"):
                self._disk.remove(f"{root}/{name}")

    def _fit_to_files(self) -> None:
        """Take the sizes of files from the files; the settings are for a new store."""
        self.config = config = fit_to_files(self._disk, self.config)
        self._log.file_bytes = config.commit_log_file_bytes
        self._queues.file_bytes = self._writer.file_bytes = config.queue_file_bytes
        self._index.config = config

    def _abort(self) -> str | None:
        """Return the content of the crash marker; None when there is none."""
        try:
            return self._disk.read_bytes(f"{self.config.root}/abort").decode("ascii", "replace")
        except FileNotFoundError:
            return None

    # -- where to begin ------------------------------------------------------------------

    def _begin_with(self, state: SideState, index_end: int) -> int:
        """Load the queues by the side file; return the physical offset at which the scan begins."""
        now = state.progress
        self.floors = state.floors
        self._proof.flushed = now.flushed
        self._proof.end = self._log.end_of_files if self._trust.is_cache_whole else now.flushed
        is_synced = bool(now.is_clean) and min(now.synced, now.index_synced) >= now.derived
        is_whole = self._trust.is_cache_whole or (is_synced and not self._is_unsynced)
        # The page cache outlived the process: only the record it died over can be torn.
        self._proof.is_whole = is_whole
        self._writer.synced_position = now.synced
        self._index.synced_position = now.index_synced
        # Units may be on stable storage before their records are.
        safe = max(min(now.synced, now.flushed), self._log.min_offset)
        start = now.derived if is_whole else safe
        # A changed unit may mislead the search for the first unit to cut.
        self._scan.has_lost_addresses = not is_whole
        self.report.scan_start = start
        if is_whole and not now.is_clean:
            fault = file_saved_units(
                self._disk,
                self.config.root,
                state,
                self._log.min_offset,
                self._queues,
                self._writer,
            )
            if fault is not None:
                self.report.reason = fault
                return self._begin_anew()
        for done, (key, end) in enumerate(state.queues.items()):
            if self._progress is not None and done % 1024 == 0:
                self._progress("queues", done, len(state.queues))
            queue = self._queues.add(*key)
            self._loader.load_known(queue, end.end)
            if not is_whole:
                # Units behind the end may lead to records that the power cut took.
                self._loader.with_excess.append(queue)
            if not is_whole and end.last_physical_end > start:
                self._loader.cut_to(queue, self._loader.end_below(queue, PhysicalOffset(start)))
            elif queue.last_physical_end != end.last_physical_end:
                self.report.reason = f"{queue.path} does not end where it did"
                return self._begin_anew()
        if not is_whole:
            self._loader.load_unknown(start, self.floors)
        if self._index.is_enabled:
            if not now.is_clean or self._is_unsynced:
                self._index.distrust_full_files(self._java.value.index_timestamp_ms)
            start = min(start, self._begin_index(state, index_end, is_whole))
        # The index's position in the side file may lie before the log's begin.
        return max(start, self._log.min_offset)

    def _begin_anew(self) -> int:
        """Load all queues from their files, since some files have changed; scan the whole log."""
        self.report.mode = "normal"
        self._queues.topics.clear()
        # The ends in these queue objects are wrong: zeroing behind them would clear units.
        self._loader.with_excess.clear()
        self._loader.load_all(self._progress)
        if self._index.is_enabled:
            self._index.cut_unsound(self.report.damages)
            self._scan.index_from = self._index.resume_at
        return self._log.min_offset

    def _begin_index(self, state: SideState, index_end: int, is_whole: bool) -> int:
        """Cut the index by the side file; return the physical offset from which it needs the scan.

        Args:
            index_end: physical offset of the last indexed record in the files, -1 for none.
            is_whole: whether everything that the earlier process wrote is there.
        """
        now = state.progress
        if not is_whole:
            last = self._index.cut(now.index_synced, self._has_key)
            self._index.distrust_slots(1)
            if self._index.has_dropped_files or last < 0 <= now.index_end:
                # Files with entries were lost: records behind the last entry are indexed again.
                self._scan.index_from = self._index.resume_at
                return max(self._log.min_offset, last)
            # A record begins there; at any other offset the scan would end at once.
            self._scan.index_from = now.index_synced
            return now.index_synced
        newest = self._index.newest
        if newest is not None and not now.is_clean:
            # The side file's number belongs to the file that was the newest then.
            is_same = newest.header.begin_physical_offset < now.index_end
            self._index.distrust_slots(now.index_slots_count if is_same else 1)
        if index_end < now.index_end:
            # Files were removed or damaged; the log has their keys.
            self._scan.index_from = self._index.resume_at
            return max(self._log.min_offset, index_end)
        self._scan.index_from = max(now.indexed, self._index.resume_at)
        return now.indexed

    def _has_key(self, key_hash: int, physical_offset: int) -> bool:
        """Return whether a record has a key of this hash; True if the record has expired."""
        if physical_offset < self._log.min_offset:
            return True
        reader = LogReader(self._log, physical_offset, physical_offset + 1, is_crc_checked=False)
        record = reader.next_record()
        return (
            record is not None
            and record.physical_offset == physical_offset
            and key_hash in map(index_key_hash, record_key_texts(record))
        )

    def _begin_as_java(self, is_crash: bool, checkpoint: Checkpoint, index_end: int) -> int:
        """Load queues from their files; return the start of the file with which the scan begins."""
        log, report = self._log, self.report
        self._loader.load_all(self._progress)
        if not log.files:
            report.mode = "empty"
            return 0
        report.mode = "abnormal" if is_crash else "normal"
        units_end = max([queue.last_physical_end for queue in self._queues], default=0)
        self._proof.end = units_end
        if self._trust.is_cache_whole:
            # Although the side file does not fit, the page cache has all records that were written.
            self._proof.end = self._log.end_of_files
        elif is_crash:
            # Units may be on the disk before their records are.
            self._proof.before_ms = checkpoint.physic_timestamp_ms
            self._scan.has_lost_addresses = True
        self._proof.flushed = start = log.min_offset
        for mapped in reversed(log.files):
            first = LogReader(log, mapped.start, mapped.end).next_record()
            if first is None or first.physical_offset >= mapped.end or not first.store_ms:
                continue
            # Java syncs a file when it is full, so the files before this one are synced.
            self._proof.flushed = max(
                self._proof.flushed, min(mapped.start, self._trust.flushed_max)
            )
            is_early = (
                first.store_ms <= checkpoint.min_timestamp_ms
                if is_crash
                else first.physical_offset <= units_end
            )
            if is_early:
                start = mapped.start
                break
        if units_end == 0:
            start = log.min_offset
        if self._index.is_enabled:
            if is_crash or self._is_unsynced:
                index_end = self._index.cut_unsound(report.damages)
            self._scan.index_from = self._index.resume_at
            start = min(start, max(log.min_offset, index_end))
        return start

    # -- end -----------------------------------------------------------------------------

    def _finish(self, end: int) -> None:
        """Cut index, queues and log at the log's end, and write the derived units."""
        self.report.scan_end = end
        if self._index.is_enabled:
            self._index.cut(end)
        for queue in self._queues:
            self._cut_queue(queue, end)
        cut_log(self._log, self._disk, self.config.root, end, self.report)
        self._log.seek(end)
        self._writer.write_all()
        for queue in self._loader.with_excess:
            self._loader.zero_behind(queue)
        for queue in self._queues:
            queue.visible = queue.max

    def _distrust_queue_files(self) -> None:
        """Have queue files synced, since the dead process may not have done so."""
        for queue in self._queues:
            self._writer.distrust(
                [f"{queue.path}/{log_file_name(start)}" for start in self._loader.starts(queue)]
            )
        # An address on stable storage must not lead to an extension unit that is not.
        self._writer.distrust(self._ext.paths(self._queues))

    def _cut_queue(self, queue: ConsumeQueue, end: int) -> None:
        """Cut the units of a queue that lead behind the log's end."""
        if queue.last_physical_end <= end:
            return
        queue_end = self._loader.end_below(queue, PhysicalOffset(end))
        self.report.damages.append(
            f"{queue.path}: {queue.max - queue_end} units point behind the log's end {end}; cut"
        )
        self._loader.cut_to(queue, queue_end)
        self._loader.with_excess.append(queue)
