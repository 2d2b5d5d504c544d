"""Turns delayed messages into exact timers, so that their log file can go.

A message of a delay level that lies below a physical offset is appended to the timer topic with the
same due time, and the level goes on behind it.

Why timers: a level delivers its queue in order, so a message appended to the end of that queue
would wait for all messages before it.  A timer is on time.

The messages in the oldest log file are the head of their level's queue.  So the progress of a level
says which of its messages are timers now.  After a crash that progress may lag behind;
`MovedRecords` then says how far the level had come.
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
    from cometmq.broker.delay.wheel.moved_records import MovedRecords
    from cometmq.broker.delay.wheel.service import TimerService

__all__ = ["PendingDelayed"]

_READ_UNITS = 4096


class _DelayedRecord(NamedTuple):
    """A message that waits on a delay level."""

    physical_offset: int
    size: int
    level: int
    queue_offset: int


class PendingDelayed:
    """The delay levels of a broker as retention sees them."""

    plural = "delayed messages"

    def __init__(
        self,
        state: BrokerState,
        schedule: ScheduleService,
        timers: TimerService,
        moved: MovedRecords,
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
        """Prepare the search through the queue of each level, from its progress on."""
        store = self._state.store
        nexts = {
            level: max(next_offset, store.min_queue_offset(SCHEDULE_TOPIC, level - 1))
            for level, next_offset in self._schedule.next_offsets().items()
        }

        def search() -> PendingMessages:
            records: list[_DelayedRecord] = []
            for level, next_offset in nexts.items():
                records += self._below(level, next_offset, end)
            return PendingMessages(
                len(records),
                sum(record.size for record in records),
                lambda start, stop: records[start:stop],
            )

        return search

    def _below(self, level: int, next_offset: int, end: int) -> list[_DelayedRecord]:
        records: list[_DelayedRecord] = []
        log_min = self._state.store.min_physical_offset
        while units := self._state.store.units(SCHEDULE_TOPIC, level - 1, next_offset, _READ_UNITS):
            for unit in units:
                is_record = 0 < unit.size < PRE_BLANK_SIZE
                if is_record and unit.physical_offset >= end:
                    return records
                if is_record and unit.physical_offset >= log_min:
                    records.append(
                        _DelayedRecord(unit.physical_offset, unit.size, level, next_offset)
                    )
                next_offset += 1
        return records

    def prepare(self, end: int) -> Callable[[], None]:
        """Prepare the mark that makes a crash from now on recoverable."""
        return self._moved.prepare(end)

    def append(self, units: Sequence[ReadUnit]) -> int:
        """Put a timer for each message, in the order of its level."""
        state, schedule, timers = self._state, self._schedule, self._timers
        now_ms = state.env.clock.now_ms()
        nexts = schedule.next_offsets()
        stopped: set[int] = set()
        waiting_count = 0
        for unit, message in units:
            level = unit.level
            if unit.queue_offset < nexts[level]:
                # The level has delivered it meanwhile.
                continue
            if level in stopped or unit.queue_offset > nexts[level]:
                waiting_count += 1
                continue
            if message is not None:
                due_ms = state.delay.deliver_time_ms(level, message.store_timestamp_ms)
                wait_ms = state.delay.due_in_ms(level, due_ms, now_ms)
                if wait_ms < NEAR_MS:
                    # The level delivers it soon, and the messages after it stay behind it.
                    stopped.add(level)
                    waiting_count += 1
                    continue
                moved = MovedFrom(unit.physical_offset, level, unit.queue_offset)
                out_ms = timers.rules.out_ms(due_ms)
                raw = moved_delayed(message.raw_properties, moved, due_ms, out_ms)
                put_timer(state, timers, message, raw, now_ms)
            nexts[level] = unit.queue_offset + 1
            schedule.moved(level, nexts[level], now_ms)
            state.store.mover.at("retention.put")
        return waiting_count
