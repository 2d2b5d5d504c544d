"""Writes the tails of consume queues to their files, in batches and in a worker.

The *derived position* is a physical offset: the units of all records below it are saved.

Queues with unsaved units are *dirty*.  They stand in a FIFO, each with the physical offset up to
which its units are saved; the offset at the head is the derived position.  A batch takes the queues
that have been dirty for a second, puts them back at the end with the present end of the log, and a
worker writes their units.  A queue without unsaved units leaves the FIFO at its head.  So a queue
is written once a second at most, however many messages it gets, and the writes of thousands of
queues are spread over batches.

With more queues than single writes can serve, the units of a batch go into the unit journal
(unit_journal.py) with one write, and stay in the tails.  Such queues are *journaled*.  When the
journal has grown, or after half a minute, a *pass* writes the tails of all queues journaled by then
to their files, some queues at a time; then the older volumes of the journal are deleted.  The
derived position at the begin of a pass is afterwards the *filed position*: the units of all records
below it are in files.  Only filed units can be synced.

The directories of deleted topics are removed between batches, so no late write makes them again.

Durable when: `derived_position` covers process death.  `synced_position` covers a power cut: about
once a minute, the files changed since the last round are synced one after the other.  Then the side
file is synced, which alone has the ends of queues whose records have expired: `recorded_position`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES, encode_pre_blank_unit
from cometmq.errors import DiskFull
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.unsynced import mark_unsynced
from cometmq.store.queue.consume_queue import TAIL_LOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, RandomFile, Workers
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queue.consume_queue import ConsumeQueue
    from cometmq.store.queue.extension import QueueExt
    from cometmq.store.queue.unit_journal import UnitJournal

__all__ = ["QueueWriter", "WrittenQueue"]

_LOG: Final = logging.getLogger("cometmq.store")
# Queues in one batch: between two system calls, a worker keeps the interpreter for microseconds.
_BATCH_QUEUES_MAX: Final = 1024
_WRITE_FILES_MAX: Final = 64
# Up to this many queues are written every interval; with more, the interval is multiplied.
_QUEUES_PER_INTERVAL: Final = 2500
# The largest multiple.
_SLOWER_MAX: Final = 4
# Queues of a pass that one turn of the timer writes: 2,560 queues a second.
_PASS_QUEUES_MAX: Final = 256
# More files than this are synced by one call for the whole system.
_SYNC_FILES_MAX: Final = 32
# A tail of this size is written at once, whatever its age: 512 KiB are 26,000 units.
_TAIL_BYTES_MAX: Final = 512 << 10

WrittenQueue = tuple["ConsumeQueue", int, bytes]
"""Queue, queue offset of the first unit, the units' bytes."""


