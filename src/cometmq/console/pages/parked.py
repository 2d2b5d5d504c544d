"""Parked message groups: which and why, the messages of one, consuming them again or giving up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.console.body_view import view_body
from cometmq.console.visit import ROWS_PER_PAGE, Endpoint
from cometmq.errors import ConfigError
from cometmq.listings.parked import parked_lanes, parked_rows
from cometmq.listings.times import utc

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def parked(visit: Visit) -> Response:
    """Everything that is parked."""
    rows, where = visit.page_of(await parked_rows(visit.admin))
    return visit.show("parked.html", rows=rows, where=where)


async def lane(visit: Visit) -> Response:
    """The first messages of one parked message group."""
    group, name = visit.path("group"), visit.query("lane")
    lanes = parked_lanes(visit.admin, group)
    rows = []
    total = 0
    for each in await lanes.named(name):
        total += len(each.lane.messages)
        async for record, message in each.messages(lanes.reader, ROWS_PER_PAGE):
            rows.append(
                {
                    "position": record.position,
                    "parked": utc(record.parked_ms),
                    "message_id": record.message_id,
                    "keys": record.keys,
                    "reason": record.reason,
                    "body": view_body(message.body[:320]).text[:160],
                }
            )
    return visit.show("lane.html", group=group, lane=name, rows=rows, total=total)


async def order(visit: Visit) -> Response:
    """Have a message group consumed again, or give up its first message.

    Raises:
        ConfigError: the order is another one.
    """
    group, name = visit.path("group"), visit.form("lane")
    lanes = parked_lanes(visit.admin, group)
    messages = 0
    for each in await lanes.named(name):
        if visit.form("order") == "retry":
            await lanes.retry(each)
            messages += len(each.lane.messages)
        elif visit.form("order") == "skip":
            messages += await lanes.skip(each, 1)
        else:
            raise ConfigError("the order is retry or skip")
    what_for = "to be consumed again" if visit.form("order") == "retry" else "given up"
    many = f"{messages:,} message{'s' if messages != 1 else ''}"
    return visit.go("/parked", f"{name}: {many} {what_for}.")


PAGES: Final = (
    Endpoint("GET", "/parked", parked),
    Endpoint("GET", "/parked/{group}", lane),
    Endpoint("POST", "/parked/{group}/order", order),
)
