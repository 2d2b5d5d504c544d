"""One JSON configuration file of the broker: loaded at the start, written after changes.

The file rule is that of ConfigManager of RocketMQ 5.4
(docs/internals/store.md#configuration-files), made stricter.  The file is replaced atomically and
durably; the version before stays beside it as ``.bak``.  A file that does not decode is renamed to
``.damaged`` with a log line, and the ``.bak`` is read.  If that does not decode either, the start
ends, because writing would destroy what an operator might repair.

A worker encodes and writes a snapshot that was taken on the loop.  Changes that come while a write
runs share the next one.

Callers can wait until a change is on disk.  A change whose write failed is in memory only, is
written by the next write that succeeds, and would be lost by a restart before, so the callers get
the error.  RocketMQ's ConfigManager.persist logs it and goes on.

Keys of the file that are not ours (of a newer RocketMQ, say) are written back as they were read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from cometmq.errors import CodecError, DiskFull, StoreClosed, StoreCorrupt, StoreError
from cometmq.net.env import WorkerPool
from cometmq.store.base.disk import Disk
from cometmq.wire.command.fastjson import loads_object

__all__ = ["ConfigFile", "ForeignKeys", "Journal", "Saved", "load_config_file"]

log = logging.getLogger("cometmq.broker")

T = TypeVar("T")
Snapshot = Callable[[], bytes]
Saved = Callable[[StoreError | None], None]
"""Called with None when a change is on disk, else with the error."""


class Journal(Protocol):
    """Takes the changes of one file to other replicas."""

    @property
    def next(self) -> int:
        """Where in the journal the replicas' content of the file ends."""

    @property
    def is_behind(self) -> bool:
        """Whether the journal needs the file's content anew, though it has not changed."""

    def changes(self, data: bytes) -> list[bytes]:
        """Return what a new content has changed.  For a worker."""

    def append(self, records: list[bytes], done: Saved) -> None:
        """Have replicas take the changes; `done` hears when they have them."""


class ConfigFile:
    """A file and the table it stores.

    With a journal the file counts as written when replicas have its changes too.

    Args:
        path: of the file.
        revision: gives a number that grows with each change of the table.
        snapshot: copies the table on the loop; its result encodes the copy in a worker.
        is_private: whether only its owner may read it.
    """

    def __init__(
        self,
        disk: Disk,
        workers: WorkerPool,
        path: str,
        revision: Callable[[], int],
        snapshot: Callable[[], Snapshot],
        journal: Journal | None = None,
        *,
        is_private: bool = False,
    ) -> None:
        self.journal = journal
        self._disk = disk
        self._workers = workers
        self._path = path
        self._revision = revision
        self._snapshot = snapshot
        self._is_private = is_private
        self.written = 0 if journal is None or not disk.exists(path) else -1
        """The revision of the table that the file has."""
        self._waiting: list[tuple[int, Saved]] = []
        self.is_writing = False
        self._is_failing = False

    @property
    def is_saved(self) -> bool:
        """Say whether the file has the table as it is now."""
        return self._revision() == self.written

    def save_if_changed(self) -> None:
        """Write in a worker if the table changed since the last write; does not wait."""
        revision, journal = self._revision(), self.journal
        is_behind = journal is not None and journal.is_behind
        if self.is_writing or (revision == self.written and not is_behind):
            return
        self.is_writing = True
        build = self._snapshot()

        def done(result: list[bytes] | BaseException) -> None:
            if isinstance(result, BaseException):
                self.is_writing = False
                self._failed(revision, result)
            elif journal is None:
                settled(None)
            else:
                journal.append(result, settled)

        def settled(failure: StoreError | None) -> None:
            self.is_writing = False
            if failure is not None:
                self._failed(revision, failure)
                return
            self._is_failing = False
            self.written = revision
            self._release(revision, None)
            # Write changes made meanwhile; after a failure the next period tries again.
            self.save_if_changed()

        self._workers.submit(lambda: self._write(build), done)

    def when_saved(self, done: Saved) -> None:
        """Call `done` when the table as it is now is on disk, or when its write failed.

        Calls at once if there is nothing to write.
        """
        revision = self._revision()
        if revision == self.written:
            done(None)
            return
        self._waiting.append((revision, done))
        self.save_if_changed()

    def _release(self, revision: int, failure: StoreError | None) -> None:
        """Call back those that wait for a revision up to this one."""
        waiting, self._waiting = self._waiting, []
        self._waiting = [entry for entry in waiting if entry[0] > revision]
        for wanted, done in waiting:
            if wanted <= revision:
                done(failure)

    def save_now(self) -> None:
        """Write at once, blocking, if the table changed: for the stop.

        Raises:
            StoreError, OSError: the file cannot be written.
        """
        revision = self._revision()
        if revision != self.written:
            self._write(self._snapshot())
            self.written = revision

    def _write(self, build: Snapshot) -> list[bytes]:
        data = msgspec.json.format(build(), indent=2)
        if self._disk.exists(self._path):
            # A copy, not a rename: the file itself exists at every moment.
            before = self._disk.read_bytes(self._path)
            self._disk.write_atomic(self._path + ".bak", before, is_private=self._is_private)
        self._disk.write_atomic(self._path, data, is_private=self._is_private)
        return [] if self.journal is None else self.journal.changes(data)

    def _failed(self, revision: int, error: BaseException) -> None:
        """Log the first failure in a row; each period tries again."""
        if not self._is_failing and not isinstance(error, StoreClosed):
            self._is_failing = True
            log.error("%s was not written, trying again each period: %s", self._path, error)
        is_full = isinstance(error, DiskFull)
        failure = (DiskFull if is_full else StoreError)(
            f"{self._path} could not be written ({error}): what it was to hold is in memory only, "
            "which a restart forgets, and is written as soon as the disk takes it; "
            f"{'make room on the disk' if is_full else 'mend the cause'} and ask again"
        )
        self._release(revision, failure)
        if self._waiting:
            # They changed the table after this write had begun, so the next write is theirs.
            self.save_if_changed()


