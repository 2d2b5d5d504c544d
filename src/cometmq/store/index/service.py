"""The index of a store: its files, the messages that wait to be indexed, and queries by key.

The appender puts the keys of stored messages into `pending`.  Each turn of the timer adds up to
`_BATCH_MESSAGES` of them to the newest file, and a full file is followed by a new one.  Queries
search files, unwritten entries and pending messages (query.py).  The log is not read here.

Small batches are added entry by entry, so a broker with few messages never loads numpy.

Durable when: entries are written about every 0.1 s (process death), and the side file records up
to which record.  They are synced about once a minute (power cut).  After a sync has failed, none
is tried, as with the log (flush.py): a later one would succeed without the pages that were lost.
The synced position stays, and the next start indexes everything behind it again.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, Final

from cometmq.codec.index import (
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    IndexHeader,
    decode_index_header,
    index_file_bytes,
)
from cometmq.errors import DiskFull
from cometmq.store.index.file import IndexFile
from cometmq.store.index.keys import KeyHasher, item_entries
from cometmq.store.index.query import IndexQuery, Unwritten
from cometmq.store.log.unsynced import mark_unsynced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.native import PendingRun
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, Workers
    from cometmq.store.base.results import QueryResult
    from cometmq.store.index.file import HasKey
    from cometmq.store.index.keys import PendingItem

__all__ = ["MOVES", "IndexEvent", "IndexService", "IndexState", "move"]

_LOG: Final = logging.getLogger("cometmq.store")
_NAME_DIGITS: Final = 17
# Up to this many messages are added entry by entry, without numpy and without the slot table.
_FEW_MESSAGES: Final = 64
_BATCH_MESSAGES: Final = 512
# Of many waiting messages, a turn adds this part if it is more: with a fixed number, messages that
# come faster would wait until there are too many, and then stall the loop.
_BATCH_PART: Final = 32
# While a worker reads the slot table, up to this many messages wait; then the loop reads it.
_WAITING_MAX: Final = 200_000
_SLOTS_WRITE_INTERVAL_MS: Final = 5_000
_SLOTS_IDLE_MS: Final = 30_000


class IndexState(IntFlag):
    """What an index service is doing: regions that are on or off independently."""

    WRITING = 1
    """A worker writes entries, heads and, when it is due, the slot table."""
    LOADING = 2
    """A worker reads the newest file's slot table."""
    MENDING = 4
    """A worker repairs the slot table of a full file."""
    DISK_FULL = 8
    """The last batch met a full disk; its messages wait."""
    CLOSED = 16
    """No job begins."""


class IndexEvent(IntEnum):
    """What happens to an index service; each event turns one region on or off."""

    WRITE = 0
    WRITTEN = 1
    LOAD = 2
    LOADED = 3
    MEND = 4
    MENDED = 5
    DISK_FILLED = 6
    DISK_FREED = 7
    CLOSE = 8


MOVES: Final = {
    IndexEvent.WRITE: (IndexState.WRITING, True),
    IndexEvent.WRITTEN: (IndexState.WRITING, False),
    IndexEvent.LOAD: (IndexState.LOADING, True),
    IndexEvent.LOADED: (IndexState.LOADING, False),
    IndexEvent.MEND: (IndexState.MENDING, True),
    IndexEvent.MENDED: (IndexState.MENDING, False),
    IndexEvent.DISK_FILLED: (IndexState.DISK_FULL, True),
    IndexEvent.DISK_FREED: (IndexState.DISK_FULL, False),
    IndexEvent.CLOSE: (IndexState.CLOSED, True),
}
"""By event: a region, and whether the event turns it on (else off)."""
_NEEDS_OPEN: Final = frozenset({IndexEvent.WRITE, IndexEvent.LOAD, IndexEvent.MEND})
"""Events that begin a job, which cannot occur in a closed service."""


def move(state: IndexState, event: IndexEvent) -> IndexState:
    """Return the state after an event.

    Raises:
        RuntimeError: the region is on already, or off already, or the service is closed.
    """
    region, turns_on = MOVES[event]
    is_too_late = event in _NEEDS_OPEN and state & IndexState.CLOSED
    if is_too_late or bool(state & region) is turns_on:
        raise RuntimeError(f"an index service that is {state!r} got the event {event.name}")
    return state ^ region


