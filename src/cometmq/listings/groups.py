"""Consumer groups: members, progress by queue, lag by topic, and moves."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.errors import RemoteError
from cometmq.wire.body.admin import ConsumeStats

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.client.admin.group_reset import QueueReset

__all__ = [
    "group_rows",
    "lag_rows",
    "member_ids",
    "offset_rows",
    "reset_rows",
    "reset_sums",
]


async def member_ids(admin: Admin, group: str) -> list[str]:
    """Client ids of a group's members; a group without members is an answer, not an error."""
    try:
        return await admin.consumer_list(group)
    except RemoteError:
        return []


async def group_rows(
    admin: Admin, groups: Iterable[str], space: Namespace = NO_NAMESPACE
) -> list[dict[str, Any]]:
    """A row for each of these groups: members online, messages that wait, topics."""
    topics_of = await admin.topics_by_group()

    async def row(group: str) -> dict[str, Any]:
        topics = topics_of.get(group, [])
        members = await member_ids(admin, group)
        stats = await admin.consume_stats(group, topics) if topics else ConsumeStats({})
        return {
            "group": space.unwrap(group),
            "members": len(members),
            "lag": sum(
                max(0, reached.broker_offset - max(0, reached.consumer_offset))
                for queue, reached in stats.queues.items()
                if queue.topic in topics
            ),
            "topics": [space.unwrap(topic) for topic in topics],
        }

    return await gather(*map(row, groups))


async def offset_rows(
    admin: Admin,
    group: str,
    topics: Iterable[str] | None = None,
    space: Namespace = NO_NAMESPACE,
) -> list[dict[str, Any]]:
    """A row for each queue that a group reads: where it ends, and how far the group is."""
    progress = await admin.group_offsets(group, topics)
    return [
        {
            "topic": space.unwrap(queue.topic),
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "broker_offset": reached.broker_offset,
            "consumer_offset": reached.consumer_offset,
            "lag": reached.lag,
        }
        for queue, reached in sorted(progress.items())
    ]


def lag_rows(offsets: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each topic of `offset_rows`: messages that wait, and the largest queue's."""
    table: dict[str, list[int]] = {}
    for row in offsets:
        table.setdefault(row["topic"], []).append(row["lag"])
    return [
        {"topic": topic, "queues": len(lags), "lag": sum(lags), "largest": max(lags)}
        for topic, lags in sorted(table.items())
    ]


def reset_rows(resets: Iterable[QueueReset]) -> list[dict[str, Any]]:
    """A row for each queue in which a group moves."""
    return [
        {
            "broker": reset.queue.broker_name,
            "queue_id": reset.queue.queue_id,
            "from_offset": reset.from_offset,
            "consumer_offset": reset.to_offset,
            "skipped": reset.skipped,
            "repeated": reset.repeated,
        }
        for reset in resets
    ]


def reset_sums(resets: Sequence[QueueReset]) -> str:
    """What a move skips and repeats, as a phrase."""
    skipped, repeated = sum(r.skipped for r in resets), sum(r.repeated for r in resets)
    queues = f"{len(resets)} queue{'s' if len(resets) != 1 else ''}"
    return f"{queues}, {skipped:,} messages skipped, {repeated:,} repeated"
