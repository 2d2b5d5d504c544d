"""The timer wheel: which units of the timer log belong to which slot of time.

Job: the slots in memory, byte for byte as in the file ``timerwheel``, and which of its pages have
changed.  It must not write the file or read the timer log.

A slot, 32 bytes, big-endian (``Slot``, ``TimerWheel``; store.md 5.2); 2 x 604,800 of them, slot n
for every time whose tick (time // precision) is n modulo their number::

    0     8          16        24     28    32
    |tick |first_pos |last_pos |count |magic|

The units of a slot form a chain from the last one back.  A slot with another tick than the one
asked for is blank.  The count goes up with a message and down with a recall.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.codec.timer_slots import SLOTS_AHEAD

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
    """A slot that holds something."""

    first: int
    """Position in the timer log of its oldest unit."""
    last: int
    message_count: int


class TimerWheel:
    """All slots.  Memory is taken page by page as slots are used."""

    __slots__ = ("_buffer", "_dirty", "precision_ms")

    def __init__(self, precision_ms: int) -> None:
        self.precision_ms = precision_ms
        self._buffer = bytearray(WHEEL_BYTES)
        self._dirty: set[int] = set()

    def read(self, file: RandomFile) -> None:
        """Take what a file holds; the parts of it that were never written are passed over."""
        position = 0
        while True:
            found = file.next_data(position)
            if found is None or found >= WHEEL_BYTES:
                return
            raw = file.read(found, min(_READ_BYTES, WHEEL_BYTES - found))
            if not raw:
                return
            self._buffer[found : found + len(raw)] = raw
            position = found + len(raw)

    def get(self, slot_ms: int) -> Slot | None:
        """What a slot holds; None for a blank one."""
        tick = slot_ms // self.precision_ms
        known, first, last, count, _ = _SLOT.unpack_from(self._buffer, tick % _SLOTS * _SLOT.size)
        return Slot(first, last, count) if known == tick else None

    def put(self, slot_ms: int, first: int, last: int, count: int) -> None:
        """Set a slot."""
        tick = slot_ms // self.precision_ms
        index = tick % _SLOTS
        _SLOT.pack_into(self._buffer, index * _SLOT.size, tick, first, last, count, 0)
        self._dirty.add(index // _PAGE_SLOTS)

    def add(self, slot_ms: int, position: int, change: int) -> int:
        """Append a unit to a slot's chain; the position of the one before it, -1 for none."""
        return self.add_run(slot_ms, position, position, change)

    def add_run(self, slot_ms: int, first: int, last: int, change: int) -> int:
        """Append units that are chained already; the position of the one before them."""
        slot = self.get(slot_ms)
        if slot is None:
            self.put(slot_ms, first, last, change)
            return -1
        self.put(slot_ms, slot.first, last, slot.message_count + change)
        return slot.last

    def forget(self, slot_ms: int, count: int) -> None:
        """Count so many messages of a slot no more; their units stay in its chain."""
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
        """As `add` for a unit found in the log, which may be known (TimerWheel.reviseSlot)."""
        slot = self.get(slot_ms)
        if slot is None or position > slot.last:
            self.add(slot_ms, position, change)

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """Position and bytes of what has changed since the last call."""
        pages = sorted(self._dirty)
        self._dirty.clear()
        return [
            (page * _PAGE_BYTES, bytes(self._buffer[page * _PAGE_BYTES : (page + 1) * _PAGE_BYTES]))
            for page in pages
        ]

    def put_back_dirty(self, pages: list[tuple[int, bytes]]) -> None:
        """What `take_dirty` gave was not written: it has still changed."""
        self._dirty.update(position // _PAGE_BYTES for position, _ in pages)

    @property
    def is_dirty(self) -> bool:
        """Whether something has changed."""
        return bool(self._dirty)

    def used(self, from_ms: int) -> list[tuple[int, Slot]]:
        """Time and content of the slots from a time on, in order of time."""
        import numpy as np

        array = self._view()
        ticks = array["tick"]
        places = np.flatnonzero(ticks >= max(1, from_ms // self.precision_ms))
        places = places[np.argsort(ticks[places], kind="stable")]
        found = array[places]
        return [
            (int(tick) * self.precision_ms, Slot(int(first), int(last), int(count)))
            for tick, first, last, count in zip(
                found["tick"], found["first"], found["last"], found["count"], strict=True
            )
        ]

    def newest(self) -> tuple[int, Slot] | None:
        """Tick and content of the slot whose last unit is the youngest; None for a blank wheel."""
        if self._buffer == bytes(len(self._buffer)):
            return None
        import numpy as np

        array = self._view()
        number = int(np.argmax(np.where(array["tick"] > 0, array["last"], -1)))
        tick, first, last, count, _ = array[number].item()
        return (tick, Slot(first, last, count)) if tick > 0 else None

    def count_from(self, from_ms: int) -> int:
        """Messages in the slots from a time on (TimerWheel.getAllNum)."""
        # A broker that never had a timer asks this at its start, and stays without numpy.
        if self._buffer == bytes(len(self._buffer)):
            return 0
        import numpy as np

        array = self._view()
        is_ahead = array["tick"] >= max(1, from_ms // self.precision_ms)
        return int(array["count"][is_ahead].sum(dtype=np.int64))

    def _view(self) -> np.ndarray:
        # Imported where it is used: an idle broker starts without it.
        import numpy as np

        return np.frombuffer(self._buffer, np.dtype(_FIELDS))
