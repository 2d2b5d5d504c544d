"""`cometmq cluster`: the brokers of a cluster."""

from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    from cometmq.listings.brokers import broker_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await broker_rows(admin)

    print_listing(
        run(collect()),
        as_json=as_json,
        empty=f"no broker is registered at {name_server}; start one with cometmq broker",
    )


@cluster.command("timers", short_help="How late timed messages are, and how many wait.")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def timers(ctx: click.Context, name_server: str, timeout_s: float, as_json: bool) -> None:
    """List for each master the timed messages that wait and that are overdue, and how late.

    The rate is the broker's timerDeliverRate, the most timed messages it delivers in a second.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            info = await admin.cluster_info()
            return [
                _timer_row(name, await admin.runtime_info_at(data.master_address))
                for name, data in sorted(info.brokers.items())
                if data.master_address is not None
            ]

    print_listing(
        run(collect()), as_json=as_json, empty=f"no master is registered at {name_server}"
    )


def _timer_row(name: str, table: "Mapping[str, str]") -> dict[str, object]:
    lag_ms = table.get("timerLagMs", f"{table.get('timerReadBehind', 0)}000")
    rate = int(table.get("timerDeliverRate", 0))
    return {
        "broker": name,
        "waiting": int(table.get("timerCongestNum", 0)),
        "overdue": int(table["timerOverdueNum"]) if "timerOverdueNum" in table else None,
        "lag_ms": int(lag_ms),
        "delivered_per_s": float(table.get("timerDequeueTps", 0)),
        "rate_limit": rate or None,
    }
