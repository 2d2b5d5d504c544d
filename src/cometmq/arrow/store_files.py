"""The files of a store directory: log files as buffers, consume queues as arrays of units.

Files are opened for reading only and without a lock.  Sizes and bounds are those at the moment of
opening: a broker may continue to write.

A queue's files have their full size and are zero where nothing was written yet.  A lost head
consists of zeros or pre-blank units (size 0x7FFFFFFF).  Both ends are cut off.
"""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cometmq.arrow.options import nearest
from cometmq.codec.consume_queue import CQ_UNIT_BYTES, CQ_UNIT_FIELDS, PRE_BLANK_SIZE
from cometmq.errors import StoreError
from cometmq.store.queue.consume_queue import queue_id_of

__all__ = ["LogFileView", "LogView", "QueueFiles", "queues_of"]

UNIT: Final = np.dtype(CQ_UNIT_FIELDS)
assert UNIT.itemsize == CQ_UNIT_BYTES
_NAME_DIGITS: Final = 20
_FILE_BYTES_MAX: Final = 2**31 - 1
_BLOCK_BYTES: Final = 1 << 20
_BLOCK_UNITS: Final = 1 << 14


class LogFileView:
    """One file of the log, mapped on first use.

    Raises:
        StoreError: the file is larger than a log file can be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = int(path.name)
        self.size = path.stat().st_size
        if self.size > _FILE_BYTES_MAX:
            raise StoreError(f"{path} has {self.size} bytes: log files end at {_FILE_BYTES_MAX}")
        self._map: mmap.mmap | None = None
        self._last_data = -1
        self._first_empty = self.size

    @property
    def end(self) -> int:
        """Physical offset after the file."""
        return self.start + self.size

    @property
    def map(self) -> mmap.mmap:
        """The file's bytes."""
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        return self._map

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The file's bytes as an array."""
        return np.frombuffer(self.map, np.uint8)

    @property
    def buffer(self) -> Any:
        """The file's bytes as an Arrow buffer."""
        return pa.py_buffer(self.map)

    def has_data(self, position: int) -> bool:
        """Whether a byte at or after this position is not zero; holes are skipped, not read."""
        if position <= self._last_data:
            return True
        if position >= self._first_empty:
            return False
        here = position
        with self.path.open("rb", buffering=0) as file:
            while here < self.size:
                try:
                    here = os.lseek(file.fileno(), here, os.SEEK_DATA)
                except OSError as error:
                    if error.errno != errno.ENXIO:
                        raise
                    break
                block = np.frombuffer(os.pread(file.fileno(), _BLOCK_BYTES, here), np.uint8)
                nonzero = np.flatnonzero(block)
                if len(nonzero):
                    self._last_data = here + int(nonzero[-1])
                    return True
                here += _BLOCK_BYTES
        self._first_empty = position
        return False


class LogView:
    """The commit log of a store directory.

    Raises:
        StoreError: the directory holds no store, or a file is too large.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise StoreError(f"{root} is not a directory: give the store's root")
        folder = root / "commitlog"
        if not folder.is_dir():
            raise StoreError(f"{root} holds no commitlog: it is not the root of a store")
        self.root = root
        self.files = [
            file
            for file in (LogFileView(path) for path in _numbered(folder))
            # A broker that ends while it allocates a file leaves it empty.
            if file.size
        ]
        self._starts = np.array([file.start for file in self.files], np.int64)

    @property
    def start(self) -> int:
        """Physical offset at which the log begins."""
        return self.files[0].start if self.files else 0

    def find(self, physical_offsets: NDArray[np.int64]) -> NDArray[Any]:
        """Index of the file that holds each physical offset; -1 where there is none."""
        if not self.files:
            return np.full(len(physical_offsets), -1, np.int64)
        indexes = np.searchsorted(self._starts, physical_offsets, "right") - 1
        ends = np.array([file.end for file in self.files], np.int64)
        indexes[(indexes < 0) | (physical_offsets >= ends[indexes])] = -1
        return indexes

    def is_behind_data(self, physical_end: int) -> bool:
        """Whether the log holds no data at or after this physical offset."""
        for file in reversed(self.files):
            if physical_end <= file.start:
                if file.has_data(0):
                    return False
                continue
            return not file.has_data(physical_end - file.start)
        return True


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """A consume queue with the queue offsets from `start` up to, not including, `end`."""

    topic: str
    queue_id: int
    start: int
    end: int
    files: tuple[tuple[int, Path], ...]
    """(first queue offset, path), oldest first."""

    def units(self, start: int, end: int) -> NDArray[Any]:
        """A copy of the units of these queue offsets."""
        parts = []
        for first, path in self.files:
            count = path.stat().st_size // CQ_UNIT_BYTES
            begin, stop = max(start, first), min(end, first + count)
            if begin < stop:
                position = (begin - first) * CQ_UNIT_BYTES
                parts.append(np.fromfile(path, UNIT, stop - begin, offset=position))
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros(0, UNIT)


def queues_of(root: Path, topic: str) -> list[QueueFiles]:
    """The queues of a topic, sorted by id.

    Raises:
        StoreError: the store has no such topic; the text names the nearest one.
    """
    base = root / "consumequeue"
    topics = sorted(path.name for path in base.iterdir() if path.is_dir()) if base.is_dir() else []
    if topic not in topics:
        hint = nearest(topic, topics)
        raise StoreError(f"{base} holds no topic {topic!r}, but {len(topics)} others{hint}")
    queues = []
    for path in (base / topic).iterdir():
        queue_id = queue_id_of(path.name)
        if queue_id is not None:
            queues.append(_open_queue(topic, queue_id, path))
    return sorted(queues, key=lambda queue: queue.queue_id)


def _open_queue(topic: str, queue_id: int, folder: Path) -> QueueFiles:
    files = [(int(path.name) // CQ_UNIT_BYTES, path) for path in _numbered(folder)]
    start = end = files[0][0] if files else 0
    for first, path in files:
        written = _written(path)
        if written is not None:
            start = first + written
            break
    for first, path in reversed(files):
        written = _written(path, is_last=True)
        if written is not None:
            end = first + written + 1
            break
    return QueueFiles(topic, queue_id, start, max(start, end), tuple(files))


def _written(path: Path, *, is_last: bool = False) -> int | None:
    """Index of the first or last written unit of a file, searched from that end."""
    blocks = range(0, path.stat().st_size // CQ_UNIT_BYTES, _BLOCK_UNITS)
    for block in reversed(blocks) if is_last else blocks:
        size = np.fromfile(path, UNIT, _BLOCK_UNITS, offset=block * CQ_UNIT_BYTES)["size"]
        written = np.flatnonzero((size != 0) & (size != PRE_BLANK_SIZE))
        if len(written):
            return block + int(written[-1 if is_last else 0])
    return None


def _numbered(folder: Path) -> list[Path]:
    """The files whose names are 20 digits, in order."""
    return sorted(
        path
        for path in folder.iterdir()
        if len(path.name) == _NAME_DIGITS and path.name.isascii() and path.name.isdigit()
    )
