"""Opens a broker's timers, and has waiting messages appended again before their log file goes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from cometmq.broker.base.state import BrokerState
from cometmq.broker.base.topic_counts import CountsFile
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.moving import PendingDelayed
from cometmq.broker.delay.wheel.counts import TimerCounts
from cometmq.broker.delay.wheel.moved_records import MovedRecords
from cometmq.broker.delay.wheel.moving import PendingTimers
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.store.base.disk import Disk
from cometmq.store.timer.book import TimerBook
from cometmq.store.timer.timer_slots import TimerRules

__all__ = ["open_timers"]

log = logging.getLogger("cometmq.broker")


def open_timers(
    state: BrokerState,
    disk: Disk,
    schedule: ScheduleService,
    rules: TimerRules,
    load_counts: Callable[[], CountsFile | None],
) -> tuple[TimerService, TimerCounts] | None:
    """Open and recover the timers; None when ``timerWheelEnable`` is false.  Blocks.

    A slave has none: it has the messages in its log, and the master delivers them.

    `load_counts` reads the file of the counts.  With timers, the messages of `schedule` in a log
    file that is to go become timers.
    """
    config = state.config
    if not config.timer_wheel_enable or config.is_slave:
        return None
    book = TimerBook(disk, state.store.config.root, config.mapped_file_size_timer_log, rules)
    state.config = msgspec.structs.replace(config, mapped_file_size_timer_log=book.log.file_bytes)
    book.load(state.store, state.env.clock.now_ms())
    moved = MovedRecords(disk, state.store)
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
    return service, TimerCounts(state, book, service, moved, load_counts())
