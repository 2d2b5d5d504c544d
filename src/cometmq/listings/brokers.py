"""The brokers of a cluster with their rates."""

from __future__ import annotations

from asyncio import gather
from typing import TYPE_CHECKING, Any

from cometmq.errors import CometError

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["broker_rows"]


async def broker_rows(admin: Admin) -> list[dict[str, Any]]:
    """A row for each broker: release, rates of the last ten seconds, messages since midnight.

    A broker that does not answer has a row too, whose ``state`` says why.

    Raises:
        CometError: no name server answers.
    """
    info = await admin.cluster_info()
    return await gather(
        *(
            _row(admin, name, broker_id, address)
            for name in sorted(info.brokers)
            for broker_id, address in sorted(info.brokers[name].broker_addrs.items())
        )
    )


async def _row(admin: Admin, name: str, broker_id: int, address: str) -> dict[str, Any]:
    row: dict[str, Any] = {"broker": name, "id": broker_id, "address": address}
    try:
        table = await admin.runtime_info_at(address)
    except CometError as error:
        return row | {
            "release": None,
            "in_per_s": None,
            "out_per_s": None,
            "in_today": None,
            "out_today": None,
            "disk": None,
            "state": str(error),
        }
    put = int(table.get("msgPutTotalTodayNow", 0)) - int(table.get("msgPutTotalTodayMorning", 0))
    got = int(table.get("msgGetTotalTodayNow", 0)) - int(table.get("msgGetTotalTodayMorning", 0))
    return row | {
        "release": table.get("brokerVersionDesc"),
        "in_per_s": _first_rate(table.get("putTps")),
        "out_per_s": _first_rate(table.get("getTransferredTps")),
        "in_today": put,
        "out_today": got,
        "disk": f"{float(table.get('commitLogDiskRatio') or 0):.0%}",
        "state": "serving",
    }


def _first_rate(rates: str | None) -> float:
    """The rate of the last ten seconds; brokers give those of a minute and ten minutes too."""
    return float((rates or "0").split()[0])
