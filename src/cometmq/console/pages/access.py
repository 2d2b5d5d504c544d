"""Access control: users, their entries, and which entry decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.console.visit import Endpoint
from cometmq.errors import RequestNotSupported
from cometmq.listings.access import explain_access, policy_rows, user_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]

_ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List")


async def access(visit: Visit) -> Response:
    """Users and the entries of their policies; with a question, the answer."""
    part = visit.query("q")
    try:
        users, where = visit.page_of(await user_rows(visit.admin, part))
    except RequestNotSupported:
        return visit.show("access_off.html")
    policies = await policy_rows(visit.admin, part)
    answer = None
    if visit.query("user"):
        answer = await explain_access(
            visit.admin,
            visit.query("user"),
            visit.query("resource"),
            visit.query("action") if visit.query("action") in _ACTIONS else _ACTIONS[0],
            visit.query("ip") or "127.0.0.1",
        )
    names = {row["user"] for row in users}
    return visit.show(
        "access.html",
        users=users,
        policies=[row for row in policies if row["user"] in names],
        where=where,
        part=part,
        answer=answer,
        actions=_ACTIONS,
    )


PAGES: Final = (Endpoint("GET", "/access", access),)
