"""A store directory opened for reading only: its log files, queues and index files.

The sizes of files are derived from the files themselves, not from a configuration.  The store's
lock is not taken, so a store that a broker writes may look torn.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES
from cometmq.codec.index import (
    INDEX_COUNT_DEFAULT,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT,
    SLOT_COUNT_DEFAULT,
    IndexHeader,
    decode_index_header,
    entry_position,
    index_file_bytes,
    slot_position,
)
from cometmq.errors import StoreError
from cometmq.store.queue.consume_queue import queue_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.model.offsets import PhysicalOffset
    from cometmq.store.base.disk import Disk, RandomFile

__all__ = ["OfflineFile", "OfflineIndex", "OfflineQueue", "OfflineStore"]

_NAME_DIGITS: Final = 20
_INDEX_NAME_DIGITS: Final = 17
_READ_UNITS: Final = 4096
# Queue files that `units_at` has open.
_OPEN_FILES_MAX: Final = 128
_LONG: Final = struct.Struct(">q")
# An index file of unusual size is searched this far for its first entry.
_SEARCH_BYTES_MAX: Final = 256 << 20


@dataclass(slots=True)
class OfflineFile:
    """One file of the log or of a queue; `start` and `end` are byte offsets in the log or queue."""

    path: str
    start: int
    end: int
    size: int
    file: RandomFile


@dataclass(slots=True)
class OfflineQueue:
    """A consume queue's files."""

    topic: str
    queue_id: int
    path: str
    files: list[OfflineFile]

    @property
    def first(self) -> int:
        """Queue offset of the first unit in the files."""
        return self.files[0].start // CQ_UNIT_BYTES if self.files else 0

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield the units in the files in blocks, each with the queue offset of its first unit."""
        for file in self.files:
            position = 0
            while position < file.size:
                raw = file.file.read(position, min(_READ_UNITS * 20, file.size - position))
                raw = raw[: len(raw) // CQ_UNIT_BYTES * CQ_UNIT_BYTES]
                if not raw:
                    break
                yield (file.start + position) // CQ_UNIT_BYTES, raw
                position += len(raw)

    def units(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield queue offset, physical offset, size and tags code of every unit in the files."""
        for first, raw in self.blocks():
            for index, unit in enumerate(CQ_UNIT.iter_unpack(raw)):
                yield (first + index, *unit)


@dataclass(slots=True)
class OfflineIndex:
    """An index file; slot and entry counts are None when they could not be derived."""

    path: str
    size: int
    header: IndexHeader | None
    slot_count: int | None
    entry_count: int | None
    file: RandomFile


