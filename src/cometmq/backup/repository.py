"""Where backups are kept: a folder, or an object store by its URL.

A file of a repository is there whole or not at all, and what `write` has returned for is on stable
storage (for an object store: accepted by it).  Paths have '/' between their parts.  In a folder on
the store's own file system a sealed log file is a second name of the store's file (a hard link):
it takes no space until the store drops its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.errors import DiskFull, StoreError
from cometmq.extras import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BLOCK_BYTES", "FolderRepository", "ObjectRepository", "Repository", "open_repository"]

BLOCK_BYTES: Final = 4 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})


class Repository(Protocol):
    """A tree of files that do not change."""

    location: str

    def folders(self, path: str) -> list[str]:
        """Return the sorted names of the folders in a folder."""

    def files(self, path: str) -> list[str]:
        """Return the sorted names of the files in a folder."""

    def exists(self, path: str) -> bool: ...

    def blocks(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes in blocks.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def write(self, path: str, blocks: Iterable[bytes]) -> None:
        """Write a file; when this returns, a power cut does not lose it.

        Raises:
            DiskFull: there is no space.
        """

    def link(self, path: str, source: str) -> bool:
        """Give a local file a name here; False where that is impossible."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""


class FolderRepository:
    """A folder of this machine."""

    def __init__(self, location: Path) -> None:
        self.location = str(location)
        self._root = location

    def folders(self, path: str) -> list[str]:
        return sorted(entry.name for entry in self._entries(path) if entry.is_dir())

    def files(self, path: str) -> list[str]:
        return sorted(
            entry.name
            for entry in self._entries(path)
            if not entry.is_dir() and entry.suffix != ".part"
        )

    def _entries(self, path: str) -> list[Path]:
        folder = self._root / path
        return list(folder.iterdir()) if folder.is_dir() else []

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def blocks(self, path: str) -> Iterator[bytes]:
        with (self._root / path).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def write(self, path: str, blocks: Iterable[bytes]) -> None:
        """Write a file under another name, sync and rename it.

        Raises:
            DiskFull: there is no space.
        """
        full = self._root / path
        part = full.with_name(f"{full.name}.part")
        _make_folder(full.parent)
        try:
            with part.open("wb") as file:
                for block in blocks:
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            part.replace(full)
        except BaseException as error:
            with contextlib.suppress(OSError):
                part.unlink()
            if isinstance(error, OSError) and error.errno in _FULL:
                raise DiskFull(
                    f"writing {full} failed: {error.strerror}; free space there, or give another"
                    " folder, and make the backup again: what is there already is not copied again"
                ) from error
            raise
        _sync_folder(full.parent)

    def link(self, path: str, source: str) -> bool:
        full = self._root / path
        _make_folder(full.parent)
        try:
            full.hardlink_to(source)
        except FileExistsError:
            return True
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        _sync_folder(full.parent)
        return True

    def remove(self, path: str) -> None:
        full = self._root / path
        if full.is_dir():
            shutil.rmtree(full)
        else:
            full.unlink(missing_ok=True)


def _make_folder(path: Path) -> None:
    """Make a folder whose name survives a power cut."""
    if not path.is_dir():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class ObjectRepository:
    """A prefix of an object store that speaks S3 or another protocol fsspec knows.

    Raises:
        ConfigError: a library is not installed.
        StoreError: the URL names no store.
    """

    def __init__(self, location: str) -> None:
        require("backup", f"the backup repository {location}")
        import fsspec

        self.location = location.rstrip("/")
        try:
            # Listings are asked for anew: another machine writes here too.
            self._system, self._root = fsspec.core.url_to_fs(
                self.location, use_listings_cache=False
            )
        except (ImportError, ValueError) as error:
            raise StoreError(f"{location} cannot be opened: {error}") from error

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _names(self, path: str, kind: str) -> list[str]:
        try:
            entries: list[dict[str, Any]] = self._system.ls(self._full(path), detail=True)
        except FileNotFoundError:
            return []
        return sorted(
            e["name"].rstrip("/").rpartition("/")[2] for e in entries if e["type"] == kind
        )

    def folders(self, path: str) -> list[str]:
        return self._names(path, "directory")

    def files(self, path: str) -> list[str]:
        return self._names(path, "file")

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._full(path)))

    def blocks(self, path: str) -> Iterator[bytes]:
        with self._system.open(self._full(path), "rb", block_size=BLOCK_BYTES) as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def write(self, path: str, blocks: Iterable[bytes]) -> None:
        # An object appears when the file is closed; after an error it must not.
        with self._system.transaction, self._system.open(self._full(path), "wb") as file:
            for block in blocks:
                file.write(block)

    def link(self, path: str, source: str) -> bool:
        return False

    def remove(self, path: str) -> None:
        if self.exists(path):
            self._system.rm(self._full(path), recursive=True)


def open_repository(location: str) -> Repository:
    """Open a repository by a folder's path or a URL such as ``s3://bucket/cometmq``.

    Raises:
        ConfigError: the URL needs a library that is not installed.
        StoreError: no library knows the URL.
    """
    if "://" in location:
        return ObjectRepository(location)
    return FolderRepository(Path(location).absolute())
