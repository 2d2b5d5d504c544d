"""A store directory opened for reading only, with file sizes derived from the files themselves.

`inspect` and `verify` read its log files, queues and index files.  The store's lock is not taken,
so a store that is being written may look torn.
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
_LONG: Final = struct.Struct(">q")
# An index file of unusual size is searched this far for its first entry.
_SEARCH_BYTES_MAX: Final = 256 << 20


@dataclass(slots=True)
class OfflineFile:
    """One file of the log or of a queue; `start` and `end` are offsets in the whole."""

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
        """First queue offset the files have room for."""
        return self.files[0].start // CQ_UNIT_BYTES if self.files else 0

    def units(self) -> Iterator[tuple[int, int, int, int]]:
        """(queue offset, physical offset, size, tags code) of every unit in the files."""
        for file in self.files:
            position = 0
            while position < file.size:
                raw = file.file.read(position, min(_READ_UNITS * 20, file.size - position))
                raw = raw[: len(raw) // CQ_UNIT_BYTES * CQ_UNIT_BYTES]
                if not raw:
                    break
                base = (file.start + position) // CQ_UNIT_BYTES
                for index, unit in enumerate(CQ_UNIT.iter_unpack(raw)):
                    yield (base + index, *unit)
                position += len(raw)


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
    """The files of a store directory."""

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

    def _open_all(self, path: str) -> list[OfflineFile]:
        found: list[OfflineFile] = []
        for name in self.disk.listdir(path):
            if len(name) != _NAME_DIGITS or not name.isdigit():
                continue
            full = f"{path}/{name}"
            size = self.disk.size(full)
            file = self.disk.open_random(full, size, create=False)
            found.append(OfflineFile(full, int(name), int(name) + size, size, file))
        return found

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
        """Yield every consume queue, its files open meanwhile."""
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

    # -- index ---------------------------------------------------------------------------

    def indexes(self) -> list[OfflineIndex]:
        """Return every index file, oldest first."""
        base = f"{self.root}/index"
        found: list[OfflineIndex] = []
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
            found.append(OfflineIndex(path, size, header, slots, entries, file))
        return found


def _usual(sizes: list[int]) -> int | None:
    """Return the size of most files; the larger of two that are equally usual."""
    if not sizes:
        return None
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size))


def _slot_count(file: RandomFile, size: int, header: IndexHeader) -> int | None:
    """How many slots a file has: head, slots and entries only tell their total size.

    Default sizes and Java's proportion (four entries a slot) are tried first, then every place
    where the first entry could stand.
    """
    if size == index_file_bytes(SLOT_COUNT_DEFAULT, INDEX_COUNT_DEFAULT):
        return SLOT_COUNT_DEFAULT
    payload = size - INDEX_HEADER_BYTES
    if payload % 84 == 0 and (header.index_count <= 1 or _fits(file, header, payload // 84, size)):
        return payload // 84
    if header.index_count <= 1:
        return None
    raw = file.read(0, min(size, _SEARCH_BYTES_MAX))
    wanted = _LONG.pack(header.begin_physical_offset)
    place = raw.find(wanted, INDEX_HEADER_BYTES)
    while place >= 0:
        slots, rest = divmod(place - 4 - INDEX_ENTRY_BYTES - INDEX_HEADER_BYTES, 4)
        if rest == 0 and slots > 0 and _fits(file, header, slots, size):
            return slots
        place = raw.find(wanted, place + 1)
    return None


def _fits(file: RandomFile, header: IndexHeader, slots: int, size: int) -> bool:
    """Return whether first and last entry stand where this slot count puts them."""
    entries, rest = divmod(size - INDEX_HEADER_BYTES - 4 * slots, INDEX_ENTRY_BYTES)
    if rest or entries < header.index_count:
        return False
    first = file.read(entry_position(1, slots), INDEX_ENTRY_BYTES)
    last = file.read(entry_position(header.index_count - 1, slots), INDEX_ENTRY_BYTES)
    if len(first) < INDEX_ENTRY_BYTES or len(last) < INDEX_ENTRY_BYTES:
        return False
    first_hash, begin, _, previous = INDEX_ENTRY.unpack(first)
    last_hash, end, _, _ = INDEX_ENTRY.unpack(last)
    if first_hash < 0 or last_hash < 0 or previous != 0:
        return False
    # The last entry of all is the newest of its bucket, and the first one's bucket is in use.
    (newest,) = INDEX_SLOT.unpack(file.read(slot_position(last_hash % slots), 4))
    (used,) = INDEX_SLOT.unpack(file.read(slot_position(first_hash % slots), 4))
    return bool(
        begin == header.begin_physical_offset
        and end == header.end_physical_offset
        and newest == header.index_count - 1
        and 0 < used < header.index_count
    )
