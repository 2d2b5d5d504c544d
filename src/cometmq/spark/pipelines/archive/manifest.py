"""The manifest of an archive: which files hold which messages, and what was archived so far.

Job: commits (numbered JSON files that appear whole or not at all), their fold into a state, the
lock of the one writer, and finishing what a killed writer left.  It must not know Spark or
Parquet.

    DIR/_manifest/00000000000000000007.json   a commit: files added and removed, next offsets
    DIR/_manifest/lock                        held by the process that writes
    DIR/_temporary/RUN/NAME.parquet           written, not (yet) committed
    DIR/date=2013-01-01/topic=Flights/NAME.parquet

A commit comes first and the moves after it.  Whoever reads the folders never sees a file that no
commit names; whoever reads the manifest finds a committed file in its place or, until it has been
moved, where it was written.  A writer that died in between is finished by the next one.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from cometmq.arrow.live import QueueId
from cometmq.errors import ConfigError, StoreCorrupt, StoreError, StoreLocked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

__all__ = ["ArchiveFile", "ArchiveState", "FileRange", "Manifest", "file_of", "folder_of"]

FORMAT: Final = "cometmq-archive-1"
_DIGITS: Final = 20
#: So many commits are folded by a reader at most; then one carries the whole state.
SNAPSHOT_EVERY: Final = 64


@dataclass(frozen=True, slots=True)
class FileRange:
    """Neighbouring rows of a file that come from one queue, by queue offset."""

    broker: str
    queue_id: int
    start: int
    """First queue offset."""
    end: int
    """Behind the last queue offset; what lies between may belong to another date."""
    rows: int
    checksum: str
    """See `archive_checksum`."""
    first_store_ms: int
    last_store_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A Parquet file: place, size, checksum of its bytes, and the ranges it holds in row order."""

    path: str
    """Below the archive's folder, once moved."""
    staged: str
    """Below the archive's folder, until moved."""
    topic: str
    date: str
    rows: int
    size_bytes: int
    sha256: str
    ranges: tuple[FileRange, ...]
    json_failed: int = 0
    """Rows whose body was not the JSON that was asked for; their columns are null."""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class ArchiveState:
    """What all commits together say."""

    version: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    files: dict[str, ArchiveFile] = field(default_factory=dict)
    """By path."""
    positions: dict[QueueId, int] = field(default_factory=dict)
    """Next queue offset to archive."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    """Ranges that are not in the archive and why: expired, corrupt."""

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files.values())

    def files_of(self, topics: Iterable[str] | None = None) -> list[ArchiveFile]:
        """Files by path, of all topics or of some."""
        wanted = None if topics is None else set(topics)
        found = [file for file in self.files.values() if wanted is None or file.topic in wanted]
        return sorted(found, key=lambda file: file.path)


def folder_of(date: str, topic: str) -> str:
    """Where files of a date and topic lie: ``date=2013-01-01/topic=Flights``."""
    return f"date={date}/topic={quote(topic, safe='')}"


class Manifest:
    """The manifest of the archive in ``root``; `state` is always that of the last `read`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.folder = self.root / "_manifest"
        self.temporary = self.root / "_temporary"
        self.state = ArchiveState()
        self._lock: int | None = None

    # -- reading -------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is an archive."""
        return self.folder.is_dir()

    def read(self) -> ArchiveState:
        """Fold the commits into `state`.

        Raises:
            ConfigError: no archive there.
            StoreCorrupt: a commit is missing or damaged.
        """
        if not self.exists:
            what = (
                "holds no archive (no folder _manifest)" if self.root.is_dir() else "is no folder"
            )
            raise ConfigError(f"{self.root} {what}; give the folder that was archived to")
        versions = self._versions()
        chain: list[dict[str, Any]] = []
        for version in reversed(versions):
            chain.append(self._load(version))
            if chain[-1].get("snapshot") is not None:
                break
        chain.reverse()
        first = versions[-len(chain)] if chain else 1
        if first != 1 and chain[0].get("snapshot") is None:
            raise StoreCorrupt(f"{self._path(first - 1)} is missing: the archive has no beginning")
        expected = list(range(first, first + len(chain)))
        if versions[len(versions) - len(chain) :] != expected:
            missing = next(v for v in expected if v not in versions)
            raise StoreCorrupt(f"{self._path(missing)} is missing: later commits are there")
        state = ArchiveState()
        for commit in chain:
            _apply(state, commit)
        self.state = state
        return state

    def current_path(self, file: ArchiveFile) -> Path:
        """Where a file is now."""
        path = self.root / file.path
        if not path.exists():
            staged = self.root / file.staged
            if staged.exists():
                return staged
        return path

    def _versions(self) -> list[int]:
        names = (path.stem for path in self.folder.glob("*.json"))
        return sorted(int(name) for name in names if len(name) == _DIGITS and name.isdigit())

    def _path(self, version: int) -> Path:
        return self.folder / f"{version:0{_DIGITS}}.json"

    def _load(self, version: int) -> dict[str, Any]:
        path = self._path(version)
        try:
            document = json.loads(path.read_bytes())
            commit: dict[str, Any] = document["commit"]
            is_whole = document["crc32"] == _crc(commit) and commit["version"] == version
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreCorrupt(f"{path} is not a commit of an archive: {error!r}") from None
        if not is_whole:
            raise StoreCorrupt(f"{path} was changed after it was written: its checksum differs")
        if commit["format"] != FORMAT:
            raise ConfigError(
                f"{path} has format {commit['format']!r}; this release knows {FORMAT}"
            )
        return commit

    # -- writing -------------------------------------------------------------------------

    def __enter__(self) -> Manifest:
        """Become the archive's writer: lock, read, finish what a killed writer left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self.read()
            self._recover()
        except BaseException:
            self._give_lock()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            # After a fault committed files may still lie there: the next writer moves them.
            shutil.rmtree(self.temporary, ignore_errors=True)
        self._give_lock()

    def _take_lock(self) -> None:
        import fcntl

        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(handle, 100, 0).decode("utf-8", "replace").strip() or "unknown"
            os.close(handle)
            raise StoreLocked(
                f"another process ({holder}) writes the archive {self.root}; wait for its end"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}\n".encode(), 0)
        self._lock = handle

    def _give_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _recover(self) -> None:
        """Move committed files into place, drop what no commit names."""
        self.move_files(self.state.files.values())
        # Only the last commit can be unfinished: whoever made it had finished those before.
        for version in self._versions()[-1:]:
            self._delete(self._load(version)["remove"])
        shutil.rmtree(self.temporary, ignore_errors=True)
        for draft in self.folder.glob(".draft-*"):
            draft.unlink(missing_ok=True)

    def staging(self, run: str) -> Path:
        """The folder in which tasks of a run write."""
        folder = self.temporary / run
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def commit(
        self,
        *,
        now_ms: int,
        add: Iterable[ArchiveFile] = (),
        remove: Iterable[str] = (),
        positions: dict[QueueId, int] | None = None,
        gaps: Iterable[dict[str, Any]] = (),
        settings: dict[str, Any] | None = None,
        on_point: Callable[[str], None] = lambda name: None,
    ) -> ArchiveState:
        """Make one change durable, then bring the files into place.

        Raises:
            StoreError: another writer was faster (no lock on that file system), or the disk
                failed; then nothing of the change is in the archive.
        """
        assert self._lock is not None, "commit needs the lock: use the manifest as a context"
        version = self.state.version + 1
        added = list(add)
        # The files are synced; after a power cut their names must be there as well.
        for folder in {(self.root / file.staged).parent for file in added}:
            if folder.is_dir():
                _sync_folder(folder)
        commit: dict[str, Any] = {
            "format": FORMAT,
            "version": version,
            "time_ms": now_ms,
            "add": [asdict(file) for file in added],
            "remove": sorted(remove),
            "positions": _positions_json(positions or {}),
            "gaps": list(gaps),
            "settings": settings,
            "snapshot": None,
        }
        following = _copy(self.state)
        _apply(following, commit)
        if version % SNAPSHOT_EVERY == 0:
            commit["snapshot"] = _snapshot(following)
        on_point("before-commit")
        self._write(version, commit)
        self.state = following
        on_point("committed")
        self._delete(commit["remove"])
        on_point("old-files-deleted")
        self.move_files([following.files[file["path"]] for file in commit["add"]], on_point)
        on_point("moved")
        return following

    def _write(self, version: int, commit: dict[str, Any]) -> None:
        draft = self.folder / f".draft-{version}-{os.getpid()}"
        document = {"commit": commit, "crc32": _crc(commit)}
        with draft.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, self._path(version))
        except FileExistsError:
            raise StoreError(
                f"another process committed {self._path(version)} meanwhile; start again"
            ) from None
        finally:
            draft.unlink()
        _sync_folder(self.folder)

    def move_files(
        self,
        files: Iterable[ArchiveFile],
        on_point: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Bring committed files into place; those that are there stay."""
        folders = set()
        for file in files:
            staged, path = self.root / file.staged, self.root / file.path
            if not staged.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            staged.replace(path)
            folders.add(path.parent)
            on_point("one-moved")
        for folder in folders:
            _sync_folder(folder)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path not in self.state.files:
                (self.root / path).unlink(missing_ok=True)


