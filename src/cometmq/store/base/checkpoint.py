"""Two small files that record the store's progress: Java's `checkpoint` and our side file.

`checkpoint` (4096 bytes of store times; codec/checkpoint.py) is for a Java broker that opens the
directory after us.

`cometmq.checkpoint`, the *side file*, holds positions and the ends of queues, so that a restart
reads only the end of the log.  Java ignores it and may have written to the store meanwhile, so
recovery checks that the side file fits the store before using it (recovery/side_trust.py).  The
file is a base frame, written atomically, and change frames, appended about once a second::

    0      4      8
    |length|crc32 |payload ...|     crc32 over the payload; the first broken frame ends the file
    payload: kind 1, then
      base   (1)  heading text (JSON), progress, queues
      change (2)  progress, queues
      floor  (3)  topic text, physical offset: the topic was deleted when the log ended there

Queues are numbered from 0 in the order in which the file names them.  Every frame described the
page cache correctly when it was appended, so all its values hold after the process dies.  After a
power cut (the boot id has changed) only `flushed` and the `synced` positions hold.

This code runs in a worker, or at load and close.  The loop only passes numbers to it.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.codec.checkpoint import (
    CHECKPOINT_BYTES,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from cometmq.errors import CodecError

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk, RandomFile

__all__ = [
    "SIDE_FILE_NAME",
    "JavaCheckpoint",
    "QueueEnd",
    "SideFile",
    "SideState",
    "StoreProgress",
    "fingerprint",
    "load_side_file",
]

SIDE_FILE_NAME: Final = "cometmq.checkpoint"
_FORMAT: Final = 1
_FRAME: Final = struct.Struct(">II")
_KIND_BASE: Final = 1
_KIND_CHANGE: Final = 2
_KIND_FLOOR: Final = 3
# The fields of StoreProgress.
_PROGRESS: Final = struct.Struct(">qqqqqqqqqqqB")
_COUNT: Final = struct.Struct(">I")
# Queue number, queue offset of the end, physical end of the last record, length of the name (0 for
# a queue that was named before).
_QUEUE: Final = struct.Struct(">IqqH")
_FLOOR: Final = struct.Struct(">qH")
# A new base replaces base and changes when the changes are larger than both of these limits.
_CHANGE_BYTES_MAX: Final = 1 << 20
_CHANGE_BASES_MAX: Final = 4
# The head of a record up to its body: times, hosts and offsets make it unique.
FINGERPRINT_BYTES: Final = 88


class StoreProgress(NamedTuple):
    """The progress of each part of the store; a position is a physical offset."""

    derived: int = 0
    """The units of all records below this position are in queue files or the unit journal."""
    flushed: int = 0
    """The log is on stable storage up to this position."""
    synced: int = 0
    """The units of all records below this position are on stable storage."""
    indexed: int = 0
    """The index entries of all records below this position are in index files."""
    index_synced: int = 0
    """The index entries of all records below this position are on stable storage."""
    index_end: int = -1
    """Physical offset in the newest index entry, -1 for none."""
    index_slots_count: int = 0
    """Entries of the newest index file below this number are in its slot table on disk."""
    log_min: int = 0
    """Where the log begins."""
    mark: int = -1
    """Physical offset of a record near `flushed`, to recognise the log by; -1 for none."""
    mark_crc: int = 0
    """CRC-32 of that record's head."""
    physic_ms: int = 0
    """physicMsgTimestamp of `checkpoint`, which is written just after this frame."""
    is_clean: int = 0
    """1 after a clean stop."""


class QueueEnd(NamedTuple):
    """Where the units in a queue's files end."""

    end: int
    """Queue offset behind the last unit."""
    last_physical_end: int
    """Physical offset behind the record of the last unit."""


