"""The first page: brokers with their rates, and how much there is of everything."""

from __future__ import annotations

from asyncio import gather
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from cometmq.console.visit import Endpoint
from cometmq.errors import AccessDenied
from cometmq.listings.brokers import broker_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def overview(visit: Visit) -> Response:
    """Brokers with live rates; counts of topics and groups."""
    admin = visit.admin
    brokers, topics, groups = await gather(
        broker_rows(admin),
        _count(visit, admin.topic_list()),
        _count(visit, admin.group_list()),
    )
    return visit.show(
        "overview.html",
        brokers=brokers,
        topics=topics,
        groups=groups,
        in_per_s=sum(row["in_per_s"] or 0 for row in brokers),
        out_per_s=sum(row["out_per_s"] or 0 for row in brokers),
        silent=sum(row["state"] != "serving" for row in brokers),
    )


async def _count(visit: Visit, names: Awaitable[list[str]]) -> int | None:
    """How many there are; None where the visitor may not know."""
    try:
        return len(await names)
    except AccessDenied:
        if visit.session is None:
            raise
        return None


PAGES: Final = (Endpoint("GET", "/", overview),)