class QueueWriter:
    """Writes the units of one store's queues.

    Args:
        ext: gives the units of filtered topics an extension before they go to their files.
        on_batch: called on the loop with everything that a batch saves, and with the part of it
            that goes into queue files; the worker calls the returned function after the batch.
        on_synced: called on the loop when `synced_position` has moved.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        workers: Workers,
        log: CommitLog,
        ext: QueueExt,
        on_batch: Callable[[list[WrittenQueue], list[WrittenQueue]], Callable[[], None]],
        on_synced: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._workers = workers
        self._log = log
        self._root = config.root
        self.file_bytes = config.queue_file_bytes
        self._interval_ms = config.consume_queue_write_interval_ms
        self._dirty: deque[ConsumeQueue] = deque()
        self._chores: list[Callable[[], None]] = []
        self._is_writing = False
        self._is_syncing = False
        self._is_closed = False
        self._has_failed = False
        # A worker's job holds this lock, so that `stop` can wait for the job.
        self._job = threading.Lock()
        self._files: dict[str, RandomFile] = {}
        self._unsynced: set[str] = set()
        """Paths that were written since the last sync round."""
        self.synced_position = 0
        """The units of all records below this physical offset are on stable storage."""
        self.recorded_position = 0
        """The last synced position for which the side file durably has the queues' ends too."""
        self._ext = ext
        self._on_batch = on_batch
        self._on_synced = on_synced
        self._journal: UnitJournal | None = None
        self._journal_queues_min = config.unit_journal_queues_min
        self._journal_bytes_max = config.unit_journal_bytes_max
        self._journal_age_ms = config.unit_journal_age_ms
        self._journaled: deque[ConsumeQueue] = deque()
        """Journaled queues that no pass has taken yet."""
        self._journaled_since_ms = 0
        self._passing: list[ConsumeQueue] = []
        """Queues of a pass that a worker writes."""
        self._pass_left = 0
        """How many of the journaled queues the pass under way still has to take."""
        self._pass_position = 0
        """The derived position when the pass began."""
        self._pass_volume = 0
        """The journal's volume that was new when the pass began."""
        self._filed = 0

    def begin(self, journal: UnitJournal) -> None:
        """Write batches with `tick` from now on, after the store is loaded; see `write_all`.

        The journal is made after recovery, which determines its number.
        """
        self._journal = journal
        self.recorded_position = self.synced_position

    @property
    def derived_position(self) -> int:
        """The units of all records below this physical offset are in their files or the journal."""
        dirty = self._dirty
        while dirty and not _unsaved_bytes(dirty[0]):
            dirty.popleft().is_dirty = False
        return dirty[0].dirty_position if dirty else self._log.wrote

    @property
    def filed_position(self) -> int:
        """The units of all records below this physical offset are in their files."""
        return self._filed if self._journaled else self.derived_position

    @property
    def is_busy(self) -> bool:
        """Whether a worker saves a batch; the positions are true only when it is done."""
        return self._is_writing

    def mark(self, queue: ConsumeQueue, physical_offset: int, now_ms: int) -> None:
        """Note that a clean queue got a unit for the record at `physical_offset`."""
        queue.is_dirty = True
        queue.dirty_ms = now_ms
        queue.dirty_position = physical_offset
        self._dirty.append(queue)

    def remove(self, path: str) -> None:
        """Delete a queue's or topic's directory after the batch that is being written."""

        def chore() -> None:
            self.forget(path)
            self._disk.remove_tree(path)
            self._ext.remove(path)

        self._chores.append(chore)

    def chore(self, work: Callable[[], None]) -> None:
        """Have a worker call `work` between batches, in the order of these calls."""
        self._chores.append(work)

    def tick(self, now_ms: int) -> None:
        """Start a batch if queues are due and none is under way."""
        if self._is_writing or self._is_closed:
            return
        if not self._journaled:
            self._filed = self.derived_position
        journal = self._journal if len(self._dirty) > self._journal_queues_min else None
        filed = self._take_journaled(now_ms)
        batch = self._take(now_ms, is_journaled=journal is not None)
        chores, self._chores = self._chores, []
        if not (batch or self._passing or chores):
            return
        self._is_writing = True
        after: Callable[[], None] | None = None
        if batch or filed:
            after = self._on_batch(batch or filed, filed if journal is not None else filed + batch)

        def done(result: object) -> None:
            self._is_writing = False
            if self._is_closed:
                return
            if isinstance(result, BaseException):
                self._log_failure(result)
                self._chores = chores + self._chores
                self._take_back(batch)
                return
            self._drop(filed)
            self._end_turn()
            if journal is None:
                self._drop(batch)
            else:
                self._note_journaled(batch, now_ms)

        self._workers.submit(lambda: self._save(chores, filed, batch, journal, after), done)

    def _save(
        self,
        chores: list[Callable[[], None]],
        filed: list[WrittenQueue],
        batch: list[WrittenQueue],
        journal: UnitJournal | None,
        after: Callable[[], None] | None,
    ) -> None:
        """In the worker: do the chores, save the units, and call `after`, in this order."""
        with self._job:
            if self._is_closed:
                return
            for chore in chores:
                chore()
            self._write(filed)
            if journal is None:
                self._write(batch)
            elif batch:
                journal.append(batch)
            if after is not None:
                after()

    def _take(self, now_ms: int, *, is_journaled: bool) -> list[WrittenQueue]:
        """Take the units of the queues that are due; put each queue back at the end of the FIFO.

        The units of a queue are those that its files lack or, when they are to be journaled, those
        that the journal lacks too.
        """
        dirty = self._dirty
        wrote = self._log.wrote
        # Each queue costs a few system calls, so very many queues are written less often.
        interval_ms = self._interval_ms * max(
            1, min(len(dirty) // _QUEUES_PER_INTERVAL, _SLOWER_MAX)
        )
        batch: list[WrittenQueue] = []
        for _ in range(min(len(dirty), _BATCH_QUEUES_MAX)):
            queue = dirty[0]
            unsaved_bytes = _unsaved_bytes(queue)
            if not unsaved_bytes or queue.is_gone:
                dirty.popleft()
                queue.is_dirty = False
                continue
            is_due = now_ms - queue.dirty_ms >= interval_ms or now_ms < queue.dirty_ms
            if not is_due and unsaved_bytes < _TAIL_BYTES_MAX:
                break
            dirty.popleft()
            queue.dirty_ms = now_ms
            queue.dirty_position = wrote
            if is_journaled:
                batch.append(
                    (queue, max(queue.saved, queue.written), bytes(queue.tail[-unsaved_bytes:]))
                )
            else:
                batch.append((queue, queue.written, bytes(queue.tail)))
            dirty.append(queue)
        return batch

    def _drop(self, batch: list[WrittenQueue]) -> None:
        """Drop the written units from the queues' tails."""
        for queue, first, data in batch:
            if not queue.is_gone and queue.written == first:
                with TAIL_LOCK:
                    del queue.tail[: len(data)]
                    queue.written = first + len(data) // CQ_UNIT_BYTES
                position, size, _ = CQ_UNIT.unpack_from(data, len(data) - CQ_UNIT_BYTES)
                queue.last_physical_end = position + size

    def _note_journaled(self, batch: list[WrittenQueue], now_ms: int) -> None:
        """Let the queues of a batch, whose units the journal has now, wait for the next pass."""
        if not self._journaled:
            self._journaled_since_ms = now_ms
        for queue, first, data in batch:
            queue.saved = first + len(data) // CQ_UNIT_BYTES
            if not queue.is_journaled and queue.saved > queue.written:
                queue.is_journaled = True
                self._journaled.append(queue)

    def _take_journaled(self, now_ms: int) -> list[WrittenQueue]:
        """Take the units of some queues of the pass under way; begin a pass when it is due."""
        journaled, journal = self._journaled, self._journal
        if journal is None or not journaled:
            return []
        if not self._pass_left:
            age_ms = now_ms - self._journaled_since_ms
            if journal.volume_bytes < self._journal_bytes_max and (
                0 <= age_ms < self._journal_age_ms
            ):
                return []
            self._pass_left = len(journaled)
            self._pass_position = self.derived_position
            self._journaled_since_ms = now_ms
            self._pass_volume = journal.roll()
        count = min(self._pass_left, _PASS_QUEUES_MAX)
        self._passing = [journaled.popleft() for _ in range(count)]
        return [
            (queue, queue.written, bytes(queue.tail))
            for queue in self._passing
            if queue.tail and not queue.is_gone
        ]

    def _end_turn(self) -> None:
        """Note that the taken queues of the pass were written; end the pass after the last one."""
        if not self._passing:
            return
        for queue in self._passing:
            queue.is_journaled = False
        self._pass_left -= len(self._passing)
        self._passing = []
        if not self._pass_left and self._journal is not None:
            self._filed = self._pass_position
            volume, drop = self._pass_volume, self._journal.drop_below
            self._chores.append(lambda: drop(volume))

    def _take_back(self, batch: list[WrittenQueue]) -> None:
        """After a failed batch, take the queues back: each is saved up to its first unit only."""
        self._journaled.extendleft(reversed(self._passing))
        self._passing = []
        for queue, _, data in batch:
            queue.dirty_position = CQ_UNIT.unpack_from(data, 0)[0]
        self._dirty = deque(sorted(self._dirty, key=lambda queue: queue.dirty_position))

    def _log_failure(self, error: BaseException) -> None:
        if isinstance(error, DiskFull):
            _LOG.warning("consume queues wait for space: %s", error)
        else:
            _LOG.error("writing consume queues failed and is repeated: %s", error)

    # -- in the worker -------------------------------------------------------------------

    def write_units(self, queue: ConsumeQueue, first: int, data: bytes) -> None:
        """Write units to the queue's files, in the calling thread (load)."""
        self._write([(queue, first, data)])

    def _write(self, batch: list[WrittenQueue]) -> None:
        unit_bytes = CQ_UNIT_BYTES
        for queue, first, data in batch:
            if self._ext.bitmaps is not None:
                data, paths = self._ext.extend(queue, data)  # noqa: PLW2901 - with addresses
                self._unsynced.update(paths)
            position = first * unit_bytes
            done = 0
            while done < len(data):
                file_position = position % self.file_bytes
                length = min(len(data) - done, self.file_bytes - file_position)
                file = self._file(queue.path, position - file_position, file_position)
                chunk = data if length == len(data) else data[done : done + length]
                file.write(file_position, chunk)
                done += length
                position += length

    def _file(self, directory: str, start: int, first_position: int) -> RandomFile:
        path = f"{directory}/{log_file_name(start)}"
        files = self._files
        file = files.get(path)
        if file is not None:
            return file
        try:
            file = self._disk.open_random(path, self.file_bytes, create=False)
        except FileNotFoundError:
            file = self._create(directory, path, first_position)
        if len(files) >= _WRITE_FILES_MAX:
            del files[next(iter(files))]
        files[path] = file
        self._unsynced.add(path)
        return file

    def _create(self, directory: str, path: str, first_position: int) -> RandomFile:
        self._disk.makedirs(directory)
        file = self._disk.open_random(path, self.file_bytes, create=True)
        if first_position:
            # The queue's earlier part is lost; Java stops reading at the first zero unit.
            file.write(0, encode_pre_blank_unit() * (first_position // CQ_UNIT_BYTES))
        return file

    def forget(self, prefix: str) -> None:
        """Close the files below a directory (in the worker, or at load)."""
        for path in [path for path in self._files if path.startswith(f"{prefix}/")]:
            del self._files[path]
        self._unsynced = {path for path in self._unsynced if not path.startswith(f"{prefix}/")}

    # -- power cuts ----------------------------------------------------------------------

    def distrust(self, paths: Iterable[str]) -> None:
        """Sync these files in the next round too, since an earlier process may not have."""
        self._unsynced.update(paths)

    def sync_round(self) -> None:
        """Sync all files written since the last round, in a worker, then move the position.

        After a sync has failed none is tried: a later one would succeed without the lost pages
        (flush.py).  The position stays, and recovery derives the units behind it again.
        """
        if self._is_syncing or self._is_writing or self._is_closed or self._has_failed:
            return
        position = self.filed_position
        if position <= self.synced_position:
            return
        self._is_syncing = True
        paths, self._unsynced = sorted(self._unsynced), set()
        # `_file` notes a path as unsynced only when it opens the file, so the next write opens it.
        self._files.clear()

        def done(result: object) -> None:
            self._is_syncing = False
            if isinstance(result, BaseException):
                self._has_failed = True
                _LOG.error(
                    "syncing consume queues failed: %s; check the disk. The broker goes on serving;"
                    " its next start derives them again from the log",
                    result,
                )
            else:
                self.synced_position = position
                self._on_synced()

        def work() -> None:
            try:
                self._sync(paths)
            except OSError:
                mark_unsynced(self._disk, self._root)
                raise

        self._workers.submit(work, done)

    def _sync(self, paths: list[str]) -> None:
        if len(paths) > _SYNC_FILES_MAX:
            # Thousands of single calls would take minutes.
            self._disk.sync_all()
            return
        directories: set[str] = set()
        for path in paths:
            try:
                self._disk.open_random(path, self.file_bytes, create=False).sync()
            except FileNotFoundError:
                continue
            # The names of queue, topic and `consumequeue` may be as new as the file's.
            directory = path
            while directory != self._root:
                directory = directory.rpartition("/")[0]
                directories.add(directory)
        for directory in sorted(directories):
            if self._disk.is_dir(directory):
                self._disk.sync_dir(directory)

    # -- stop ----------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no more jobs and wait for the one under way; `write_all` writes its units again."""
        self._is_closed = True
        with self._job:
            pass

    def write_all(self) -> None:
        """Write everything now, in the calling thread (load and close)."""
        for chore in self._chores:
            chore()
        self._chores.clear()
        batch: list[WrittenQueue] = []
        waiting = dict.fromkeys([*self._dirty, *self._passing, *self._journaled])
        self._dirty.clear()
        self._passing.clear()
        self._journaled.clear()
        self._pass_left = 0
        for queue in waiting:
            queue.is_dirty = queue.is_journaled = False
            if queue.tail and not queue.is_gone:
                batch.append((queue, queue.written, bytes(queue.tail)))
        self._write(batch)
        self._drop(batch)

    def discard(self) -> None:
        """Drop all unsaved units, since the scan of recovery begins again."""
        self._dirty.clear()
        self._files.clear()

    def sync_all(self) -> None:
        """Sync everything now, in the calling thread; do nothing after a sync has failed."""
        if self._has_failed:
            return
        paths, self._unsynced = sorted(self._unsynced), set()
        self._files.clear()
        self._sync(paths)
        self.synced_position = self._log.wrote

    def close(self) -> None:
        """Close the files."""
        self._files.clear()
        if self._journal is not None:
            self._journal.close()


def _unsaved_bytes(queue: ConsumeQueue) -> int:
    """Return how many bytes of the tail are neither in a file nor in the journal."""
    journaled_units = queue.saved - queue.written
    if journaled_units > 0:
        return len(queue.tail) - journaled_units * CQ_UNIT_BYTES
    return len(queue.tail)
