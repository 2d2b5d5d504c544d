"""Consumer groups: a list in pages, one group with its lag, and moving it with a preview."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.admin.group_reset import GroupReset, ResetTarget
from cometmq.console.moments import moment_of
from cometmq.console.visit import Endpoint
from cometmq.errors import ConfigError, NoRoute
from cometmq.listings.clients import client_rows
from cometmq.listings.existing_group import require_group
from cometmq.listings.groups import group_rows, lag_rows, offset_rows, reset_rows, reset_sums

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def groups(visit: Visit) -> Response:
    """The groups whose names contain a text, a page of them with members and lag."""
    part = visit.query("q").lower()
    is_all = bool(visit.query("all"))
    names = await visit.admin.group_list(include_system=is_all)
    chosen, where = visit.page_of([name for name in names if part in name.lower()])
    rows = await group_rows(visit.admin, chosen)
    return visit.show("groups.html", rows=rows, where=where, part=visit.query("q"), is_all=is_all)


async def group(visit: Visit) -> Response:
    """One group: members, lag by queue, and on request why messages wait."""
    name = visit.path("group")
    await require_group(visit.admin, name)
    topics = await visit.admin.group_topics(name)
    offsets: list[dict[str, Any]] = []
    removed = []
    for topic in topics:
        try:
            offsets += await offset_rows(visit.admin, name, [topic])
        except NoRoute:
            removed.append(topic)  # the brokers still have the group's offsets
    members = await client_rows(visit.admin, name)
    causes = None
    if visit.query("explain"):
        causes = [asdict(cause) for cause in (await visit.admin.explain_lag(name))[1]]
    shown, where = visit.page_of(offsets)
    return visit.show(
        "group.html",
        group=name,
        offsets=shown,
        where=where,
        by_topic=lag_rows(offsets),
        topics=[topic for topic in topics if topic not in removed],
        removed=removed,
        lag=sum(row["lag"] for row in offsets),
        members=members,
        causes=causes,
        dead=await _dead_letters(visit, name),
    )


async def _dead_letters(visit: Visit, group: str) -> int:
    from cometmq.client.admin.redrive import dead_groups
    from cometmq.model.names import dlq_topic

    counts = await dead_groups(visit.admin.queue_reader(), [dlq_topic(group)])
    return counts.get(group, 0)


async def reset(visit: Visit) -> Response:
    """Show what a move of the group skips and repeats; carry it out when that was confirmed."""
    name, topic = visit.path("group"), visit.form("topic")
    await require_group(visit.admin, name)
    change = GroupReset(visit.admin, name, topic, _target(visit), _queues(visit))
    resets = await change.plan()
    if visit.form("confirmed") != "yes":
        return visit.show(
            "reset.html",
            group=name,
            topic=topic,
            rows=reset_rows(resets),
            sums=reset_sums(resets),
            fields=[
                (field, visit.form(field))
                for field in ("topic", "to", "time", "queue_offset", "queue")
                if visit.form(field)
            ],
        )
    done = await change.carry_out(resets)
    return visit.go(
        f"/groups/{visit.quoted(name)}", f"Moved {name} in {topic}: {reset_sums(done)}."
    )


def _target(visit: Visit) -> ResetTarget:
    where = visit.form("to")
    if where == "earliest":
        return ResetTarget(0)
    if where == "latest":
        return ResetTarget()
    if where == "time":
        return ResetTarget(moment_of(visit.form("time")))
    if where == "offset":
        if not visit.form("queue"):
            raise ConfigError("an offset needs a queue: each queue has its own offsets")
        return ResetTarget(queue_offset=visit.number("queue_offset", 0))
    raise ConfigError("say where to: to the earliest, the latest, a time or an offset")


def _queues(visit: Visit) -> list[str]:
    queue = visit.form("queue")
    return [queue] if queue else []


PAGES: Final = (
    Endpoint("GET", "/groups", groups),
    Endpoint("GET", "/groups/{group}", group),
    Endpoint("POST", "/groups/{group}/reset", reset),
)
