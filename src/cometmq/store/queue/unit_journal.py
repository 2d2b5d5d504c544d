"""The unit journal: saves the new units of very many queues with one write.

Each queue has files of its own, so saving its units costs an open, a write and a close, however few
they are.  With very many queues, the writer (writer.py) therefore saves units here every second or
two, and brings them to the queues' files later, many units at a time.  Recovery reads the journal
after the process died.  Readers do not: they find the units in the queues' tails.

A file ``cometmq.units.<generation>.<volume>`` consists of frames, each written at once::

    0      4      8
    |length|crc32 |entry entry ...|           the first broken frame ends the volume
    entry: |queue id 4|first offset 8|bytes 4|topic length 2|topic part of a record|units ...|

The side file names the generation that belongs to it; other generations are leftovers and are
deleted.  A volume is deleted when the queues' files have all its units.

Durable when: written, if the process dies.  The journal is never synced: after a power cut the log
is read from the last position at which queue files were synced.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from cometmq.codec.stored_message import TOPIC_BYTES_MAX_V1

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cometmq.store.base.disk import Disk, RandomFile
    from cometmq.store.queue.consume_queue import ConsumeQueue

__all__ = [
    "UNIT_JOURNAL_NAME",
    "SavedUnits",
    "UnitJournal",
    "journal_generations",
    "remove_journals",
    "saved_units",
]

UNIT_JOURNAL_NAME: Final = "cometmq.units"
_FRAME: Final = struct.Struct(">II")
_ENTRY: Final = struct.Struct(">iqIH")
# Bytes of the length before the topic, as in a record with a short and with a long topic.
_SHORT_HEAD_BYTES: Final = 1
_LONG_HEAD_BYTES: Final = 2

SavedUnits = tuple[str, int, int, bytes]
"""Topic, queue id, queue offset of the first unit, the units' bytes."""


class UnitJournal:
    """Writes the journal; used by one thread at a time."""

    def __init__(self, disk: Disk, root: str, generation: int) -> None:
        self._disk = disk
        self._root = root
        self.generation = generation
        self._volume = 0
        self._oldest = 0
        self._file: RandomFile | None = None
        self.volume_bytes = 0
        """Bytes written into the newest volume."""

    def append(self, batch: Sequence[tuple[ConsumeQueue, int, bytes]]) -> None:
        """Write one frame; an item is a queue, the offset of its first unit, and its units."""
        parts: list[bytes] = [b""]
        for queue, first, units in batch:
            topic = queue.topic_part
            parts += (_ENTRY.pack(queue.queue_id, first, len(units), len(topic)), topic, units)
        payload = b"".join(parts)
        if self._file is None:
            self._file = self._disk.open_random(self._path(self._volume), 0, create=True)
        frame = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        self._file.write(self.volume_bytes, frame)
        self.volume_bytes += len(frame)

    def roll(self) -> int:
        """Begin a new volume with the next frame; return the volume's number."""
        if self._file is not None:
            self._file = None
            self._volume += 1
            self.volume_bytes = 0
        return self._volume

    def drop_below(self, volume: int) -> None:
        """Delete the volumes below a number; the queues' files have their units."""
        while self._oldest < volume:
            self._disk.remove(self._path(self._oldest))
            self._oldest += 1

    def close(self) -> None:
        """Close the file."""
        self._file = None

    def _path(self, volume: int) -> str:
        return _path(self._root, self.generation, volume)


def _path(root: str, generation: int, volume: int) -> str:
    return f"{root}/{UNIT_JOURNAL_NAME}.{generation}.{volume}"


def _volumes(disk: Disk, root: str) -> list[tuple[int, int]]:
    """Return generation and number of every volume on the disk, in order."""
    volumes: list[tuple[int, int]] = []
    for name in disk.listdir(root):
        if name.startswith(f"{UNIT_JOURNAL_NAME}."):
            parts = name.split(".")[2:]
            if len(parts) == 2 and all(part.isascii() and part.isdigit() for part in parts):
                volumes.append((int(parts[0]), int(parts[1])))
    return sorted(volumes)


def journal_generations(disk: Disk, root: str) -> set[int]:
    """Return the generations of all volumes on the disk."""
    return {generation for generation, _ in _volumes(disk, root)}


def remove_journals(disk: Disk, root: str, *, but: int | None = None) -> None:
    """Delete the volumes of all generations but `but`."""
    for generation, volume in _volumes(disk, root):
        if generation != but:
            disk.remove(_path(root, generation, volume))


def saved_units(disk: Disk, root: str, generation: int) -> Iterator[SavedUnits]:
    """Yield the units of a generation in the order of writing; files may have some of them."""
    for volume_generation, volume in _volumes(disk, root):
        if volume_generation != generation:
            continue
        raw = disk.read_bytes(_path(root, generation, volume))
        position = 0
        while position + _FRAME.size <= len(raw):
            length, crc = _FRAME.unpack_from(raw, position)
            position += _FRAME.size
            payload = raw[position : position + length]
            if len(payload) != length or not length or zlib.crc32(payload) != crc:
                # The process died while it wrote this frame.
                break
            yield from _entries(payload)
            position += length


def _entries(payload: bytes) -> Iterator[SavedUnits]:
    position = 0
    while position < len(payload):
        queue_id, first, unit_bytes, topic_bytes = _ENTRY.unpack_from(payload, position)
        position += _ENTRY.size
        units = position + topic_bytes
        is_long = topic_bytes - _SHORT_HEAD_BYTES > TOPIC_BYTES_MAX_V1
        topic = payload[position + (_LONG_HEAD_BYTES if is_long else _SHORT_HEAD_BYTES) : units]
        position = units + unit_bytes
        yield topic.decode(), queue_id, first, payload[units:position]
