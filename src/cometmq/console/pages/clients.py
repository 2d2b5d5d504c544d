"""Clients that are online: by group in pages, and one consumer with its queues and stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.console.visit import Endpoint
from cometmq.errors import ConfigError
from cometmq.listings.clients import client_rows, consumer_queue_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]

PRODUCERS_SHOWN: Final = 200


async def clients(visit: Visit) -> Response:
    """The members of one group; without a group, those of a page of groups, and all producers."""
    group = visit.query("group")
    part = visit.query("q").lower()
    names = [group] if group else await visit.admin.group_list(include_system=True)
    chosen, where = visit.page_of([name for name in names if part in name.lower()])
    rows = await client_rows(visit.admin, consumers_of=chosen)
    producers = [row for row in rows if row["role"] == "producer" and _has(row, group, part)]
    return visit.show(
        "clients.html",
        consumers=[row for row in rows if row["role"] == "consumer"],
        producers=producers[:PRODUCERS_SHOWN],
        hidden=max(0, len(producers) - PRODUCERS_SHOWN),
        where=where,
        group=group,
        part=visit.query("q"),
    )


def _has(row: dict[str, Any], group: str, part: str) -> bool:
    return group in ("", row["group"]) and part in row["group"].lower()


async def client(visit: Visit) -> Response:
    """One consumer: what it says of its queues and settings; its stacks on request.

    Raises:
        ConfigError: the address names none.
    """
    group, client_id = visit.query("group"), visit.query("id")
    if not (group and client_id):
        raise ConfigError("name a consumer: by its group and its client id")
    shows_stacks = bool(visit.query("stacks"))
    info = await visit.admin.consumer_running_info(group, client_id, stacks=shows_stacks)
    return visit.show(
        "client.html",
        group=group,
        client_id=client_id,
        queues=consumer_queue_rows(info),
        rates=[{"topic": topic, **figures} for topic, figures in sorted(info.status_table.items())],
        properties=[
            {"property": key, "value": value} for key, value in sorted(info.properties.items())
        ],
        stacks=(info.jstack or "the consumer sent no stacks") if shows_stacks else None,
    )


PAGES: Final = (
    Endpoint("GET", "/clients", clients),
    Endpoint("GET", "/client", client),
)
