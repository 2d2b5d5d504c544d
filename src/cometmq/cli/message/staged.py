"""`cometmq staged`: lists published and staged batches, and lets a sink start again."""

from datetime import UTC, datetime

import click

from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.options import (
    done_option,
    json_option,
    name_server_option,
    security_options,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

__all__ = ["staged"]


def _utc(time_ms: int) -> str:
    """An ISO time in UTC, which people read and scripts sort."""
    return datetime.fromtimestamp(time_ms // 1000, tz=UTC).isoformat()


@click.group(short_help="List and forget staged batches.")
def staged() -> None:
    """List and forget staged batches."""


@staged.command("list", short_help="Sinks with their last batch, and staged batches.")
@name_server_option
@click.option("--sink", type=NAME, help="Only this sink.")
@timeout_option
@json_option
@click.pass_context
def list_staged(
    ctx: click.Context, name_server: str, sink: str | None, timeout_s: float, as_json: bool
) -> None:
    """List, by broker, each sink's last published batch and the batches that are staged."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.client.extensions.staging.batches import list_staged as ask
    from cometmq.net.loop import run

    timeout_ms = round(timeout_s * 1000)
    listings = run(ask(name_server, sink, timeout_ms=timeout_ms, **security_options()))
    rows: list[dict[str, object]] = []
    for broker_name, listing in listings.items():
        rows += [
            {
                "broker": broker_name,
                "sink": name,
                "batch": entry.batch_id,
                "state": "published" if entry.is_complete else "publishing",
                "part": "",
                "messages": entry.rows,
                "time": _utc(entry.published_ms),
            }
            for name, entry in sorted(listing.sinks.items())
        ]
        rows += [
            {
                "broker": broker_name,
                "sink": token.sink,
                "batch": token.batch_id,
                "state": "staged",
                "part": token.part,
                "messages": token.rows,
                "time": _utc(token.updated_ms),
            }
            for token in listing.tokens
        ]
    print_listing(rows, as_json=as_json, empty="no staged batches, and no sink that published one")


@staged.command("forget", short_help="Let a sink start again.")
@click.argument("sink", type=NAME)
@name_server_option
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@done_option
@click.pass_context
def forget(ctx: click.Context, sink: str, name_server: str, yes: bool, timeout_s: float) -> None:
    """Remove SINK from the ledgers of all brokers, and drop its staged messages.

    Published messages stay. A batch that was published would be published again afterwards.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.client.extensions.staging.batches import Staging
    from cometmq.net.loop import run

    if not yes:
        confirm(f"Forget which batches {sink} has published at {name_server}?")

    async def remove() -> int:
        timeout_ms = round(timeout_s * 1000)
        options = security_options()
        async with Staging(name_server, sink, timeout_ms=timeout_ms, **options) as staging:
            return await staging.forget()

    count = run(remove())
    print_done(
        f"sink {sink}: forgotten, {count} staged token{'s' if count != 1 else ''} dropped",
        sink=sink,
        dropped=count,
    )