@dataclass(slots=True)
class SideState:
    """The content of a side file."""

    heading: dict[str, Any] = field(default_factory=dict)
    """Who wrote the file (process id, boot id), the file sizes, and the unit journal's number."""
    progress: StoreProgress = field(default_factory=StoreProgress)
    """The progress in the last frame."""
    previous_physic_ms: int = -1
    """`progress.physic_ms` of the frame before the last one."""
    queues: dict[tuple[str, int], QueueEnd] = field(default_factory=dict)
    """By topic and queue id: where the queue ends."""
    floors: dict[str, int] = field(default_factory=dict)
    """By deleted topic: records below this physical offset no longer belong to the topic."""


def fingerprint(head: bytes | memoryview) -> int:
    """Return the CRC-32 of a record's head, -1 when it is too short for one."""
    return zlib.crc32(head[:FINGERPRINT_BYTES]) if len(head) >= FINGERPRINT_BYTES else -1


def load_side_file(disk: Disk, path: str) -> SideState | str:
    """Read the side file; return a sentence that says why when it is absent or broken."""
    try:
        raw = disk.read_bytes(path)
    except OSError:
        return f"{path} is absent"
    names: list[tuple[str, int]] = []
    state = SideState()
    position = 0
    while position + _FRAME.size <= len(raw):
        length, crc = _FRAME.unpack_from(raw, position)
        payload = raw[position + _FRAME.size : position + _FRAME.size + length]
        if len(payload) != length or not length or zlib.crc32(payload) != crc:
            break
        try:
            _apply(state, names, payload)
        except (struct.error, IndexError, ValueError, KeyError):
            break
        position += _FRAME.size + length
    if not state.heading:
        return f"{path} is broken at position {position}"
    if state.heading.get("format") != _FORMAT:
        return f"{path} has format {state.heading.get('format')}, expected {_FORMAT}"
    return state


def _apply(state: SideState, names: list[tuple[str, int]], payload: bytes) -> None:
    """Apply one frame to `state`; `names` maps queue numbers to topic and queue id."""
    kind = payload[0]
    position = 1
    if kind == _KIND_FLOOR:
        offset, length = _FLOOR.unpack_from(payload, position)
        topic = payload[position + _FLOOR.size :][:length].decode()
        state.floors[topic] = offset
        for key in [key for key in state.queues if key[0] == topic]:
            del state.queues[key]
        return
    if kind == _KIND_BASE:
        (length,) = _COUNT.unpack_from(payload, position)
        position += _COUNT.size
        state.heading = json.loads(payload[position : position + length])
        state.floors = dict(state.heading.get("floors", {}))
        position += length
    state.previous_physic_ms = state.progress.physic_ms
    state.progress = StoreProgress._make(_PROGRESS.unpack_from(payload, position))
    position += _PROGRESS.size
    (count,) = _COUNT.unpack_from(payload, position)
    position += _COUNT.size
    for _ in range(count):
        number, end, last, name_bytes = _QUEUE.unpack_from(payload, position)
        position += _QUEUE.size
        if name_bytes:
            topic, _, queue_id = payload[position : position + name_bytes].decode().rpartition("/")
            position += name_bytes
            if number != len(names):
                raise ValueError(f"queue number {number} out of turn")
            names.append((topic, int(queue_id)))
        state.queues[names[number]] = QueueEnd(end, last)


