"""`cometmq replica`: who follows whom, and how far; who is to be the master.

Job: options and listings.  `cometmq.client.admin.replicas` knows what a state is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.options import (
    admin_client,
    controller_client,
    controller_option,
    done_option,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

if TYPE_CHECKING:
    from cometmq.client.admin.replicas import Replica
    from cometmq.wire.header.controller import MasterHeader

__all__ = ["replica"]


@click.group(
    short_help="Show masters and slaves; change them over; name the master of a replica set."
)
def replica() -> None:
    """Show masters and slaves; change them over; name the master of a replica set."""


@replica.command("status", short_help="Where each log ends, and who follows.")
@click.argument("broker_name", type=NAME, required=False)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def status(
    ctx: click.Context, broker_name: str | None, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """Show the master and the slaves of BROKER_NAME (default: of all names).

    A slave that is `following` gets the master's log; `behind_bytes` is what it has not got yet.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def collect() -> list[Replica]:
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.replicas(broker_name)

    _print(run(collect()), as_json=as_json)


@replica.command("end-writes", short_help="End writes at a master; wait until a slave has all.")
@click.argument("broker_name", type=NAME)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    help="Seconds to wait for a slave.",
)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def end_writes(
    ctx: click.Context,
    broker_name: str,
    wait_s: float,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """End writes at the master of BROKER_NAME, and wait until a slave has its whole log.

    Then stop the master and start that slave as the master.  Without a slave that follows nothing
    is changed.  The master may be RocketMQ's, and so may the name servers.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def end() -> list[Replica]:
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.end_writes(broker_name, wait_ms=int(wait_s * 1000))

    _print(run(end()), as_json=as_json)


@replica.command("allow-writes", short_help="Undo end-writes.")
@click.argument("broker_name", type=NAME)
@name_server_option
@timeout_option
@done_option
@click.pass_context
def allow_writes(ctx: click.Context, broker_name: str, name_server: str, timeout_s: float) -> None:
    """Let the master of BROKER_NAME take sends again."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.net.loop import run

    async def allow() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.allow_writes(broker_name)

    run(allow())
    print_done(f"{broker_name} takes writes", broker=broker_name, writable=True)


@replica.command("step-down", short_help="Have a set's master hand over to an in-sync replica.")
@click.argument("broker_name", type=NAME)
@click.option(
    "--to",
    "broker_id",
    type=click.IntRange(1),
    help="The replica that is to be the master.  [default: any that is in sync]",
)
@name_server_option
@timeout_option
@done_option
@click.pass_context
def step_down(
    ctx: click.Context, broker_name: str, broker_id: int | None, name_server: str, timeout_s: float
) -> None:
    """Have the master of BROKER_NAME hand over, for example before work on its machine.

    Requests wait until an in-sync replica has every message, offset and queue lock, and that
    replica is elected; then clients send them to it. Producers of CometMQ see a pause, and no send
    fails. Under a controller of CometMQ or RocketMQ, with a master of CometMQ.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def hand_over() -> MasterHeader:
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.step_down(broker_name, broker_id)

    _print_master(broker_name, run(hand_over()))


@replica.command("elect", short_help="Make an in-sync replica the master of its set.")
@click.argument("broker_name", type=NAME)
@click.argument("broker_id", type=click.IntRange(1))
@controller_option
@click.option(
    "--cluster",
    type=NAME,
    default="DefaultCluster",
    show_default=True,
    help="The cluster of the brokers (brokerClusterName).",
)
@timeout_option
@done_option
@click.pass_context
def elect(
    ctx: click.Context,
    broker_name: str,
    broker_id: int,
    addresses: str,
    cluster: str,
    timeout_s: float,
) -> None:
    """Make replica BROKER_ID the master of BROKER_NAME, for example before work on the present one.

    The replica must be in sync, so nothing acknowledged is lost. `cometmq controller status` shows
    the ids.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def ask() -> MasterHeader:
        async with controller_client(addresses, timeout_s) as controllers:
            return await controllers.elect(cluster, broker_name, broker_id)

    _print_master(broker_name, run(ask()))


def _print_master(broker_name: str, master: MasterHeader) -> None:
    from cometmq.cli.terminal.output import print_done

    print_done(
        f"master of {broker_name}: broker {master.master_broker_id} at {master.master_address},"
        f" epoch {master.master_epoch}",
        broker=broker_name,
        id=master.master_broker_id,
        address=master.master_address,
        epoch=master.master_epoch,
    )


def _print(rows: list[Replica], *, as_json: bool) -> None:
    from cometmq.cli.terminal.output import print_listing

    print_listing(
        [
            {
                "broker": each.broker_name,
                "id": each.broker_id,
                "address": each.address,
                "state": each.state,
                "log_end": each.log_end,
                "behind_bytes": each.behind_bytes,
            }
            for each in rows
        ],
        as_json=as_json,
    )
