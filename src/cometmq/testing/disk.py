"""The simulator's disk: `store.Disk` in memory, with the faults real disks have.

A disk keeps the files of one node across its lives, and crashes, fills up, fails and flips bits on
request.  It does only what a real disk may do (see `cometmq.testing.inode`).

Names behave as data: making, renaming and removing become durable with `sync_dir`.  A power cut
undoes the newest unsynced name changes; the seed draws how many.

Hooks.  Every operation has a name (`OPERATIONS`) and is counted in `counts`.  An action can run at
its n-th hit from now on a path that contains a given text:

    disk.at("sync", path_contains="commitlog", hit=3, action=lambda: node.crash())
    disk.at("write", action=disk.fail_with(OSError(errno.EIO, "bad sector")))
"""

from __future__ import annotations

import errno
import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from cometmq.codec.stored_message import BODY_POSITION_V4
from cometmq.errors import DiskFull, StoreError, StoreLocked
from cometmq.testing.inode import PAGE_BYTES, Inode, ReservedInode, SparseInode
from cometmq.testing.loop import NodeCrashed, current_lifetime
from cometmq.testing.markers import override

if TYPE_CHECKING:
    from cometmq.store.base.disk import Mapping

__all__ = ["OPERATIONS", "SimDisk", "SimLogFile", "SimRandomFile"]

OPERATIONS: Final = frozenset(
    {
        "allocate",
        "create",
        "listdir",
        "lock",
        "makedirs",
        "read",
        "remove",
        "rename",
        "sync",
        "sync_dir",
        "write",
        "write_atomic",
        "write_atomic.rename",
        "write_atomic.sync",
        "write_atomic.sync_dir",
    }
)

_Bytes = bytes | bytearray | memoryview
HOLE_STEP_BYTES: Final = 16
"""A copy writes at least so many bytes at once."""


@dataclass(slots=True)
class _Trigger:
    operation: str
    path_contains: str
    hits_left: int
    action: Callable[[], None]


@dataclass(slots=True)
class _NameChange:
    """A change of directories that only `sync_dir` makes durable, and how to undo it.

    A rename is atomic: syncing one of its two directories settles both ends.
    """

    names: tuple[str, ...]
    directories: frozenset[str]
    undo: Callable[[], None]


