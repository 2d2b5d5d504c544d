"""The timer log: one unit for each timed message that was added to a slot.

The files ``timerlog/%020d`` have one size; `cometmq.codec.timer` has the layout of units and of a
file's end.  Units stay in memory until `TimerBook` has written them.  A position counts all bytes
of all files before it, the unused ends of files included.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from cometmq.codec.timer import (
    MAGIC_TIMER_BLANK,
    TIMER_LOG_UNIT,
    TIMER_LOG_UNIT_BYTES,
    TimerLogUnit,
    encode_timer_log_blank,
)
from cometmq.store.recovery.file_sizes import size_of_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from cometmq.store.base.disk import Disk, RandomFile
    from cometmq.store.timer.wheel import Slot

__all__ = [
    "TIMER_LOG_BLANK_BYTES",
    "TIMER_LOG_NAME_DIGITS",
    "SlotUnits",
    "TimerLog",
    "TimerLogReader",
]

TIMER_LOG_NAME_DIGITS: Final = 20
TIMER_LOG_BLANK_BYTES: Final = 16
_MAGIC_MASK: Final = 0xF
_BLOCK_UNITS: Final = 4096
_BLOCK_BYTES: Final = _BLOCK_UNITS * TIMER_LOG_UNIT_BYTES
_CHAIN_UNITS_MIN: Final = 16 * _BLOCK_UNITS
"""A slot that spans more units than this, and owns few of them, is read along its chain."""
_CHAIN_SHARE: Final = 32
_FIELDS: Final = [
    ("size", ">i4"),
    ("previous", ">i8"),
    ("magic", ">i4"),
    ("write_ms", ">i8"),
    ("delay_ms", ">i4"),
    ("physical_offset", ">i8"),
    ("bytes", ">i4"),
    ("hash", ">i4"),
    ("reserved", ">i8"),
]


class SlotUnits:
    """The units of one slot, oldest first, in arrays instead of one object each."""

    __slots__ = ("magics", "physical_offsets", "positions", "sizes", "write_times_ms")

    def __init__(self) -> None:
        self.positions = array("q")
        self.magics = array("i")
        self.write_times_ms = array("q")
        self.physical_offsets = array("q")
        self.sizes = array("i")

    def __len__(self) -> int:
        return len(self.physical_offsets)

    def add(self, position: int, unit: TimerLogUnit) -> None:
        """Append a unit."""
        self.positions.append(position)
        self.magics.append(unit.magic)
        self.write_times_ms.append(unit.write_time_ms)
        self.physical_offsets.append(unit.physical_offset)
        self.sizes.append(unit.message_bytes)


class TimerLogReader:
    """Reads units, also those that were not written when the reader was made.  For one thread.

    Args:
        pieces: position and bytes of the units that are in memory only.
    """

    def __init__(
        self, disk: Disk, folder: str, file_bytes: int, pieces: list[tuple[int, bytes]]
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._file_bytes = file_bytes
        self._pieces = pieces
        self._files: dict[int, RandomFile] = {}
        self._block = (0, b"")

    def read(self, position: int, length: int) -> bytes:
        """Return bytes from a position on; fewer at the end of a file or of the log."""
        for start, piece in self._pieces:
            if start <= position < start + len(piece):
                return piece[position - start : position - start + length]
            if position < start < position + length:
                length = start - position
        start = position // self._file_bytes * self._file_bytes
        file = self._file(start)
        if file is None:
            return b""
        return file.read(position - start, min(length, start + self._file_bytes - position))

    def _file(self, start: int) -> RandomFile | None:
        file = self._files.get(start)
        if file is None:
            path = f"{self._folder}/{start:0{TIMER_LOG_NAME_DIGITS}d}"
            if not self._disk.exists(path):
                return None
            file = self._disk.open_random(path, self._file_bytes, create=False)
            self._files[start] = file
        return file

    def slot(self, slot_ms: int, slot: Slot) -> SlotUnits:
        """Return all units of a slot.

        Where the slot owns many of the units it spans, all are read in one go; else its chain is
        followed.
        """
        reach = (slot.last - slot.first) // TIMER_LOG_UNIT_BYTES + 1
        if reach > _CHAIN_UNITS_MIN and reach > slot.message_count * _CHAIN_SHARE:
            return self._follow(slot)
        return self._sweep(slot_ms, slot)

    def _sweep(self, slot_ms: int, slot: Slot) -> SlotUnits:
        import numpy as np

        slot_units = SlotUnits()
        for position, raw in self.blocks(slot.first, slot.last + TIMER_LOG_UNIT_BYTES):
            units = np.frombuffer(raw, np.dtype(_FIELDS))
            hits = np.flatnonzero(units["write_ms"] + units["delay_ms"] == slot_ms)
            chosen = units[hits]
            positions = position + hits.astype(np.int64) * TIMER_LOG_UNIT_BYTES
            slot_units.positions.frombytes(positions.tobytes())
            slot_units.magics.frombytes(chosen["magic"].astype(np.intc).tobytes())
            slot_units.write_times_ms.frombytes(chosen["write_ms"].astype(np.int64).tobytes())
            slot_units.physical_offsets.frombytes(
                chosen["physical_offset"].astype(np.int64).tobytes()
            )
            slot_units.sizes.frombytes(chosen["bytes"].astype(np.intc).tobytes())
        return slot_units

    def blocks(self, position: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the sound units from a position to an end: position and bytes of runs of them."""
        import numpy as np

        while position < end:
            raw = self.read(position, min(_BLOCK_BYTES, end - position))
            whole = len(raw) // TIMER_LOG_UNIT_BYTES * TIMER_LOG_UNIT_BYTES
            units = np.frombuffer(raw[:whole], np.dtype(_FIELDS))
            is_sound = (units["size"] == TIMER_LOG_UNIT_BYTES) & (
                units["magic"] & ~_MAGIC_MASK == 0
            )
            count = len(units) if is_sound.all() else int(np.argmin(is_sound))
            if count:
                yield position, raw[: count * TIMER_LOG_UNIT_BYTES]
                position += count * TIMER_LOG_UNIT_BYTES
            if count == len(units) and count:
                continue
            # The blank follows the last unit of a file, if there is room for one.
            head = raw[count * TIMER_LOG_UNIT_BYTES :][:TIMER_LOG_BLANK_BYTES]
            following = (position // self._file_bytes + 1) * self._file_bytes
            is_blank = len(head) == TIMER_LOG_BLANK_BYTES and (
                int.from_bytes(head[12:16], "big", signed=True) == MAGIC_TIMER_BLANK
            )
            is_expired = not raw and self._file(following - self._file_bytes) is None
            if (
                not (is_blank or is_expired)
                and following - position >= TIMER_LOG_UNIT_BYTES + TIMER_LOG_BLANK_BYTES
            ):
                return
            position = following

    def arrays(self, position: int, end: int) -> Iterator[np.ndarray]:
        """As `blocks`, as arrays with fields like ``write_ms`` and ``physical_offset``."""
        import numpy as np

        for _, raw in self.blocks(position, end):
            yield np.frombuffer(raw, np.dtype(_FIELDS))

    def _follow(self, slot: Slot) -> SlotUnits:
        chain: list[tuple[int, TimerLogUnit]] = []
        position = slot.last
        while position >= 0:
            unit = self.unit(position)
            if unit is None:
                break
            chain.append((position, unit))
            # A chain leads backwards; a damaged one could be a circle.
            position = unit.previous if unit.previous < position else -1
        slot_units = SlotUnits()
        for position, unit in reversed(chain):
            slot_units.add(position, unit)
        return slot_units

    def unit(self, position: int) -> TimerLogUnit | None:
        """Return the unit at a position; None without one (its file has expired)."""
        start, block = self._block
        if not start <= position <= start + len(block) - TIMER_LOG_UNIT_BYTES:
            file_start = position // self._file_bytes * self._file_bytes
            start = max(file_start, position - _BLOCK_BYTES + TIMER_LOG_UNIT_BYTES)
            length = position + TIMER_LOG_UNIT_BYTES - start
            block = self.read(start, length)
            if len(block) < length:
                start, block = position, self.read(position, TIMER_LOG_UNIT_BYTES)
            self._block = start, block
            if len(block) < TIMER_LOG_UNIT_BYTES:
                return None
        unit = TimerLogUnit._make(TIMER_LOG_UNIT.unpack_from(block, position - start))
        return unit if unit.is_valid else None


class TimerLog:
    """The end of the log: appends go here.

    Files keep the size that they were made with; `file_bytes` is for a new log.

    Raises:
        StoreCorrupt: they do not tell their size.
    """

    def __init__(self, disk: Disk, root: str, file_bytes: int) -> None:
        self._disk = disk
        self.folder = f"{root}/timerlog"
        self.file_bytes = size_of_row(disk, self.folder, "mappedFileSizeTimerLog", file_bytes)
        self.end = 0
        """Where the log ends; the next unit goes here or, after a blank, into the next file."""
        self.written = 0
        """Units below this position are in files, later ones only in memory."""
        self._pieces: list[tuple[int, bytearray]] = []
        """Position and bytes of the units in memory, a piece within one file."""

    def starts(self) -> list[int]:
        """Return the first positions of the files.  May block."""
        return [
            int(name)
            for name in self._disk.listdir(self.folder)
            if len(name) == TIMER_LOG_NAME_DIGITS and name.isdigit()
        ]

    def next_position(self) -> int:
        """Return the position of the next unit."""
        start = self.end // self.file_bytes * self.file_bytes
        room = start + self.file_bytes - self.end
        return (
            self.end
            if room >= TIMER_LOG_UNIT_BYTES + TIMER_LOG_BLANK_BYTES
            else start + self.file_bytes
        )

    def room(self) -> int:
        """Return how many units fit into the file of `next_position`."""
        position = self.next_position()
        room_bytes = self.file_bytes - position % self.file_bytes - TIMER_LOG_BLANK_BYTES
        return room_bytes // TIMER_LOG_UNIT_BYTES

    def append(self, raw: bytes) -> None:
        """Append packed units at `next_position`, in memory; the file must have room for them."""
        position = self.next_position()
        if position != self.end:
            self._add(self.end, encode_timer_log_blank(position - self.end))
        self._add(position, raw)
        self.end = position + len(raw)

    def _add(self, position: int, raw: bytes) -> None:
        if self._pieces:
            start, piece = self._pieces[-1]
            if start + len(piece) == position and position % self.file_bytes:
                piece += raw
                return
        self._pieces.append((position, bytearray(raw)))

    def pieces(self) -> list[tuple[int, bytes]]:
        """Return position and bytes of the units in memory, each piece within one file."""
        return [(start, bytes(piece)) for start, piece in self._pieces]

    def wrote(self, end: int) -> None:
        """Note that all units before a position are in files."""
        self.written = end
        unwritten: list[tuple[int, bytearray]] = []
        for start, piece in self._pieces:
            if start + len(piece) > end:
                cut = max(0, end - start)
                unwritten.append((start + cut, piece[cut:]))
        self._pieces = unwritten

    def reader(self, last: int | None = None) -> TimerLogReader:
        """Make a reader for a worker.

        Args:
            last: the last position that the reader reads; None if it may read any.
        """
        is_written = last is not None and last < self.written
        pieces = [] if is_written else self.pieces()
        return TimerLogReader(self._disk, self.folder, self.file_bytes, pieces)
