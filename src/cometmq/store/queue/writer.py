"""Writes the tails of consume queues to their files, in batches and in a worker.

The writer decides which queues are due, hands their bytes to a worker, drops what was written, and
knows the *derived position*: every unit of a record below it is in a file.

Dirty queues stand in a FIFO with the log position at which they were last known to be complete;
the position at the head is the derived position.  A batch takes the queues that have been dirty
for a second, puts them back at the end with today's log position, and a worker writes their
bytes.  A queue at the head that has nothing unsaved is clean.  So each queue costs one write a
second at most, however many messages it got, and thousands of queues are spread over batches.

Where more queues wait than single writes can serve, a batch goes into the unit journal instead
(unit_journal.py), which is one write, and its units stay in the tails.  Such queues are *kept*.
When the journal has grown, or after half a minute, a *pass* brings the tails of all queues kept
by then into their files, some at a time; then the journal's older part is deleted.  The position
at which a pass began is the *filed position*: what is synced can be no more than that.

Topic deletion runs through the same worker chain, so that no late write brings a file back.

Durable when: `derived_position` covers process death.  `synced_position` covers a power cut: the
files changed since the last round are synced one after the other about once a minute.  Then the
side file is synced, which alone knows where queues end whose records are gone:
`recorded_position`.
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
# Queues in one batch: a worker holds the interpreter for microseconds between two system calls.
_BATCH_QUEUES_MAX: Final = 1024
_WRITE_FILES_MAX: Final = 64
# Up to this many queues are written every interval at negligible cost; more take turns.
_QUEUES_PER_INTERVAL: Final = 2500
# Of a pass over kept queues, at a turn of the timer: 2,560 queues a second at most.
_PASS_QUEUES_MAX: Final = 256
_SLOWER_MAX: Final = 4
# More files than this are synced by one call for the whole system.
_SYNC_FILES_MAX: Final = 32
# A tail of this size is written at once, whatever its age: 512 KiB are 26,000 units.
_TAIL_BYTES_MAX: Final = 512 << 10

WrittenQueue = tuple["ConsumeQueue", int, bytes]
"""Queue, queue offset of the first unit, the units' bytes."""


