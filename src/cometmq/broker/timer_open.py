"""Opens a broker's timers, and keeps the log files they need.

Job: wire book and service, and tell retention the oldest record a pending timer points to.  It must
not deliver.
"""

from __future__ import annotations

import logging
from typing import Final

from cometmq.broker.state import BrokerState
from cometmq.broker.timer import TimerService
from cometmq.codec.timer_slots import TimerRules, precision_of
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.disk import Disk
from cometmq.store.timer_book import TimerBook
from cometmq.store.timer_log import TimerLogReader

__all__ = ["OldestTimer", "open_timers"]

log = logging.getLogger("cometmq.broker")

LOOK_AGAIN_MS: Final = 10_000


def open_timers(state: BrokerState, disk: Disk) -> TimerService | None:
    """Open and recover the timers; None when ``timerWheelEnable`` is false.  Blocks."""
    config = state.config
    if not config.timer_wheel_enable:
        return None
    rules = TimerRules(precision_of(config.timer_precision_ms), config.timer_roll_window_slot)
    book = TimerBook(disk, state.store.config.root, config.mapped_file_size_timer_log, rules)
    book.load(state.store, state.env.clock.now_ms())
    service = TimerService(state, book)
    state.store.hold_log("timed messages that are not due yet", OldestTimer(state, book, service))
    pending = service.pending_count() + service.intake.message_count()
    if pending:
        log.info("%d timed messages wait", pending)
    return service


class OldestTimer:
    """Gives the smallest physical offset a pending timer points to; never blocks.

    A worker looks, some seconds apart.  What was found stays true until then: what comes later
    lies further behind, and what is delivered only makes it smaller than need be.
    """

    def __init__(self, state: BrokerState, book: TimerBook, service: TimerService) -> None:
        self._state = state
        self._book = book
        self._service = service
        self._oldest = 0
        self._looked_ms: int | None = None
        self._is_looking = False

    def __call__(self) -> int | None:
        intake = self._service.intake
        if not (self._book.log.end or intake.is_behind or intake.message_count()):
            # Nothing was ever placed in the wheel.
            return None
        now_ms = self._state.env.clock.now_ms()
        is_old = self._looked_ms is None or now_ms - self._looked_ms >= LOOK_AGAIN_MS
        if is_old and not self._is_looking:
            self._is_looking = True
            self._look(now_ms)
        return self._oldest

    def _look(self, now_ms: int) -> None:
        store, book, service = self._state.store, self._book, self._service
        read_ms, next_offset, end = (
            service.read_ms,
            service.intake.next_offset,
            store.max_physical_offset,
        )
        reader, log_end = book.log.reader(), book.log.end

        def work() -> int:
            starts = book.log.starts()
            first = min(starts, default=log_end)
            oldest = oldest_unit(reader, first, log_end, read_ms, store.min_physical_offset)
            places = [end] if oldest is None else [end, oldest]
            places += [
                unit.physical_offset
                for unit in store.units(TIMER_TOPIC, 0, next_offset, 1)
                if unit.size > 0
            ]
            return min(places)

        def done(result: int | BaseException) -> None:
            self._is_looking = False
            if isinstance(result, BaseException):
                log.warning("looking for the oldest timed message failed: %s", result)
                return
            self._looked_ms = now_ms
            self._oldest = result

        self._state.env.workers.submit(work, done)


def oldest_unit(
    reader: TimerLogReader, first: int, end: int, read_ms: int, log_min: int
) -> int | None:
    """Smallest physical offset of units whose slot is not done with.  Blocks."""
    oldest: int | None = None
    for units in reader.arrays(first, end):
        is_pending = (units["write_ms"] + units["delay_ms"] >= read_ms) & (
            units["place"] >= log_min
        )
        places = units["place"][is_pending]
        if len(places):
            least = int(places.min())
            oldest = least if oldest is None else min(oldest, least)
    return oldest
