"""Consume queues: for each topic and queue id, the 20-byte units that point into the commit log.

The files (docs/internals/store.md#consume-queue) are sparse, have one size, and are named by their
first byte in the queue::

    consumequeue/<topic>/<queue id>/00000000000000000000   [unit][unit]...[zeros]

A queue in memory is a few numbers and its *tail*: the units that are not in a file yet.  The writer
(writer.py) writes tails in batches and then drops them, so an idle queue costs no descriptor, no
mapping and no buffer.  Descriptors for reading are in a small LRU cache.

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

# Open descriptors for reading: more than the queues one busy group reads at a time.
_READ_FILES_MAX: Final = 128
# Units read ahead for the next pulls, more than one by tags examines (filter_units_max), and queues
# with such units: 2.5 MiB at most.
_AHEAD_UNITS: Final = 1024
_AHEAD_QUEUES_MAX: Final = 128
_NOTHING_AHEAD: Final = (0, b"")
TAIL_LOCK: Final = threading.Lock()
"""Guards `tail` together with `written`: against dropping written units while a worker reads."""
_QUEUE_ID_MAX: Final = (1 << 31) - 1


def queue_id_of(name: str) -> int | None:
    """Return the queue id that a directory name states; None for other names, as in Java."""
    if not name.isascii() or not name.removeprefix("-").isdigit():
        return None
    value = int(name)
    return value if str(value) == name and 0 <= value <= _QUEUE_ID_MAX else None


class ConsumeQueue:
    """One queue: `min <= written <= max` in queue offsets, and the constant parts of its records.

    The units below `written` are in files, the others in `tail`.
    """

    __slots__ = (
        "awaited",
        "dirty_ms",
        "dirty_position",
        "first_start",
        "fixed_bytes",
        "hold_limit",
        "is_dirty",
        "is_gone",
        "is_journaled",
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
        """First queue offset whose record the log had when it began at `min_checked_at`."""
        self.min_checked_at = -1
        """Physical offset of the log's begin when `min` was computed, -1 before."""
        self.written = 0
        """Units below this are in files, the others in `tail`."""
        self.saved = 0
        """Where above `written`: units below this are in files or in the unit journal."""
        self.is_journaled = False
        """Whether the queue waits for the writer's pass, with units only the journal has."""
        self.tail = bytearray()
        self.is_dirty = False
        """Whether the queue is in the writer's list of queues with unsaved units."""
        self.dirty_ms = 0
        """When the queue got into the writer's list, or was last written."""
        self.dirty_position = 0
        """The units of all records of the queue below this physical offset are saved."""
        self.first_start = 0
        """Position in the queue of the first byte of its oldest file."""
        self.last_physical_end = 0
        """Physical end of the last filed unit's record, as it was written (a disk may change it);
        while recovery scans, of the queue's last unit."""
        self.is_watched = False
        """Whether the arrival listener is called for new visible messages."""
        self.is_gone = False
        """Whether the queue was removed from the store; a worker may still have the object."""
        self.hold_limit = 0
        """While held: readers see no offset from here on."""
        self.awaited = 0
        """While held: what `visible` becomes when the queue is released."""

    @property
    def fits(self) -> bool:
        """Whether the topic is short enough for a record."""
        return len(self.topic_part) <= 257


_VISIBLE: Final = ConsumeQueue.__dict__["visible"]
_IS_WATCHED: Final = ConsumeQueue.__dict__["is_watched"]


class _HeldQueue(ConsumeQueue):
    """A queue whose readers see no offset from `hold_limit` on.

    Messages are put with the same code as always.  Setting `visible` costs more only while a queue
    is of this class.
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
        # The listener is called for messages that became visible, not for held ones.
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
    """Let readers see new messages and those that were put since `hold`."""
    if type(queue) is not ConsumeQueue:
        queue.__class__ = ConsumeQueue
        queue.visible = queue.awaited


def end_without_hold(queue: ConsumeQueue) -> int:
    """Return the queue offset up to which readers see the queue, or would if it was not held."""
    return queue.visible if type(queue) is ConsumeQueue else queue.awaited


class ConsumeQueues:
    """All queues of a store, and their files for reading."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.path = f"{config.root}/consumequeue"
        self.file_bytes = config.queue_file_bytes
        self.topics: dict[str, dict[int, ConsumeQueue]] = {}
        self._disk = disk
        self._files: dict[str, RandomFile] = {}
        self._units_ahead: dict[ConsumeQueue, tuple[int, bytes]] = {}
        """Units read ahead: the queue offset of the first one, and their bytes."""
        # Workers open files too, for searches.
        self._files_lock = threading.Lock()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self.topics.values():
            yield from queues.values()

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None when it was never written."""
        queues = self.topics.get(topic)
        return None if queues is None else queues.get(queue_id)

    def add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Make an empty queue in memory; the writer makes its directory with the first unit."""
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
            ahead = self._units_ahead
            for queue in [queue for queue in ahead if f"{queue.path}/".startswith(prefix)]:
                ahead.pop(queue, None)

    def units(
        self, queue: ConsumeQueue, first: int, count: int, *, may_block: bool
    ) -> bytes | None:
        """Return the bytes of `count` units from queue offset `first`; None when it would block.

        Returns fewer bytes where a file is missing or was cut.  Safe in a worker.
        """
        # A caller that may block checks or repairs the file, so it gets the file's own bytes.
        if not may_block and first + count <= queue.written:
            ahead_first, ahead_bytes = self._units_ahead.get(queue, _NOTHING_AHEAD)
            begin = (first - ahead_first) * CQ_UNIT_BYTES
            if begin >= 0 and begin + count * CQ_UNIT_BYTES <= len(ahead_bytes):
                return ahead_bytes[begin : begin + count * CQ_UNIT_BYTES]
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
        """Return units from `first` on, and store the following ones for the next pulls.

        A consumer that catches up reads all units of a queue, 32 at a time, so one system call
        serves many pulls.  Returns None when the file ends earlier, or a read would block.
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
        ahead_bytes = bytes(data)
        if len(self._units_ahead) >= _AHEAD_QUEUES_MAX:
            del self._units_ahead[next(iter(self._units_ahead))]
        self._units_ahead[queue] = first, ahead_bytes
        return ahead_bytes[:wanted]

    def unit(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> CqUnit | None:
        """Return one unit; None where its file is missing or was cut.  May block."""
        raw = self.units(queue, queue_offset, 1, may_block=True)
        if raw is None or len(raw) < CQ_UNIT_BYTES:
            return None
        return CqUnit._make(CQ_UNIT.unpack(raw))

    def rewrite(self, queue: ConsumeQueue, queue_offset: QueueOffset, unit: CqUnit) -> None:
        """Correct one unit in place."""
        data = CQ_UNIT.pack(*unit)
        self._units_ahead.pop(queue, None)
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
                    # The last reference closes the file, so a worker that reads may finish.
                    del files[next(iter(files))]
            files[path] = file
        return file

    def close(self) -> None:
        """Drop all read descriptors."""
        self._files.clear()
