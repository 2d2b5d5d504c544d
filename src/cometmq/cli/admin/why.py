"""`cometmq why`: where one message is for a group, and what would deliver it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.namespace import CLUSTER_NAME, namespace_option
from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.listings.existing_group import require_group

if TYPE_CHECKING:
    from cometmq.client.admin.whereabouts import Whereabouts

__all__ = ["why"]


@click.command(short_help="Where a message is for a group, and what would deliver it.")
@click.argument("message_id", metavar="ID")
@click.option("--group", "name", type=CLUSTER_NAME, required=True, help="The consumer group.")
@click.option("--topic", type=CLUSTER_NAME, help="The message's topic, if the group never read it.")
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def why(
    ctx: click.Context,
    message_id: str,
    name: str,
    topic: str | None,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Say where message ID is for a group: waiting, in hand, filtered, retried, parked, dead, done.

    The broker of the message answers with the code that delivers, run dry.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_json
    from cometmq.net.loop import run

    async def ask() -> "Whereabouts":
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            return await admin.why(message_id, name, topic)

    found_at = run(ask())
    if as_json:
        print_json(asdict(found_at))
        return
    click.echo(found_at.state)
    for fact in found_at.facts:
        click.echo(f"  {fact}")
    if found_at.change:
        click.echo(f"  do: {found_at.change}")
