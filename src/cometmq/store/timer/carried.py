"""The timer messages that a Java broker has taken up and not delivered, read from its files.

At its start a broker that does not serve timers counts them and names the oldest record they need,
so that retention leaves it alone.  Nothing is delivered or written: the files go back to a Java
broker as they are.

Timer messages (docs/internals/delivery.md#exact-timers) wait in two places: in the wheel, whose
content is the timer log below `timerlog/`, and in queue 0 of ``rmq_sys_wheel_timer``.  From that
queue Java's recovery takes them up, beginning behind the last message that has a unit.

The log alone is enough: the wheel only chains its units by slot, and Java's recovery makes the
wheel again from them.  A unit is pending when its slot is not before the read time of
`config/timercheck`.  Java writes that file once a second, so after a kill some delivered messages
count again, and Java delivers them again.  Files whose units were all written more than the
wheel's seven days before the read time are skipped.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.codec.stored_message import decode_messages
from cometmq.codec.timer import (
    MAGIC_TIMER_BLANK,
    TIMER_DELETE,
    TIMER_LOG_UNIT,
    TIMER_LOG_UNIT_BYTES,
    TimerCheckpoint,
    TimerLogUnit,
    decode_timer_checkpoint,
)
from cometmq.errors import CodecError, StoreError
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.results import GetResult, GetStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.codec.stored_message import StoredMessage
    from cometmq.store.base.disk import Disk, RandomFile
    from cometmq.store.message_store import MessageStore

__all__ = [
    "Carried",
    "PendingUnits",
    "count_timer_messages",
    "first_behind",
    "read_timer_checkpoint",
    "scan_timer_log",
]

_READ_COUNT: Final = 1024
_READ_BYTES: Final = 1 << 22
_SCAN_BYTES: Final = TIMER_LOG_UNIT_BYTES * 8192
# The wheel has 604,800 slots ahead of one second each.
_WHEEL_MS: Final = 604_800_000
_NAME_DIGITS: Final = 20
_MAGIC_MASK: Final = 0xF


@dataclass(frozen=True, slots=True)
class Carried:
    """Messages of one kind that wait for a Java broker."""

    count: int = 0
    oldest: int | None = None
    """Physical offset of the first record that is needed for them; None when none waits."""


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
            raw = file.read(position, min(_SCAN_BYTES, end - position))
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


def count_timer_messages(store: MessageStore, disk: Disk) -> Carried:
    """Count the timer messages that are not delivered yet.  Blocks; before the store serves."""
    checkpoint = read_timer_checkpoint(disk, store.config.root)
    log_min = store.min_physical_offset
    pending = scan_timer_log(disk, store.config.root, checkpoint.read_time_ms, log_min)
    low = store.min_queue_offset(TIMER_TOPIC, 0)
    high = store.max_queue_offset(TIMER_TOPIC, 0)
    taken_to = checkpoint.queue_offset
    if pending.last_taken is not None:
        taken_to = first_behind(store, low, high, pending.last_taken)
    # As TimerMessageStore.recover: never ahead of what the checkpoint says.
    start = min(max(min(taken_to, checkpoint.master_queue_offset), low), high)
    oldest = pending.oldest
    if start < high:
        first = _physical_offset_at(store, TIMER_TOPIC, 0, start)
        if first is not None and (oldest is None or first < oldest):
            oldest = first
    return Carried(pending.count + high - start, oldest)


def _messages(
    store: MessageStore, topic: str, queue_id: int, start: int
) -> Iterator[StoredMessage]:
    """All readable messages of a queue from an offset on."""
    place = max(start, store.min_queue_offset(topic, queue_id))
    end = store.max_queue_offset(topic, queue_id)
    while place < end:
        found = _get(store, topic, queue_id, place, _READ_COUNT)
        if found is None or found.next_queue_offset <= place:
            return
        if found.status is GetStatus.FOUND:
            # What cannot be read ends nothing: Java would ask again, so it counts as open.
            with contextlib.suppress(CodecError):
                yield from decode_messages(b"".join(found.chunks))
        place = found.next_queue_offset


def _get(
    store: MessageStore, topic: str, queue_id: int, place: int, count: int
) -> GetResult | None:
    try:
        found = store.get(topic, queue_id, place, count, _READ_BYTES, allow_cold=True)
    except StoreError:
        return None
    return found if isinstance(found, GetResult) else None


def _physical_offset_at(store: MessageStore, topic: str, queue_id: int, place: int) -> int | None:
    """Physical offset of the message at or behind a queue offset; None when there is none."""
    for message in _messages(store, topic, queue_id, place):
        return message.physical_offset
    return None


def first_behind(store: MessageStore, low: int, high: int, physical_offset: int) -> int:
    """First queue offset of the timer topic whose record lies behind a physical offset."""
    while low < high:
        middle = (low + high) // 2
        found = _physical_offset_at(store, TIMER_TOPIC, 0, middle)
        if found is not None and found <= physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
