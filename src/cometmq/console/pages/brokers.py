"""Brokers: masters and slaves, one broker's figures and settings, and the check-up."""

from __future__ import annotations

from asyncio import gather
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from cometmq.codec.java_properties import parse_properties
from cometmq.console.visit import Endpoint
from cometmq.listings.brokers import broker_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def brokers(visit: Visit) -> Response:
    """All brokers, and who follows whom."""
    rows, replicas = await gather(broker_rows(visit.admin), visit.admin.replicas())
    return visit.show("brokers.html", brokers=rows, replicas=[asdict(each) for each in replicas])


async def broker(visit: Visit) -> Response:
    """One broker's figures and settings."""
    name = visit.path("broker")
    figures, settings = await gather(
        visit.admin.broker_runtime_info(name), visit.admin.broker_config(name)
    )
    return visit.show(
        "broker.html",
        broker=name,
        figures=[{"figure": key, "value": figures[key]} for key in sorted(figures)],
        settings=[
            {"setting": key, "value": value}
            for key, value in sorted(parse_properties(settings).items())
        ],
    )


async def check_up(visit: Visit) -> Response:
    """What `cometmq doctor` finds; it asks every group, so it runs when somebody wants it."""
    findings = await visit.admin.check_up()
    return visit.show("check_up.html", findings=[asdict(each) for each in findings])


PAGES: Final = (
    Endpoint("GET", "/brokers", brokers),
    Endpoint("GET", "/brokers/{broker}", broker),
    Endpoint("GET", "/check-up", check_up),
)
