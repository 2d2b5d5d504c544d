"""Appends timed messages to the timer topic again, so that their log file can go.

Each message of a pending slot whose record lies below a physical offset gets a new record.  It is
as in a roll, but the time of delivery stays.

The timers take up the new record like any message of the timer topic and write a unit for it.  The
old unit delivers nothing from then on: `MovedRecords` knows that its record is replaced, and later
the log begins behind that record.  A recall is appended again as well, so it stays in one slot with
the message it names.

The file waits for messages that are due within `NEAR_MS` and for messages that are not placed yet.
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
    from cometmq.broker.delay.wheel.moved_records import MovedRecords
    from cometmq.broker.delay.wheel.service import TimerService
    from cometmq.codec.stored_message import StoredMessage
    from cometmq.store.timer.book import TimerBook
    from cometmq.store.timer.log import TimerLogReader

__all__ = ["PendingTimers", "pending_units", "put_timer"]

NEAR_MS: Final = 10_000
"""A message that is due within this time is delivered and not appended again."""


class _TimedRecord(NamedTuple):
    """A message that waits in a slot of the wheel."""

    physical_offset: int
    slot_ms: int
    magic: int


class PendingTimers:
    """The timers of a broker as retention sees them."""

    plural = "timed messages"

    def __init__(
        self, state: BrokerState, book: TimerBook, service: TimerService, moved: MovedRecords
    ) -> None:
        self._state = state
        self._book = book
        self._service = service
        self._moved = moved

    def is_used(self) -> bool:
        """Whether a message was ever placed in the wheel, or is still to be placed."""
        intake = self._service.intake
        return bool(self._book.log.end or intake.is_behind or intake.message_count())

    def find(self, end: int) -> Callable[[], PendingMessages]:
        """Prepare the search through the timer log, whose units are 52 bytes each."""
        store, book, service = self._state.store, self._book, self._service
        read_ms, near_ms = service.read_ms, self._near_ms()
        next_offset = service.intake.next_offset
        reader, written, log_end = book.log.reader(), book.log.written, book.log.end
        replaced = self._moved.raw()

        def search() -> PendingMessages:
            first = min(book.log.starts(), default=written)
            pending = pending_units(
                reader, first, log_end, read_ms, (store.min_physical_offset, end), replaced
            )
            far = pending[pending["slot_ms"] >= near_ms]
            untaken = [
                unit
                for unit in store.units(TIMER_TOPIC, 0, next_offset, 1)
                if unit.size > 0 and unit.physical_offset < end
            ]

            def records(start: int, stop: int) -> list[_TimedRecord]:
                rows = far[list(_TimedRecord._fields)][start:stop].tolist()
                return [_TimedRecord(*row) for row in rows]

            waiting = len(pending) - len(far) + len(untaken)
            return PendingMessages(len(far), int(far["bytes"].sum()), records, waiting)

        return search

    def _near_ms(self) -> int:
        return max(self._service.open_to_ms, self._state.env.clock.now_ms() + NEAR_MS)

    def prepare(self, end: int) -> Callable[[], None]:
        """Prepare the mark that makes a crash from now on recoverable."""
        return self._moved.prepare(end)

    def append(self, units: Sequence[ReadUnit]) -> int:
        """Put a new record for each message."""
        state, service, moved = self._state, self._service, self._moved
        precision_ms = service.rules.precision_ms
        now_ms = state.env.clock.now_ms()
        waiting_count = 0
        for unit, message in units:
            if message is None or unit.physical_offset in moved:
                continue
            if unit.slot_ms < service.open_to_ms:
                waiting_count += 1
                continue
            raw = message.raw_properties
            out = find_property(raw, b"TIMER_OUT_MS")
            out_ms = int(out) if out is not None and out.isdigit() else unit.slot_ms
            due_ms = due_ms_of(raw, out_ms, message.store_timestamp_ms, precision_ms)
            put_timer(
                state, service, message, moved_timer(raw, unit.physical_offset, due_ms), now_ms
            )
            moved.add(unit.physical_offset)
            self._book.wheel.forget(unit.slot_ms, 1 if not unit.magic & TIMER_DELETE else -1)
            state.store.mover.at("retention.put")
        return waiting_count


def put_timer(
    state: BrokerState, service: TimerService, message: StoredMessage, raw: bytes, now_ms: int
) -> None:
    """Put a message with other properties into the timer topic.

    Raises:
        StoreError: the store does not take it.
    """
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


_PENDING_FIELDS: Final = [
    ("physical_offset", "i8"),
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
    log_range: tuple[int, int],
    replaced: bytes,
) -> np.ndarray:
    """Return the units of slots from `read_ms` on whose record lies in a range of the log.  Blocks.

    They are in order of their physical offset, one unit for each record.  `replaced` has the
    physical offsets of records that newer ones replace, as `MovedRecords.raw` gives them.
    """
    import numpy as np

    replaced_offsets = np.frombuffer(replaced, np.int64)
    runs = [np.empty(0, np.dtype(_PENDING_FIELDS))]
    for units in reader.arrays(first, log_end):
        offset, slot_ms = units["physical_offset"], units["write_ms"] + units["delay_ms"]
        chosen = (slot_ms >= read_ms) & (offset >= log_range[0]) & (offset < log_range[1])
        if len(replaced_offsets):
            chosen &= ~np.isin(offset, replaced_offsets)
        run = np.empty(int(chosen.sum()), np.dtype(_PENDING_FIELDS))
        run["physical_offset"], run["slot_ms"] = offset[chosen], slot_ms[chosen]
        for name in ("magic", "bytes", "hash"):
            run[name] = units[name][chosen]
        runs.append(run)
    pending = np.concatenate(runs)
    # Where two units point to one record, a recovery moved the message to the later slot.
    pending = pending[np.lexsort((-pending["slot_ms"], pending["physical_offset"]))]
    is_first = np.ones(len(pending), bool)
    is_first[1:] = pending["physical_offset"][1:] != pending["physical_offset"][:-1]
    return pending[is_first]
