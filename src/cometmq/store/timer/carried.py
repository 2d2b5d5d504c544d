"""What a store holds for a Java broker and this one does not serve: timers.

Job: count at start the timer messages that wait for a Java broker, and name the oldest record
they need, so that retention leaves it alone.  It must not deliver or
change anything: a Java broker that gets the directory back does.

Timer messages (store.md 5.2) wait in two places: in the wheel, whose content is the timer log
(see timer_files.py), and in queue 0 of ``rmq_sys_wheel_timer`` from where Java's recovery goes on
taking them up, which is behind the last one that has a unit.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.codec.stored_message import decode_messages
from cometmq.errors import CodecError, StoreError
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.results import GetResult, GetStatus
from cometmq.store.timer.java_files import read_timer_checkpoint, scan_timer_log

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.codec.stored_message import StoredMessage
    from cometmq.store.base.disk import Disk
    from cometmq.store.message_store import MessageStore

__all__ = ["Carried", "count_timer_messages", "first_behind"]

_READ_COUNT: Final = 1024
_READ_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Carried:
    """Messages of one kind that wait for a Java broker."""

    count: int = 0
    oldest: int | None = None
    """Physical offset of the first record that is needed for them; None when none waits."""


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
