"""Consume queues: per (topic, queue id) the 20-byte units that point into the commit log.

File set (docs/internals/store.md#consume-queue), every file full-size and sparse, named by its
first byte in the queue::

    consumequeue/<topic>/<queue id>/00000000000000000000   [unit][unit]...[zeros]

A queue in memory is a few numbers and its *tail*: the units not yet written to the file.  The
writer (writer.py) writes tails in batches and drops what it wrote, so an idle queue costs
neither a descriptor nor a mapping nor a buffer.  Descriptors for reading are kept in a small LRU.

Durable when: a unit is in the page cache after its batch was written, about a second after its
message; until then recovery derives it from the log again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES, CqUnit
from cometmq.codec.stored_message import (
    FIXED_BYTES_V1,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_BYTES_MAX_V1,
)
from cometmq.store.log.commit_log import log_file_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.model.offsets import QueueOffset
    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, RandomFile

__all__ = ["TAIL_LOCK", "ConsumeQueue", "ConsumeQueues", "hold", "queue_id_of", "release"]

# Descriptors kept for reading: more than the queues one busy group reads at a time.
_READ_FILES_MAX: Final = 128
# Units read ahead for the next pulls, and the queues for which they are kept: 2.5 MiB at most.
_AHEAD_UNITS: Final = 512
_AHEAD_QUEUES_MAX: Final = 256
_NOTHING_AHEAD: Final = (0, b"")
TAIL_LOCK: Final = threading.Lock()
"""Held while a tail's beginning moves, and while a worker reads a tail and `written`."""
_QUEUE_ID_MAX: Final = (1 << 31) - 1


def queue_id_of(name: str) -> int | None:
    """Return the queue id that a directory name stands for; None for others, which Java ignores."""
    if not name.isascii() or not name.removeprefix("-").isdigit():
        return None
    value = int(name)
    return value if str(value) == name and 0 <= value <= _QUEUE_ID_MAX else None


class ConsumeQueue:
    """One queue: `min <= written <= max` in queue offsets, and constant parts of its records."""

    __slots__ = (
        "awaited",
        "dirty_ms",
        "dirty_position",
        "first_start",
        "fixed_bytes",
        "hold_limit",
        "is_dirty",
        "is_gone",
        "is_kept",
        "is_watched",
        "last_physical_end",
        "magic",
        "max",
        "min",
        "min_checked_at",
        "path",
        "queue_id",
        "saved",
        "tail",
        "topic",
        "topic_part",
        "visible",
        "written",
    )

    def __init__(self, topic: str, queue_id: int, path: str) -> None:
        raw = topic.encode()
        is_v2 = len(raw) > TOPIC_BYTES_MAX_V1
        self.topic = topic
        self.queue_id = queue_id
        self.path = path
        self.magic = MAGIC_V2 if is_v2 else MAGIC_V1
        self.topic_part = len(raw).to_bytes(2 if is_v2 else 1, "big") + raw
        self.fixed_bytes = FIXED_BYTES_V1 - 1 + len(self.topic_part)
        self.max = 0
        """Queue offset of the next message."""
        self.visible = 0
        """Readers see offsets below this: `max`, or less while a flush is awaited."""
        self.min = 0
        self.min_checked_at = -1
        """Begin of the log for which `min` was found."""
        self.written = 0
        """Units below this are in the files; `tail` holds the others."""
        self.saved = 0
        """Units below this are in the files or in the unit journal (if it is above `written`)."""
        self.is_kept = False
        """Whether the tail has units that are in the unit journal only."""
        self.tail = bytearray()
        self.is_dirty = False
        self.dirty_ms = 0
        self.dirty_position = 0
        """All units of records below this physical offset are written."""
        self.first_start = 0
        """First byte of the queue's oldest file."""
        self.last_physical_end = 0
        """End of the last record known from the files at load (recovery)."""
        self.is_watched = False
        self.is_gone = False
        self.hold_limit = 0
        """Of a held queue: readers see no offset from here on."""
        self.awaited = 0
        """Of a held queue: what `visible` will be when it is released."""

    @property
    def fits(self) -> bool:
        """Whether the topic is short enough for a record."""
        return len(self.topic_part) <= 257


