"""Dead letters: groups that have some, those of one group, and sending them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client.admin.redrive import DeadLetters, Redrive
from cometmq.console.visit import ROWS_PER_PAGE, Endpoint
from cometmq.core.retry.dead_letters import DeathSelection
from cometmq.errors import ConfigError
from cometmq.listings.dead_letters import (
    dead_group_rows,
    death_row,
    newest_deaths,
    require_dead_group,
)
from cometmq.net.env import SystemClock

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def dead_groups(visit: Visit) -> Response:
    """The groups that have dead letters."""
    rows, where = visit.page_of(await dead_group_rows(visit.admin))
    return visit.show("dead_groups.html", rows=rows, where=where)


async def dead_letters(visit: Visit) -> Response:
    """The newest dead letters of a group."""
    group = visit.path("group")
    await require_dead_group(visit.admin, group)
    letters = DeadLetters(visit.admin.queue_reader(), group)
    newest, total = await newest_deaths(letters, _selection(visit), ROWS_PER_PAGE)
    rows = []
    for death in reversed(newest):
        queue = death.queue
        position = {
            "topic": queue.topic,
            "queue": f"{queue.broker_name}:{queue.queue_id}",
            "offset": death.queue_offset,
        }
        rows.append(death_row(death) | {"position": position})
    return visit.show("dead_letters.html", group=group, rows=rows, total=total)


def _selection(visit: Visit) -> DeathSelection:
    """What was ticked; else all, or those that the address selects."""
    ids = tuple(visit.form_list("id"))
    topic = visit.query("topic") or visit.form("topic")
    reason = visit.query("reason") or visit.form("reason")
    return DeathSelection(
        message_ids=ids,
        topics=(topic,) if topic else (),
        reasons=(reason,) if reason else (),
    )


async def redrive(visit: Visit) -> Response:
    """Show what would be sent again; send it when that was confirmed.

    Raises:
        ConfigError: no dead letter is chosen.
    """
    group = visit.path("group")
    if not visit.form_list("id") and visit.form("all") != "yes":
        raise ConfigError("no dead letter is ticked; tick some, or take all")
    await require_dead_group(visit.admin, group)
    letters = DeadLetters(visit.admin.queue_reader(), group)
    sending = Redrive(letters, visit.admin, clock=SystemClock())
    plan = await sending.plan(_selection(visit))
    if visit.form("confirmed") != "yes":
        return visit.show(
            "redrive.html",
            group=group,
            count=plan.count,
            sent_before=plan.sent_before,
            rows=[
                {"first_topic": first, "target": target, "messages": row[0], "body_bytes": row[1]}
                for (first, target), row in plan.by_target.items()
            ],
            ids=visit.form_list("id"),
            fields=[
                (field, visit.form(field))
                for field in ("all", "topic", "reason")
                if visit.form(field)
            ],
        )
    sent = await sending.send(plan, lambda _: None)
    return visit.go(
        f"/dead-letters/{visit.quoted(group)}",
        f"Sent {sent:,} again; {plan.sent_before:,} were sent before.",
    )


PAGES: Final = (
    Endpoint("GET", "/dead-letters", dead_groups),
    Endpoint("GET", "/dead-letters/{group}", dead_letters),
    Endpoint("POST", "/dead-letters/{group}/redrive", redrive),
)
