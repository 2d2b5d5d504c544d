"""Makes timed messages ready for delivery: reads them from the log, in a worker.

Units of the timer log become messages as the store takes them, with the exact time at which each
is due.  Nothing here touches what belongs to the loop.

What is delivered (``TimerMessageStore.convert``, RocketMQ 5.4.0) keeps body, flags, born host and
time, try count and the property bytes as they are, TIMER_OUT_MS, REAL_TOPIC and REAL_QID included;
TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS are added.  A rolled message goes to the timer topic again and
counts its rolls.

A crash can leave messages delivered whose slot is not done with in ``timercheck``.  Their copies
are in the queue they went to, stored after the slot's time: `Settled` looks there, so that nothing
is delivered twice.  What was appended again for its log file to go is `MovedPlaces`' matter, and
what lies in front of the log's begin needs nothing: no file goes before what waits in it is
delivered or appended again.
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
    """Physical offset of its record in the timer topic."""
    size: int
    write_ms: int
    magic: int


class Ready(msgspec.Struct, gc=False, frozen=True):
    """A message that can be delivered."""

    due_ms: int
    unit: Waiting
    item: PutItem
    """For its own topic, or for the timer topic when it is rolled."""
    born_host: bytes
    enqueued: bytes = b""
    """TIMER_ENQUEUE_MS, where the properties of the item do not have it yet."""


class LoadedSlot(NamedTuple):
    """The units of a slot, and its recalls by the key they name."""

    units: SlotUnits
    recalls: dict[str, Waiting]


def recall_keys(topic: str, uniq_key: str) -> tuple[str, str]:
    """What TIMER_DEL_UNIQKEY may say of a message (TimerMessageStore.buildDeleteKey).

    The first is what RocketMQ 5.4 writes and this broker too; the second is that of earlier ones,
    and of 5.4 with ``appendTopicForTimerDeleteKey``.
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
    """Read the units of a slot, each message once, and what its recalls name.  Blocks.

    `moved` has the places of records that newer ones replace.
    """
    found = reader.slot(slot_ms, slot)
    kept = SlotUnits()
    recalls: dict[str, Waiting] = {}
    seen: set[int] = set()
    log_min = store.min_physical_offset
    gone_count = 0
    for number, (physical_offset, magic) in enumerate(
        zip(found.physical_offsets, found.magics, strict=True)
    ):
        if physical_offset < log_min:
            gone_count += 1
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
                    found.sizes[number],
                    found.write_times_ms[number],
                    magic,
                )
                recalls[key.decode("utf-8", "replace")] = unit
            continue
        kept.positions.append(found.positions[number])
        kept.magics.append(magic)
        kept.write_times_ms.append(found.write_times_ms[number])
        kept.physical_offsets.append(physical_offset)
        kept.sizes.append(found.sizes[number])
    if gone_count:
        log.info(
            "%d units of slot %d point in front of the log's begin: their messages were delivered"
            " or appended again, unless a Java broker let the log file expire",
            gone_count,
            slot_ms,
        )
    return LoadedSlot(kept, recalls)


def fetch(
    store: MessageStore, settled: Settled, units: Sequence[Waiting], precision_ms: int
) -> list[Ready | Waiting]:
    """Read messages; those that can or need not be delivered come back as they came.  Blocks."""
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
    """Messages that were delivered before the broker ended, of slots that were not closed.  For
    workers."""

    __slots__ = ("_from_ms", "_queues", "_store", "_to_ms", "found_count")

    def __init__(self, store: MessageStore, from_ms: int, to_ms: int) -> None:
        self._store = store
        self._from_ms = from_ms
        self._to_ms = to_ms
        self._queues: dict[tuple[str, int], tuple[int, Counter[bytes]]] = {}
        self.found_count = 0
        """Messages that were not delivered again."""

    def has(self, ready: Ready) -> bool:
        """Whether this message was delivered before this life of the broker.  May block."""
        if ready.unit.slot_ms >= self._to_ms:
            return False
        topic, queue_id = ready.item.topic, ready.item.queue_id
        known = self._queues.get((topic, queue_id))
        if known is None:
            known = self._queues[topic, queue_id] = self._look(topic, queue_id)
        key = _identity(ready.item.properties)
        if known[1][key] <= 0:
            return False
        known[1][key] -= 1
        self.found_count += 1
        return True

    def _look(self, topic: str, queue_id: int) -> tuple[int, Counter[bytes]]:
        store = self._store
        keys: Counter[bytes] = Counter()
        # Its slot's time had come when a message was delivered.
        # A staged batch that is being published may keep the end of the queue from readers.
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
        return queue_offset, keys


def _identity(raw: bytes) -> bytes:
    """Return what tells a delivered or rolled message from every other."""
    parts = [find_property(raw, name) or b"" for name in _IDENTITY]
    return b"\x01".join(parts)


_IDENTITY: Final = (b"UNIQ_KEY", b"TIMER_OUT_MS", b"TIMER_ROLL_TIMES")
_HALF_TOPIC: Final = HALF_TOPIC.encode()