class IndexService:
    """The index files of a store, and what goes into them.

    Args:
        wrote: the physical offset at which the log ends.
    """

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        workers: Workers,
        clock: Callable[[], int],
        wrote: Callable[[], int],
    ) -> None:
        self.path = f"{config.root}/index"
        self.is_enabled = config.is_index_enabled
        self.files: list[IndexFile] = []
        self.pending: list[PendingItem] = []
        self._run_excess = 0
        """How many more messages wait than `pending` has items: a run is one item."""
        self.config = config
        self._disk = disk
        self._workers = workers
        self._clock = clock
        self._wrote = wrote
        self._unwritten: list[Unwritten] = []
        """Writes that no worker has done yet, oldest first."""
        self._generation = 0
        """Grows when `drain_all` does all unwritten writes, also those that a worker is doing."""
        self.state = IndexState(0)
        self._sync_failure: OSError | None = None
        """The first failure of a sync, set by a worker; no sync is tried after it."""
        self.has_dropped_files = False
        """Whether `load` deleted damaged files."""
        # A worker's job holds this lock, so that `stop` can wait for the job.
        self._job = threading.Lock()
        self._last_slots_ms = 0
        self._last_add_ms = 0
        self._hasher = KeyHasher()
        self.synced_position = 0
        """The entries of all records below this physical offset are on stable storage."""
        self.full_end_ms = 0
        """Time of the last entry of the newest full and synced file (Java's indexMsgTimestamp)."""

    def _move(self, event: IndexEvent) -> None:
        self.state = move(self.state, event)

    # -- positions -----------------------------------------------------------------------

    @property
    def indexed_position(self) -> int:
        """The entries of all records below this physical offset are in files."""
        if not self.is_enabled:
            return self._wrote()
        if self._unwritten:
            return self._unwritten[0][2]
        return self.pending[0][1] if self.pending else self._wrote()

    @property
    def waiting_count(self) -> int:
        """How many messages are not indexed yet."""
        return len(self.pending) + self._run_excess

    def add_run(self, run: PendingRun) -> None:
        """Let the messages of a run, which the native core has encoded, wait for the index."""
        self.pending.append(run)
        self._run_excess += run[0] - 1

    def _remove(self, items: Sequence[PendingItem]) -> None:
        """Remove the first pending items, these, which are in a file now."""
        del self.pending[: len(items)]
        if self._run_excess:
            for count, *_ in items:
                if isinstance(count, int):
                    self._run_excess -= count - 1

    @property
    def has_unwritten(self) -> bool:
        """Whether an entry is not in its file yet."""
        return bool(self._unwritten)

    @property
    def newest(self) -> IndexFile | None:
        """The file that gets the next entries; None before the first entry."""
        return self.files[-1] if self.files else None

    # -- opening -------------------------------------------------------------------------

    def load(self, damages: list[str]) -> int:
        """Open the files; return the physical offset of the last indexed record, -1 for none.

        A file with a wrong size or head is deleted with all newer files, since the log has their
        keys; `damages` gets a text about it.
        """
        config = self.config
        expected = index_file_bytes(config.index_slot_count, config.index_entry_count)
        names = [n for n in self._disk.listdir(self.path) if len(n) == _NAME_DIGITS and n.isdigit()]
        for number, name in enumerate(names):
            path = f"{self.path}/{name}"
            fault = self._open(path, expected)
            if fault is None:
                continue
            for newer in names[number:]:
                self._disk.remove(f"{self.path}/{newer}")
            damages.append(f"{path}: {fault}; it and newer ones are built again from the log")
            self.has_dropped_files = True
            break
        return self.end

    @property
    def end(self) -> int:
        """Physical offset of the last indexed record, -1 for none."""
        for file in reversed(self.files):
            if file.header.index_count > 1:
                return file.header.end_physical_offset
        return -1

    @property
    def resume_at(self) -> int:
        """Physical offset of the first record to index after a start.

        Of the last message of a full file, some keys may belong into the next file.  That message
        is indexed again, so some of its entries are doubled, as in RocketMQ.
        """
        newest = self.newest
        return self.end if newest is not None and newest.is_full else self.end + 1

    def _open(self, path: str, expected: int) -> str | None:
        """Open a file of `expected` bytes; return what is wrong with it, None when it is sound."""
        config = self.config
        size = self._disk.size(path)
        if size != expected:
            return f"{size} bytes long, expected {expected}"
        file = self._disk.open_random(path, expected, create=False)
        header = decode_index_header(file.read(0, INDEX_HEADER_BYTES))
        if not 0 <= header.index_count <= config.index_entry_count:
            return f"its head counts {header.index_count} entries of {config.index_entry_count}"
        if header.index_count > 1 and not (
            0 <= header.begin_physical_offset <= header.end_physical_offset
            and header.slot_count >= 0
        ):
            return "the values in its head contradict each other"
        index_file = IndexFile(
            path, file, config.index_slot_count, config.index_entry_count, header
        )
        index_file.slots_known = index_file.header.index_count
        self.files.append(index_file)
        return None

    def distrust_full_files(self, index_timestamp_ms: int) -> None:
        """After a crash, doubt the slot tables of full files that ended after a time."""
        for file in self.files[:-1]:
            if file.header.end_timestamp_ms > index_timestamp_ms:
                file.is_doubtful = True
                file.slots_known = 1

    def distrust_slots(self, end: int) -> None:
        """Assume that the newest file's slot table has only the entries below number `end`."""
        newest = self.newest
        if newest is not None:
            newest.slots_known = max(1, min(end, newest.header.index_count))
            newest.is_doubtful = True

    def cut_unsound(self, damages: list[str]) -> int:
        """After a crash of unknown kind, drop all entries from the first impossible one on.

        Returns the physical offset of the last indexed record, -1 for none.
        """
        for number, file in enumerate(self.files):
            # A newer file follows only a full one, so a smaller count means lost pages.
            is_short = file is not self.newest and not file.is_full
            if file.cut_unsound() or is_short:
                damages.append(
                    f"{file.path}: entries behind {file.header.index_count - 1} are lost"
                )
                for newer in self.files[number + 1 :]:
                    self._disk.remove(newer.path)
                del self.files[number + 1 :]
                break
        self.distrust_slots(1)
        for file in self.files[:-1]:
            file.is_doubtful = True
        return self.end

    def cut(self, physical_offset: int, has_key: HasKey | None = None) -> int:
        """Drop the entries of records at or behind an offset; see `IndexFile.cut`.

        Returns the physical offset of the last indexed record, -1 for none.
        """
        while self.files:
            newest = self.files[-1]
            newest.cut(physical_offset, has_key)
            if newest.header.index_count > 1 or len(self.files) == 1:
                break
            self.files.pop()
            self._disk.remove(newest.path)
        return self.end

    # -- adding --------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Add a batch of pending messages; have a worker write, and mend doubtful slot tables."""
        if not self.is_enabled or self.state & IndexState.CLOSED:
            return
        self.drain(now_ms)
        if self.state & IndexState.WRITING:
            return
        newest = self.newest
        slots: Callable[[], None] | None = None
        self._mend_one()
        is_due = now_ms - self._last_slots_ms >= _SLOTS_WRITE_INTERVAL_MS
        is_loading = self.state & IndexState.LOADING
        if newest is not None and newest.slots is not None and is_due and not is_loading:
            self._last_slots_ms = now_ms
            slots = newest.slot_writes()
            if slots is None and now_ms - self._last_add_ms >= _SLOTS_IDLE_MS:
                newest.drop_slots()
        self._write_some(slots)

    def _mend_one(self) -> None:
        """Have a worker mend the slot table of one full file that is doubtful after a crash."""
        doubtful = [file for file in self.files[:-1] if file.is_doubtful]
        if not doubtful or self.state & IndexState.MENDING:
            return
        self._move(IndexEvent.MEND)
        file = doubtful[0]

        def work() -> None:
            with self._job:
                if not self.state & IndexState.CLOSED:
                    self._synced(file.mend)

        def done(result: object) -> None:
            self._move(IndexEvent.MENDED)
            if isinstance(result, BaseException):
                _LOG.error("mending the slots of %s failed: %s", file.path, result)

        self._workers.submit(work, done)

    def drain(self, now_ms: int) -> None:
        """Add one batch of the pending messages; on a full disk they stay pending."""
        if not self.pending:
            return
        self._last_add_ms = now_ms
        try:
            self._drain_batch()
        except DiskFull as error:
            if not self.state & IndexState.DISK_FULL:
                self._move(IndexEvent.DISK_FILLED)
                _LOG.warning("the index waits for space: %s", error)
        else:
            if self.state & IndexState.DISK_FULL:
                self._move(IndexEvent.DISK_FREED)

    def _drain_batch(self) -> None:
        waiting_count = self.waiting_count
        if waiting_count > _WAITING_MAX:
            self.drain_all()
            return
        if self.state & IndexState.LOADING:
            return
        if waiting_count <= _FEW_MESSAGES and self._can_add_singly():
            self._add_singly(waiting_count)
        elif self._make_slots():
            self._add_batch(max(_BATCH_MESSAGES, waiting_count // _BATCH_PART))

    def _can_add_singly(self) -> bool:
        """Return whether entries can be added through the slots in the file."""
        newest = self.newest
        return newest is None or (newest.slots is None and newest.are_slots_known)

    def drain_all(self) -> None:
        """Add and write everything now, in the calling thread (load, close, an overfull queue)."""
        if not self.is_enabled:
            return
        while self.pending:
            if self.waiting_count <= _FEW_MESSAGES and self._can_add_singly():
                self._add_singly(_FEW_MESSAGES)
            else:
                self._add_batch(_BATCH_MESSAGES)
        for file, (position, data), _ in self._unwritten:
            file.file.write(position, data)
        self._unwritten.clear()
        # A worker may be doing these writes: when it is done it must not remove newer ones.
        self._generation += 1

    def _make_slots(self) -> bool:
        """Return whether the newest slot table is in memory; if not, have a worker read it."""
        newest = self._file_with_room()
        if newest.slots is not None:
            return True
        self._load_slots(newest)
        return newest.slots is not None

    def _load_slots(self, newest: IndexFile) -> None:
        """Have a worker read a slot table; use it if no entry was added meanwhile."""
        if self.state & (IndexState.LOADING | IndexState.CLOSED):
            return
        self._move(IndexEvent.LOAD)
        count = newest.header.index_count

        def done(result: Any) -> None:
            self._move(IndexEvent.LOADED)
            if isinstance(result, BaseException):
                _LOG.error("reading the slots of %s failed: %s", newest.path, result)
            elif newest.slots is None and newest.header.index_count == count:
                newest.adopt_slots(result)

        self._workers.submit(newest.load_slots, done)

    def _add_singly(self, count: int) -> None:
        """Add the first `count` pending messages entry by entry."""
        added = 0
        items = self.pending[:count]
        try:
            for item in items:
                for key_hash, physical_offset in item_entries(item):
                    file = self._file_with_room()
                    file.add_one(key_hash, physical_offset, item[2])
                added += 1
        finally:
            # A full disk may have ended the loop early.
            self._remove(items[:added])
            newest = self.newest
            if newest is not None and added:
                position, head = newest.head_write()
                newest.file.write(position, head)

    def _add_batch(self, count: int) -> None:
        """Add the first pending messages together, in further files where one is full.

        They are `count` or all; more only at the end of a run.
        """
        batch = self._first_items(count)
        if not batch:
            return
        hashes, offsets, times_ms = self._hasher.hash_batch(batch)
        start = 0
        while start < len(hashes):
            file = self._file_with_room()
            if file.slots is None:
                file.adopt_slots(file.load_slots())
            end = min(len(hashes), start + file.room)
            write = file.add_many(hashes[start:end], offsets[start:end], times_ms[start:end])
            self._unwritten.append((file, write, batch[0][1]))
            self._unwritten.append((file, file.head_write(), batch[0][1]))
            start = end
        self._remove(batch)

    def _first_items(self, count: int) -> list[PendingItem]:
        """Return the first pending items, as many as have `count` messages."""
        if not self._run_excess:
            return self.pending[:count]
        number = 0
        for topic, *_ in self.pending:
            if count <= 0:
                break
            number += 1
            count -= topic if isinstance(topic, int) else 1
        return self.pending[:number]

    # -- files ---------------------------------------------------------------------------

    def _file_with_room(self) -> IndexFile:
        """Return the newest file, or a new one when the newest is full."""
        newest = self.newest
        if newest is not None and not newest.is_full:
            return newest
        if newest is not None:
            if newest.slots is None:
                # Its entries are in the file already; its head is not.
                position, head = newest.head_write()
                newest.file.write(position, head)
            self._retire(newest)
        header = IndexHeader(0, 0, 0, 0, 0, 1)
        if newest is not None:
            # As RocketMQ: until its first entry, a file states the end of the file before.
            last = newest.header
            header = IndexHeader(
                last.end_timestamp_ms,
                last.end_timestamp_ms,
                last.end_physical_offset,
                last.end_physical_offset,
                0,
                1,
            )
        config = self.config
        size = index_file_bytes(config.index_slot_count, config.index_entry_count)
        path = self._new_path()
        self._disk.makedirs(self.path)
        file = self._disk.open_random(path, size, create=True)
        fresh = IndexFile(path, file, config.index_slot_count, config.index_entry_count, header)
        try:
            file.write(0, INDEX_HEADER.pack(*header))
        except DiskFull:
            self._disk.remove(path)
            raise
        if newest is not None and newest.slots is not None:
            import numpy as np

            # The old file keeps its table in memory until a worker has written it.
            fresh.adopt_slots(np.zeros(config.index_slot_count, dtype=np.int32))
        self.files.append(fresh)
        return fresh

    def _new_path(self) -> str:
        """Return the path of a new file: `yyyyMMddHHmmssSSS` in local time, after all others."""
        moment = datetime.fromtimestamp(self._clock() / 1000, tz=UTC).astimezone()
        while True:
            name = moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"
            path = f"{self.path}/{name}"
            if not self.files or path > self.files[-1].path:
                return path
            # A second file in one millisecond, or the clock went back: keep the order of names.
            last = self.files[-1].path.rpartition("/")[2]
            moment = datetime.strptime(last + "000", "%Y%m%d%H%M%S%f").replace(
                tzinfo=moment.tzinfo
            ) + timedelta(milliseconds=1)

    def _retire(self, file: IndexFile) -> None:
        """Have a worker write a full file's slot table and sync the file; then note its end."""
        write = file.slot_writes() if file.slots is not None else None
        # They are written again here, so that the sync covers them.
        unwritten = [item[1] for item in self._unwritten if item[0] is file]
        end_ms = file.header.end_timestamp_ms

        def work() -> None:
            with self._job:
                for position, data in unwritten:
                    file.file.write(position, data)
                if write is not None:
                    write()
            self._synced(file.file.sync)

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                _LOG.error("closing the full index file %s failed: %s", file.path, result)
                return
            file.drop_slots()
            # Java assumes that all full files up to this time are complete.
            if self._sync_failure is None and not any(old.is_doubtful for old in self.files[:-1]):
                self.full_end_ms = max(self.full_end_ms, end_ms)

        if self.state & IndexState.CLOSED:
            # The store is closing: no result of a worker arrives any more.
            work()
            done(None)
        else:
            self._workers.submit(work, done)

    # -- writing -------------------------------------------------------------------------

    def _write_some(self, slots: Callable[[], None] | None) -> None:
        """Have a worker do the unwritten writes, and then call `slots`, which writes slots."""
        if not self._unwritten and slots is None:
            return
        batch = list(self._unwritten)
        generation = self._generation
        self._move(IndexEvent.WRITE)

        def work() -> None:
            with self._job:
                if self.state & IndexState.CLOSED:
                    return
                for file, (position, data), _ in batch:
                    file.file.write(position, data)
                if slots is not None:
                    slots()

        def done(result: object) -> None:
            self._move(IndexEvent.WRITTEN)
            if isinstance(result, BaseException):
                if slots is not None:
                    # If writing the entries failed, the slots were not written at all.
                    self._write_slots_again()
                level = logging.WARNING if isinstance(result, DiskFull) else logging.ERROR
                _LOG.log(level, "writing the index failed and is tried again: %s", result)
            elif generation == self._generation:
                del self._unwritten[: len(batch)]

        self._workers.submit(work, done)

    def stop(self) -> None:
        """Begin no more jobs, and wait for the job under way."""
        self._move(IndexEvent.CLOSE)
        with self._job:
            pass
        if self.state & IndexState.WRITING:
            # The job that now does nothing may have had slots to write.
            self._write_slots_again()

    def _write_slots_again(self) -> None:
        """Mark all slots as changed, after a write of changed ones did not happen."""
        for file in self.files:
            file.write_slots_again()

    def write_all(self) -> None:
        """Write everything now, in the calling thread (load and close)."""
        self.drain_all()
        newest = self.newest
        if newest is not None and newest.slots is None and not newest.are_slots_known:
            newest.adopt_slots(newest.load_slots())
        for file in self.files[:-1]:
            if file.is_doubtful:
                file.mend()
        for file in self.files:
            write = file.slot_writes() if file.slots is not None else None
            if write is not None:
                write()
            file.drop_slots()

    def sync_all(self) -> None:
        """Sync everything, in the calling thread; do nothing after a sync has failed."""
        if self._sync_failure is not None:
            return
        self._sync(self._unsynced_files())
        self.synced_position = self._wrote()

    def sync_round(self) -> None:
        """Have a worker sync the newest files, then move the synced position."""
        position = self.indexed_position
        is_over = self.state & IndexState.CLOSED or self._sync_failure is not None
        if is_over or position <= self.synced_position:
            return
        files = self._unsynced_files()

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                _LOG.error(
                    "syncing the index failed: %s; check the disk. The broker goes on serving; its"
                    " next start indexes everything after the last good sync again",
                    result,
                )
            elif self._sync_failure is None:
                self.synced_position = max(self.synced_position, position)

        self._workers.submit(lambda: self._sync(files), done)

    def _unsynced_files(self) -> list[IndexFile]:
        """Return the two newest files and the doubtful ones; others were synced when full."""
        return [file for file in self.files[:-2] if file.is_doubtful] + self.files[-2:]

    def _sync(self, files: list[IndexFile]) -> None:
        for file in files:
            self._synced(file.file.sync)
        if files:
            self._synced(lambda: self._disk.sync_dir(self.path))
            self._synced(lambda: self._disk.sync_dir(self.config.root))

    def _synced(self, sync: Callable[[], None]) -> None:
        """Call a function that syncs, in a worker; after a failure no further sync is tried."""
        try:
            sync()
        except OSError as error:
            self._sync_failure = error
            mark_unsynced(self._disk, self.config.root)
            raise

    def close(self) -> None:
        """Close the files."""
        self.files.clear()

    # -- queries -------------------------------------------------------------------------

    def prepare_query(
        self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, index_type: str
    ) -> Callable[[], QueryResult]:
        """Begin a query, on the loop; a worker calls the returned function for the result."""
        newest = self.newest
        if newest is not None and newest.slots is None and not newest.are_slots_known:
            # This query reads the slot table from the file; later ones have it in memory.
            self._load_slots(newest)
        query = IndexQuery(topic, key, index_type, max_count, begin_ms, end_ms)
        return query.plan(list(self.pending), self.files, self._unwritten)

    def expire(self, min_physical_offset: int) -> list[str]:
        """Drop files whose records have all expired, never the last one; return their paths."""
        expired: list[str] = []
        while (
            len(self.files) > 1 and self.files[0].header.end_physical_offset < min_physical_offset
        ):
            expired.append(self.files.pop(0).path)
        return expired
