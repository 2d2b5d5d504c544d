"""Opens a broker's timers, and has pending messages appended again before their log file goes."""

from __future__ import annotations

import logging

from cometmq.broker.base.state import BrokerState
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.moving import PendingDelayed
from cometmq.broker.delay.wheel.counts import TimerCounts
from cometmq.broker.delay.wheel.moved_places import MovedPlaces
from cometmq.broker.delay.wheel.moving import PendingTimers
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.store.base.disk import Disk
from cometmq.store.timer.book import TimerBook
from cometmq.store.timer.timer_slots import TimerRules, precision_of

__all__ = ["open_timers"]

log = logging.getLogger("cometmq.broker")


def open_timers(
    state: BrokerState, disk: Disk, schedule: ScheduleService
) -> tuple[TimerService, TimerCounts] | None:
    """Open and recover the timers; None when ``timerWheelEnable`` is false.  Blocks.

    With timers, what the delay levels of `schedule` have in a log file that is to go becomes a
    timer.
    """
    config = state.config
    if not config.timer_wheel_enable:
        return None
    rules = TimerRules(precision_of(config.timer_precision_ms), config.timer_roll_window_slot)
    book = TimerBook(disk, state.store.config.root, config.mapped_file_size_timer_log, rules)
    book.load(state.store, state.env.clock.now_ms())
    moved = MovedPlaces(disk, state.store)
    moved.load()
    now_ms = state.env.clock.now_ms()
    for level, next_offset in moved.levels.items():
        schedule.moved(level, next_offset, now_ms)
    service = TimerService(state, book, moved)
    state.store.mover.kinds += [
        PendingTimers(state, book, service, moved),
        PendingDelayed(state, schedule, service, moved),
    ]
    pending = service.pending_count() + service.intake.message_count()
    if pending:
        log.info("%d timed messages wait", pending)
    return service, TimerCounts(state, book, service, moved)
