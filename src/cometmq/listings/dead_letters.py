"""Dead letters: how many each group has, and the newest of one group."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from cometmq.client.admin.redrive import DeadLetters, dead_groups
from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.listings.existing_group import require_group
from cometmq.listings.times import utc
from cometmq.model.names import dlq_topic

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.core.retry.dead_letters import Death, DeathSelection

__all__ = ["dead_group_rows", "death_row", "newest_deaths", "require_dead_group"]


async def dead_group_rows(admin: Admin, space: Namespace = NO_NAMESPACE) -> list[dict[str, Any]]:
    """A row for each group that has dead letters."""
    topics = await admin.topic_list(include_system=True)
    counts = await dead_groups(admin.queue_reader(), topics)
    return [
        {"group": space.unwrap(group), "messages": count}
        for group, count in counts.items()
        if count and space.has(group)
    ]


async def newest_deaths(
    letters: DeadLetters, selection: DeathSelection, count: int
) -> tuple[list[Death], int]:
    """The newest of a group's selected dead letters, oldest first, and how many there are."""
    newest: deque[Death] = deque(maxlen=count)
    total = 0
    async for death, _ in letters.walk(selection):
        newest.append(death)
        total += 1
    return sorted(newest, key=lambda death: (death.died_ms, death.position)), total


async def require_dead_group(admin: Admin, group: str) -> None:
    """Tell a group without dead letters from a misspelt one.

    Raises:
        GroupNotExist: no broker knows the group.
    """
    if not await admin.queue_reader().queues(dlq_topic(group)):
        await require_group(admin, group)


def death_row(
    death: Death, space: Namespace = NO_NAMESPACE, *, is_full: bool = False
) -> dict[str, Any]:
    """A dead letter as a row; a full one has its ids, its position and its size too."""
    row: dict[str, Any] = {
        "died": utc(death.died_ms),
        "topic": space.unwrap(death.origin_topic),
        "tags": death.tags,
        "keys": list(death.keys),
        "refused": death.times_refused,
        "reason": death.reason,
        "message_id": death.message_id,
    }
    if is_full:
        row |= {
            "origin_message_id": death.origin_message_id,
            "position": death.position,
            "body_bytes": death.body_bytes,
        }
    return row
