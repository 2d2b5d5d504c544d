"""Counts the undelivered timer messages in the files of a Java broker.

A broker that does not serve timers counts them at its start and finds the oldest record that they
need, so that retention keeps it.  It delivers and writes nothing: a Java broker can open the files
again as they are.

Timer messages (docs/internals/delivery.md#exact-timers) wait in the wheel, and before that in queue
0 of ``rmq_sys_wheel_timer``.  Java's recovery takes them from that queue, beginning behind the last
message that has a unit in the timer log.

The timer log (`timerlog/`) has all units of the wheel.  The wheel only chains them by slot, and
Java's recovery makes the wheel from them, so its file is not read here.  A unit is pending when its
slot is not before the read time of `config/timercheck`.  Java writes that file once a second, so
after a kill some delivered messages count too, and Java delivers them again.  Files whose units
were all written more than the wheel's seven days before the read time are skipped.
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
    """The undelivered messages of one kind that a Java broker has left."""

    count: int = 0
    oldest: int | None = None
    """Physical offset of the first record that is needed for them; None without a message."""


@dataclass(frozen=True, slots=True)
class PendingUnits:
    """The undelivered messages in a timer log."""

    count: int
    """Messages, without recalled ones."""
    oldest: int | None
    """Smallest physical offset to which a unit of an undelivered message leads."""
    last_taken: int | None
    """Physical offset of the last message that got a unit; None for an empty log."""


def read_timer_checkpoint(disk: Disk, root: str) -> TimerCheckpoint:
    """Return the content of `config/timercheck`; zeros where there is none."""
    try:
        return decode_timer_checkpoint(disk.read_bytes(f"{root}/config/timercheck"))
    except (FileNotFoundError, CodecError):
        return TimerCheckpoint()


def scan_timer_log(disk: Disk, root: str, read_time_ms: int, log_min: int) -> PendingUnits:
    """Count the messages that the units of a timer log still have to deliver.

    Blocks; a million units take about half a second.

    Args:
        read_time_ms: the units of earlier slots are delivered.
        log_min: where the commit log begins; units of records before it do not count.
    """
    count = 0
    oldest: int | None = None
    last_taken: int | None = None
    for raw in _runs(disk, f"{root}/timerlog", read_time_ms - _WHEEL_MS):
        # Plain tuples: there may be millions.
        for size, _, magic, write_ms, delay_ms, offset, _, _, _ in TIMER_LOG_UNIT.iter_unpack(raw):
            if magic == MAGIC_TIMER_BLANK:
                break
            if size != TIMER_LOG_UNIT_BYTES or magic & ~_MAGIC_MASK:
                return PendingUnits(max(0, count), oldest, last_taken)
            last_taken = offset
            if write_ms + delay_ms < read_time_ms or offset < log_min:
                continue
            # As in the wheel's count, a recall takes the message that it recalls out again.
            count += -1 if magic & TIMER_DELETE else 1
            if oldest is None or offset < oldest:
                oldest = offset
    return PendingUnits(max(0, count), oldest, last_taken)


def _runs(disk: Disk, folder: str, written_from_ms: int) -> Iterator[bytes]:
    """Yield the bytes of whole units in log order, some thousands at a time, without old files."""
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
    """Return whether the last unit of a full file was written before a time."""
    # The blank may take the last position; in a full file the one before it has a unit.
    position = (size // TIMER_LOG_UNIT_BYTES - 2) * TIMER_LOG_UNIT_BYTES
    if position < 0:
        return False
    unit = TimerLogUnit._make(TIMER_LOG_UNIT.unpack(file.read(position, TIMER_LOG_UNIT_BYTES)))
    return unit.is_valid and unit.write_time_ms < written_from_ms


def count_timer_messages(store: MessageStore, disk: Disk) -> Carried:
    """Count the undelivered timer messages of a store, before it serves.  Blocks."""
    checkpoint = read_timer_checkpoint(disk, store.config.root)
    log_min = store.min_physical_offset
    pending = scan_timer_log(disk, store.config.root, checkpoint.read_time_ms, log_min)
    low = store.min_queue_offset(TIMER_TOPIC, 0)
    high = store.max_queue_offset(TIMER_TOPIC, 0)
    following = checkpoint.queue_offset
    if pending.last_taken is not None:
        following = first_behind(store, low, high, pending.last_taken)
    # As TimerMessageStore.recover: not behind the offset that the checkpoint states.
    start = min(max(min(following, checkpoint.master_queue_offset), low), high)
    oldest = pending.oldest
    if start < high:
        first = _physical_offset_at(store, TIMER_TOPIC, 0, start)
        if first is not None and (oldest is None or first < oldest):
            oldest = first
    return Carried(pending.count + high - start, oldest)


def _messages(
    store: MessageStore, topic: str, queue_id: int, start: int
) -> Iterator[StoredMessage]:
    """Yield the readable messages of a queue from an offset on."""
    queue_offset = max(start, store.min_queue_offset(topic, queue_id))
    end = store.max_queue_offset(topic, queue_id)
    while queue_offset < end:
        result = _get(store, topic, queue_id, queue_offset, _READ_COUNT)
        if result is None or result.next_queue_offset <= queue_offset:
            return
        if result.status is GetStatus.FOUND:
            # Skip records that cannot be decoded.
            with contextlib.suppress(CodecError):
                yield from decode_messages(b"".join(result.chunks))
        queue_offset = result.next_queue_offset


def _get(
    store: MessageStore, topic: str, queue_id: int, queue_offset: int, count: int
) -> GetResult | None:
    """Read a queue; None when that fails."""
    try:
        result = store.get(topic, queue_id, queue_offset, count, _READ_BYTES, allow_cold=True)
    except StoreError:
        return None
    return result if isinstance(result, GetResult) else None


def _physical_offset_at(
    store: MessageStore, topic: str, queue_id: int, queue_offset: int
) -> int | None:
    """Return the physical offset of the first readable message from a queue offset on, or None."""
    for message in _messages(store, topic, queue_id, queue_offset):
        return message.physical_offset
    return None


def first_behind(store: MessageStore, low: int, high: int, physical_offset: int) -> int:
    """Return the first queue offset of the timer topic whose record is behind a physical offset.

    Args:
        low: the first queue offset to search.
        high: the queue offset behind the last one to search; the result when no record is behind.
    """
    while low < high:
        middle = (low + high) // 2
        middle_physical = _physical_offset_at(store, TIMER_TOPIC, 0, middle)
        if middle_physical is not None and middle_physical <= physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