class SimDisk:
    """One node's disk.  `capacity_bytes` bounds what can be allocated."""

    def __init__(
        self,
        chance: random.Random,
        now_ms: Callable[[], int],
        *,
        capacity_bytes: int = 1 << 40,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.counts: Counter[str] = Counter()
        self.life = 1
        self._chance = chance
        self._now_ms = now_ms
        self.boot = 1
        self._files: dict[str, Inode] = {}
        self._directories: dict[str, None] = {"/": None}
        self._unsynced_names: list[_NameChange] = []
        self._locks: dict[str, int] = {}
        self._triggers: list[_Trigger] = []
        self._frozen = False
        self._lost_blocks: set[tuple[str, int]] = set()
        self.on_operation: Callable[[str, str], None] | None = None
        """Called with operation and path just before each operation; may crash the node."""

    # -- faults -------------------------------------------------------------------------------

    def at(
        self,
        operation: str,
        *,
        action: Callable[[], None],
        path_contains: str = "",
        hit: int = 1,
    ) -> None:
        """Run `action` just before the `hit`-th such operation from now takes effect.

        Raises:
            StoreError: `operation` is not one of `OPERATIONS`.
        """
        if operation not in OPERATIONS:
            raise StoreError(f"unknown disk operation {operation!r}: use one of {OPERATIONS}")
        self._triggers.append(_Trigger(operation, path_contains, hit, action))

    def forget_triggers(self) -> None:
        """Cancel every `at` that has not happened yet."""
        self._triggers.clear()

    @staticmethod
    def fail_with(error: BaseException) -> Callable[[], None]:
        """An action that makes the operation raise `error`."""

        def fail() -> None:
            raise error

        return fail

    def fail_sync(
        self,
        *,
        path_contains: str = "",
        hit: int = 1,
        operation: str = "sync",
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Let the `hit`-th sync from now fail as on Linux, which then marks the pages clean."""

        def fail() -> None:
            on_failure()
            for path, inode in self._files.items():
                if path_contains in path:
                    inode.give_up()
            raise OSError(errno.EIO, "Input/output error")

        self.at(operation, path_contains=path_contains, hit=hit, action=fail)

    def kill(self) -> None:
        """Kill the process: open files and locks are lost, the page cache survives."""
        self.life += 1
        self._locks.clear()
        for path, inode in self._files.items():
            if isinstance(inode, ReservedInode):
                # Mappings of the killed process must not change the file of the next life.
                inode.data = bytearray(inode.data)
                self._files[path] = inode

    def power_cut(self) -> None:
        """Cut the power: unsynced pages and names are lost, kept or torn at random."""
        self.kill()
        self.boot += 1
        durable_count = self._chance.randint(0, len(self._unsynced_names))
        for change in reversed(self._unsynced_names[durable_count:]):
            change.undo()
        self._unsynced_names.clear()
        for path in sorted(self._files):
            self._files[path].power_cut(self._chance)

    def tear_pages(self, inode: Inode, position: int, data: _Bytes) -> None:
        """Let a write take effect up to a page's end, as its process was killed within it.

        Kernels look for a kill only between the pages of a write.
        """
        first_end = position // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES
        ends = range(first_end, position + len(data), PAGE_BYTES)
        end = self._chance.choice([position, *ends, position + len(data)])
        if end > position:
            inode.write(position, data[: end - position])

    def tear(self, inode: Inode, position: int, data: _Bytes) -> None:
        """Let a write to a log file take effect in part, as its process was killed within it.

        Records are copied one after the other.  In the one that the kill interrupts a hole may be
        left behind its head: harsher than kernels, which copy forward, so that a run shows whether
        the CRC of the last record is looked at.  No checksum covers the head, so it is spared.
        """
        fate = self._chance.randrange(4)
        if fate == 0 or not len(data):
            return
        old = inode.read(position, len(data)).ljust(len(data), b"\0")
        torn = bytes(data[: self._chance.randint(1, len(data))])
        inode.write(position, torn)
        record = _last_record(data, len(torn))
        if fate == 1 or record is None:
            return
        begin, end = record
        body = begin + BODY_POSITION_V4
        if body >= end:
            return
        inode.write(position, bytes(data[:end]))
        hole = max(body, self._chance.randrange(body, end) // HOLE_STEP_BYTES * HOLE_STEP_BYTES)
        length = min(end - hole, HOLE_STEP_BYTES * self._chance.randint(1, 20))
        inode.write(position + hole, old[hole : hole + length])

    def freeze(self) -> None:
        """Refuse all operations after the simulation, so that leftover code changes nothing."""
        self._frozen = True

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damage one bit of a file, unseen by programs."""
        (byte,) = self._inode(path).read(position, 1)
        self.spoil(path, position, bytes((byte ^ 1 << bit,)))

    def spoil(self, path: str, position: int, data: bytes) -> None:
        """Replace bytes of a file, unseen by programs."""
        self._inode(path).spoil(position, data)

    def lose_block(self, path: str, position: int) -> None:
        """Make the page of a file at a position unreadable from now on."""
        self._lost_blocks.add((_clean(path), position // PAGE_BYTES))

    def check_blocks(self, path: str, position: int, length: int) -> None:
        """Refuse a read of a lost block.

        Raises:
            OSError: one of these bytes lies in such a block.
        """
        name = _clean(path)
        pages = range(position // PAGE_BYTES, (position + max(length, 1) - 1) // PAGE_BYTES + 1)
        if any((name, page) in self._lost_blocks for page in pages):
            raise OSError(errno.EIO, "Input/output error", path)

    def cut(self, path: str, size: int) -> None:
        """Shorten a file, unseen by programs."""
        inode = self._inode(path)
        inode.resize(size)
        inode.sync()

    def is_durable(self, path: str, start: int, end: int) -> bool:
        """Whether a power cut now would leave the file's name, and these bytes as they are."""
        name = _clean(path)
        if any(name in change.names for change in self._unsynced_names):
            return False
        return self._inode(path).is_durable(start, end)

    def tree(self) -> dict[str, int]:
        """Return path and size of every file, sorted."""
        return {path: self._files[path].size() for path in sorted(self._files)}

    # -- store.Disk: names --------------------------------------------------------------------

    def listdir(self, path: str) -> list[str]:
        self._enter("listdir", path)
        prefix = _clean(path).rstrip("/") + "/"
        everything = (*self._files, *self._directories)
        below = {name[len(prefix) :].split("/")[0] for name in everything if _is_in(name, prefix)}
        return sorted(below)

    def exists(self, path: str) -> bool:
        return _clean(path) in self._files or self.is_dir(path)

    def is_dir(self, path: str) -> bool:
        return _clean(path) in self._directories

    def size(self, path: str) -> int:
        return self._inode(path).size()

    def mtime_ms(self, path: str) -> int:
        return self._inode(path).mtime_ms

    def remove(self, path: str) -> None:
        self._enter("remove", path)
        name = _clean(path)
        inode = self._files.pop(name, None)
        if inode is not None:
            self._unsynced(name, lambda: self._files.setdefault(name, inode))

    def remove_tree(self, path: str) -> None:
        top = _clean(path)
        for name in sorted(self._files):
            if _is_in(name, top + "/"):
                self.remove(name)
        for name in sorted(self._directories, reverse=True):
            if name == top or _is_in(name, top + "/"):
                self._drop_directory(name)

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", source)
        old, new = _clean(source), _clean(target)
        if old in self._directories:
            self._rename_directory(old, new)
            return
        self._rename_file(old, new)

    def _rename_file(self, old: str, new: str) -> None:
        moved, replaced = self._inode(old), self._files.get(new)
        del self._files[old]
        self._files[new] = moved

        def undo() -> None:
            self._files[old] = moved
            if replaced is None:
                self._files.pop(new, None)
            else:
                self._files[new] = replaced

        self._unsynced(new, undo, old)

    def makedirs(self, path: str) -> None:
        self._enter("makedirs", path)
        name = _clean(path)
        missing = [name, *map(str, PurePosixPath(name).parents)]
        for directory in reversed(missing):
            if directory not in self._directories:
                self._directories[directory] = None
                self._unsynced(directory, functools.partial(self._drop_tree, directory))

    def unshare(self, path: str) -> bool:
        """Return False: a file of this disk has one name."""
        return False

    def sync_dir(self, path: str) -> None:
        self._enter("sync_dir", path)
        self._sync_names(_clean(path))

    def _sync_names(self, directory: str) -> None:
        self._unsynced_names = [
            change for change in self._unsynced_names if directory not in change.directories
        ]

    def sync_all(self) -> None:
        self._enter("sync", "/")
        for inode in self._files.values():
            inode.sync()
        self._unsynced_names.clear()

    # -- store.Disk: content ------------------------------------------------------------------

    def read_bytes(self, path: str) -> bytes:
        self._enter("read", path)
        inode = self._inode(path)
        return inode.read(0, inode.size())

    def write_atomic(self, path: str, data: bytes, *, is_private: bool = False) -> None:
        """Write a temporary file, sync it, rename it and sync the folder; each may be the end."""
        self._enter("write_atomic", path)
        name = _clean(path)
        self._need_directory(name)
        temporary = f"{name}.tmp"
        inode = SparseInode(0, self._now_ms())
        self._reserve(path, inode.pages_needed(0, len(data)) * PAGE_BYTES)
        if temporary not in self._files:
            self._unsynced(temporary, lambda: self._files.pop(temporary, None))
        self._files[temporary] = inode
        inode.write(0, data)
        try:
            self._enter("write_atomic.sync", path)
            inode.sync()
            self._enter("write_atomic.rename", path)
        except OSError:
            del self._files[temporary]
            raise
        self._rename_file(temporary, name)
        self._enter("write_atomic.sync_dir", path)
        self._sync_names(str(PurePosixPath(name).parent))

    def open_log(self, path: str, size: int, *, create: bool) -> SimLogFile:
        name = _clean(path)
        if create and (name not in self._files or self._files[name].size() < size):
            self._reserve_log(path, name, size)
        return SimLogFile(self, path, self._inode(path))

    def _reserve_log(self, path: str, name: str, size: int) -> None:
        """Reserve all blocks of a new file, or of one whose maker crashed before it did."""
        is_new = name not in self._files
        if is_new:
            self._make(path, "create", ReservedInode(0, self._now_ms()))
        self._enter("allocate", path)
        try:
            self._reserve(path, size - self._files[name].size())
        except DiskFull:
            if is_new:
                self.remove(path)
            raise
        if is_new:
            inode = ReservedInode(size, self._now_ms())
            self._files[name] = inode
            self._unsynced(name, inode.forget_size)
        else:
            self._files[name].resize(size)

    def open_random(self, path: str, size: int, *, create: bool) -> SimRandomFile:
        if create and _clean(path) not in self._files:
            self._make(path, "create", SparseInode(size, self._now_ms()))
        return SimRandomFile(self, path, self._inode(path))

    def lock(self, path: str) -> SimLock:
        """Lock a file for this life of the node.

        Raises:
            StoreLocked: this life has locked it already.
        """
        self._enter("lock", path)
        name = _clean(path)
        if self._locks.get(name) == self.life:
            raise StoreLocked(f"{path} is locked by this node's running life")
        if name not in self._files:
            self._make(path, "create", SparseInode(0, self._now_ms()))
        self._locks[name] = self.life
        return SimLock(self, name)

    def unlock(self, name: str) -> None:
        """Release a lock."""
        self._locks.pop(name, None)

    def usage(self, path: str) -> tuple[int, int]:
        return self.capacity_bytes, self.allocated_bytes()

    def boot_id(self) -> str:
        return f"sim-boot-{self.boot}"

    # -- for the open files -------------------------------------------------------------------

    def enter_file(self, operation: str, path: str, life: int) -> None:
        """Count an operation on an open file and run its hooks.

        Raises:
            OSError: the life that opened the file has ended.
        """
        if life != self.life:
            raise OSError(errno.EIO, "the node that opened this file crashed", path)
        self._enter(operation, path)

    def grow(self, path: str, inode: Inode, position: int, length: int) -> None:
        """Reserve space for a write, and set the modification time.

        Raises:
            DiskFull: the disk has no space for the write.
        """
        if isinstance(inode, SparseInode):
            self._reserve(path, inode.pages_needed(position, length) * PAGE_BYTES)
        else:
            self._reserve(path, max(0, position + length - inode.size()))
        inode.mtime_ms = self._now_ms()

    # -- inside -------------------------------------------------------------------------------

    def _enter(self, operation: str, path: str) -> None:
        running = current_lifetime()
        if running is not None and not running.alive:
            # An `except BaseException` of the code under test goes on after its node has crashed.
            raise NodeCrashed
        if self._frozen:
            raise OSError(errno.EIO, "the simulation is over", path)
        self.counts[operation] += 1
        if self.on_operation is not None:
            self.on_operation(operation, path)
        for trigger in list(self._triggers):
            if trigger.operation == operation and trigger.path_contains in path:
                trigger.hits_left -= 1
                if trigger.hits_left == 0:
                    self._triggers.remove(trigger)
                    trigger.action()

    def _inode(self, path: str) -> Inode:
        inode = self._files.get(_clean(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _make(self, path: str, operation: str, inode: Inode) -> None:
        self._enter(operation, path)
        name = _clean(path)
        self._need_directory(name)
        self._files[name] = inode
        self._unsynced(name, lambda: self._files.pop(name, None))

    def _need_directory(self, name: str) -> None:
        parent = str(PurePosixPath(name).parent)
        if parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", parent)

    def _unsynced(self, name: str, undo: Callable[[], object], other: str | None = None) -> None:
        def forget() -> None:
            undo()

        names = (name,) if other is None else (name, other)
        parents = frozenset(str(PurePosixPath(path).parent) for path in names)
        self._unsynced_names.append(_NameChange(names, parents, forget))

    def _drop_directory(self, name: str) -> None:
        del self._directories[name]
        self._unsynced(name, lambda: self._directories.setdefault(name, None))

    def _drop_tree(self, name: str) -> None:
        self._directories.pop(name, None)
        for path in [path for path in self._files if _is_in(path, name + "/")]:
            del self._files[path]
        for path in [path for path in self._directories if _is_in(path, name + "/")]:
            del self._directories[path]

    def _rename_directory(self, old: str, new: str) -> None:
        def move(source: str, target: str) -> None:
            for path in [p for p in self._files if _is_in(p, source + "/")]:
                self._files[target + path[len(source) :]] = self._files.pop(path)
            for path in [p for p in self._directories if p == source or _is_in(p, source + "/")]:
                del self._directories[path]
                self._directories[target + path[len(source) :]] = None

        move(old, new)
        self._unsynced(new, lambda: move(new, old), old)

    def allocated_bytes(self) -> int:
        """Return how much of the capacity all files use."""
        return sum(inode.allocated_bytes() for inode in self._files.values())

    def _reserve(self, path: str, extra_bytes: int) -> None:
        if extra_bytes > 0 and self.allocated_bytes() + extra_bytes > self.capacity_bytes:
            raise DiskFull(
                f"{path}: no space for {extra_bytes} more bytes, {self.allocated_bytes()} of "
                f"{self.capacity_bytes} are used"
            )


class SimRandomFile:
    """An open file of a `SimDisk`; useless once the node that opened it has crashed."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self.boot = disk.boot

    def read(self, position: int, length: int) -> bytes:
        self._disk.enter_file("read", self.path, self._life)
        self._disk.check_blocks(self.path, position, length)
        return self._inode.read(position, length)

    def read_resident(self, position: int, length: int) -> bytes | None:
        return self.read(position, length)

    def forget_cached(self, position: int, length: int) -> None:
        """Do nothing: each read of this disk asks the device."""

    def write(self, position: int, data: _Bytes) -> None:
        try:
            self._disk.enter_file("write", self.path, self._life)
        except NodeCrashed:
            if self.boot == self._disk.boot and self._life + 1 == self._disk.life:
                self._tear(position, data)
            raise
        self._disk.grow(self.path, self._inode, position, len(data))
        self._inode.write(position, data)

    def _tear(self, position: int, data: _Bytes) -> None:
        """Write a part of what a kill interrupted."""
        self._disk.tear_pages(self._inode, position, data)

    def sync(self) -> None:
        self._disk.enter_file("sync", self.path, self._life)
        self._inode.sync()

    def size(self) -> int:
        return self._inode.size()

    def resize(self, size: int) -> None:
        self._disk.enter_file("write", self.path, self._life)
        self._inode.resize(size)

    def next_data(self, position: int) -> int | None:
        return self._inode.next_data(position)

    def close(self) -> None:
        """Nothing to release: a file exists as long as its inode."""


class SimLogFile(SimRandomFile):
    """A log file, which can be written through memory as well."""

    @override
    def _tear(self, position: int, data: _Bytes) -> None:
        self._disk.tear(self._inode, position, data)

    def map(self, position: int, length: int) -> memoryview:
        """A view of the file's bytes, which writes to the file.

        Raises:
            StoreError: `open_log` did not make the file.
        """
        inode = self._inode
        if not isinstance(inode, ReservedInode):
            raise StoreError(f"{self.path}: only a file made by open_log can be mapped")
        inode.mtime_ms = max(inode.mtime_ms, 0)
        return memoryview(inode.data)[position : position + length]

    def map_for_reading(self, position: int, length: int) -> memoryview:
        return self.map(position, length).toreadonly()

    def map_resident(self, position: int, length: int) -> SimWindow:
        return SimWindow(self, position, length)

    def unmap(self, mapping: Mapping) -> bool:
        assert isinstance(mapping, memoryview)
        mapping.release()
        return True


class SimWindow:
    """A part of a log file for reads; each passes the same faults as a read of the file."""

    def __init__(self, file: SimLogFile, start: int, length: int) -> None:
        self._file = file
        self._start = start
        self._end = start + length

    def view(self, position: int, length: int) -> memoryview | None:
        if not self._start <= position <= self._end - length:
            return None
        data = self._file.read_resident(position, length)
        return None if data is None or len(data) != length else memoryview(data)


class SimLock:
    """Ownership of a lock file."""

    def __init__(self, disk: SimDisk, name: str) -> None:
        self._disk = disk
        self._name = name

    def release(self) -> None:
        self._disk.unlock(self._name)


def _last_record(data: _Bytes, count: int) -> tuple[int, int] | None:
    """Return begin and end of the log record that has byte `count - 1`; None if there is none."""
    begin = 0
    while begin + 4 <= len(data):
        end = begin + int.from_bytes(data[begin : begin + 4], "big")
        if end <= begin + 4 or end > len(data):
            return None
        if count <= end:
            return begin, end
        begin = end
    return None


@functools.lru_cache(maxsize=4096)
def _clean(path: str) -> str:
    """Return an absolute path without doubled or trailing slashes."""
    return str(PurePosixPath("/") / path)


def _is_in(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and len(path) > len(prefix)
