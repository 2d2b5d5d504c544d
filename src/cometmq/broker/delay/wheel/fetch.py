"""Reads timed messages from the log and makes them ready for delivery, in a worker.

A unit of the timer log becomes a message as the store takes it, with the exact time at which it is
due.  Nothing here touches what belongs to the loop.

What is delivered (``TimerMessageStore.convert``, RocketMQ 5.4.0) keeps body, flags, born host and
time, try count and the property bytes as they are, TIMER_OUT_MS, REAL_TOPIC and REAL_QID included;
TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS are added.  A rolled message goes to the timer topic again and
counts its rolls.

After a crash ``timercheck`` may name a slot of which some messages are delivered already.  Their
copies are in the queues they went to, stored after the time of the slot.  `Settled` looks there, so
that no message is delivered twice.  `MovedRecords` does the same for messages that were appended
again.  A unit that points in front of the log's begin needs nothing: a log file goes only when each
message in it is delivered or appended again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

import msgspec

from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import ensure_trailing_separator, find_property
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.codec.timer import TIMER_DELETE, TIMER_ROLL
from cometmq.codec.timer_moved import as_delivered, with_due
from cometmq.errors import CodecError, StoreError
from cometmq.model.names import HALF_TOPIC, TIMER_TOPIC
from cometmq.store.base.dispatch import index_keys_of
from cometmq.store.base.results import PutItem
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.log import SlotUnits, TimerLogReader
from cometmq.store.timer.timer_slots import due_ms_of
from cometmq.store.timer.wheel import Slot

__all__ = [
    "LoadedSlot",
    "Ready",
    "Settled",
    "Waiting",
    "enqueued",
    "fetch",
    "load_slot",
    "recall_keys",
]

log = logging.getLogger("cometmq.broker")

_READ_UNITS: Final = 512


class Waiting(msgspec.Struct, gc=False, frozen=True):
    """A message of an open slot that is not delivered yet."""

    slot_ms: int
    physical_offset: int
    """Where its record of the timer topic is in the log."""
    size: int
    write_ms: int
    magic: int


class Ready(msgspec.Struct, gc=False, frozen=True):
    """A message that can be delivered."""

    due_ms: int
    unit: Waiting
    item: PutItem
    """What is appended: to the message's own topic, or to the timer topic when it is rolled."""
    born_host: bytes
    enqueued: bytes = b""
    """The property TIMER_ENQUEUE_MS, where the item does not have it yet."""


class LoadedSlot(NamedTuple):
    """The units of a slot, and its recalls by the key that they name."""

    units: SlotUnits
    recalls: dict[str, Waiting]


def recall_keys(topic: str, uniq_key: str) -> tuple[str, str]:
    """Return the two keys by which a recall may name a message (TIMER_DEL_UNIQKEY).

    RocketMQ 5.4 and this broker write the first.  Earlier versions write the second, and so does
    5.4 with ``appendTopicForTimerDeleteKey`` (TimerMessageStore.buildDeleteKey).
    """
    return uniq_key, f"{topic}+{uniq_key}"


def enqueued(write_ms: int) -> bytes:
    """The property that says when a message was placed in the wheel."""
    return b"TIMER_ENQUEUE_MS\x01%d\x02" % write_ms


def load_slot(
    store: MessageStore,
    reader: TimerLogReader,
    slot_ms: int,
    slot: Slot,
    moved: Container[int] = (),
) -> LoadedSlot:
    """Read the units of a slot, each message once, and its recalls.  Blocks.

    `moved` has the physical offsets of records that newer ones replace.
    """
    written = reader.slot(slot_ms, slot)
    pending = SlotUnits()
    recalls: dict[str, Waiting] = {}
    seen: set[int] = set()
    log_min = store.min_physical_offset
    expired_count = 0
    for number, (physical_offset, magic) in enumerate(
        zip(written.physical_offsets, written.magics, strict=True)
    ):
        if physical_offset < log_min:
            expired_count += 1
            continue
        if physical_offset in seen or physical_offset in moved:
            continue
        seen.add(physical_offset)
        if magic & TIMER_DELETE and not magic & TIMER_ROLL:
            message = _read(store, physical_offset)
            key = find_property(message.raw_properties, b"TIMER_DEL_UNIQKEY") if message else None
            if key is not None:
                unit = Waiting(
                    slot_ms,
                    physical_offset,
                    written.sizes[number],
                    written.write_times_ms[number],
                    magic,
                )
                recalls[key.decode("utf-8", "replace")] = unit
            continue
        pending.positions.append(written.positions[number])
        pending.magics.append(magic)
        pending.write_times_ms.append(written.write_times_ms[number])
        pending.physical_offsets.append(physical_offset)
        pending.sizes.append(written.sizes[number])
    if expired_count:
        log.info(
            "%d units of slot %d point in front of the log's begin: their messages were delivered"
            " or appended again, unless a Java broker let the log file expire",
            expired_count,
            slot_ms,
        )
    return LoadedSlot(pending, recalls)


