"""Timer messages of a Java broker in the store of a broker whose timers are switched off.

They are counted and logged at the start, and the commit log keeps the files that they, and delayed
messages that are not due yet, need.  Nothing is written: a Java broker gets the wheel, the timer
log and ``timercheck`` back as they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.codec.consume_queue import PRE_BLANK_SIZE
from cometmq.codec.stored_message import read_record_header
from cometmq.errors import StoreError
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.net.env import WorkerPool
from cometmq.store.base.disk import Disk
from cometmq.store.base.results import ColdRead, GetStatus
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.carried import Carried, count_timer_messages

__all__ = ["CarriedGoods", "carry"]

log = logging.getLogger("cometmq.broker")


@dataclass(frozen=True, slots=True)
class CarriedGoods:
    """The messages that wait in the store for a Java broker."""

    timers: Carried

    @property
    def is_empty(self) -> bool:
        """Whether there is none."""
        return not self.timers.count

    def __str__(self) -> str:
        return _counted(self.timers.count, "timer message")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}" if count else ""


def carry(
    store: MessageStore,
    disk: Disk,
    schedule: ScheduleService,
    workers: WorkerPool,
    *,
    has_timers: bool = False,
) -> CarriedGoods:
    """Count and log the messages, and hold the log files they need.

    Blocks; the store is loaded and does not serve yet.  With `has_timers` this broker delivers
    timers itself, so none are carried.
    """
    goods = CarriedGoods(Carried() if has_timers else count_timer_messages(store, disk))
    if not has_timers:
        oldest = _OldestDelayed(store, schedule, workers)
        store.hold_log("delayed messages that are not due yet", oldest)
    if goods.timers.oldest is not None:
        store.hold_log("timer messages for a Java broker", _always(goods.timers.oldest))
    if not goods.is_empty:
        log.warning(
            "carrying %s: this broker does not serve them and keeps them, and the log files they"
            " need, for a Java broker that gets %s back",
            goods,
            store.config.root,
        )
    return goods


def _always(physical_offset: int) -> Callable[[], int | None]:
    return lambda: physical_offset


class _OldestDelayed:
    """Gives the first record that the delay levels have not delivered; never blocks.

    If its unit is not in memory a worker reads it, and until then the whole log is held.
    """

    def __init__(self, store: MessageStore, schedule: ScheduleService, workers: WorkerPool) -> None:
        self._store = store
        self._schedule = schedule
        self._workers = workers
        self._last_read: dict[int, tuple[int, int | None]] = {}
        self._asked: set[int] = set()

    def __call__(self) -> int | None:
        offsets = [
            physical_offset
            for level, next_offset in self._schedule.positions().items()
            if (physical_offset := self._physical_offset(level, next_offset)) is not None
        ]
        return min(offsets, default=None)

    def _physical_offset(self, level: int, next_offset: int) -> int | None:
        store, queue_id = self._store, level - 1
        queue_offset = max(next_offset, store.min_queue_offset(SCHEDULE_TOPIC, queue_id))
        if queue_offset >= store.max_queue_offset(SCHEDULE_TOPIC, queue_id):
            return None
        last = self._last_read.get(level)
        if last is not None and last[0] == queue_offset:
            return last[1]
        try:
            result = store.get(SCHEDULE_TOPIC, queue_id, queue_offset, 1)
        except StoreError:
            return None
        if isinstance(result, ColdRead):
            self._ask(level, queue_offset)
            return store.min_physical_offset
        if result.status is not GetStatus.FOUND:
            return None
        return read_record_header(result.chunks[0], 0).physical_offset

    def _ask(self, level: int, queue_offset: int) -> None:
        """Have a worker read the unit."""
        if level in self._asked:
            return
        self._asked.add(level)
        store = self._store

        def work() -> int | None:
            units = store.units(SCHEDULE_TOPIC, level - 1, queue_offset, 1)
            sound = [unit for unit in units if 0 < unit.size < PRE_BLANK_SIZE]
            return sound[0].physical_offset if sound else None

        def done(result: int | BaseException | None) -> None:
            self._asked.discard(level)
            if isinstance(result, BaseException):
                log.warning("the oldest delayed message of level %d: %s", level, result)
            else:
                self._last_read[level] = queue_offset, result

        self._workers.submit(work, done)
