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

    from cometmq.store.base.disk import Disk, RandomFile

__all__ = ["PendingUnits", "read_timer_checkpoint", "scan_timer_log"]

_READ_BYTES: Final = TIMER_LOG_UNIT_BYTES * 8192
# The wheel has 604,800 slots ahead of one second each.
_WHEEL_MS: Final = 604_800_000
_NAME_DIGITS: Final = 20
_MAGIC_MASK: Final = 0xF


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

    Blocks; a million units take about half a second.
    """
    count = 0
    oldest: int | None = None
    last_taken: int | None = None
    for raw in _runs(disk, f"{root}/timerlog", read_time_ms - _WHEEL_MS):
        # Plain tuples: there may be millions.
        for size, _, magic, write_ms, delay_ms, place, _, _, _ in TIMER_LOG_UNIT.iter_unpack(raw):
            if magic == MAGIC_TIMER_BLANK:
                break
            if size != TIMER_LOG_UNIT_BYTES or magic & ~_MAGIC_MASK:
                return PendingUnits(max(0, count), oldest, last_taken)
            last_taken = place
            if write_ms + delay_ms < read_time_ms or place < log_min:
                continue
            # A recall takes itself and the message it names out of the count, as the wheel does.
            count += -1 if magic & TIMER_DELETE else 1
            if oldest is None or place < oldest:
                oldest = place
    return PendingUnits(max(0, count), oldest, last_taken)


def _runs(disk: Disk, folder: str, written_from_ms: int) -> Iterator[bytes]:
    """Whole units in log order, some thousands at a time; old files are left out."""
    names = [name for name in disk.listdir(folder) if len(name) == _NAME_DIGITS and name.isdigit()]
    for name in names:
        path = f"{folder}/{name}"
        size = disk.size(path)
        file = disk.open_random(path, size, create=False)
        if name != names[-1] and _is_old(file, size, written_from_ms):
            continue
        position = 0
        end = size // TIMER_LOG_UNIT_BYTES * TIMER_LOG_UNIT_BYTES
        while position < end:
            raw = file.read(position, min(_READ_BYTES, end - position))
            position += len(raw)
            whole = len(raw) // TIMER_LOG_UNIT_BYTES * TIMER_LOG_UNIT_BYTES
            if not whole:
                break
            yield raw[:whole]


def _is_old(file: RandomFile, size: int, written_from_ms: int) -> bool:
    """Whether a full file ends with units of before a time."""
    # The last place may be the blank's; the one before it is a unit in a full file.
    place = (size // TIMER_LOG_UNIT_BYTES - 2) * TIMER_LOG_UNIT_BYTES
    if place < 0:
        return False
    unit = TimerLogUnit._make(TIMER_LOG_UNIT.unpack(file.read(place, TIMER_LOG_UNIT_BYTES)))
    return unit.is_valid and unit.write_time_ms < written_from_ms
