"""What a Java broker left in the store that this one does not serve: told at start, kept for it.

Job: count pending timer messages and SQL filters, say so in one line, and hold the commit log for
the messages among them and for delayed ones that are still to be delivered.  It must not write:
the wheel, the timer log, ``timercheck`` and ``consumerFilter.json`` go back to a Java broker as
they came.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cometmq.codec.stored_message import read_record_header
from cometmq.errors import CodecError, StoreError
from cometmq.model.names import SCHEDULE_TOPIC
from cometmq.store.carried import Carried, count_timer_messages
from cometmq.store.results import GetResult, GetStatus
from cometmq.wire.fastjson import loads_object

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.schedule import ScheduleService
    from cometmq.store.disk import Disk
    from cometmq.store.message_store import MessageStore

__all__ = ["CarriedGoods", "carry", "count_filters"]

log = logging.getLogger("cometmq.broker")


@dataclass(frozen=True, slots=True)
class CarriedGoods:
    """What waits in the store for a Java broker."""

    timers: Carried
    filter_count: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self.timers.count or self.filter_count)

    def __str__(self) -> str:
        parts = [
            _counted(self.timers.count, "timer message"),
            _counted(self.filter_count, "SQL filter"),
        ]
        return ", ".join(part for part in parts if part)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}" if count else ""


def carry(store: MessageStore, disk: Disk, schedule: ScheduleService) -> CarriedGoods:
    """Count, say it, and hold the log.  Blocks; after the store is loaded, before it serves."""
    goods = CarriedGoods(
        count_timer_messages(store, disk),
        count_filters(disk, store.config.root),
    )
    store.hold_log("delayed messages that are not due yet", _oldest_delayed(store, schedule))
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


def _oldest_delayed(store: MessageStore, schedule: ScheduleService) -> Callable[[], int | None]:
    """Give the first record of the delay levels that is not delivered."""

    def oldest() -> int | None:
        places = [
            place
            for level, next_offset in schedule.positions().items()
            if (place := _physical_offset(store, level - 1, next_offset)) is not None
        ]
        return min(places, default=None)

    return oldest


def _physical_offset(store: MessageStore, queue_id: int, queue_offset: int) -> int | None:
    queue_offset = max(queue_offset, store.min_queue_offset(SCHEDULE_TOPIC, queue_id))
    if queue_offset >= store.max_queue_offset(SCHEDULE_TOPIC, queue_id):
        return None
    try:
        found = store.get(SCHEDULE_TOPIC, queue_id, queue_offset, 1, allow_cold=True)
    except StoreError:
        return None
    if not isinstance(found, GetResult) or found.status is not GetStatus.FOUND:
        return None
    return read_record_header(found.chunks[0], 0).physical_offset


def count_filters(disk: Disk, root: str) -> int:
    """Count the SQL filters a Java broker registered; 0 where its file cannot be read."""
    try:
        data = loads_object(disk.read_bytes(f"{root}/config/consumerFilter.json"), "filters")
    except (FileNotFoundError, CodecError):
        return 0
    by_topic = data.get("filterDataByTopic")
    if not isinstance(by_topic, dict):
        return 0
    groups = [
        topic.get("groupFilterData") for topic in by_topic.values() if isinstance(topic, dict)
    ]
    return sum(len(table) for table in groups if isinstance(table, dict))
