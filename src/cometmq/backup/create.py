"""Makes a backup of a store whose broker may be running.

The broker is not asked, and its sends do not wait.  That works because of what holds for every
store, RocketMQ's or ours:

- an acknowledged message is in its log file, at least in the memory of the operating system;
- a log file behind which another one begins never changes;
- a table is replaced as a whole.

The order gives a consistent backup: sealed log files first, which may take long; then the tables;
then the rest of the log.  So no consumer offset points behind the end of the log, and every message
that was acknowledged before the start is in the backup.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.backup.manifest import (
    BackupManifest,
    Part,
    SealedFile,
    check_name,
    decode,
    encode,
    manifest_path,
)
from cometmq.backup.repository import BLOCK_BYTES
from cometmq.errors import ConfigError, StoreError
from cometmq.store.base.disk import RealDisk
from cometmq.store.log.reader import LogReader
from cometmq.store.offline.directory import OfflineFile, OfflineStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cometmq.backup.repository import Repository

    Progress = Callable[[str, int, int], None]

__all__ = ["Created", "create_backup", "delete_backup", "manifests", "read_manifest"]

_UNUSED_SUFFIXES: Final = (".bak", ".tmp")
_DERIVED_TABLES: Final = frozenset({"timercheck"})
"""It states how far the timer files are, which a restored store does not have."""


class Created:
    """A new backup, and how its sealed log files came into the repository."""

    def __init__(self) -> None:
        self.manifest: BackupManifest
        self.linked_bytes = 0
        self.copied_bytes = 0
        self.shared_bytes = 0
        """Of files that an earlier backup had brought."""


def manifests(repository: Repository) -> list[BackupManifest]:
    """Return the backups of a repository, oldest first.

    Raises:
        StoreCorrupt: a manifest is damaged.
    """
    found = [
        read_manifest(repository, name)
        for name in repository.folders("snapshots")
        if repository.exists(manifest_path(name))
    ]
    return sorted(found, key=lambda manifest: (manifest.created_ms, manifest.name))


def read_manifest(repository: Repository, name: str) -> BackupManifest:
    """Return the manifest of a backup.

    Raises:
        StoreError: there is no such backup.
        StoreCorrupt: the manifest is damaged.
    """
    path = manifest_path(check_name(name))
    where = f"{repository.location}/{path}"
    try:
        raw = b"".join(repository.blocks(path))
    except FileNotFoundError:
        raise StoreError(f"{repository.location} has no backup {name!r}") from None
    return decode(raw, where)


def delete_backup(repository: Repository, manifest: BackupManifest) -> int:
    """Delete a backup; return the bytes of the log files that no other backup has.  Blocks."""
    others = [other for other in manifests(repository) if other.name != manifest.name]
    shared = {file.path for other in others for file in other.sealed}
    # Without its manifest there is no backup, so a crash leaves no half of one.
    repository.remove(manifest_path(manifest.name))
    repository.remove(manifest.folder)
    gone = [file for file in manifest.sealed if file.path not in shared]
    for file in gone:
        repository.remove(file.path)
    return sum(file.size for file in gone)


def create_backup(
    root: str,
    repository: Repository,
    name: str,
    now_ms: int,
    progress: Progress = lambda what, done, total: None,
) -> Created:
    """Make a backup of the store in `root`; return when it is on stable storage.  Blocks.

    Args:
        name: of the new backup.
        progress: called with a text, the bytes done and the bytes in all.

    Raises:
        ConfigError: the repository has a backup of this name.
        DiskFull: the repository has no space.
        StoreError: there is no store.
    """
    check_name(name)
    if repository.exists(manifest_path(name)):
        raise ConfigError(f"{repository.location} has a backup {name!r}; choose another name")
    earlier = {
        (file.start, file.size, file.mtime_ns): file
        for manifest in manifests(repository)
        for file in manifest.sealed
    }
    created = Created()
    keeper = _Keeper(repository, earlier, created, progress)
    keeper.take_sealed(_open(root))
    tables = _tables(root, repository, name)
    store = _open(root)
    # What was sealed meanwhile.
    active = keeper.take_sealed(store)
    tail, log_end, last_store_ms, damages = _tail(store, active, repository, name)
    sealed = tuple(file for file in keeper.sealed if active is None or file.start < active.start)
    log_begin = active.start if active is not None else log_end
    manifest = BackupManifest(
        name=name,
        created_ms=now_ms,
        log_begin=sealed[0].start if sealed else log_begin,
        log_end=log_end,
        log_file_bytes=store.log_file_bytes or 0,
        last_store_ms=last_store_ms,
        sealed=sealed,
        tail=tail,
        tables=tables,
        damages=damages,
    )
    repository.write(manifest_path(name), [encode(manifest)])
    created.manifest = manifest
    return created


def _open(root: str) -> OfflineStore:
    """Open the files of a store of which retention may remove some meanwhile."""
    while True:
        try:
            return OfflineStore(RealDisk(), root)
        except FileNotFoundError:
            continue


class _Keeper:
    """Brings sealed log files into the repository."""

    def __init__(
        self,
        repository: Repository,
        earlier: dict[tuple[int, int, int], SealedFile],
        created: Created,
        progress: Progress,
    ) -> None:
        self._repository = repository
        self._earlier = earlier
        self._created = created
        self._progress = progress
        self.sealed: list[SealedFile] = []

    def take_sealed(self, store: OfflineStore) -> OfflineFile | None:
        """Take all files but the last one with data, which is returned; None for an empty log."""
        files = [file for file in store.log_files if file.file.read(0, 4) != bytes(4)]
        if not files:
            return None
        total = sum(file.size for file in files[:-1])
        done = 0
        for file in files[:-1]:
            self._progress(Path(file.path).name, done, total)
            if not self.sealed or file.start > self.sealed[-1].start:
                self._take(file)
            done += file.size
        return files[-1]

    def _take(self, file: OfflineFile) -> None:
        """Take one file.  Retention may remove its name meanwhile: it is read through `file`."""
        file.file.sync()
        try:
            mtime_ns = Path(file.path).stat().st_mtime_ns
        except FileNotFoundError:
            # Retention removes the oldest files first, so what was taken before is gone as well.
            self.sealed.clear()
            return
        created, repository = self._created, self._repository
        kept = self._earlier.get((file.start, file.size, mtime_ns))
        if kept is not None and repository.exists(kept.path):
            created.shared_bytes += file.size
            self.sealed.append(kept)
            return
        digest = hashlib.sha256()
        for block in _blocks(file, file.size):
            digest.update(block)
        sealed = SealedFile(file.start, file.size, digest.hexdigest(), mtime_ns)
        if any(
            other.start == sealed.start and other.sha256 != sealed.sha256
            for other in self._earlier.values()
        ):
            raise ConfigError(
                f"{repository.location} has another log file at {file.start:,} than {file.path}:"
                " it has backups of another store, or of the time before a restore; give each"
                " store a repository of its own"
            )
        try:
            is_linked = repository.link(sealed.path, file.path)
        except FileNotFoundError:
            self.sealed.clear()
            return
        if is_linked:
            created.linked_bytes += file.size
        else:
            repository.write(sealed.path, _blocks(file, file.size))
            created.copied_bytes += file.size
        self.sealed.append(sealed)


def _blocks(file: OfflineFile, size: int) -> Iterator[bytes]:
    for position in range(0, size, BLOCK_BYTES):
        yield file.file.read(position, min(BLOCK_BYTES, size - position))


def _tables(root: str, repository: Repository, name: str) -> tuple[Part, ...]:
    disk = RealDisk()
    parts = []
    for table in disk.listdir(f"{root}/config"):
        path = f"{root}/config/{table}"
        if table.endswith(_UNUSED_SUFFIXES) or table in _DERIVED_TABLES or disk.is_dir(path):
            continue
        parts.append(_write(repository, name, f"config/{table}", [disk.read_bytes(path)]))
    return tuple(parts)


def _write(repository: Repository, name: str, path: str, blocks: Iterable[bytes]) -> Part:
    """Write a file of one backup."""
    digest = hashlib.sha256()
    size = 0

    def digested() -> Iterator[bytes]:
        nonlocal size
        for block in blocks:
            digest.update(block)
            size += len(block)
            yield block

    repository.write(f"snapshots/{name}/{path}", digested())
    return Part(path, size, digest.hexdigest())


def _tail(
    store: OfflineStore, active: OfflineFile | None, repository: Repository, name: str
) -> tuple[Part | None, int, int, tuple[str, ...]]:
    """Copy the written part of the last file; return also the log's end, and what was damaged.

    A record that is not whole at the end is being written, so nobody acknowledged it.  A bad record
    before sound ones is damage: it is copied, and named.
    """
    if active is None:
        return None, store.log_start, -1, ()
    reader = LogReader(store, active.start, active.end)
    damages = []
    end, last_store_ms = active.start, -1
    while True:
        record = reader.next_record()
        if record is None and not reader.is_unwritten and reader.position < active.end:
            fault, position = reader.fault, reader.position
            record = reader.resync(active.end)
            if record is not None:
                damages.append(f"{active.path}, position {position - active.start}: {fault}")
        if record is None:
            break
        end, last_store_ms = record.physical_offset + record.size, record.store_ms
    part = _write(repository, name, "tail", _blocks(active, end - active.start))
    return part, end, last_store_ms, tuple(damages)
