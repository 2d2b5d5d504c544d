"""Transactions: open ones, those that brokers gave up, and letting them be checked again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.client.admin.given_up import given_up_transactions, resume_transaction
from cometmq.console.visit import Endpoint
from cometmq.errors import QueryNotFound, ResponseCode
from cometmq.listings.transactions import given_up_rows, open_transaction_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def transactions(visit: Visit) -> Response:
    """Open transactions with the reason why each waits; or those that were given up."""
    is_given_up = bool(visit.query("given-up"))
    rows = await (given_up_rows if is_given_up else open_transaction_rows)(visit.admin)
    shown, where = visit.page_of(rows)
    return visit.show("transactions.html", rows=shown, where=where, is_given_up=is_given_up)


async def resume(visit: Visit) -> Response:
    """Let the producers of a given-up transaction be asked again.

    Raises:
        QueryNotFound: no broker gave it up.
    """
    name = visit.form("transaction")
    reader = visit.admin.queue_reader()
    # A transaction that was resumed and given up again is listed twice.
    for each in reversed(await given_up_transactions(reader)):
        if each.transaction_id == name:
            await resume_transaction(reader, each)
            return visit.go(
                "/transactions?given-up=1", f"A producer of {each.group} will be asked again."
            )
    raise QueryNotFound(ResponseCode.QUERY_NOT_FOUND, f"no broker gave {name} up")


PAGES: Final = (
    Endpoint("GET", "/transactions", transactions),
    Endpoint("POST", "/transactions/resume", resume),
)
