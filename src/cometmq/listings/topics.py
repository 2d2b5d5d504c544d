"""Topics with their queues, brokers and messages."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.model.flags import PERM_READ, PERM_WRITE

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["queue_rows", "route_rows", "topic_rows"]


async def topic_rows(
    admin: Admin, topics: Iterable[str], space: Namespace = NO_NAMESPACE
) -> list[dict[str, Any]]:
    """A row for each of these topics: its queues and brokers.

    Raises:
        NoRoute: a topic does not exist.
    """

    async def row(topic: str) -> dict[str, Any]:
        route = await admin.topic_route(topic)
        return {
            "topic": space.unwrap(topic),
            "read_queues": sum(data.read_queue_count for data in route.queue_datas),
            "write_queues": sum(data.write_queue_count for data in route.queue_datas),
            "brokers": [data.broker_name for data in route.queue_datas],
        }

    return await gather(*map(row, topics))


async def route_rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
    """A row for each broker of a topic: its queues, and the addresses that it listens on.

    Raises:
        NoRoute: the topic does not exist.
    """
    route = await admin.topic_route(topic)
    brokers = {data.broker_name: data for data in route.broker_datas}
    return [
        {
            "broker": data.broker_name,
            "cluster": brokers[data.broker_name].cluster,
            "addresses": [
                f"{number}={address}"
                for number, address in sorted(brokers[data.broker_name].broker_addrs.items())
            ],
            "read_queues": data.read_queue_count,
            "write_queues": data.write_queue_count,
            "readable": bool(data.perm & PERM_READ),
            "writable": bool(data.perm & PERM_WRITE),
        }
        for data in route.queue_datas
        if data.broker_name in brokers
    ]


async def queue_rows(admin: Admin, topic: str) -> list[dict[str, Any]]:
    """A row for each queue of a topic: its first and its next offset, and its messages.

    Raises:
        NoRoute: the topic does not exist.
    """
    offsets = await admin.topic_offsets(topic)
    return [
        {
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "min_offset": bounds.min_offset,
            "max_offset": bounds.max_offset,
            "messages": bounds.count,
        }
        for queue, bounds in sorted(offsets.items())
    ]