_VISIBLE: Final = ConsumeQueue.__dict__["visible"]
_IS_WATCHED: Final = ConsumeQueue.__dict__["is_watched"]


class _HeldQueue(ConsumeQueue):
    """A queue whose readers see no further than `hold_limit`.

    Messages are put as always, at full speed and with the same code: only while a queue is of
    this class does a step of its visible end cost more than a store.
    """

    __slots__ = ()

    @property
    def visible(self) -> int:
        visible: int = _VISIBLE.__get__(self)
        return visible

    @visible.setter
    def visible(self, value: int) -> None:
        self.awaited = value
        _VISIBLE.__set__(self, min(value, self.hold_limit))

    @property
    def is_watched(self) -> bool:
        # The listener hears of messages that became visible, not of held ones.
        return _IS_WATCHED.__get__(self) and self.awaited <= self.hold_limit

    @is_watched.setter
    def is_watched(self, value: bool) -> None:
        _IS_WATCHED.__set__(self, value)


def hold(queue: ConsumeQueue, limit: int) -> None:
    """Let readers of a queue see no queue offset from `limit` on, whatever is put."""
    visible = queue.visible
    queue.hold_limit = limit
    queue.__class__ = _HeldQueue
    queue.visible = visible


def release(queue: ConsumeQueue) -> None:
    """Let readers see new messages again, and those that were put since `hold`."""
    if type(queue) is not ConsumeQueue:
        queue.__class__ = ConsumeQueue
        queue.visible = queue.awaited


def end_without_hold(queue: ConsumeQueue) -> int:
    """Return the queue offset up to which readers would see a queue that was not held."""
    return queue.visible if type(queue) is ConsumeQueue else queue.awaited


