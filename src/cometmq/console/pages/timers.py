"""Messages that wait for their time: exact timers by topic and by time, and delay levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.console.visit import Endpoint
from cometmq.listings.timers import level_rows, timer_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def timers(visit: Visit) -> Response:
    """How many messages wait, by topic and by delay level."""
    return visit.show(
        "timers.html", timers=await timer_rows(visit.admin), levels=await level_rows(visit.admin)
    )


PAGES: Final = (Endpoint("GET", "/timers", timers),)
