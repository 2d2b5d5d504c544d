"""Writes the tails of consume queues to their files, in batches and in a worker.

Job: decide which queues are due, hand their bytes to a worker, drop what was written, and know
the *derived position*: every unit of a record below it is in a file.  It must not make units.

Dirty queues stand in a FIFO with the log position at which they were last known to be complete;
the position at the head is the derived position.  A batch takes the queues that have been dirty
for a second, puts them back at the end with today's log position, and a worker writes their
bytes.  A queue found with an empty tail at the head is clean.  So each queue costs one write a
second at most, however many messages it got, and thousands of queues are spread over batches.

Topic deletion runs through the same worker chain, so that no late write brings a file back.

Durable when: `derived_position` covers process death.  `synced_position` covers a power cut: the
files changed since the last round are synced one after the other about once a minute.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES, encode_pre_blank_unit
from cometmq.errors import DiskFull
from cometmq.store.commit_log import log_file_name
from cometmq.store.consume_queue import TAIL_LOCK
from cometmq.store.unsynced import mark_unsynced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cometmq.store.commit_log import CommitLog
    from cometmq.store.config import StoreConfig
    from cometmq.store.consume_queue import ConsumeQueue
    from cometmq.store.disk import Disk, RandomFile, Workers

__all__ = ["QueueWriter", "WrittenQueue"]

_LOG: Final = logging.getLogger("cometmq.store")
# Queues in one batch: a worker holds the interpreter for microseconds between its system calls.
_BATCH_QUEUES_MAX: Final = 1024
_WRITE_FILES_MAX: Final = 64
# So many queues can be written every interval at no cost to speak of; more take turns.
_QUEUES_AT_EASE: Final = 2500
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
        self.on_written: Callable[[list[WrittenQueue]], Callable[[], None] | None] | None = None
        """Asked on the loop for what a worker shall do after the batch (the side file)."""

    @property
    def derived_position(self) -> int:
        """Units of all records below this physical offset are in their files."""
        dirty = self._dirty
        while dirty and not dirty[0].tail:
            dirty.popleft().is_dirty = False
        return dirty[0].dirty_position if dirty else self._log.wrote

    @property
    def is_busy(self) -> bool:
        """Whether a batch is on its way; positions are promises until it has arrived."""
        return self._is_writing

    def mark(self, queue: ConsumeQueue, physical_offset: int, now_ms: int) -> None:
        """A clean queue got a unit for the record at `physical_offset`."""
        queue.is_dirty = True
        queue.dirty_ms = now_ms
        queue.dirty_position = physical_offset
        self._dirty.append(queue)

    def remove(self, path: str) -> None:
        """Delete a queue's or topic's directory after the batch that is being written."""

        def chore() -> None:
            self.forget(path)
            self._disk.remove_tree(path)

        self._chores.append(chore)

    def chore(self, work: Callable[[], None]) -> None:
        """Have a worker do something between batches, in the order given."""
        self._chores.append(work)

    def tick(self, now_ms: int) -> None:
        """Start a batch if queues are due and none is under way."""
        if self._is_writing or self._is_closed:
            return
        batch = self._take(now_ms)
        chores, self._chores = self._chores, []
        if not batch and not chores:
            return
        self._is_writing = True
        after = self.on_written(batch) if self.on_written is not None and batch else None

        def work() -> None:
            with self._job:
                if self._is_closed:
                    return
                for chore in chores:
                    chore()
                self._write(batch)
                if after is not None:
                    after()

        def done(result: object) -> None:
            self._is_writing = False
            if self._is_closed:
                return
            if isinstance(result, BaseException):
                self._log_failure(result)
                self._chores = chores + self._chores
                self._take_back(batch)
                return
            self._drop(batch)

        self._workers.submit(work, done)

    def _take(self, now_ms: int) -> list[WrittenQueue]:
        """Queues that are due, each put back at the end of the FIFO with today's position."""
        dirty = self._dirty
        wrote = self._log.wrote
        # Each queue costs a few system calls: very many of them are written less often.
        interval_ms = self._interval_ms * max(1, min(len(dirty) // _QUEUES_AT_EASE, _SLOWER_MAX))
        batch: list[WrittenQueue] = []
        for _ in range(min(len(dirty), _BATCH_QUEUES_MAX)):
            queue = dirty[0]
            if not queue.tail or queue.is_gone:
                dirty.popleft()
                queue.is_dirty = False
                continue
            is_due = now_ms - queue.dirty_ms >= interval_ms or now_ms < queue.dirty_ms
            if not is_due and len(queue.tail) < _TAIL_BYTES_MAX:
                break
            dirty.popleft()
            queue.dirty_ms = now_ms
            batch.append((queue, queue.written, bytes(queue.tail)))
            dirty.append(queue)
        # Only now: while the loop ran, the positions at the head still were the old ones.
        for queue, _, _ in batch:
            queue.dirty_position = wrote
        return batch

    def _drop(self, batch: list[WrittenQueue]) -> None:
        for queue, first, data in batch:
            if not queue.is_gone and queue.written == first:
                with TAIL_LOCK:
                    del queue.tail[: len(data)]
                    queue.written = first + len(data) // CQ_UNIT_BYTES

    def _take_back(self, batch: list[WrittenQueue]) -> None:
        """The batch failed: its queues are complete only up to their first unit again."""
        for queue, _, data in batch:
            queue.dirty_position = CQ_UNIT.unpack_from(data, 0)[0]
        self._dirty = deque(sorted(self._dirty, key=lambda queue: queue.dirty_position))

    def _log_failure(self, error: BaseException) -> None:
        if isinstance(error, DiskFull):
            _LOG.warning("consume queues wait for space: %s", error)
        else:
            _LOG.error("writing consume queues failed and is tried again: %s", error)

    # -- in the worker -------------------------------------------------------------------

    def _write(self, batch: list[WrittenQueue]) -> None:
        unit_bytes = CQ_UNIT_BYTES
        for queue, first, data in batch:
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
        """Sync these files in the next round too: a process that died may not have done so."""
        self._unsynced.update(paths)

    def sync_round(self) -> None:
        """Sync all files written since the last round, in a worker, then move the position.

        After a sync that failed none is tried: a later one succeeds without the lost pages
        (flush.py).  The position stays, and recovery makes what lies behind it again.
        """
        if self._is_syncing or self._is_writing or self._is_closed or self._has_failed:
            return
        position = self.derived_position
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
                    "syncing consume queues failed: %s; look at the disk. Serving goes on, and the"
                    " next start makes them again from the log",
                    result,
                )
            else:
                self.synced_position = position

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
        """Wait for the job under way and let no other begin; what it took is written again."""
        self._is_closed = True
        with self._job:
            self.on_written = None

    def write_all(self) -> None:
        """Write everything now, in the calling thread (load and close)."""
        for chore in self._chores:
            chore()
        self._chores.clear()
        batch: list[WrittenQueue] = []
        while self._dirty:
            queue = self._dirty.popleft()
            queue.is_dirty = False
            if queue.tail and not queue.is_gone:
                batch.append((queue, queue.written, bytes(queue.tail)))
        self._write(batch)
        self._drop(batch)

    def discard(self) -> None:
        """Forget what waits (a scan begins again)."""
        self._dirty.clear()
        self._files.clear()

    def sync_all(self) -> None:
        """Sync everything now, in the calling thread (close); not after a failure."""
        if self._has_failed:
            return
        paths, self._unsynced = sorted(self._unsynced), set()
        self._files.clear()
        self._sync(paths)
        self.synced_position = self._log.wrote

    def close(self) -> None:
        """Let the descriptors go."""
        self._files.clear()
