"""Timed messages whose log file is to go: they are appended to the timer topic again.

Each unit of a pending slot that points below a physical offset gets a new record, as in a roll but
with the same time of delivery.

The new record is taken up like any message of the timer topic and gets a unit of its own; the old
unit delivers nothing from then on, since `MovedPlaces` has its place, and later since its record is
in front of the log's begin.  A recall is appended again too, so it finds what it names in the same
slot.  What is due within `NEAR_MS`, and what is not placed yet, is waited for instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.base.put_again import put_again
from cometmq.codec.properties import find_property
from cometmq.codec.timer import TIMER_DELETE
from cometmq.codec.timer_moved import moved_timer
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.retention.moving import PendingMessages, ReadUnit
from cometmq.store.timer.timer_slots import due_ms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.delay.wheel.moved_places import MovedPlaces
    from cometmq.broker.delay.wheel.service import TimerService
    from cometmq.codec.stored_message import StoredMessage
    from cometmq.store.timer.book import TimerBook
    from cometmq.store.timer.log import TimerLogReader

__all__ = ["PendingTimers", "pending_units", "put_timer"]

NEAR_MS: Final = 10_000
"""A message that is due so soon is waited for and not appended again."""


class _Unit(NamedTuple):
    place: int
    slot_ms: int
    magic: int


class PendingTimers:
    """The timers of a broker as retention sees them."""

    what = "timed messages"

    def __init__(
        self, state: BrokerState, book: TimerBook, service: TimerService, moved: MovedPlaces
    ) -> None:
        self._state = state
        self._book = book
        self._service = service
        self._moved = moved

    def is_used(self) -> bool:
        """Whether anything was ever placed in the wheel or waits to be."""
        intake = self._service.intake
        return bool(self._book.log.end or intake.is_behind or intake.message_count())

    def find(self, end: int) -> Callable[[], PendingMessages]:
        """Scan the timer log, whose units are 52 bytes each."""
        store, book, service = self._state.store, self._book, self._service
        read_ms, near_ms = service.read_ms, self._near_ms()
        next_offset = service.intake.next_offset
        reader, written, log_end = book.log.reader(), book.log.written, book.log.end
        replaced = self._moved.raw()

        def look() -> PendingMessages:
            first = min(book.log.starts(), default=written)
            found = pending_units(
                reader, first, log_end, read_ms, (store.min_physical_offset, end), replaced
            )
            is_far = found["slot_ms"] >= near_ms
            far = found[is_far]
            untaken = [
                unit
                for unit in store.units(TIMER_TOPIC, 0, next_offset, 1)
                if unit.size > 0 and unit.physical_offset < end
            ]

            def units(start: int, stop: int) -> list[_Unit]:
                return [_Unit(*fields) for fields in far[_UNIT_FIELDS][start:stop].tolist()]

            waiting = len(found) - len(far) + len(untaken)
            return PendingMessages(len(far), int(far["bytes"].sum()), units, waiting)

        return look

    def _near_ms(self) -> int:
        return max(self._service.open_to_ms, self._state.env.clock.now_ms() + NEAR_MS)

    def prepare(self, end: int) -> Callable[[], None]:
        """The mark by which a crash is recovered from."""
        return self._moved.prepare(end)

    def append(self, units: Sequence[ReadUnit]) -> int:
        """Put the new records."""
        state, service, moved = self._state, self._service, self._moved
        precision_ms = service.rules.precision_ms
        now_ms = state.env.clock.now_ms()
        left = 0
        for unit, message in units:
            if message is None or unit.place in moved:
                continue
            if unit.slot_ms < service.open_to_ms:
                left += 1
                continue
            raw = message.raw_properties
            out = find_property(raw, b"TIMER_OUT_MS")
            out_ms = int(out) if out is not None and out.isdigit() else unit.slot_ms
            due_ms = due_ms_of(raw, out_ms, message.store_timestamp_ms, precision_ms)
            put_timer(state, service, message, moved_timer(raw, unit.place, due_ms), now_ms)
            moved.add(unit.place)
            self._book.wheel.forget(unit.slot_ms, 1 if not unit.magic & TIMER_DELETE else -1)
            state.store.mover.at("retention.put")
        return left


def put_timer(
    state: BrokerState, service: TimerService, message: StoredMessage, raw: bytes, now_ms: int
) -> None:
    """Put a message with other properties into the timer topic; raises StoreError."""
    result = put_again(
        state,
        TIMER_TOPIC,
        0,
        message,
        raw,
        now_ms,
        prepared_offset=message.prepared_transaction_offset,
    )
    service.put_again(result.queue_offset)


_UNIT_FIELDS: Final = ["place", "slot_ms", "magic"]
_FOUND: Final = [
    ("place", "i8"),
    ("slot_ms", "i8"),
    ("magic", "i4"),
    ("bytes", "i4"),
    ("hash", "i4"),
]


def pending_units(
    reader: TimerLogReader,
    first: int,
    log_end: int,
    read_ms: int,
    places: tuple[int, int],
    replaced: bytes,
) -> np.ndarray:
    """Units of slots from a time on that point into a range, each place once, by place.  Blocks.

    `replaced` has the places of records that newer ones replace, as `MovedPlaces.raw` gives them.
    """
    import numpy as np

    gone = np.frombuffer(replaced, np.int64)
    runs = [np.empty(0, np.dtype(_FOUND))]
    for units in reader.arrays(first, log_end):
        place, slot_ms = units["physical_offset"], units["write_ms"] + units["delay_ms"]
        chosen = (slot_ms >= read_ms) & (place >= places[0]) & (place < places[1])
        if len(gone):
            chosen &= ~np.isin(place, gone)
        run = np.empty(int(chosen.sum()), np.dtype(_FOUND))
        run["place"], run["slot_ms"] = place[chosen], slot_ms[chosen]
        for name in ("magic", "bytes", "hash"):
            run[name] = units[name][chosen]
        runs.append(run)
    found = np.concatenate(runs)
    # A unit that points to the same message as another one counts once; the later slot is the one
    # that a recovery has moved it to.
    order = np.lexsort((-found["slot_ms"], found["place"]))
    found = found[order]
    is_new = np.ones(len(found), bool)
    is_new[1:] = found["place"][1:] != found["place"][:-1]
    return found[is_new]