class OfflineStore:
    """The files of a store directory.

    Raises:
        StoreError: the path is not a directory.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        if not disk.is_dir(root):
            raise StoreError(f"{root} is not a directory")
        self.disk = disk
        self.root = root
        self.log_files = self._open_all(f"{root}/commitlog")
        self.log_file_bytes = _usual([file.size for file in self.log_files])
        for file in self.log_files:
            file.end = file.start + (self.log_file_bytes or file.size)
        self.queue_file_bytes: int | None = None
        self._queue_files: dict[str, RandomFile | None] = {}
        """The files that `units_at` has open, by path; None without a file."""

    def _open_all(self, path: str) -> list[OfflineFile]:
        """Open the files of a directory whose names are byte offsets, in order."""
        files: list[OfflineFile] = []
        for name in self.disk.listdir(path):
            if len(name) != _NAME_DIGITS or not name.isdigit():
                continue
            full = f"{path}/{name}"
            size = self.disk.size(full)
            file = self.disk.open_random(full, size, create=False)
            files.append(OfflineFile(full, int(name), int(name) + size, size, file))
        return files

    # -- log -----------------------------------------------------------------------------

    def file_at(self, physical_offset: PhysicalOffset) -> OfflineFile | None:
        """Return the log file that holds a physical offset."""
        for file in self.log_files:
            if file.start <= physical_offset < file.end:
                return file
        return None

    @property
    def log_start(self) -> int:
        """Physical offset at which the log begins."""
        return self.log_files[0].start if self.log_files else 0

    @property
    def log_limit(self) -> int:
        """Physical offset at which the files end."""
        return self.log_files[-1].end if self.log_files else 0

    def where(self, physical_offset: PhysicalOffset) -> tuple[str, int]:
        """Return path and position of a physical offset."""
        file = self.file_at(physical_offset)
        if file is None:
            return f"{self.root}/commitlog", physical_offset
        return file.path, physical_offset - file.start

    def read(self, physical_offset: PhysicalOffset, size: int) -> bytes:
        """Return bytes of the log; fewer where a file ends."""
        file = self.file_at(physical_offset)
        return b"" if file is None else file.file.read(physical_offset - file.start, size)

    # -- queues --------------------------------------------------------------------------

    def queues(self) -> Iterator[OfflineQueue]:
        """Yield every consume queue, with its files open."""
        base = f"{self.root}/consumequeue"
        for topic in self.disk.listdir(base):
            for name in self.disk.listdir(f"{base}/{topic}"):
                queue_id = queue_id_of(name)
                if queue_id is None:
                    continue
                path = f"{base}/{topic}/{name}"
                files = self._open_all(path)
                if files and self.queue_file_bytes is None:
                    self.queue_file_bytes = _usual([file.size for file in files])
                yield OfflineQueue(topic, queue_id, path, files)

    def units_at(self, topic: str, queue_id: int, first: int, count: int) -> bytes:
        """Return units of a queue from queue offset `first` on; fewer where a file is cut.

        The queue's files are taken to have the size that the others have.
        """
        file_bytes = self.queue_file_bytes
        if not file_bytes:
            return b""
        parts: list[bytes] = []
        position, bytes_left = first * CQ_UNIT_BYTES, count * CQ_UNIT_BYTES
        while bytes_left:
            position_in_file = position % file_bytes
            length = min(bytes_left, file_bytes - position_in_file)
            start = position - position_in_file
            file = self._queue_file(f"{self.root}/consumequeue/{topic}/{queue_id}/{start:020d}")
            if file is None:
                break
            parts.append(file.read(position_in_file, length))
            position += length
            bytes_left -= length
        return b"".join(parts)

    def _queue_file(self, path: str) -> RandomFile | None:
        file = self._queue_files.get(path)
        if file is None and path not in self._queue_files:
            if len(self._queue_files) >= _OPEN_FILES_MAX:
                self._queue_files.clear()
            if self.disk.exists(path):
                file = self.disk.open_random(path, self.disk.size(path), create=False)
            self._queue_files[path] = file
        return file

    # -- index ---------------------------------------------------------------------------

    def indexes(self) -> list[OfflineIndex]:
        """Return every index file, oldest first."""
        base = f"{self.root}/index"
        indexes: list[OfflineIndex] = []
        for name in self.disk.listdir(base):
            if len(name) != _INDEX_NAME_DIGITS or not name.isdigit():
                continue
            path = f"{base}/{name}"
            size = self.disk.size(path)
            file = self.disk.open_random(path, size, create=False)
            raw = file.read(0, INDEX_HEADER_BYTES)
            header = decode_index_header(raw) if len(raw) == INDEX_HEADER_BYTES else None
            slots = _slot_count(file, size, header) if header is not None else None
            entries = None
            if slots is not None:
                entries = (size - INDEX_HEADER_BYTES - 4 * slots) // INDEX_ENTRY_BYTES
            indexes.append(OfflineIndex(path, size, header, slots, entries, file))
        return indexes


def _usual(sizes: list[int]) -> int | None:
    """Return the size that most files have, the larger one of two that equally many have."""
    if not sizes:
        return None
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size))


def _slot_count(file: RandomFile, size: int, header: IndexHeader) -> int | None:
    """Return the number of slots of an index file; None when it cannot be derived.

    The file states neither the number of slots nor that of entries, and its size gives only one
    equation.  The defaults and Java's proportion (four entries for a slot) are tried first, then
    every position at which the first entry could be.
    """
    if size == index_file_bytes(SLOT_COUNT_DEFAULT, INDEX_COUNT_DEFAULT):
        return SLOT_COUNT_DEFAULT
    payload = size - INDEX_HEADER_BYTES
    if payload % 84 == 0 and (header.index_count <= 1 or _fits(file, header, payload // 84, size)):
        return payload // 84
    if header.index_count <= 1:
        return None
    raw = file.read(0, min(size, _SEARCH_BYTES_MAX))
    # The first entry used is number 1; the physical offset is 4 bytes behind its begin.
    first_offset = _LONG.pack(header.begin_physical_offset)
    at = raw.find(first_offset, INDEX_HEADER_BYTES)
    while at >= 0:
        slots, remainder = divmod(at - 4 - INDEX_ENTRY_BYTES - INDEX_HEADER_BYTES, 4)
        if remainder == 0 and slots > 0 and _fits(file, header, slots, size):
            return slots
        at = raw.find(first_offset, at + 1)
    return None


def _fits(file: RandomFile, header: IndexHeader, slots: int, size: int) -> bool:
    """Return whether the first and the last entry are where a file with so many slots has them."""
    entries, remainder = divmod(size - INDEX_HEADER_BYTES - 4 * slots, INDEX_ENTRY_BYTES)
    if remainder or entries < header.index_count:
        return False
    first = file.read(entry_position(1, slots), INDEX_ENTRY_BYTES)
    last = file.read(entry_position(header.index_count - 1, slots), INDEX_ENTRY_BYTES)
    if len(first) < INDEX_ENTRY_BYTES or len(last) < INDEX_ENTRY_BYTES:
        return False
    first_hash, begin, _, previous = INDEX_ENTRY.unpack(first)
    last_hash, end, _, _ = INDEX_ENTRY.unpack(last)
    if first_hash < 0 or last_hash < 0 or previous != 0:
        return False
    # The last entry is the newest of its bucket, and the bucket of the first entry is in use.
    (newest,) = INDEX_SLOT.unpack(file.read(slot_position(last_hash % slots), 4))
    (used,) = INDEX_SLOT.unpack(file.read(slot_position(first_hash % slots), 4))
    return bool(
        begin == header.begin_physical_offset
        and end == header.end_physical_offset
        and newest == header.index_count - 1
        and 0 < used < header.index_count
    )