def fetch(
    store: MessageStore, settled: Settled, units: Sequence[Waiting], precision_ms: int
) -> list[Ready | Waiting]:
    """Read the messages of units.  Blocks.

    A unit comes back as it is where its message cannot be read or was delivered before.
    """
    result: list[Ready | Waiting] = []
    for unit in units:
        message = _read(store, unit.physical_offset)
        ready = _ready(message, unit, precision_ms) if message is not None else None
        if ready is None or settled.has(ready):
            result.append(unit)
        else:
            result.append(ready)
    return result


def _read(store: MessageStore, physical_offset: int) -> StoredMessage | None:
    try:
        record = store.message_at(physical_offset)
        message = None if record is None else decode_message(record)
    except (StoreError, CodecError) as error:
        log.error("timed message at physical offset %d is lost: %s", physical_offset, error)
        return None
    if message is None:
        log.error(
            "timed message at physical offset %d is lost: its log file is gone", physical_offset
        )
    return message


def _ready(message: StoredMessage, unit: Waiting, precision_ms: int) -> Ready | None:
    raw = message.raw_properties
    topic = find_property(raw, b"REAL_TOPIC")
    queue_id = find_property(raw, b"REAL_QID")
    out = find_property(raw, b"TIMER_OUT_MS")
    if (
        topic is None
        or queue_id is None
        or out is None
        or not queue_id.isdigit()
        or not out.isdigit()
        or topic == _HALF_TOPIC
    ):
        log.error(
            "message %d of %s names no deliverable topic, queue and time: skipped",
            message.queue_offset,
            TIMER_TOPIC,
        )
        return None
    keys = index_keys_of(raw) or (None, None, None)
    name, target_id = topic.decode(), int(queue_id)
    raw = ensure_trailing_separator(raw) + enqueued(unit.write_ms)
    if unit.magic & TIMER_ROLL:
        times = find_property(raw, b"TIMER_ROLL_TIMES") or b"0"
        raw += b"TIMER_ROLL_TIMES\x01%d\x02" % (int(times) + 1 if times.isdigit() else 1)
        if b"TIMER_DELAY_" in raw:
            # The delay counts from a store time that the next record does not have.
            due_ms = due_ms_of(raw, int(out), message.store_timestamp_ms, precision_ms)
            raw = with_due(raw, due_ms)
        name, target_id, due_ms = TIMER_TOPIC, 0, unit.slot_ms
    elif find_property(raw, b"TIMER_DEL_UNIQKEY") is not None:
        return None
    else:
        due_ms = due_ms_of(raw, int(out), message.store_timestamp_ms, precision_ms)
        raw = as_delivered(raw)
    item = PutItem(
        name,
        target_id,
        message.body,
        raw,
        message.flag,
        message.sys_flag,
        message.born_timestamp_ms,
        tags_code(keys[2]),
        keys,
        message.reconsume_times,
    )
    return Ready(due_ms, unit, item, message.born_host)


class Settled:
    """Knows which messages of unfinished slots were delivered before this start.  For workers."""

    def __init__(self, store: MessageStore, from_ms: int, to_ms: int) -> None:
        self._store = store
        self._from_ms = from_ms
        self._to_ms = to_ms
        self._queues: dict[tuple[str, int], Counter[bytes]] = {}
        self.settled_count = 0
        """Messages that were recognised and not delivered again."""

    def has(self, ready: Ready) -> bool:
        """Whether this message was delivered before this start of the broker.  May block."""
        if ready.unit.slot_ms >= self._to_ms:
            return False
        topic, queue_id = ready.item.topic, ready.item.queue_id
        counts = self._queues.get((topic, queue_id))
        if counts is None:
            counts = self._queues[topic, queue_id] = self._delivered(topic, queue_id)
        key = _identity(ready.item.properties)
        if counts[key] <= 0:
            return False
        counts[key] -= 1
        self.settled_count += 1
        return True

    def _delivered(self, topic: str, queue_id: int) -> Counter[bytes]:
        """Count the timed messages that a queue got before this start, by their identity."""
        store = self._store
        keys: Counter[bytes] = Counter()
        # A message is delivered, so stored, after the time of its slot.  `held_too`: a staged batch
        # that is being published may hide the end of the queue from readers.
        queue_offset = store.queue_offset_by_time(topic, queue_id, self._from_ms, held_too=True)
        while units := store.units(topic, queue_id, queue_offset, _READ_UNITS, held_too=True):
            for unit in units:
                message = _read(store, unit.physical_offset) if unit.size > 0 else None
                if message is None or message.store_timestamp_ms >= self._to_ms:
                    continue
                raw = message.raw_properties
                if find_property(raw, b"TIMER_DEQUEUE_MS") is not None:
                    keys[_identity(raw)] += 1
            queue_offset += len(units)
        return keys


def _identity(raw: bytes) -> bytes:
    """Return the properties that tell a delivered or rolled message from every other one."""
    parts = [find_property(raw, name) or b"" for name in _IDENTITY]
    return b"\x01".join(parts)


_IDENTITY: Final = (b"UNIQ_KEY", b"TIMER_OUT_MS", b"TIMER_ROLL_TIMES")
_HALF_TOPIC: Final = HALF_TOPIC.encode()