class QueueWriter:
    """Batches of consume-queue units on their way to the disk."""

    def __init__(self, config: StoreConfig, disk: Disk, workers: Workers, log: CommitLog) -> None:
        self._disk = disk
        self._workers = workers
        self._log = log
        self._root = config.root
        self._file_bytes = config.queue_file_bytes
        self._interval_ms = config.consume_queue_write_interval_ms
        self._dirty: deque[ConsumeQueue] = deque()
        self._chores: list[Callable[[], None]] = []
        self._is_writing = False
        self._is_syncing = False
        self._is_closed = False
        self._has_failed = False
        # Held by a worker's job, so that the stop can wait for it.
        self._job = threading.Lock()
        self._files: dict[str, RandomFile] = {}
        self._unsynced: set[str] = set()
        self.synced_position = 0
        self.recorded_position = 0
        """The synced position, and the queues' ends, that the side file states durably."""
        self.on_synced: Callable[[], None] = lambda: None
        """Called on the loop when `synced_position` has moved."""
        self.on_written: (
            Callable[[list[WrittenQueue], list[WrittenQueue]], Callable[[], None] | None] | None
        ) = None
        """Called on the loop with everything that a batch saves, and with the part of it that goes
        into queue files; returns what the worker calls after the batch (the side file)."""
        self.journal: UnitJournal | None = None
        """Where units of very many queues go first; None while a store is being loaded."""
        self.ext: QueueExt | None = None
        """Gives the units of filtered topics an extension before they go to their files."""
        self._journal_queues_min = config.unit_journal_queues_min
        self._journal_bytes_max = config.unit_journal_bytes_max
        self._journal_age_ms = config.unit_journal_age_ms
        self._kept: deque[ConsumeQueue] = deque()
        self._kept_since_ms = 0
        self._passing: list[ConsumeQueue] = []
        self._pass_left = 0
        self._pass_position = 0
        self._pass_volume = 0
        self._filed = 0

    @property
    def derived_position(self) -> int:
        """Units of all records below this physical offset are in their files, or the journal."""
        dirty = self._dirty
        while dirty and not _unsaved_bytes(dirty[0]):
            dirty.popleft().is_dirty = False
        return dirty[0].dirty_position if dirty else self._log.wrote

    @property
    def filed_position(self) -> int:
        """Units of all records below this physical offset are in their files."""
        return self._filed if self._kept else self.derived_position

    @property
    def is_busy(self) -> bool:
        """Whether a worker saves a batch; positions hold only once it is done."""
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
            if self.ext is not None:
                self.ext.remove(path)

        self._chores.append(chore)

    def chore(self, work: Callable[[], None]) -> None:
        """Have a worker call `work` between batches, in the order of these calls."""
        self._chores.append(work)

    def tick(self, now_ms: int) -> None:
        """Start a batch if queues are due and none is under way."""
        if self._is_writing or self._is_closed:
            return
        if not self._kept:
            self._filed = self.derived_position
        journal = self.journal if len(self._dirty) > self._journal_queues_min else None
        filed = self._take_kept(now_ms)
        batch = self._take(now_ms, is_journaled=journal is not None)
        chores, self._chores = self._chores, []
        if not (batch or self._passing or chores):
            return
        self._is_writing = True
        after: Callable[[], None] | None = None
        if self.on_written is not None and (batch or filed):
            after = self.on_written(batch or filed, filed if journal is not None else filed + batch)

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
                self._keep(batch, now_ms)

        self._workers.submit(lambda: self._save(chores, filed, batch, journal, after), done)

    def _save(
        self,
        chores: list[Callable[[], None]],
        filed: list[WrittenQueue],
        batch: list[WrittenQueue],
        journal: UnitJournal | None,
        after: Callable[[], None] | None,
    ) -> None:
        """In the worker: save one turn's chores, units and frame, in this order."""
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
        """Take the queues that are due, and put each back at the end with the present position.

        Each comes with the units that its file lacks; when journaled, with those that the journal
        lacks too.
        """
        dirty = self._dirty
        wrote = self._log.wrote
        # Each queue costs a few system calls: very many of them are written less often.
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
            if is_journaled:
                batch.append(
                    (queue, max(queue.saved, queue.written), bytes(queue.tail[-unsaved_bytes:]))
                )
            else:
                batch.append((queue, queue.written, bytes(queue.tail)))
            dirty.append(queue)
        # Not within the loop, which needs the old positions at the head.
        for queue, _, _ in batch:
            queue.dirty_position = wrote
        return batch

    def _drop(self, batch: list[WrittenQueue]) -> None:
        for queue, first, data in batch:
            if not queue.is_gone and queue.written == first:
                with TAIL_LOCK:
                    del queue.tail[: len(data)]
                    queue.written = first + len(data) // CQ_UNIT_BYTES

    def _keep(self, batch: list[WrittenQueue], now_ms: int) -> None:
        """Let the queues of a journaled batch wait for the next pass."""
        if not self._kept:
            self._kept_since_ms = now_ms
        for queue, first, data in batch:
            queue.saved = first + len(data) // CQ_UNIT_BYTES
            if not queue.is_kept and queue.saved > queue.written:
                queue.is_kept = True
                self._kept.append(queue)

    def _take_kept(self, now_ms: int) -> list[WrittenQueue]:
        """Take some queues of the pass under way; begin a pass when it is due."""
        kept, journal = self._kept, self.journal
        if journal is None or not kept:
            return []
        if not self._pass_left:
            age_ms = now_ms - self._kept_since_ms
            if journal.volume_bytes < self._journal_bytes_max and (
                0 <= age_ms < self._journal_age_ms
            ):
                return []
            self._pass_left = len(kept)
            self._pass_position = self.derived_position
            self._kept_since_ms = now_ms
            self._pass_volume = journal.roll()
        count = min(self._pass_left, _PASS_QUEUES_MAX)
        self._passing = [kept.popleft() for _ in range(count)]
        return [
            (queue, queue.written, bytes(queue.tail))
            for queue in self._passing
            if queue.tail and not queue.is_gone
        ]

    def _end_turn(self) -> None:
        """Note that the taken queues of the pass are in files; end the pass after the last one."""
        if not self._passing:
            return
        for queue in self._passing:
            queue.is_kept = False
        self._pass_left -= len(self._passing)
        self._passing = []
        if not self._pass_left and self.journal is not None:
            self._filed = self._pass_position
            volume, drop = self._pass_volume, self.journal.drop_below
            self._chores.append(lambda: drop(volume))

    def _take_back(self, batch: list[WrittenQueue]) -> None:
        """After a failed batch, set its queues back: each is complete up to its first unit only."""
        self._kept.extendleft(reversed(self._passing))
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
            if self.ext is not None and self.ext.bitmaps is not None:
                data, paths = self.ext.extend(queue, data)  # noqa: PLW2901 - with addresses
                self._unsynced.update(paths)
            position = first * unit_bytes
            done = 0
            while done < len(data):
                file_position = position % self._file_bytes
                length = min(len(data) - done, self._file_bytes - file_position)
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
            file = self._disk.open_random(path, self._file_bytes, create=False)
        except FileNotFoundError:
            file = self._create(directory, path, first_position)
        if len(files) >= _WRITE_FILES_MAX:
            del files[next(iter(files))]
        files[path] = file
        self._unsynced.add(path)
        return file

    def _create(self, directory: str, path: str, first_position: int) -> RandomFile:
        self._disk.makedirs(directory)
        file = self._disk.open_random(path, self._file_bytes, create=True)
        if first_position:
            # The queue's earlier part is lost; Java stops reading at the first zero unit.
            file.write(0, encode_pre_blank_unit() * (first_position // CQ_UNIT_BYTES))
        return file

    def forget(self, prefix: str) -> None:
        """Close what is open below a directory (in the worker, or at load)."""
        for path in [path for path in self._files if path.startswith(f"{prefix}/")]:
            del self._files[path]
        self._unsynced = {path for path in self._unsynced if not path.startswith(f"{prefix}/")}

    # -- power cuts ----------------------------------------------------------------------

    def distrust(self, paths: Iterable[str]) -> None:
        """Sync these files in the next round too: a dead process may not have done so."""
        self._unsynced.update(paths)

    def sync_round(self) -> None:
        """Sync all files written since the last round, in a worker, then move the position.

        After a sync that failed none is tried: a later one succeeds without the lost pages
        (flush.py).  The position stays, and recovery makes what lies behind it again.
        """
        if self._is_syncing or self._is_writing or self._is_closed or self._has_failed:
            return
        position = self.filed_position
        if position <= self.synced_position:
            return
        self._is_syncing = True
        paths, self._unsynced = sorted(self._unsynced), set()
        # Open ones are written again soon, and `_file` marks a path only when it opens it.
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
                self.on_synced()

        def work() -> None:
            try:
                self._sync(paths)
            except OSError:
                mark_unsynced(self._disk, self._root)
                raise

        self._workers.submit(work, done)

    def _sync(self, paths: list[str]) -> None:
        if len(paths) > _SYNC_FILES_MAX:
            # One call for all: thousands of single ones would take minutes.
            self._disk.sync_all()
            return
        directories: set[str] = set()
        for path in paths:
            try:
                self._disk.open_random(path, self._file_bytes, create=False).sync()
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
        """Let no job begin any more and wait for the one under way; its units are written again."""
        self._is_closed = True
        with self._job:
            self.on_written = None

    def write_all(self) -> None:
        """Write everything now, in the calling thread (load and close)."""
        for chore in self._chores:
            chore()
        self._chores.clear()
        batch: list[WrittenQueue] = []
        waiting = dict.fromkeys([*self._dirty, *self._passing, *self._kept])
        self._dirty.clear()
        self._passing.clear()
        self._kept.clear()
        self._pass_left = 0
        for queue in waiting:
            queue.is_dirty = queue.is_kept = False
            if queue.tail and not queue.is_gone:
                batch.append((queue, queue.written, bytes(queue.tail)))
        self._write(batch)
        self._drop(batch)

    def discard(self) -> None:
        """Drop all waiting queues, since a scan begins again."""
        self._dirty.clear()
        self._files.clear()

    def sync_all(self) -> None:
        """Sync everything now, in the calling thread (close); do nothing after a failure."""
        if self._has_failed:
            return
        paths, self._unsynced = sorted(self._unsynced), set()
        self._files.clear()
        self._sync(paths)
        self.synced_position = self._log.wrote

    def close(self) -> None:
        """Close the files."""
        self._files.clear()
        if self.journal is not None:
            self.journal.close()


def _unsaved_bytes(queue: ConsumeQueue) -> int:
    """Return how many bytes of the tail are neither in a file nor in the journal."""
    behind = queue.saved - queue.written
    return len(queue.tail) - behind * CQ_UNIT_BYTES if behind > 0 else len(queue.tail)
