"""`cometmq cluster`: the brokers of a cluster."""

from typing import Any

import click

from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)

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