def _crc(commit: dict[str, Any]) -> str:
    text = json.dumps(commit, sort_keys=True, separators=(",", ":"))
    return f"{zlib.crc32(text.encode()):08x}"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _positions_json(positions: dict[QueueId, int]) -> dict[str, dict[str, int]]:
    """`{"Flights": {"broker-a:0": 1500}}`, as Spark's sources write offsets."""
    found: dict[str, dict[str, int]] = {}
    for key, position in sorted(positions.items()):
        found.setdefault(key.topic, {})[f"{key.broker}:{key.queue_id}"] = position
    return found


def _positions(document: dict[str, dict[str, int]]) -> dict[QueueId, int]:
    found = {}
    for topic, queues in document.items():
        for queue, position in queues.items():
            broker, _, queue_id = queue.rpartition(":")
            found[QueueId(topic, broker, int(queue_id))] = position
    return found


def file_of(document: dict[str, Any]) -> ArchiveFile:
    """A file as a commit or a task writes it down."""
    ranges = tuple(FileRange(**one) for one in document["ranges"])
    return ArchiveFile(**{**document, "ranges": ranges})


def _snapshot(state: ArchiveState) -> dict[str, Any]:
    return {
        "settings": state.settings,
        "files": [asdict(file) for file in state.files_of()],
        "positions": _positions_json(state.positions),
        "gaps": state.gaps,
    }


def _copy(state: ArchiveState) -> ArchiveState:
    return ArchiveState(
        state.version,
        dict(state.settings),
        dict(state.files),
        dict(state.positions),
        list(state.gaps),
    )


def _apply(state: ArchiveState, commit: dict[str, Any]) -> None:
    """Change ``state`` as a commit says; one with a snapshot says everything."""
    state.version = commit["version"]
    snapshot = commit["snapshot"]
    if snapshot is not None:
        state.settings = snapshot["settings"]
        state.files = {file["path"]: file_of(file) for file in snapshot["files"]}
        state.positions = _positions(snapshot["positions"])
        state.gaps = snapshot["gaps"]
        return
    if commit["settings"] is not None:
        state.settings = commit["settings"]
    for path in commit["remove"]:
        state.files.pop(path, None)
    for document in commit["add"]:
        state.files[document["path"]] = file_of(document)
    state.positions.update(_positions(commit["positions"]))
    state.gaps.extend(commit["gaps"])
