"""What a Java broker left in the store that this one does not serve: told at start, kept for it.

Job: where timers are switched off, count pending timer messages, say so in one line, and hold the
commit log for them and for delayed ones that are still to be delivered.  It must not write: the
wheel, the timer log and ``timercheck`` go back to a Java broker as they came.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.codec.consume_queue import PRE_BLANK_SIZE
from cometmq.codec.stored_message import read_record_header
from cometmq.errors import StoreError
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.base.results import ColdRead, GetStatus
from cometmq.store.timer.carried import Carried, count_timer_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.delay.levels.schedule import ScheduleService
    from cometmq.net.env import Workers
    from cometmq.store.base.disk import Disk
    from cometmq.store.message_store import MessageStore

__all__ = ["CarriedGoods", "carry"]

log = logging.getLogger("cometmq.broker")


@dataclass(frozen=True, slots=True)
class CarriedGoods:
    """What waits in the store for a Java broker."""

    timers: Carried

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self.timers.count

    def __str__(self) -> str:
        return _counted(self.timers.count, "timer message")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}" if count else ""


def carry(
    store: MessageStore,
    disk: Disk,
    schedule: ScheduleService,
    workers: Workers,
    *,
    has_timers: bool = False,
) -> CarriedGoods:
    """Count, say it, and hold the log.  Blocks; after the store is loaded, before it serves.

    `has_timers`: this broker serves timers itself, so none are carried.
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


def _always(place: int) -> Callable[[], int | None]:
    return lambda: place


class _OldestDelayed:
    """Gives the first record of the delay levels that is not delivered; never blocks.

    Where that is not in memory a worker looks, and everything is held until it has answered.
    """

    def __init__(self, store: MessageStore, schedule: ScheduleService, workers: Workers) -> None:
        self._store = store
        self._schedule = schedule
        self._workers = workers
        self._known: dict[int, tuple[int, int | None]] = {}
        self._asked: set[int] = set()

    def __call__(self) -> int | None:
        places = [
            place
            for level, next_offset in self._schedule.positions().items()
            if (place := self._physical_offset(level, next_offset)) is not None
        ]
        return min(places, default=None)

    def _physical_offset(self, level: int, next_offset: int) -> int | None:
        store, queue_id = self._store, level - 1
        queue_offset = max(next_offset, store.min_queue_offset(SCHEDULE_TOPIC, queue_id))
        if queue_offset >= store.max_queue_offset(SCHEDULE_TOPIC, queue_id):
            return None
        known = self._known.get(level)
        if known is not None and known[0] == queue_offset:
            return known[1]
        try:
            found = store.get(SCHEDULE_TOPIC, queue_id, queue_offset, 1)
        except StoreError:
            return None
        if isinstance(found, ColdRead):
            self._ask(level, queue_offset)
            return store.min_physical_offset
        if found.status is not GetStatus.FOUND:
            return None
        return read_record_header(found.chunks[0], 0).physical_offset

    def _ask(self, level: int, queue_offset: int) -> None:
        """Let a worker look at the unit; its record need not be read."""
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
                self._known[level] = queue_offset, result

        self._workers.submit(work, done)