class ConsumeQueues:
    """All queues of a store, and their files for reading."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.path = f"{config.root}/consumequeue"
        self.file_bytes = config.queue_file_bytes
        self.topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._disk = disk
        self._files: dict[str, RandomFile] = {}
        self._kept: dict[ConsumeQueue, tuple[int, bytes]] = {}
        # Held for moments: searches in workers open files too.
        self._files_lock = threading.Lock()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self.topics.values():
            yield from queues.values()

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None when it was never written."""
        queues = self.topics.get(topic)
        return None if queues is None else queues.get(queue_id)

    def add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Make an empty queue in memory; its directory follows with its first unit."""
        queue = ConsumeQueue(topic, queue_id, f"{self.path}/{topic}/{queue_id}")
        self.topics.setdefault(topic, {})[queue_id] = queue
        return queue

    def remove_topic(self, topic: str) -> list[ConsumeQueue]:
        """Drop a topic's queues from memory; the writer deletes their files."""
        queues = list(self.topics.pop(topic, {}).values())
        for queue in queues:
            queue.is_gone = True
            self.forget_files(queue.path)
        return queues

    def forget_files(self, prefix: str) -> None:
        """Close read descriptors below a directory."""
        with self._files_lock:
            for path in [path for path in self._files if path.startswith(f"{prefix}/")]:
                del self._files[path]
            for queue in [queue for queue in self._kept if f"{queue.path}/".startswith(prefix)]:
                self._kept.pop(queue, None)

    def units(
        self, queue: ConsumeQueue, first: int, count: int, *, may_block: bool
    ) -> bytes | None:
        """Return raw bytes of `count` units from queue offset `first`; None when reading may block.

        Fewer come back where a file is missing or was cut.  Safe in a worker.
        """
        # A caller that may block wants the file's own bytes, to check or to repair them.
        if not may_block and first + count <= queue.written:
            kept_first, kept = self._kept.get(queue, _NOTHING_AHEAD)
            begin = (first - kept_first) * CQ_UNIT_BYTES
            if begin >= 0 and begin + count * CQ_UNIT_BYTES <= len(kept):
                return kept[begin : begin + count * CQ_UNIT_BYTES]
            if count < _AHEAD_UNITS:
                ahead = self._read_ahead(queue, first, count)
                if ahead is not None:
                    return ahead
        with TAIL_LOCK:
            start = first - queue.written
            if start >= 0:
                return bytes(queue.tail[start * CQ_UNIT_BYTES : (start + count) * CQ_UNIT_BYTES])
            in_files = min(count, -start)
            tail = bytes(queue.tail[: (count - in_files) * CQ_UNIT_BYTES])
        parts: list[bytes] = []
        position = first * CQ_UNIT_BYTES
        remaining = in_files * CQ_UNIT_BYTES
        while remaining:
            file_position = position % self.file_bytes
            length = min(remaining, self.file_bytes - file_position)
            file = self.open_file(queue, position - file_position)
            if file is None:
                return b"".join(parts)
            data = None if may_block else file.read_resident(file_position, length)
            if data is None:
                if not may_block:
                    return None
                data = file.read(file_position, length)
            parts.append(bytes(data))
            if len(data) < length:
                return b"".join(parts)
            position += length
            remaining -= length
        if in_files < count:
            parts.append(tail)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_ahead(self, queue: ConsumeQueue, first: int, count: int) -> bytes | None:
        """Return units from `first` on, and keep the following ones for the next pulls.

        A consumer that is behind reads a queue from end to end, 32 units at a time, so one system
        call serves many pulls.  None when they are not all in memory, or a file ends before.
        """
        position = first * CQ_UNIT_BYTES
        file_position = position % self.file_bytes
        length = min(
            _AHEAD_UNITS * CQ_UNIT_BYTES,
            self.file_bytes - file_position,
            (queue.written - first) * CQ_UNIT_BYTES,
        )
        wanted = count * CQ_UNIT_BYTES
        file = self.open_file(queue, position - file_position) if length >= wanted else None
        data = None if file is None else file.read_resident(file_position, length)
        if data is None or len(data) < length:
            return None
        kept = bytes(data)
        if len(self._kept) >= _AHEAD_QUEUES_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[queue] = first, kept
        return kept[:wanted]

    def unit(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> CqUnit | None:
        """Return one unit (may block on a cold page); None where its file is missing or cut."""
        raw = self.units(queue, queue_offset, 1, may_block=True)
        if raw is None or len(raw) < CQ_UNIT_BYTES:
            return None
        return CqUnit._make(CQ_UNIT.unpack(raw))

    def rewrite(self, queue: ConsumeQueue, queue_offset: QueueOffset, unit: CqUnit) -> None:
        """Correct one unit in place."""
        data = CQ_UNIT.pack(*unit)
        self._kept.pop(queue, None)
        if queue_offset >= queue.written:
            at = (queue_offset - queue.written) * CQ_UNIT_BYTES
            queue.tail[at : at + CQ_UNIT_BYTES] = data
            return
        position = queue_offset * CQ_UNIT_BYTES
        file_position = position % self.file_bytes
        file = self.open_file(queue, position - file_position)
        if file is not None:
            file.write(file_position, data)

    def open_file(self, queue: ConsumeQueue, start: int) -> RandomFile | None:
        """Return the queue's file that begins at byte `start`; None when it is missing."""
        path = f"{queue.path}/{log_file_name(start)}"
        files = self._files
        with self._files_lock:
            file = files.pop(path, None)
            if file is None:
                try:
                    file = self._disk.open_random(path, self.file_bytes, create=False)
                except FileNotFoundError:
                    return None
                if len(files) >= _READ_FILES_MAX:
                    # Dropping the reference closes it, unless a worker still reads.
                    del files[next(iter(files))]
            files[path] = file
        return file

    def close(self) -> None:
        """Drop all read descriptors."""
        self._files.clear()
