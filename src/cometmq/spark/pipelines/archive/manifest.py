"""The manifest of an archive: which files hold which messages, and the next offsets to archive.

Commits are numbered JSON files that appear atomically; a reader folds them into a state.

    DIR/_manifest/00000000000000000007.json   a commit: files added and removed, next offsets
    DIR/_manifest/lock                        locked by the writing process
    DIR/_temporary/RUN/NAME.parquet           written, not yet committed or not yet moved
    DIR/date=2013-01-01/topic=Flights/NAME.parquet

The writer commits first and moves the files afterwards.  A reader of the folders never sees a
file that no commit names.  A reader of the manifest looks for a committed file in its final folder
and, until it has been moved, where it was written.  If a writer dies in between, the next writer
moves the files.
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
#: One commit in this many carries the whole state, so that a reader folds at most this many.
SNAPSHOT_EVERY: Final = 64


@dataclass(frozen=True, slots=True)
class FileRange:
    """Consecutive rows of a file that come from one queue, by queue offset."""

    broker: str
    queue_id: int
    start: int
    """First queue offset."""
    end: int
    """Queue offset after the last row; rows in between may be of another date."""
    rows: int
    checksum: str
    """See `Checksum`."""
    first_store_ms: int
    last_store_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A Parquet file: path, size, checksum of its bytes, and its ranges in row order."""

    path: str
    """Final path below the archive's folder."""
    staged: str
    """Path below the archive's folder until the move."""
    topic: str
    date: str
    rows: int
    size_bytes: int
    sha256: str
    ranges: tuple[FileRange, ...]
    json_failed: int = 0
    """Rows whose body is not the expected JSON; their JSON columns are null."""

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class ArchiveState:
    """The result of all commits."""

    version: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    files: dict[str, ArchiveFile] = field(default_factory=dict)
    """By path."""
    positions: dict[QueueId, int] = field(default_factory=dict)
    """Next queue offset to archive."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    """Ranges that the archive lacks, with the reason: expired or corrupt."""

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files.values())

    def files_of(self, topics: Iterable[str] | None = None) -> list[ArchiveFile]:
        """Files by path, of all topics or of some."""
        wanted = None if topics is None else set(topics)
        chosen = [file for file in self.files.values() if wanted is None or file.topic in wanted]
        return sorted(chosen, key=lambda file: file.path)


def folder_of(date: str, topic: str) -> str:
    """The folder of a date and topic: ``date=2013-01-01/topic=Flights``."""
    return f"date={date}/topic={quote(topic, safe='')}"


class Manifest:
    """The manifest of the archive in ``root``; `state` is that of the last `read` or `commit`.

    As a context manager it is the archive's only writer.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.folder = self.root / "_manifest"
        self.temporary = self.root / "_temporary"
        self.state = ArchiveState()
        self._lock: int | None = None

    # -- reading -------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the folder holds an archive."""
        return self.folder.is_dir()

    def read(self) -> ArchiveState:
        """Fold the commits into `state`.

        Raises:
            ConfigError: there is no archive.
            StoreCorrupt: a commit is missing or damaged.
        """
        if not self.exists:
            fault = (
                "holds no archive (no folder _manifest)" if self.root.is_dir() else "is no folder"
            )
            raise ConfigError(f"{self.root} {fault}; give the folder that was archived to")
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
            raise StoreCorrupt(f"{self._path(missing)} is missing: there are later commits")
        state = ArchiveState()
        for commit in chain:
            _apply(state, commit)
        self.state = state
        return state

    def current_path(self, file: ArchiveFile) -> Path:
        """The path of a file now: moved, or where it was written."""
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
        """Become the archive's writer: lock it, read it, and complete the work of a killed writer.

        Raises:
            StoreLocked: another process writes the archive.
            StoreCorrupt: a commit is missing or damaged.
        """
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
            # After a fault committed files may still be there: the next writer moves them.
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
                f"another process ({holder}) writes the archive {self.root}; wait until it ends"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}\n".encode(), 0)
        self._lock = handle

    def _give_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _recover(self) -> None:
        """Move committed files into place, delete files that no commit names."""
        self.move_files(self.state.files.values())
        # Only the last commit can be unfinished: its writer had completed those before.
        for version in self._versions()[-1:]:
            self._delete(self._load(version)["remove"])
        shutil.rmtree(self.temporary, ignore_errors=True)
        for draft in self.folder.glob(".draft-*"):
            draft.unlink(missing_ok=True)

    def staging(self, run: str) -> Path:
        """The folder into which the tasks of a run write."""
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
        """Make one change durable, then move the files into place.

        Raises:
            StoreError: another writer was faster (that file system has no locks); nothing of the
                change is in the archive.
        """
        assert self._lock is not None, "commit needs the lock: use the manifest as a context"
        version = self.state.version + 1
        added = list(add)
        # The files are synced; their names must survive a power cut too.
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
        """Move committed files into place, those that are not there yet."""
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
    document: dict[str, dict[str, int]] = {}
    for key, position in sorted(positions.items()):
        document.setdefault(key.topic, {})[f"{key.broker}:{key.queue_id}"] = position
    return document


def _positions(document: dict[str, dict[str, int]]) -> dict[QueueId, int]:
    positions = {}
    for topic, queues in document.items():
        for queue, position in queues.items():
            broker, _, queue_id = queue.rpartition(":")
            positions[QueueId(topic, broker, int(queue_id))] = position
    return positions


def file_of(document: dict[str, Any]) -> ArchiveFile:
    """The file in the JSON document of a commit or a task."""
    ranges = tuple(FileRange(**fields) for fields in document["ranges"])
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
    """Apply a commit to ``state``; a commit with a snapshot replaces the whole state."""
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
