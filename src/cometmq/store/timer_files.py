"""Reads a Java broker's timer log: which timer messages it has taken up and not delivered.

Job: the units that are still ahead of the wheel, from `config/timercheck` and `timerlog/`.  It
must not write: these files go back to a Java broker as they are.

The log alone is enough: the wheel only chains its units by slot, and Java's recovery makes it
again from them.  A unit is pending when its slot is not before the read time of ``timercheck``,
which is written once a second; after a kill some that were delivered count again, and Java
delivers them again.  Units written more than the wheel's seven days before the read time are
passed over file by file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.codec.timer import (
    MAGIC_TIMER_BLANK,
    TIMER_DELETE,
    TIMER_LOG_UNIT,
    TIMER_LOG_UNIT_BYTES,
    TimerCheckpoint,
    TimerLogUnit,
    decode_timer_checkpoint,
)
from cometmq.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.disk import Disk

__all__ = ["PendingUnits", "read_timer_checkpoint", "scan_timer_log"]

_READ_BYTES: Final = TIMER_LOG_UNIT_BYTES * 8192
# The wheel has 604,800 slots ahead of one second each.
_WHEEL_MS: Final = 604_800_000
_NAME_DIGITS: Final = 20


@dataclass(frozen=True, slots=True)
class PendingUnits:
    """What the timer log still has to deliver."""

    count: int
    """Messages; recalled ones and the recalls themselves are not counted."""
    oldest: int | None
    """Smallest physical offset any of their units points to."""
    last_taken: int | None
    """Physical offset of the last message that got a unit; None for an empty log."""


def read_timer_checkpoint(disk: Disk, root: str) -> TimerCheckpoint:
    """Give `config/timercheck`; zeros where there is none."""
    try:
        return decode_timer_checkpoint(disk.read_bytes(f"{root}/config/timercheck"))
    except (FileNotFoundError, CodecError):
        return TimerCheckpoint()


def scan_timer_log(disk: Disk, root: str, read_time_ms: int, log_min: int) -> PendingUnits:
    """Count units from a slot time on that point into the commit log (at or above `log_min`).

    Blocks; about a second for four million units.
    """
    count = 0
    oldest: int | None = None
    last_taken: int | None = None
    for unit in _units(disk, f"{root}/timerlog", read_time_ms - _WHEEL_MS):
        last_taken = unit.physical_offset
        if unit.slot_time_ms < read_time_ms or unit.physical_offset < log_min:
            continue
        # A recall takes itself and the message it names out of the count, as the wheel does.
        count += -1 if unit.magic & TIMER_DELETE else 1
        if oldest is None or unit.physical_offset < oldest:
            oldest = unit.physical_offset
    return PendingUnits(max(0, count), oldest, last_taken)


def _units(disk: Disk, folder: str, written_from_ms: int) -> Iterator[TimerLogUnit]:
    """Units in log order up to the first that is none; old files are left out."""
    names = [name for name in disk.listdir(folder) if len(name) == _NAME_DIGITS and name.isdigit()]
    for name in names:
        path = f"{folder}/{name}"
        size = disk.size(path)
        file = disk.open_random(path, size, create=False)
        last_position = (size // TIMER_LOG_UNIT_BYTES - 1) * TIMER_LOG_UNIT_BYTES
        if name != names[-1] and last_position > 0:
            # The last place may be the blank's; the one before it is a unit in a full file.
            place = last_position - TIMER_LOG_UNIT_BYTES
            unit = TimerLogUnit._make(TIMER_LOG_UNIT.unpack(file.read(place, TIMER_LOG_UNIT_BYTES)))
            if unit.is_valid and unit.write_time_ms < written_from_ms:
                continue
        position = 0
        while position < size:
            raw = file.read(position, min(_READ_BYTES, size - position))
            position += len(raw)
            whole = memoryview(raw)[: len(raw) // TIMER_LOG_UNIT_BYTES * TIMER_LOG_UNIT_BYTES]
            for unit in map(TimerLogUnit._make, TIMER_LOG_UNIT.iter_unpack(whole)):
                if unit.magic == MAGIC_TIMER_BLANK:
                    position = size
                    break
                if not unit.is_valid:
                    return
                yield unit
            if not whole:
                break
