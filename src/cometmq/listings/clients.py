"""Clients that are online, and what a consumer says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.wire.command.codes import release_of

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.wire.body.client import ConsumerRunningInfo

__all__ = ["client_rows", "consumer_queue_rows", "running_info_fields"]


async def client_rows(
    admin: Admin,
    group: str | None = None,
    space: Namespace = NO_NAMESPACE,
    *,
    consumers_of: Iterable[str] | None = None,
) -> list[dict[str, Any]]:
    """A row for each group of each client: role, address, language, subscriptions.

    The arguments are those of `Admin.online_clients`.
    """
    return [
        {
            "role": each.role,
            "group": space.unwrap(each.group),
            "client_id": each.client_id,
            "address": each.address,
            "language": each.language,
            "protocol": release_of(each.version),
            "brokers": each.brokers,
            "subscriptions": [
                f"{space.unwrap(topic)} {expression}"
                for topic, expression in sorted(each.subscriptions.items())
            ],
        }
        for each in await admin.online_clients(group, consumers_of=consumers_of)
        if space.has(each.group)
    ]


def running_info_fields(
    info: ConsumerRunningInfo, space: Namespace = NO_NAMESPACE
) -> dict[str, Any]:
    """Everything that a consumer says of itself, for JSON."""
    return {
        "properties": info.properties,
        "queues": [
            {
                "topic": space.unwrap(queue.topic),
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                **state,
            }
            for queue, state in sorted(info.queue_table.items())
        ],
        "rates": info.status_table,
    }


def consumer_queue_rows(
    info: ConsumerRunningInfo, space: Namespace = NO_NAMESPACE
) -> list[dict[str, Any]]:
    """A row for each queue of a consumer: messages in memory, offsets, last pull and handling."""
    return [
        {
            "topic": space.unwrap(queue.topic),
            "queue": f"{queue.broker_name}:{queue.queue_id}",
            "in_memory": state.get("cachedMsgCount", 0),
            "first": state.get("cachedMsgMinOffset", 0),
            "last": state.get("cachedMsgMaxOffset", 0),
            "committed": state.get("commitOffset", 0),
            "last_pull": _time(state.get("lastPullTimestamp")),
            "last_handled": _time(state.get("lastConsumeTimestamp")),
            "locked": bool(state.get("locked")),
        }
        for queue, state in sorted(info.queue_table.items())
    ]


def _time(moment_ms: object) -> str | None:
    """A time of a running info as UTC text; None where it never was."""
    if not isinstance(moment_ms, int) or moment_ms <= 0:
        return None
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="seconds")
