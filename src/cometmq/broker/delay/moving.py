"""Delayed messages whose log file is to go: they become exact timers with the same due time.

Messages of the delay levels below a physical offset are appended to the timer topic, and each level
goes on behind them.

The queue of a level is in order of delivery, so a message put at its end would wait for all before
it; a timer is on time.  What lies in the oldest file is always the head of a level, so its progress
says which messages are timers now.  A crash in between leaves a progress that lags: `MovedPlaces`
knows then how far the level had come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cometmq.broker.delay.wheel.moving import NEAR_MS, put_timer
from cometmq.codec.consume_queue import PRE_BLANK_SIZE
from cometmq.codec.timer_moved import MovedFrom, moved_delayed
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.retention.moving import PendingMessages, ReadUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.delay.levels.schedule import ScheduleService
    from cometmq.broker.delay.wheel.moved_places import MovedPlaces
    from cometmq.broker.delay.wheel.service import TimerService

__all__ = ["PendingDelayed"]

_READ_UNITS = 4096


class _Unit(NamedTuple):
    place: int
    size: int
    level: int
    queue_offset: int


class PendingDelayed:
    """The delay levels of a broker as retention sees them."""

    what = "delayed messages"

    def __init__(
        self,
        state: BrokerState,
        schedule: ScheduleService,
        timers: TimerService,
        moved: MovedPlaces,
    ) -> None:
        self._state = state
        self._schedule = schedule
        self._timers = timers
        self._moved = moved

    def is_used(self) -> bool:
        """Whether a level ever had a message."""
        store = self._state.store
        return any(store.end_of_queue(SCHEDULE_TOPIC, queue_id)
                   for queue_id in store.queues(SCHEDULE_TOPIC))  # fmt: skip

    def find(self, end: int) -> Callable[[], PendingMessages]:
        """Read the units of each level from its progress on."""
        store = self._state.store
        nexts = {
            level: max(next_offset, store.min_queue_offset(SCHEDULE_TOPIC, level - 1))
            for level, next_offset in self._schedule.next_offsets().items()
        }

        def look() -> PendingMessages:
            found: list[_Unit] = []
            for level, next_offset in nexts.items():
                found += self._below(level, next_offset, end)
            return PendingMessages(
                len(found), sum(unit.size for unit in found), lambda start, stop: found[start:stop]
            )

        return look

    def _below(self, level: int, next_offset: int, end: int) -> list[_Unit]:
        found: list[_Unit] = []
        log_min = self._state.store.min_physical_offset
        while units := self._state.store.units(SCHEDULE_TOPIC, level - 1, next_offset, _READ_UNITS):
            for unit in units:
                is_record = 0 < unit.size < PRE_BLANK_SIZE
                if is_record and unit.physical_offset >= end:
                    return found
                if is_record and unit.physical_offset >= log_min:
                    found.append(_Unit(unit.physical_offset, unit.size, level, next_offset))
                next_offset += 1
        return found

    def prepare(self, end: int) -> Callable[[], None]:
        """The mark by which a crash is recovered from."""
        return self._moved.prepare(end)

    def append(self, units: Sequence[ReadUnit]) -> int:
        """Put timers, in the order of each level."""
        state, schedule, timers = self._state, self._schedule, self._timers
        now_ms = state.env.clock.now_ms()
        nexts = schedule.next_offsets()
        stopped: set[int] = set()
        left = 0
        for unit, message in units:
            level = unit.level
            if unit.queue_offset < nexts[level]:
                # Delivered meanwhile.
                continue
            if level in stopped or unit.queue_offset > nexts[level]:
                left += 1
                continue
            if message is not None:
                due_ms = state.delay.deliver_time_ms(level, message.store_timestamp_ms)
                wait_ms = state.delay.due_in_ms(level, due_ms, now_ms)
                if wait_ms < NEAR_MS:
                    # The level itself delivers it, and what follows stays behind it.
                    stopped.add(level)
                    left += 1
                    continue
                moved = MovedFrom(unit.place, level, unit.queue_offset)
                out_ms = timers.rules.out_ms(due_ms)
                raw = moved_delayed(message.raw_properties, moved, due_ms, out_ms)
                put_timer(state, timers, message, raw, now_ms)
            nexts[level] = unit.queue_offset + 1
            schedule.moved(level, nexts[level], now_ms)
            state.store.mover.at("retention.put")
        return left
