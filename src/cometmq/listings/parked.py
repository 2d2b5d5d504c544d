"""Message groups that are parked: which, since when, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cometmq.client.extensions.parking.admin import ParkedLanes, parking_groups
from cometmq.listings.existing_group import require_group
from cometmq.listings.times import utc
from cometmq.net.env import SystemClock

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.client.extensions.parking.admin import ParkedLane

__all__ = ["parked_lanes", "parked_rows"]


def parked_lanes(admin: Admin, group: str) -> ParkedLanes:
    """The parked message groups of a consumer group."""
    return ParkedLanes(admin.queue_reader(), group, SystemClock())


async def parked_rows(admin: Admin, group: str | None = None) -> list[dict[str, Any]]:
    """A row for each message group that is parked for a consumer group, or for any.

    Raises:
        GroupNotExist: no broker knows the group.
    """
    groups = parking_groups(await admin.topic_list(include_system=True))
    if group is not None and group not in groups:
        await require_group(admin, group)
    return [
        _row(name, lane)
        for name in groups
        if group in (None, name)
        for lane in await parked_lanes(admin, name).all()
    ]


def _row(group: str, lane: ParkedLane) -> dict[str, Any]:
    first = lane.lane.messages[0]
    return {
        "group": group,
        "lane": lane.name,
        "state": lane.lane.state.value,
        "messages": len(lane.lane.messages),
        "since": utc(first.parked_ms),
        "expires": utc(lane.expires_ms),
        "first": first.position,
        "reason": lane.lane.reason,
    }
