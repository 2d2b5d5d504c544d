"""The disk as the store sees it: interfaces, and the real one.

Every byte the store reads or writes goes through a `Disk`, so that tests can pass one that
tears writes, drops unsynced pages, fills up or flips bits.  Production passes `RealDisk`.
This module handles paths, bytes and sizes, and no file format.

Durability
    A write (through a mapping, `write`, `write_atomic`) survives the death of the process as
    soon as the call returns: it is in the page cache.  It survives a power cut only after
    `sync` of that file (data) and `sync_dir` of its directory (the name) have returned.
    `write_atomic` includes both.  After a restart, `boot_id` says which of the two happened.

Threads
    `sync`, `read`, long reads, `remove`, `open_log` with `create`, `unmap` and
    `usage` may block and are meant for a worker; the rest is quick enough for the loop.
    A file object closes its descriptor with its last reference.  So a worker that still has the
    object never uses a descriptor number that now belongs to another file.

Fallbacks
    Without `posix_fallocate` (macOS), zeros are written to reserve blocks.  Without `RWF_NOWAIT`,
    or where the file system refuses it, `read_resident` returns None and callers read in a
    worker.  A file system in memory (tmpfs) refuses it too, but every read of it is a resident one.
    Without `SEEK_DATA`, every byte counts as data.  The store does not run without `fcntl`
    (Windows).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq import native
from cometmq.errors import DiskFull, StoreCorrupt, StoreLocked

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MAP_GRANULARITY",
    "Disk",
    "LogFile",
    "Mapping",
    "RandomFile",
    "RealDisk",
    "ResidentWindow",
    "StoreLock",
    "Workers",
    "make_durable_directory",
]

MAP_GRANULARITY: Final = mmap.ALLOCATIONGRANULARITY
"""`LogFile.map` positions are multiples of this (4096 on Linux)."""

_ZEROS: Final = bytes(1 << 20)
_RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
# Locks of this process: closing a second descriptor of a lock file would drop fcntl's lock.
_LOCK_KEYS: Final[set[str]] = set()
# Errors of kernels and file systems that do not support RWF_NOWAIT.
_NOWAIT_REFUSED: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi4x")


class Mapping(Protocol):
    """A writable window on a log file; `buffer[a:b] = data` writes, `memoryview(buffer)` reads."""

    def __len__(self) -> int: ...
    def __setitem__(self, index: slice, value: bytes, /) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...


class RandomFile(Protocol):
    """A file read and written at positions; never mapped."""

    path: str

    def read(self, position: int, length: int) -> bytes:
        """Return bytes at `position`; fewer than `length` at the end of the file.  May block."""

    def read_resident(self, position: int, length: int) -> bytes | bytearray | None:
        """As `read` if all bytes are in memory; None if a read may block."""

    def forget_cached(self, position: int, length: int) -> None:
        """Let the system drop its copies of synced bytes, so that a read asks the device."""

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `position`.

        Raises:
            DiskFull: there is no space.
        """

    def sync(self) -> None:
        """Return when everything written (also through mappings) is on stable storage."""

    def size(self) -> int:
        """Return the present length; something outside may have cut the file."""

    def resize(self, size: int) -> None:
        """Cut the file to `size` bytes, or extend it with zeros (sparse)."""

    def next_data(self, position: int) -> int | None:
        """Return the first position >= `position` that may hold data; None without one."""

    def close(self) -> None: ...


class ResidentWindow(Protocol):
    """A part of a log file, mapped for reads that must not block; the last reference unmaps it."""

    def view(self, position: int, length: int) -> memoryview | None:
        """Return bytes at a position of the file, without a copy.

        None where they are not in memory, or no longer in the file.
        """


class LogFile(RandomFile, Protocol):
    """A file whose blocks are reserved, so that storing through a mapping cannot fault."""

    def map(self, position: int, length: int) -> Mapping:
        """Map `length` bytes from `position` (a multiple of MAP_GRANULARITY), up to the file's end.

        Raises:
            StoreCorrupt: something outside has cut the file.
        """

    def map_for_reading(self, position: int, length: int) -> Mapping:
        """As `map`, read-only and with read-ahead; the last reference unmaps it."""

    def map_resident(self, position: int, length: int) -> ResidentWindow | None:
        """Map a part of the file for reads that must not block, from a multiple of MAP_GRANULARITY.

        None where nothing tells what is in memory, and when something outside has cut the file.
        """

    def unmap(self, mapping: Mapping) -> bool:
        """Unmap a window; return False while a memoryview of it exists."""


