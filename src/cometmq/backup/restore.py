"""Makes a store of a backup: the whole one, or up to a time or a physical offset.

The store is built beside its place and renamed at the end, so no broker opens a part of it.  Files
get the time of the restore as their modification time, because retention counts from that.

Up to a point in time, the log is cut at the first message stored later.  Topics and groups are
those of the backup.  Positions of consumers and of delivery services are those of the newest backup
made before that time, because later ones would skip messages; where there is none, the backup's own
positions hold, each at most the end of its queue.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.backup.check import wanted_files
from cometmq.errors import ConfigError, StoreCorrupt
from cometmq.model.names import SCHEDULE_TOPIC, STAGED_DECISION_TOPIC
from cometmq.store.base.disk import RealDisk, make_durable_directory
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.reader import LogReader
from cometmq.store.offline.directory import OfflineStore
from cometmq.wire.command.fastjson import dumps, loads_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.backup.manifest import BackupManifest
    from cometmq.backup.repository import Repository

    Progress = Callable[[str, int, int], None]

__all__ = ["Restored", "restore_backup"]

_POSITIONS: Final = frozenset({"consumerOffset.json", "delayOffset.json", "cometmqStaging.json"})


@dataclass(slots=True)
class Restored:
    """What a new store has."""

    log_begin: int
    log_end: int
    last_store_ms: int
    positions_of: str
    """The backup whose positions of consumers it has."""
    is_cut: bool


def restore_backup(
    repository: Repository,
    manifest: BackupManifest,
    root: str,
    *,
    to_ms: int | None = None,
    to_offset: int | None = None,
    earlier: tuple[BackupManifest, ...] = (),
    progress: Progress = lambda what, done, total: None,
) -> Restored:
    """Make the store `root`, which must not exist or be an empty folder.  Blocks.

    Args:
        to_ms: leave out messages stored after this time.
        to_offset: leave out messages that end behind this physical offset.
        earlier: other backups of the store, oldest first, for the positions at `to_ms`.
        progress: called with a text, the bytes done and the bytes in all.

    Raises:
        ConfigError: the folder is not empty, or the backup has nothing of that time.
        StoreCorrupt: a file of the backup has other bytes than were written.
        DiskFull: there is no space.
    """
    disk = RealDisk()
    if disk.exists(root) and (not disk.is_dir(root) or disk.listdir(root)):
        raise ConfigError(f"{root} is not empty; restore into a new folder")
    building = f"{root}.restoring"
    disk.remove_tree(building)
    make_durable_directory(disk, f"{building}/commitlog")
    make_durable_directory(disk, f"{building}/config")
    _Files(repository, manifest, building, progress).write_all()
    restored = Restored(
        manifest.log_begin, manifest.log_end, manifest.last_store_ms, manifest.name, is_cut=False
    )
    if to_ms is not None or to_offset is not None:
        _cut(building, manifest, restored, to_ms, to_offset)
        before = [other for other in earlier if other.log_end <= restored.log_end]
        if before:
            restored.positions_of = before[-1].name
            _Files(repository, before[-1], building, progress).write_positions()
        if restored.is_cut:
            _limit_positions(building)
    for folder in ("config", "commitlog", ""):
        disk.sync_dir(f"{building}/{folder}".rstrip("/"))
    disk.rename(building, root)
    disk.sync_dir(str(Path(root).parent))
    return restored


class _Files:
    """Writes a backup's files into a folder, and compares their digests on the way."""

    def __init__(
        self, repository: Repository, manifest: BackupManifest, root: str, progress: Progress
    ) -> None:
        self._repository = repository
        self._manifest = manifest
        self._root = root
        self._progress = progress
        self._digests = {path: (size, sha256) for path, size, sha256 in wanted_files(manifest)}
        self._done = 0

    def write_all(self) -> None:
        """Write log and tables."""
        manifest = self._manifest
        expected = manifest.log_begin
        for file in manifest.sealed:
            if file.start != expected:
                raise StoreCorrupt(f"backup {manifest.name} lacks the log from {expected} on")
            expected += manifest.log_file_bytes
            self._write(file.path, f"commitlog/{log_file_name(file.start)}", file.size)
        if manifest.tail is not None:
            name = log_file_name(manifest.tail_start)
            path = f"{manifest.folder}/{manifest.tail.path}"
            self._write(path, f"commitlog/{name}", manifest.log_file_bytes)
        for table in manifest.tables:
            self._write(f"{manifest.folder}/{table.path}", table.path)

    def write_positions(self) -> None:
        """Write only the tables with positions."""
        for table in self._manifest.tables:
            if table.path.rpartition("/")[2] in _POSITIONS:
                self._write(f"{self._manifest.folder}/{table.path}", table.path)

    def _write(self, path: str, target: str, size: int | None = None) -> None:
        """Write one file; `size` extends it with zeros."""
        wanted_size, sha256 = self._digests[path]
        total = sum(size for size, _ in self._digests.values())
        disk, digest, found = RealDisk(), hashlib.sha256(), 0
        file = disk.open_random(f"{self._root}/{target}", size or 0, create=True)
        try:
            for block in self._repository.blocks(path):
                self._progress(target, self._done, total)
                file.write(found, block)
                digest.update(block)
                found += len(block)
                self._done += len(block)
        except FileNotFoundError:
            raise StoreCorrupt(
                f"{self._repository.location}/{path} is missing; `cometmq backup verify` names all"
                " that is, and other backups may be whole"
            ) from None
        if found != wanted_size or digest.hexdigest() != sha256:
            raise StoreCorrupt(
                f"{self._repository.location}/{path} has other bytes than were written; `cometmq"
                " backup verify` names all such files, and other backups may be whole"
            )
        if size is None:
            file.resize(found)
        file.sync()
        file.close()


