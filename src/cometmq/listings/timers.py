"""Messages that wait for their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.codec.java_properties import parse_properties
from cometmq.core.delay.levels import DelayLevels
from cometmq.errors import NoRoute, RequestNotSupported
from cometmq.model.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["level_rows", "timer_rows"]

_LEVEL: Final = "scheduleMessageOffset_"


async def timer_rows(admin: Admin) -> list[dict[str, Any]]:
    """A row for each topic of each broker that has messages with an exact time."""
    try:
        counts = await admin.timer_counts()
    except RequestNotSupported:
        return []  # a broker of RocketMQ 4
    return [
        {"broker": broker, "topic": topic, "messages": messages}
        for broker, topics in counts.items()
        for topic, messages in sorted(topics.items())
        if messages
    ]


async def level_rows(admin: Admin) -> list[dict[str, Any]]:
    """A row for each delay level of each broker in which messages wait."""
    try:
        queues = (await admin.topic_stats(SCHEDULE_TOPIC)).offsets
    except NoRoute:
        return []
    rows = []
    for broker in sorted({queue.broker_name for queue in queues}):
        # A level that has never delivered is not among the figures.
        figures = await admin.broker_runtime_info(broker)
        text = parse_properties(await admin.broker_config(broker)).get("messageDelayLevel")
        levels = DelayLevels(text) if text else DelayLevels()
        for queue, bounds in sorted(queues.items()):
            level = queue.queue_id + 1
            if queue.broker_name != broker or level > levels.max_level:
                continue
            reached = int(figures.get(f"{_LEVEL}{level}", "0").partition(",")[0])
            waiting = bounds.max_offset - max(reached, bounds.min_offset)
            if waiting > 0:
                delay_s = levels.delay_ms(level) // 1000
                rows.append(
                    {"broker": broker, "level": level, "delay_s": delay_s, "messages": waiting}
                )
    return rows