class StoreLock(Protocol):
    """Exclusive ownership of a store directory; released by `release` or process death."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A tree of files.  Paths are strings with '/'."""

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in `path`; none when it does not exist."""

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...

    def size(self, path: str) -> int:
        """Return the length in bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def mtime_ms(self, path: str) -> int:
        """Return the time of the last modification, ms since the epoch.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def remove(self, path: str) -> None:
        """Delete a file if it exists."""

    def remove_tree(self, path: str) -> None:
        """Delete a directory and its content if it exists."""

    def rename(self, source: str, target: str) -> None: ...
    def makedirs(self, path: str) -> None: ...

    def read_bytes(self, path: str) -> bytes:
        """Return the whole content.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def write_atomic(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Replace the file's content, all or nothing; durable when the call returns.

        Only its owner can read a private file.

        Raises:
            DiskFull: there is no space; the old content remains.
        """

    def open_log(self, path: str, size: int, *, create: bool) -> LogFile:
        """Open a log file; `create` makes it and reserves blocks for `size` bytes.

        Raises:
            DiskFull: there is no space for the blocks.
        """

    def open_random(self, path: str, size: int, *, create: bool) -> RandomFile:
        """Open a file for positional access; `create` makes it, sparse, with `size` bytes."""

    def unshare(self, path: str) -> bool:
        """Give a file bytes of its own when other names (hard links) lead to them.  May block.

        Returns whether that was necessary: then a file opened before is another one.
        """

    def lock(self, path: str) -> StoreLock:
        """Lock the lock file.

        Raises:
            StoreLocked: another process holds the lock; the text names the process.
        """

    def usage(self, path: str) -> tuple[int, int]:
        """Return the total and the used bytes of the file system that holds `path`."""

    def sync_dir(self, path: str) -> None: ...

    def sync_all(self) -> None:
        """Bring everything written so far, files and names, to stable storage (may be slow)."""

    def boot_id(self) -> str:
        """Return a text that changes with each start of the machine; empty if there is none.

        A change means that unsynced data may be lost.
        """


class Workers(Protocol):
    """Runs blocking calls away from the loop (``net.ThreadWorkers``, or inline in tests)."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        """Run `work` in a worker; then `done(result or exception)` on the loop's thread."""


def _full(path: str, action: str, error: OSError) -> DiskFull:
    return DiskFull(
        f"{action} {path} failed: {error.strerror}; free space on this file system,"
        " writing starts again by itself"
    )


@lru_cache(maxsize=16)
def _is_in_memory(device: int) -> bool:
    """Return whether a file system lies in memory, by the number of its device."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with (
        contextlib.suppress(OSError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts,
    ):
        for mount in mounts:
            # Mount, parent, device, root, mount point, options and optional fields; then the type.
            fields, _, rest = mount.partition(" - ")
            if fields.split()[2] == number:
                return rest.split()[0] in _MEMORY_FILE_SYSTEMS
    return False


class _RealFile:
    """A descriptor that closes when the last reference to this object goes."""

    __slots__ = ("_fd", "_resident_flags", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._resident_flags: int | None = _RWF_NOWAIT or None
        """Flags with which a read does not block; None where there are none."""

    def __del__(self) -> None:
        self.close()

    def read(self, position: int, length: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) in {length, 0}:
            return data
        parts = [data]
        done = len(data)
        while done < length:
            part = os.pread(self._fd, length - done, position + done)
            if not part:
                break
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def read_resident(self, position: int, length: int) -> bytes | bytearray | None:
        if self._resident_flags is None:
            return None
        buffer = bytearray(length)
        try:
            count = os.preadv(self._fd, (buffer,), position, self._resident_flags)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NOWAIT_REFUSED or not self._resident_flags:
                raise
            # Not supported for this file: do not try again.
            self._resident_flags = 0 if _is_in_memory(os.fstat(self._fd).st_dev) else None
            return self.read_resident(position, length)
        if count != length:
            # The file ends here, or a page is not in memory: only a blocking read can say.
            return None
        return buffer

    def forget_cached(self, position: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, position, length, os.POSIX_FADV_DONTNEED)

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        try:
            done = os.pwrite(self._fd, data, position)
            while done < len(data):
                done += os.pwrite(self._fd, memoryview(data)[done:], position + done)
        except OSError as error:
            if error.errno in _FULL:
                raise _full(self.path, "writing", error) from error
            raise

    def sync(self) -> None:
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._fd)
        else:  # macOS: fsync only hands over to the drive, F_FULLFSYNC reaches the platter
            fcntl.fcntl(self._fd, getattr(fcntl, "F_FULLFSYNC", fcntl.F_GETFD))
            os.fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def resize(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def next_data(self, position: int) -> int | None:
        if position >= self.size():
            return None
        if not hasattr(os, "SEEK_DATA"):
            return position
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            return position

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _RealWindow:
    """A mapped part of a file.

    Before each read the file is asked for its end, since a step beyond it kills the process, and
    the kernel for the pages that are in memory.
    """

    __slots__ = ("_file", "_is_resident", "_start", "_view")

    def __init__(
        self,
        file: _RealLogFile,
        mapping: mmap.mmap,
        start: int,
        is_resident: Callable[[memoryview, int, int], bool],
    ) -> None:
        self._file = file
        self._view = memoryview(mapping)
        self._start = start
        self._is_resident = is_resident

    def view(self, position: int, length: int) -> memoryview | None:
        start = position - self._start
        if not self._file.is_whole() or not self._is_resident(self._view, start, length):
            return None
        return self._view[start : start + length]


class _RealLogFile(_RealFile):
    """A file from which windows can be mapped."""

    __slots__ = ("_length",)

    def __init__(self, path: str, fd: int, length: int) -> None:
        super().__init__(path, fd)
        self._length = length

    def is_whole(self) -> bool:
        """Whether the file has at least its length.

        Nothing reads at the descriptor's own position, and this is a third of the cost of `size`.
        """
        return os.lseek(self._fd, 0, os.SEEK_END) >= self._length

    def _check_whole(self) -> None:
        present = self.size()
        if present < self._length:
            raise StoreCorrupt(
                f"{self.path} is {present} bytes long and was {self._length}:"
                " something outside cut it"
            )

    def map_for_reading(self, position: int, length: int) -> mmap.mmap:
        self._check_whole()
        size = min(length, self._length - position)
        return mmap.mmap(self._fd, size, offset=position, access=mmap.ACCESS_READ)

    def map_resident(self, position: int, length: int) -> ResidentWindow | None:
        # For a file that this process may not write, Linux says that all is in memory.
        is_writable = fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        if native.is_resident is None or not is_writable:
            return None
        try:
            mapping = self.map_for_reading(position, length)
        except (StoreCorrupt, OSError):
            return None
        return _RealWindow(self, mapping, position, native.is_resident)

    def map(self, position: int, length: int) -> mmap.mmap:
        self._check_whole()
        window = mmap.mmap(self._fd, min(length, self._length - position), offset=position)
        if hasattr(mmap, "MADV_RANDOM"):
            # This only sets a flag of the mapping.  Without it, the first store into a new page
            # makes the kernel clear megabytes around it: 20 ms now and then, measured.
            window.madvise(mmap.MADV_RANDOM)
        return window

    def unmap(self, mapping: Mapping) -> bool:
        assert isinstance(mapping, mmap.mmap)
        try:
            mapping.close()
        except BufferError:
            return False
        return True


class _RealLock:
    """Two locks on one file: fcntl's excludes Java, flock's excludes this process too."""

    def __init__(self, fd: int, key: str) -> None:
        self._fd = fd
        self._key = key

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _LOCK_KEYS.discard(self._key)
            os.close(fd)


def _lock_holder(fd: int) -> int:
    """Return the pid of the process that holds the fcntl lock, 0 where the system does not say."""
    if not hasattr(fcntl, "F_GETLK") or os.name != "posix":
        return 0
    try:
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0))
        kind, _, _, _, pid = _FLOCK.unpack(answer)
    except (OSError, struct.error):
        return 0
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else 0


def _locked(path: str, pid: int) -> StoreLocked:
    holder = f"process {pid}" if pid else "another process"
    return StoreLocked(
        f"store {os.path.dirname(path)} is in use by {holder};"
        " stop that process or choose another store directory"
    )


def make_durable_directory(disk: Disk, path: str) -> None:
    """Make a directory whose name, and those of its new parents, survive a power cut.  Blocks.

    The parent is always synced: the process that made an existing directory may have died before
    it synced the parent.
    """
    above = path.rstrip("/").rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    if not disk.exists(path):
        if not disk.exists(above):
            make_durable_directory(disk, above)
        disk.makedirs(path)
    disk.sync_dir(above)


def _open_existing(path: str) -> int:
    """Open for reading and writing, or only for reading where that is all the mode allows."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class RealDisk:
    """The file system of this machine."""

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def mtime_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def read_bytes(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            parts: list[bytes] = []
            while chunk := os.read(fd, max(size, 65536)):
                parts.append(chunk)
            return b"".join(parts)
        finally:
            os.close(fd)

    def write_atomic(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        temporary = f"{path}.tmp"
        try:
            if is_private:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)  # what is left of a crash may have another mode
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            fd = os.open(temporary, flags, 0o600 if is_private else 0o644)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if error.errno in _FULL:
                raise _full(path, "replacing", error) from error
            raise
        self.sync_dir(os.path.dirname(path) or ".")

    def open_log(self, path: str, size: int, *, create: bool) -> LogFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if not create:
            return _RealLogFile(path, _open_existing(path), size)
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            is_new = True
        except FileExistsError:
            fd = os.open(path, flags)
            is_new = False
        try:
            self._reserve(fd, size)
        except OSError as error:
            os.close(fd)
            if is_new:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            if error.errno in _FULL:
                raise _full(path, f"reserving {size} bytes for", error) from error
            raise
        return _RealLogFile(path, fd, size)

    @staticmethod
    def _reserve(fd: int, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
            return
        position = os.fstat(fd).st_size  # pragma: no cover - macOS
        while position < size:  # pragma: no cover - macOS
            position += os.pwrite(fd, _ZEROS[: size - position], position)

    def open_random(self, path: str, size: int, *, create: bool) -> RandomFile:
        flags = os.O_RDWR | os.O_CLOEXEC
        if not create:
            return _RealFile(path, _open_existing(path))
        fd = os.open(path, flags | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
        except OSError as error:
            os.close(fd)
            if error.errno in _FULL:
                raise _full(path, "creating", error) from error
            raise
        return _RealFile(path, fd)

    def unshare(self, path: str) -> bool:
        if os.stat(path).st_nlink == 1:
            return False
        temporary = f"{path}.tmp"
        try:
            shutil.copyfile(path, temporary)
            with open(temporary, "rb") as copy:
                os.fsync(copy.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if error.errno in _FULL:
                raise _full(path, "copying", error) from error
            raise
        self.sync_dir(os.path.dirname(path) or ".")
        return True

    def lock(self, path: str) -> StoreLock:
        # A forked child has a copy of the set but not the lock, so the pid is part of the key.
        key = f"{os.getpid()} {os.path.realpath(path)}"
        if key in _LOCK_KEYS:
            raise _locked(path, os.getpid())
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            pid = _lock_holder(fd)
            os.close(fd)
            if error.errno not in {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK}:
                raise
            raise _locked(path, pid) from None
        os.pwrite(fd, b"lock", 0)
        _LOCK_KEYS.add(key)
        return _RealLock(fd, key)

    def usage(self, path: str) -> tuple[int, int]:
        # As Java counts: blocks that only root may use are in neither number.
        _, used, free = shutil.disk_usage(path)
        return used + free, used

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        os.sync()

    def boot_id(self) -> str:
        try:
            return self.read_bytes("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
        except OSError:
            return ""