class SideFile:
    """The writer of `cometmq.checkpoint`; used by one thread at a time."""

    def __init__(self, disk: Disk, root: str, heading: dict[str, Any]) -> None:
        self._disk = disk
        self._path = f"{root}/{SIDE_FILE_NAME}"
        self.heading = {"format": _FORMAT, **heading}
        """Which process writes, and the store's file sizes."""
        self._numbers: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], QueueEnd] = {}
        self._floors: dict[str, int] = {}
        self._file: RandomFile | None = None
        self._position = 0
        self._base_bytes = 0
        self._progress = StoreProgress()

    def write_base(
        self,
        progress: StoreProgress,
        queues: dict[tuple[str, int], QueueEnd],
        floors: dict[str, int],
        units_generation: int | None = None,
    ) -> None:
        """Replace the file by one base frame, durably.

        Args:
            units_generation: the number of the unit journal that belongs to the file from now on.
        """
        if units_generation is not None:
            self.heading["units_generation"] = units_generation
        self._progress = progress
        self._ends = dict(queues)
        self._floors = {
            topic: offset for topic, offset in floors.items() if offset > progress.log_min
        }
        self._numbers = {}
        heading = json.dumps({**self.heading, "floors": self._floors}).encode()
        payload = b"".join(
            (
                bytes((_KIND_BASE,)),
                _COUNT.pack(len(heading)),
                heading,
                _PROGRESS.pack(*progress),
                self._encode_queues(self._ends),
            )
        )
        raw = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        self._file = None
        self._disk.write_atomic(self._path, raw)
        self._file = self._disk.open_random(self._path, len(raw), create=False)
        self._position = self._base_bytes = len(raw)

    def append(self, progress: StoreProgress, changed: dict[tuple[str, int], QueueEnd]) -> None:
        """Append a frame with the progress and the queues that have changed since the last one."""
        self._progress = progress
        self._ends.update(changed)
        limit = max(_CHANGE_BYTES_MAX, _CHANGE_BASES_MAX * self._base_bytes)
        if self._file is None or self._position - self._base_bytes > limit:
            self.write_base(progress, self._ends, self._floors)
            return
        self._append(
            bytes((_KIND_CHANGE,)) + _PROGRESS.pack(*progress) + self._encode_queues(changed)
        )

    def append_removed(self, topic: str, queue_id: int) -> None:
        """Record that a queue was removed because all its messages have expired."""
        self.append(self._progress, {(topic, queue_id): QueueEnd(0, 0)})

    def append_floor(self, topic: str, physical_offset: int) -> None:
        """Record that a topic was deleted: records below this offset no longer belong to it."""
        self._floors[topic] = physical_offset
        for key in [key for key in self._ends if key[0] == topic]:
            del self._ends[key]
        raw = topic.encode()
        self._append(bytes((_KIND_FLOOR,)) + _FLOOR.pack(physical_offset, len(raw)) + raw)

    def _append(self, payload: bytes) -> None:
        if self._file is None:
            return
        raw = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        self._file.write(self._position, raw)
        self._position += len(raw)

    def _encode_queues(self, queues: dict[tuple[str, int], QueueEnd]) -> bytes:
        numbers = self._numbers
        parts = [_COUNT.pack(len(queues))]
        for key, (end, last) in queues.items():
            number = numbers.get(key)
            if number is None:
                name = f"{key[0]}/{key[1]}".encode()
                parts.append(_QUEUE.pack(len(numbers), end, last, len(name)) + name)
                numbers[key] = len(numbers)
            else:
                parts.append(_QUEUE.pack(number, end, last, 0))
        return b"".join(parts)

    def sync(self) -> None:
        """Bring the appended frames to stable storage."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file = None


class JavaCheckpoint:
    """The file `checkpoint`, which a Java broker reads."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/checkpoint"
        self._file: RandomFile | None = None
        self.value = Checkpoint()

    def load(self) -> Checkpoint:
        """Read the file; return zeros when it is absent or cut (Java then reads the whole log)."""
        try:
            self.value = decode_checkpoint(self._disk.read_bytes(self._path))
        except (OSError, CodecError):
            self.value = Checkpoint()
        return self.value

    def store(self, value: Checkpoint) -> None:
        """Write the file in place if the value has changed, as Java does."""
        if value == self.value and self._file is not None:
            return
        if self._file is None:
            self._file = self._disk.open_random(self._path, CHECKPOINT_BYTES, create=True)
        self._file.write(0, encode_checkpoint(value)[:40])
        self.value = value

    def sync(self) -> None:
        """Bring the file to stable storage."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file = None