def _cut(
    root: str,
    manifest: BackupManifest,
    restored: Restored,
    to_ms: int | None,
    to_offset: int | None,
) -> None:
    """Clear the log behind the last message that is wanted."""
    disk = RealDisk()
    store = OfflineStore(disk, root)
    start = _last_file_before(store, to_ms, to_offset)
    if start is None:
        raise ConfigError(
            f"backup {manifest.name} begins at physical offset {manifest.log_begin:,}, behind the"
            " given point: choose an earlier backup"
        )
    end, last_store_ms = start, -1
    reader = LogReader(store, start, manifest.log_end)
    while (record := reader.next_record() or reader.resync(manifest.log_end)) is not None:
        behind = record.physical_offset + record.size
        if (to_ms is not None and record.store_ms > to_ms) or (
            to_offset is not None and behind > to_offset
        ):
            break
        end, last_store_ms = behind, record.store_ms
    else:
        return
    restored.is_cut = True
    restored.log_end, restored.last_store_ms = end, last_store_ms
    for file in store.log_files:
        if file.start > end or (file.start == end and file.start != manifest.log_begin):
            disk.remove(file.path)
        elif file.end > end:
            size = file.size
            file.file.resize(end - file.start)
            file.file.resize(size)
            file.file.sync()


def _last_file_before(store: OfflineStore, to_ms: int | None, to_offset: int | None) -> int | None:
    """Return where the last log file begins whose first message is wanted."""
    found = None
    for file in store.log_files:
        first = LogReader(store, file.start, file.end, is_crc_checked=False).next_record()
        if first is None or (to_ms is not None and first.store_ms > to_ms):
            break
        if to_offset is not None and first.physical_offset + first.size > to_offset:
            break
        found = file.start
    return found


def _limit_positions(root: str) -> None:
    """Set positions behind the end of their queue to that end.

    A consumer would otherwise skip as many new messages.
    """
    ends = _queue_ends(root)
    consumers = _Table(root, "consumerOffset.json")
    for key, offsets in consumers.rows("offsetTable"):
        topic = str(key).partition("@")[0]
        for queue_id, offset in offsets.items():
            offsets[queue_id] = min(offset, ends[topic, int(queue_id)])
    consumers.write()
    levels = _Table(root, "delayOffset.json")
    for level, offset in levels.rows("offsetTable"):
        levels.content["offsetTable"][level] = min(offset, ends[SCHEDULE_TOPIC, int(level) - 1])
    levels.write()
    # The ledger of staged batches is read again from its records in the log where it is too new.
    ledger = _Table(root, "cometmqStaging.json")
    if ledger.content.get("decisionNext", 0) > ends[STAGED_DECISION_TOPIC, 0]:
        RealDisk().remove(ledger.path)


def _queue_ends(root: str) -> dict[tuple[str, int], int]:
    store = OfflineStore(RealDisk(), root)
    ends: dict[tuple[str, int], int] = defaultdict(int)
    reader = LogReader(store, store.log_start, store.log_limit, is_crc_checked=False)
    while (record := reader.next_record()) is not None:
        if record.is_queued:
            key = record.topic.decode("latin-1"), record.queue_id
            ends[key] = max(ends[key], record.queue_offset + 1)
    return ends


class _Table:
    """A table of the store under ``config/``, empty where there is none."""

    def __init__(self, root: str, name: str) -> None:
        self.path = f"{root}/config/{name}"
        self._disk = RealDisk()
        self.content: dict[str, Any] = {}
        if self._disk.exists(self.path):
            self.content = loads_object(self._disk.read_bytes(self.path), name)

    def rows(self, name: str) -> Iterator[tuple[Any, Any]]:
        """Yield the rows of a part of the table."""
        yield from list(self.content.get(name, {}).items())

    def write(self) -> None:
        """Write the table where the backup has one."""
        if self.content:
            self._disk.write_atomic(self.path, dumps(self.content))
