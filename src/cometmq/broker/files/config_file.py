"""One JSON configuration file of the broker: load at start, write after changes.

Job: the file rule and the pace.  It must not know what the file holds.

File rule (ConfigManager of RocketMQ 5.4, store.md 1.4, made stricter): the file is replaced
atomically and durably; the version before stays beside it as ``.bak``.  A file that does not decode
is set aside as ``.damaged`` with a log line and the ``.bak`` is read; when that does not decode
either, the start stops, since going on would overwrite what might be repaired by hand.

Encoding and writing happen in a worker on a snapshot taken on the loop; changes that come while a
write runs share the next one.

Who waits for a change to be on disk is told whether it is.  A change whose write failed holds in
memory and is written with the next one that succeeds; until then a restart forgets it, so nobody
may be told that it is kept (RocketMQ's ConfigManager.persist logs the failure and goes on).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from cometmq.errors import CodecError, DiskFull, StoreCorrupt, StoreError
from cometmq.net.env import Workers
from cometmq.store.base.disk import Disk
from cometmq.wire.command.fastjson import loads_object

__all__ = ["ConfigFile", "ForeignKeys", "Saved", "load_config_file"]

log = logging.getLogger("cometmq.broker")

T = TypeVar("T")
Snapshot = Callable[[], bytes]
Saved = Callable[[StoreError | None], None]
"""Told None when what was waited for is on disk, and otherwise why it is not."""


class ConfigFile:
    """A file and the table it stores.

    Args:
        path: of the file.
        revision: moves whenever the table changes.
        snapshot: called on the loop; gives a function that encodes a copy, which runs in a worker.
    """

    __slots__ = (
        "_disk",
        "_is_failing",
        "_path",
        "_revision",
        "_snapshot",
        "_waiting",
        "_workers",
        "is_writing",
        "written",
    )

    def __init__(
        self,
        disk: Disk,
        workers: Workers,
        path: str,
        revision: Callable[[], int],
        snapshot: Callable[[], Snapshot],
    ) -> None:
        self._disk = disk
        self._workers = workers
        self._path = path
        self._revision = revision
        self._snapshot = snapshot
        self.written = 0
        """The revision that the file has."""
        self._waiting: list[tuple[int, Saved]] = []
        self.is_writing = False
        self._is_failing = False

    @property
    def is_saved(self) -> bool:
        """Say whether the file has what the table holds now."""
        return self._revision() == self.written

    def save_if_changed(self) -> None:
        """Write in a worker when the table changed since the last write; never waits."""
        revision = self._revision()
        if self.is_writing or revision == self.written:
            return
        self.is_writing = True
        build = self._snapshot()

        def done(result: BaseException | None) -> None:
            self.is_writing = False
            if isinstance(result, BaseException):
                self._failed(revision, result)
                return
            self._is_failing = False
            self.written = revision
            self._release(revision, None)
            # Changes made meanwhile; a failed write waits for the next period instead.
            self.save_if_changed()

        self._workers.submit(lambda: self._write(build), done)

    def when_saved(self, done: Saved) -> None:
        """Tell `done` when what the table holds now is on disk, or that its write failed and why.

        Calls at once where nothing is to be written.
        """
        revision = self._revision()
        if revision == self.written:
            done(None)
            return
        self._waiting.append((revision, done))
        self.save_if_changed()

    def _release(self, revision: int, failure: StoreError | None) -> None:
        """Let go of those that waited for a revision up to this one."""
        waiting, self._waiting = self._waiting, []
        self._waiting = [one for one in waiting if one[0] > revision]
        for wanted, done in waiting:
            if wanted <= revision:
                done(failure)

    def save_now(self) -> None:
        """Write at once, blocking, when the table changed: for the stop.

        Raises:
            StoreError, OSError: the disk does not take it.
        """
        revision = self._revision()
        if revision != self.written:
            self._write(self._snapshot())
            self.written = revision

    def _write(self, build: Snapshot) -> None:
        data = msgspec.json.format(build(), indent=2)
        if self._disk.exists(self._path):
            # A copy, not a rename: at no moment is there a directory without the file.
            self._disk.write_atomic(self._path + ".bak", self._disk.read_bytes(self._path))
        self._disk.write_atomic(self._path, data)

    def _failed(self, revision: int, error: BaseException) -> None:
        """Log the first failure of a row; each period tries again."""
        if not self._is_failing:
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
            # They asked after this write had begun, and each gets one of its own.
            self.save_if_changed()


def load_config_file(disk: Disk, path: str, decode: Callable[[bytes], T]) -> T | None:
    """Read a file or its ``.bak``; None when there is neither, or one of them and no sound one.

    `decode` raises CodecError for what is not its content.

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
            found = decode(data)
        except CodecError as error:
            faults.append(f"{candidate}: {error}")
            continue
        if faults:
            _set_aside(disk, path, faults[0], candidate)
        return found
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
    """What one file has beyond ours.

    Args:
        top: our keys at the top level.
        table: the key of those whose value maps names to objects, "" where there is none.
        entry: our keys in these objects.
    """

    __slots__ = ("_entries", "_entry", "_table", "_top", "_tops")

    def __init__(self, top: Iterable[str], table: str = "", entry: Iterable[str] = ()) -> None:
        self._top = frozenset(top)
        self._table = table
        self._entry = frozenset(entry)
        self._tops: dict[str, Any] = {}
        self._entries: dict[str, dict[str, Any]] = {}

    def remember(self, raw: bytes) -> None:
        """Take the foreign keys of a file that was read; of one that does not decode, none."""
        try:
            data = loads_object(raw, "configuration file")
        except CodecError:
            return
        self._tops = {str(key): data[key] for key in data if str(key) not in self._top}
        table = data.get(self._table)
        self._entries = {}
        for name, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, dict):
                found = {str(key): value[key] for key in value if str(key) not in self._entry}
                if found:
                    self._entries[str(name)] = found

    def add_to(self, raw: bytes) -> bytes:
        """Give the encoded file with the foreign keys in it."""
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
