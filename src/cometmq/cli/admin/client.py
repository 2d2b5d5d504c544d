"""`cometmq client`: list the clients that are online, show what one of them does."""

from typing import TYPE_CHECKING, Any, TypeVar

import click

from cometmq.cli.terminal.namespace import CLUSTER_NAME, namespace, namespace_option
from cometmq.cli.terminal.options import (
    admin_client,
    done_option,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.wire.body.client import ConsumerRunningInfo

__all__ = ["client"]

F = TypeVar("F", bound="Callable[..., Any]")


@click.group(short_help="List clients that are online; show what one does.")
def client() -> None:
    """List clients that are online; show what one does."""


@client.command("list", short_help="Producers and consumers that are online.")
@click.option("--group", type=CLUSTER_NAME, help="Only the members of this group.")
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def list_clients(
    ctx: click.Context, group: str | None, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List the producers and consumers that brokers know, a row for each group of a client."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.clients import client_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await client_rows(admin, group, namespace())

    print_listing(
        run(collect()),
        as_json=as_json,
        empty=f"no member of {group} is online" if group else "no client is online",
    )


def _client_arguments(function: F) -> F:
    for option in (
        click.argument("client_id", type=NAME),
        click.option("--group", required=True, type=CLUSTER_NAME, help="The consumer's group."),
        name_server_option,
        namespace_option,
        timeout_option,
    ):
        function = option(function)
    return function


def _running_info(
    group: str, client_id: str, name_server: str, timeout_s: float, *, stacks: bool
) -> "ConsumerRunningInfo":
    from cometmq.net.loop import run

    async def ask() -> "ConsumerRunningInfo":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.consumer_running_info(group, client_id, stacks=stacks)

    return run(ask())


@client.command("show", short_help="A consumer's queues: what it has in memory, what waits.")
@_client_arguments
@json_option
@click.pass_context
def show(
    ctx: click.Context,
    client_id: str,
    group: str,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show the queues of consumer CLIENT_ID: messages in memory, offsets, last pull and handling.

    The consumer answers itself, so this works for Java's, Go's and ours. JSON has everything that
    it said, with rates and settings.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_json, print_listing
    from cometmq.listings.clients import consumer_queue_rows, running_info_fields

    info = _running_info(group, client_id, name_server, timeout_s, stacks=False)
    if as_json:
        print_json(running_info_fields(info, namespace()))
        return
    print_listing(
        consumer_queue_rows(info, namespace()), as_json=False, empty=f"{client_id} has no queue"
    )


@client.command("stacks", short_help="The stack of each thread of a consumer.")
@_client_arguments
@done_option
@click.pass_context
def stacks(
    ctx: click.Context, client_id: str, group: str, name_server: str, timeout_s: float
) -> None:
    """Print the stack of each thread of consumer CLIENT_ID, to see where a handler is stuck."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done

    info = _running_info(group, client_id, name_server, timeout_s, stacks=True)
    print_done(
        info.jstack or "the consumer sent no stacks", client_id=client_id, stacks=info.jstack
    )