def load_config_file(disk: Disk, path: str, decode: Callable[[bytes], T]) -> T | None:
    """Read a file or its ``.bak``.

    Gives None if there is neither, or only one of them and that is damaged.  `decode` raises
    CodecError for damaged bytes.

    Raises:
        StoreCorrupt: both exist and neither decodes.
    """
    faults: list[str] = []
    for candidate in (path, path + ".bak"):
        if not disk.exists(candidate):
            continue
        data = disk.read_bytes(candidate)
        if not data.strip(b"\0 \t\r\n"):
            faults.append(f"{candidate}: empty")
            continue
        try:
            content = decode(data)
        except CodecError as error:
            faults.append(f"{candidate}: {error}")
            continue
        if faults:
            _set_aside(disk, path, faults[0], candidate)
        return content
    if len(faults) > 1:
        raise StoreCorrupt(
            f"neither {path} nor its .bak can be read ({'; '.join(faults)}); "
            "repair one of them, or move both away to start without what they held"
        )
    if faults:
        _set_aside(disk, path, faults[0], "an empty table")
    return None


def _set_aside(disk: Disk, path: str, fault: str, instead: str) -> None:
    log.error("%s; kept as %s.damaged, going on with %s", fault, path, instead)
    if disk.exists(path):
        disk.rename(path, path + ".damaged")


class ForeignKeys:
    """The keys of a file that are not ours, at its top level and in the entries of its table.

    An entry that is gone when the file is written takes its foreign keys with it.

    Args:
        top: our keys at the top level.
        table: our key whose value maps names to objects; "" if there is none.
        entry: our keys in these objects.
    """

    def __init__(self, top: Iterable[str], table: str = "", entry: Iterable[str] = ()) -> None:
        self._top = frozenset(top)
        self._table = table
        self._entry = frozenset(entry)
        self._tops: dict[str, Any] = {}
        self._entries: dict[str, dict[str, Any]] = {}

    def remember(self, raw: bytes) -> None:
        """Take the foreign keys of a file that was read."""
        try:
            data = loads_object(raw, "configuration file")
        except CodecError:
            return
        self._tops = {str(key): data[key] for key in data if str(key) not in self._top}
        table = data.get(self._table)
        self._entries = {}
        for name, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, dict):
                foreign = {str(key): value[key] for key in value if str(key) not in self._entry}
                if foreign:
                    self._entries[str(name)] = foreign

    def add_to(self, raw: bytes) -> bytes:
        """Give the encoded file with the foreign keys added."""
        if not self._tops and not self._entries:
            return raw
        data: dict[str, Any] = msgspec.json.decode(raw)
        table: Mapping[str, Any] = data.get(self._table) or {}
        for name in list(self._entries):
            if name in table:
                table[name].update(self._entries[name])
            else:
                del self._entries[name]
        return msgspec.json.encode({**self._tops, **data})
