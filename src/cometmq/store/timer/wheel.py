"""The timer wheel: for each slot of time, which units of the timer log belong to it.

The wheel has the slots in memory, with the bytes of the file ``timerwheel``, and notes which pages
have changed; `TimerBook` writes them.

There are 2 x 604,800 slots.  The tick of a time is time // precision; its slot has the number tick
modulo the number of slots.  A slot has 32 bytes, big-endian (``Slot``, ``TimerWheel``;
docs/internals/store.md#timer-wheel)::

    0     8          16        24     28    32
    |tick |first_pos |last_pos |count |magic|

The units of a slot are a chain from the last one back to the first.  A slot is blank for every tick
but the one that it states.  A message adds one to the count, a recall subtracts one.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.store.timer.timer_slots import SLOTS_AHEAD

if TYPE_CHECKING:
    import numpy as np

    from cometmq.store.base.disk import RandomFile

__all__ = ["WHEEL_BYTES", "Slot", "TimerWheel"]

_SLOT: Final = struct.Struct(">qqqii")
_SLOTS: Final = SLOTS_AHEAD * 2
WHEEL_BYTES: Final = _SLOTS * _SLOT.size
"""38,707,200; a Java broker refuses a file of any other size."""
_PAGE_SLOTS: Final = 128
_PAGE_BYTES: Final = _PAGE_SLOTS * _SLOT.size
_READ_BYTES: Final = 1 << 20
_FIELDS: Final = [
    ("tick", ">i8"),
    ("first", ">i8"),
    ("last", ">i8"),
    ("count", ">i4"),
    ("magic", ">i4"),
]


class Slot(NamedTuple):
    """The content of a slot that is not blank."""

    first: int
    """Position in the timer log of its oldest unit."""
    last: int
    """Position in the timer log of its newest unit."""
    message_count: int


def _zeroed_memory() -> mmap.mmap:
    """Return WHEEL_BYTES of zeros; each page takes memory only from its first write on.

    A bytearray of this size takes all its memory at once.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, WHEEL_BYTES)
    memory = mmap.mmap(-1, WHEEL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # A kernel without huge pages refuses the advice.
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


class TimerWheel:
    """The slots of a store.  They take memory page by page, as they are used."""

    def __init__(self, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self._buffer = _zeroed_memory()
        self._is_blank = True
        """Whether no slot was ever set; searches skip a blank wheel."""
        self._dirty: set[int] = set()
        """Numbers of the pages that have changed."""

    def read(self, file: RandomFile) -> None:
        """Copy the pages of a file that are not zeros; the others take no memory."""
        position = file.next_data(0)
        while position is not None and position < WHEEL_BYTES:
            position -= position % _PAGE_BYTES
            raw = file.read(position, min(_READ_BYTES, WHEEL_BYTES - position))
            if not raw:
                return
            for start in range(0, len(raw), _PAGE_BYTES):
                page = raw[start : start + _PAGE_BYTES]
                if any(page):
                    self._buffer[position + start : position + start + len(page)] = page
                    self._is_blank = False
            position = file.next_data(position + len(raw))

    def get(self, slot_ms: int) -> Slot | None:
        """Return the content of a slot; None for a blank one."""
        tick = slot_ms // self.precision_ms
        slot_tick, first, last, count, _ = _SLOT.unpack_from(
            self._buffer, tick % _SLOTS * _SLOT.size
        )
        return Slot(first, last, count) if slot_tick == tick else None

    def put(self, slot_ms: int, first: int, last: int, count: int) -> None:
        """Set a slot."""
        tick = slot_ms // self.precision_ms
        index = tick % _SLOTS
        _SLOT.pack_into(self._buffer, index * _SLOT.size, tick, first, last, count, 0)
        self._is_blank = False
        self._dirty.add(index // _PAGE_SLOTS)

    def add(self, slot_ms: int, position: int, change: int) -> int:
        """Append a unit to a slot's chain; return the position of the one before it, or -1.

        `change` is added to the slot's count.
        """
        return self.add_run(slot_ms, position, position, change)

    def add_run(self, slot_ms: int, first: int, last: int, change: int) -> int:
        """As `add`, for units that are a chain already; return the position before the first."""
        slot = self.get(slot_ms)
        if slot is None:
            self.put(slot_ms, first, last, change)
            return -1
        self.put(slot_ms, slot.first, last, slot.message_count + change)
        return slot.last

    def forget(self, slot_ms: int, count: int) -> None:
        """Subtract `count` messages from a slot's count; their units stay in its chain."""
        slot = self.get(slot_ms)
        if slot is not None:
            self.put(slot_ms, slot.first, slot.last, slot.message_count - count)

    def clear(self, slot_ms: int) -> None:
        """Make a slot blank."""
        if self.get(slot_ms) is not None:
            index = slot_ms // self.precision_ms % _SLOTS
            _SLOT.pack_into(self._buffer, index * _SLOT.size, 0, -1, -1, 0, 0)
            self._dirty.add(index // _PAGE_SLOTS)

    def revise(self, slot_ms: int, position: int, change: int) -> None:
        """As `add`, unless the slot has the unit already (TimerWheel.reviseSlot)."""
        slot = self.get(slot_ms)
        if slot is None or position > slot.last:
            self.add(slot_ms, position, change)

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """Return position and bytes of the pages that have changed since the last call."""
        pages = sorted(self._dirty)
        self._dirty.clear()
        return [
            (page * _PAGE_BYTES, self._buffer[page * _PAGE_BYTES : (page + 1) * _PAGE_BYTES])
            for page in pages
        ]

    def put_back_dirty(self, pages: list[tuple[int, bytes]]) -> None:
        """Mark pages of `take_dirty` as changed again, since they were not written."""
        self._dirty.update(position // _PAGE_BYTES for position, _ in pages)

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed."""
        return bool(self._dirty)

    def used(self, from_ms: int) -> list[tuple[int, Slot]]:
        """Return time and content of the slots from a time on, by ascending time."""
        import numpy as np

        array = self._view()
        ticks = array["tick"]
        numbers = np.flatnonzero(ticks >= max(1, from_ms // self.precision_ms))
        numbers = numbers[np.argsort(ticks[numbers], kind="stable")]
        slots = array[numbers]
        return [
            (int(tick) * self.precision_ms, Slot(int(first), int(last), int(count)))
            for tick, first, last, count in zip(
                slots["tick"], slots["first"], slots["last"], slots["count"], strict=True
            )
        ]

    def newest(self) -> tuple[int, Slot] | None:
        """Return tick and content of the slot with the newest unit; None for a blank wheel."""
        if self._is_blank:
            return None
        import numpy as np

        array = self._view()
        number = int(np.argmax(np.where(array["tick"] > 0, array["last"], -1)))
        tick, first, last, count, _ = array[number].item()
        return (tick, Slot(first, last, count)) if tick > 0 else None

    def count_from(self, from_ms: int) -> int:
        """Count the messages in the slots from a time on (TimerWheel.getAllNum)."""
        # A broker calls this at its start; without a timer it stays without numpy.
        if self._is_blank:
            return 0
        import numpy as np

        array = self._view()
        is_ahead = array["tick"] >= max(1, from_ms // self.precision_ms)
        return int(array["count"][is_ahead].sum(dtype=np.int64))

    def _view(self) -> np.ndarray:
        # Imported where it is used: an idle broker starts without it.
        import numpy as np

        return np.frombuffer(self._buffer, np.dtype(_FIELDS))
