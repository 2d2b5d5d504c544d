"""The periodic work of an open store: calls its parts and records their progress on disk.

The progress goes into the side file and Java's checkpoint (base/checkpoint.py).  It only makes
recovery faster: whatever is not recorded, recovery derives from the log.

A frame of the side file must not state more than the disk has.  So the worker that writes a batch
of units appends the frame about it afterwards, with the positions from when the batch was taken.
Java's checkpoint is written after the frame, so recovery finds in it the time that this frame or
the one before states.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.checkpoint import (
    FINGERPRINT_BYTES,
    JavaCheckpoint,
    QueueEnd,
    SideFile,
    StoreProgress,
    fingerprint,
)
from cometmq.store.log.reader import LogReader
from cometmq.store.queue.unit_journal import UnitJournal, journal_generations, remove_journals

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk
    from cometmq.store.index.service import IndexService
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.log.flush import Flusher
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues
    from cometmq.store.queue.writer import QueueWriter, WrittenQueue
    from cometmq.store.retention.retention import Retention

__all__ = ["Upkeep"]

_LOG: Final = logging.getLogger("cometmq.store")
_FRAME_INTERVAL_MS: Final = 1_000
# Entries of each list of marks; with one a tick, they cover minutes.
_MARKS_MAX: Final = 4096


class Upkeep:
    """Does the periodic work of one store.

    Args:
        last_store_ms: the store time of the newest message, -1 for none.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: ConsumeQueues,
        writer: QueueWriter,
        flusher: Flusher,
        index: IndexService,
        retention: Retention,
        java: JavaCheckpoint,
        process_id: int,
        last_store_ms: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._root = config.root
        self._log = log
        self._queues = queues
        self._writer = writer
        self._flusher = flusher
        self._index = index
        self._retention = retention
        self._java = java
        self._last_store_ms = last_store_ms
        self._side = SideFile(
            disk, config.root, {"process_id": process_id, "boot_id": disk.boot_id()}
        )
        self._queue_flush_ms = config.consume_queue_flush_interval_ms
        self._next_round_ms = 0
        self._next_frame_ms = 0
        self._times: deque[tuple[int, int]] = deque(maxlen=_MARKS_MAX)
        """End of the log and newest store time, one pair a tick."""
        self._mark = (-1, 0)
        """Physical offset and fingerprint of the record by which recovery recognises the log."""
        self._next_marks: deque[tuple[int, int]] = deque(maxlen=_MARKS_MAX)
        """Records that can be the mark once they are flushed."""
        self._index_end = -1
        self._last_progress = StoreProgress()
        self._floors: dict[str, int] = {}
        """By deleted topic: physical offset below which records do not belong to it."""
        self._boundaries: deque[int] = deque(maxlen=_MARKS_MAX)
        """Physical offsets at which records ended, a few a second."""

    def begin(self, floors: dict[str, int]) -> None:
        """Write the first frame, after recovery.

        Args:
            floors: by deleted topic, the physical offset below which records do not belong to it.
        """
        self._floors = floors
        self._mark = self._find_mark()
        # A new number, so that the journal of an earlier process is not taken for this one's.
        generation = max(journal_generations(self._disk, self._root), default=0) + 1
        # Recovery has read the sizes from the files.
        self._side.heading |= {
            "log_file_bytes": self._log.file_bytes,
            "queue_file_bytes": self._queues.file_bytes,
        }
        self._side.write_base(self._progress(), self._queue_ends(), floors, generation)
        remove_journals(self._disk, self._root)
        self._writer.begin(UnitJournal(self._disk, self._root, generation))
        self._last_progress = self._progress()

    def _queue_ends(self) -> dict[tuple[str, int], QueueEnd]:
        return {
            (queue.topic, queue.queue_id): QueueEnd(queue.written, queue.last_physical_end)
            for queue in self._queues
            # Also a queue whose messages have all expired: its queue offsets continue.
            if queue.written > 0
        }

    def tick(self, now_ms: int) -> None:
        """Do the work of one turn of the timer."""
        wrote = self._log.wrote
        if not self._times or self._times[-1][0] != wrote:
            self._times.append((wrote, self._last_store_ms()))
            self._boundaries.append(wrote)
        self._flusher.tick(now_ms)
        self._index.tick(now_ms)
        self._writer.tick(now_ms)
        self._log.unmap_retired()
        self._retention.tick(now_ms)
        if now_ms >= self._next_frame_ms and not self._writer.is_busy:
            self._next_frame_ms = now_ms + _FRAME_INTERVAL_MS
            progress = self._progress()
            if progress != self._last_progress:
                self._writer.chore(self._frame(progress, []))
        if now_ms >= self._next_round_ms:
            if self._next_round_ms:
                # This also makes the progress of the index's last round durable.
                self._writer.chore(self._side.sync)
                self._writer.sync_round()
                self._index.sync_round()
            self._next_round_ms = now_ms + self._queue_flush_ms

    def leave_cut_file(self) -> None:
        """End the log's last file, which something outside has cut, behind its last sound record.

        Writing goes on in a new file.
        """
        mapped = self._log.files[-1]
        end = mapped.start + mapped.file.size()
        ends = [position for position in self._boundaries if mapped.start <= position <= end]
        reader = LogReader(self._log, max(ends, default=mapped.start), end)
        while reader.next_record() is not None:
            pass
        lost_bytes = self._log.wrote - reader.position
        self._log.abandon_active_file(reader.position)
        _LOG.error(
            "%s was cut from outside to %d bytes: %d bytes of messages from position %d on are"
            " lost; writing goes on in a new file",
            mapped.path,
            end - mapped.start,
            lost_bytes,
            reader.position - mapped.start,
        )

    # -- side file -----------------------------------------------------------------------

    def _progress(self, *, is_clean: bool = False) -> StoreProgress:
        """Return the present progress of the store's parts."""
        newest = self._index.newest
        if not self._index.has_unwritten:
            self._index_end = self._index.end
        flushed = self._flusher.flushed
        mark, mark_crc = self._flushed_mark(flushed)
        return StoreProgress(
            derived=self._writer.derived_position,
            flushed=flushed,
            synced=self._writer.synced_position,
            indexed=self._index.indexed_position,
            index_synced=self._index.synced_position,
            index_end=self._index_end,
            index_slots_count=0 if newest is None else newest.slots_known,
            log_min=self._log.min_offset,
            mark=mark,
            mark_crc=mark_crc,
            physic_ms=self._time_below(flushed, self._java.value.physic_timestamp_ms),
            is_clean=int(is_clean),
        )

    def _time_below(self, position: int, least_ms: int) -> int:
        """Return the newest store time before a physical offset, as far as known.

        It is `least_ms` at least.
        """
        times = self._times
        while len(times) > 1 and times[1][0] <= min(position, self._writer.synced_position):
            times.popleft()
        for wrote, store_ms in times:
            if wrote > position:
                break
            least_ms = max(least_ms, store_ms)
        return least_ms

    def frame_of(self, batch: list[WrittenQueue], filed: list[WrittenQueue]) -> Callable[[], None]:
        """Return a function that appends the frame about a batch, once the batch is saved.

        Args:
            batch: everything that the writer saves.
            filed: the part of it that goes into queue files.
        """
        data = batch[-1][2]
        position, _, _ = CQ_UNIT.unpack_from(data, len(data) - CQ_UNIT_BYTES)
        self._propose_mark(position)
        return self._frame(self._progress(), filed)

    def _frame(self, progress: StoreProgress, batch: list[WrittenQueue]) -> Callable[[], None]:
        """Return a function that appends a frame and writes Java's checkpoint, for a worker."""
        self._last_progress = progress
        checkpoint = self._java.value._replace(
            physic_timestamp_ms=progress.physic_ms,
            logics_timestamp_ms=self._time_below(
                min(progress.synced, progress.flushed), self._java.value.logics_timestamp_ms
            ),
            index_timestamp_ms=max(self._java.value.index_timestamp_ms, self._index.full_end_ms),
        )

        def append() -> None:
            changed: dict[tuple[str, int], QueueEnd] = {}
            for queue, first, data in batch:
                if queue.is_gone:
                    continue
                position, size, _ = CQ_UNIT.unpack_from(data, len(data) - CQ_UNIT_BYTES)
                end = QueueEnd(first + len(data) // CQ_UNIT_BYTES, position + size)
                changed[queue.topic, queue.queue_id] = end
            self._side.append(progress, changed)
            self._java.store(checkpoint)

        return append

    def record_synced(self) -> None:
        """After a sync round of the queues, make the progress and the queues' ends durable."""
        progress = self._progress()
        append = self._frame(progress, [])

        def record() -> None:
            append()
            self._side.sync()
            self._writer.recorded_position = progress.synced

        self._writer.chore(record)

    def _propose_mark(self, position: int) -> None:
        """Note the record at a physical offset as a mark for recovery, if it is in memory."""
        head = self._log.read_resident(PhysicalOffset(position), FINGERPRINT_BYTES)
        if head is not None and len(head) == FINGERPRINT_BYTES:
            self._next_marks.append((position, fingerprint(head)))

    def _flushed_mark(self, flushed: int) -> tuple[int, int]:
        """Return the newest proposed mark that is flushed: offset and fingerprint."""
        marks = self._next_marks
        while marks and marks[0][0] + FINGERPRINT_BYTES <= flushed:
            self._mark = marks.popleft()
        if self._mark[0] < 0 and marks:
            # No mark is flushed yet; one that a power cut may take is better than none.
            self._mark = marks[0]
        return self._mark

    def _find_mark(self) -> tuple[int, int]:
        """Return the last record of all queues as a mark: offset and fingerprint.  Blocks."""
        last, wrote = -1, self._log.wrote
        for queue in self._queues:
            if queue.max > queue.min:
                unit = self._queues.unit(queue, QueueOffset(queue.max - 1))
                # A disk may have changed the unit, so that it leads behind the log.
                if unit is not None and unit.physical_offset + FINGERPRINT_BYTES <= wrote:
                    last = max(last, unit.physical_offset)
        if last < 0:
            return -1, 0
        return last, fingerprint(self._log.read(PhysicalOffset(last), FINGERPRINT_BYTES))

    def forget_topic(self, topic: str) -> None:
        """Record that a topic was deleted, so that recovery does not restore its messages."""
        position = self._log.wrote
        self._floors[topic] = position
        self._writer.chore(lambda: self._side.append_floor(topic, position))

    def forget_queue(self, queue: ConsumeQueue) -> None:
        """Record that an empty queue is removed, so that the next start does not expect it."""
        topic, queue_id = queue.topic, queue.queue_id
        self._writer.chore(lambda: self._side.append_removed(topic, queue_id))

    # -- stop ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the last frame and Java's checkpoint; everything else is written and synced."""
        now = max(self._last_store_ms(), self._java.value.physic_timestamp_ms)
        checkpoint = self._java.value._replace(
            physic_timestamp_ms=now,
            logics_timestamp_ms=max(now, self._java.value.logics_timestamp_ms),
            index_timestamp_ms=max(self._java.value.index_timestamp_ms, self._index.full_end_ms),
        )
        self._next_marks.clear()
        self._mark = self._find_mark()
        progress = self._progress(is_clean=True)._replace(physic_ms=now)
        self._side.write_base(progress, self._queue_ends(), self._floors)
        remove_journals(self._disk, self._root)
        self._java.store(checkpoint)
        self._java.sync()
        self._side.close()
        self._java.close()
