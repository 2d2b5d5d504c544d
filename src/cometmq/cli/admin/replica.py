"""`cometmq replica`: who follows whom, and how far.

Job: options and listings.  `cometmq.client.admin.replicas` knows what a state is.
"""

import click

from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

__all__ = ["replica"]


@click.group(short_help="Show masters and slaves.")
def replica() -> None:
    """Show masters and slaves."""


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
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            return [
                {
                    "broker": each.broker_name,
                    "id": each.broker_id,
                    "address": each.address,
                    "state": each.state,
                    "log_end": each.log_end,
                    "behind_bytes": each.behind_bytes,
                }
                for each in await admin.replicas(broker_name)
            ]

    print_listing(run(collect()), as_json=as_json)
