"""Upkeep: the store's timer work, and the side file.

Each tick calls the store's parts in turn and records their progress in the side file and in Java's
checkpoint.  Correctness does not depend on it: recovery derives from the log what was not recorded.

The side file is true because of its order: the worker that has written a batch of units appends
the frame about them, with the positions of the moment at which the batch was taken.  Java's
checkpoint is written after the frame, so recovery finds in it the frame's time or the one before.
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
# Remembered (position, store time) pairs; one a turn covers minutes.
_MARKS_MAX: Final = 4096


class Upkeep:
    """Calls the parts of one store on each tick and records their progress."""

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
            disk,
            config.root,
            {
                "process_id": process_id,
                "boot_id": disk.boot_id(),
                "log_file_bytes": log.file_bytes,
                "queue_file_bytes": queues.file_bytes,
            },
        )
        self._queue_flush_ms = config.consume_queue_flush_interval_ms
        self._next_round_ms = 0
        self._next_frame_ms = 0
        self._marks: deque[tuple[int, int]] = deque(maxlen=_MARKS_MAX)
        self._mark = (-1, 0)
        self._next_marks: deque[tuple[int, int]] = deque(maxlen=_MARKS_MAX)
        self._index_end = -1
        self._last_progress = StoreProgress()
        self.floors: dict[str, int] = {}
        self.boundaries: deque[int] = deque(maxlen=_MARKS_MAX)
        """Positions at which records ended, a few a second."""

    def begin(self, floors: dict[str, int]) -> None:
        """After recovery: write the first frame, then one after each batch of the writer."""
        self.floors = floors
        self._mark = self._find_mark()
        # A new number: journals of earlier processes are never taken for this one's.
        generation = max(journal_generations(self._disk, self._root), default=0) + 1
        self._side.write_base(self._progress(), self._queue_ends(), floors, generation)
        remove_journals(self._disk, self._root)
        self._writer.journal = UnitJournal(self._disk, self._root, generation)
        self._last_progress = self._progress()
        self._writer.recorded_position = self._writer.synced_position
        self._writer.on_written = self._frame_of
        self._writer.on_synced = self._record_synced

    def _queue_ends(self) -> dict[tuple[str, int], QueueEnd]:
        return {
            (queue.topic, queue.queue_id): QueueEnd(queue.written, queue.last_physical_end)
            for queue in self._queues
            # Also a queue whose messages have all expired: its numbers continue.
            if queue.written > 0
        }

    def tick(self, now_ms: int) -> None:
        """One turn of the timer."""
        wrote = self._log.wrote
        if not self._marks or self._marks[-1][0] != wrote:
            self._marks.append((wrote, self._last_store_ms()))
            self.boundaries.append(wrote)
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
                # Makes durable what the last round of the index recorded, too.
                self._writer.chore(self._side.sync)
                self._writer.sync_round()
                self._index.sync_round()
            self._next_round_ms = now_ms + self._queue_flush_ms

    def leave_cut_file(self) -> None:
        """End the active file, which was cut from outside, behind its last sound record; roll."""
        mapped = self._log.files[-1]
        end = mapped.start + mapped.file.size()
        ends = [position for position in self.boundaries if mapped.start <= position <= end]
        reader = LogReader(self._log, max(ends, default=mapped.start), end)
        while reader.next_record() is not None:
            pass
        lost = self._log.wrote - reader.position
        self._log.abandon_active_file(reader.position)
        _LOG.error(
            "%s was cut from outside to %d bytes: %d bytes of messages from position %d on are"
            " lost; writing goes on in a new file",
            mapped.path,
            end - mapped.start,
            lost,
            reader.position - mapped.start,
        )

    # -- side file -----------------------------------------------------------------------

    def _progress(self, *, is_clean: bool = False) -> StoreProgress:
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
        """Newest store time whose messages all lie below a position; at least `least_ms`."""
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= min(position, self._writer.synced_position):
            marks.popleft()
        for wrote, store_ms in marks:
            if wrote > position:
                break
            least_ms = max(least_ms, store_ms)
        return least_ms

    def _frame_of(
        self, batch: list[WrittenQueue], filed: list[WrittenQueue]
    ) -> Callable[[], None] | None:
        """For the writer: what appends the frame about a saved batch; `filed` is in queue files."""
        data = batch[-1][2]
        position, _, _ = CQ_UNIT.unpack_from(data, len(data) - CQ_UNIT_BYTES)
        self._set_mark(position)
        return self._frame(self._progress(), filed)

    def _frame(self, progress: StoreProgress, batch: list[WrittenQueue]) -> Callable[[], None]:
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

    def _record_synced(self) -> None:
        """A sync round of the queues has ended: make this progress and their ends durable."""
        progress = self._progress()
        append = self._frame(progress, [])

        def record() -> None:
            append()
            self._side.sync()
            self._writer.recorded_position = progress.synced

        self._writer.chore(record)

    def _set_mark(self, position: int) -> None:
        """Propose a record by which recovery recognises the log."""
        head = self._log.read_resident(PhysicalOffset(position), FINGERPRINT_BYTES)
        if head is not None and len(head) == FINGERPRINT_BYTES:
            self._next_marks.append((position, fingerprint(head)))

    def _flushed_mark(self, flushed: int) -> tuple[int, int]:
        """The newest proposed record that a power cut cannot take."""
        marks = self._next_marks
        while marks and marks[0][0] + FINGERPRINT_BYTES <= flushed:
            self._mark = marks.popleft()
        if self._mark[0] < 0 and marks:
            # None yet: better one that may be lost than none at all.
            self._mark = marks[0]
        return self._mark

    def _find_mark(self) -> tuple[int, int]:
        """The last record of any queue; only at load."""
        best = -1
        for queue in self._queues:
            if queue.max > queue.min:
                unit = self._queues.unit(queue, QueueOffset(queue.max - 1))
                if unit is not None:
                    best = max(best, unit.physical_offset)
        if best < 0:
            return -1, 0
        return best, fingerprint(self._log.read(PhysicalOffset(best), FINGERPRINT_BYTES))

    def forget_topic(self, topic: str) -> None:
        """Record that a topic was deleted: recovery must not restore its messages up to here."""
        position = self._log.wrote
        self.floors[topic] = position
        self._writer.chore(lambda: self._side.append_floor(topic, position))

    def forget_queue(self, queue: ConsumeQueue) -> None:
        """Record that an empty queue is about to be removed, so the next start does not miss it."""
        topic, queue_id = queue.topic, queue.queue_id
        self._writer.chore(lambda: self._side.append_removed(topic, queue_id))

    # -- stop ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Write the last frame and Java's checkpoint, after everything was written and synced."""
        self._writer.on_written = None
        for queue in self._queues:
            if queue.max > 0:
                unit = self._queues.unit(queue, QueueOffset(queue.max - 1))
                if unit is not None:
                    queue.last_physical_end = unit.physical_offset + unit.size
        now = max(self._last_store_ms(), self._java.value.physic_timestamp_ms)
        checkpoint = self._java.value._replace(
            physic_timestamp_ms=now,
            logics_timestamp_ms=max(now, self._java.value.logics_timestamp_ms),
            index_timestamp_ms=max(self._java.value.index_timestamp_ms, self._index.full_end_ms),
        )
        self._next_marks.clear()
        self._mark = self._find_mark()
        progress = self._progress(is_clean=True)._replace(physic_ms=now)
        self._side.write_base(progress, self._queue_ends(), self.floors)
        remove_journals(self._disk, self._root)
        self._java.store(checkpoint)
        self._java.sync()
        self._side.close()
        self._java.close()
