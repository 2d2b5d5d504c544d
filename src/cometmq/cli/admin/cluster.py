"""`cometmq cluster`: the brokers of a cluster."""

from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["cluster"]


@click.group(short_help="List the brokers of a cluster with their rates.")
def cluster() -> None:
    """List the brokers of a cluster with their rates."""


@cluster.command("list", short_help="All brokers with release, rates and messages.")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def list_brokers(ctx: click.Context, name_server: str, timeout_s: float, as_json: bool) -> None:
    """List all brokers: release, messages in and out per second, messages since midnight.

    Rates are those of the last ten seconds. A broker that does not answer has a row too, which
    says so; it is registered, and clients try to reach it.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            info = await admin.cluster_info()
            return [
                await _row(admin, name, broker_id, address)
                for name in sorted(info.brokers)
                for broker_id, address in sorted(info.brokers[name].broker_addrs.items())
            ]

    print_listing(
        run(collect()),
        as_json=as_json,
        empty=f"no broker is registered at {name_server}; start one with cometmq broker",
    )


async def _row(admin: "Admin", name: str, broker_id: int, address: str) -> dict[str, object]:
    from cometmq.errors import CometError

    row: dict[str, object] = {"broker": name, "id": broker_id, "address": address}
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
