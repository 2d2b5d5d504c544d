"""`cometmq outbox`: shows what an outbox has, sends dead rows again, and runs a relay.

Job: options and listings. It must not know the tables; `cometmq.patterns.outbox` does.
"""

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.options import (
    done_option,
    json_option,
    name_server_option,
    set_up_logging,
)

if TYPE_CHECKING:
    from cometmq.patterns.outbox import Outbox, OutboxRow

__all__ = ["outbox"]

_database_option = click.option(
    "--database",
    "url",
    metavar="URL",
    envvar="COMETMQ_OUTBOX",
    show_envvar=True,
    required=True,
    help="SQLAlchemy's URL of the database, such as postgresql+psycopg://user@host/shop.",
)


@click.group("outbox", short_help="Show an outbox, send dead rows again, run a relay.")
def outbox() -> None:
    """Show an outbox, send dead rows again, run a relay."""


def _open(url: str) -> "Outbox":
    from cometmq.extras import require

    require("patterns", "cometmq outbox")
    from sqlalchemy import create_engine

    from cometmq.patterns.outbox import Outbox

    return Outbox(create_engine(url))


@outbox.command("status", short_help="How many rows wait, and since when.")
@_database_option
@json_option
@click.option("--metrics", is_flag=True, help="Print the figures in Prometheus's text format.")
@click.pass_context
def status(ctx: click.Context, url: str, as_json: bool, metrics: bool) -> None:
    """Print how many rows wait, are tried again, are dead and undecided, and the oldest ages."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing

    figures = _open(url).status()
    if metrics:
        click.echo(figures.metrics(), nl=False)
        return
    row = {
        "waiting": figures.waiting,
        "retrying": figures.retrying,
        "dead": figures.dead,
        "oldest_ms": figures.oldest_ms,
        "prepared": figures.prepared,
        "prepared_oldest_ms": figures.prepared_oldest_ms,
    }
    print_listing([row], as_json=as_json, empty="")


@outbox.command("dead", short_help="The dead rows, with the error of the last try.")
@_database_option
@json_option
@click.option("--count", default=100, show_default=True, help="List at most so many rows.")
@click.pass_context
def dead(ctx: click.Context, url: str, as_json: bool, count: int) -> None:
    """List the oldest dead rows, with the error of the last try."""
    set_up_logging(ctx)
    _print_rows(_open(url).dead_rows(count), as_json=as_json, empty="no row is dead")


def _print_rows(rows: "list[OutboxRow]", *, as_json: bool, empty: str) -> None:
    from cometmq.cli.terminal.output import print_listing

    listing = [
        {
            "id": row.id,
            "created": datetime.fromtimestamp(row.created_ms / 1000, tz=UTC).isoformat(
                timespec="milliseconds"
            ),
            "topic": row.topic,
            "order_key": row.order_key or None,
            "tries": row.tries,
            "error": row.error,
        }
        for row in rows
    ]
    print_listing(listing, as_json=as_json, empty=empty)


@outbox.command("retry", short_help="Send dead rows again.")
@click.argument("ids", type=int, nargs=-1, metavar="[ID]...")
@_database_option
@done_option
@click.pass_context
def retry(ctx: click.Context, ids: tuple[int, ...], url: str) -> None:
    """Let the dead rows with these IDs (default: all) be sent again."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done

    count = _open(url).retry_dead(ids or None)
    print_done(f"{count} rows are sent again", rows=count)


@outbox.command("undecided", short_help="Prepared rows that nobody has decided.")
@_database_option
@json_option
@click.option("--count", default=100, show_default=True, help="List at most so many rows.")
@click.pass_context
def undecided(ctx: click.Context, url: str, as_json: bool, count: int) -> None:
    """List the oldest prepared rows, with the number of checks and the last one's error."""
    set_up_logging(ctx)
    _print_rows(_open(url).undecided_rows(count), as_json=as_json, empty="no row is undecided")


@outbox.command("confirm", short_help="Let prepared rows be sent.")
@click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
@_database_option
@done_option
@click.pass_context
def confirm(ctx: click.Context, ids: tuple[int, ...], url: str) -> None:
    """Let the prepared rows with these IDs be sent."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.patterns.reliable import ReliableMessages

    reliable = ReliableMessages(_open(url), lambda message: None)
    for row_id in ids:
        reliable.confirm(row_id)
    print_done(f"{len(ids)} rows are confirmed", rows=len(ids))


@outbox.command("drop", short_help="Forget prepared rows.")
@click.argument("ids", type=int, nargs=-1, required=True, metavar="ID...")
@_database_option
@done_option
@click.pass_context
def drop(ctx: click.Context, ids: tuple[int, ...], url: str) -> None:
    """Forget the prepared rows with these IDs; they are never sent."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.patterns.reliable import ReliableMessages

    reliable = ReliableMessages(_open(url), lambda message: None)
    count = sum(bool(reliable.drop(row_id)) for row_id in ids)
    print_done(f"{count} of {len(ids)} rows are dropped", rows=count)


@outbox.command("relay", short_help="Send an outbox's rows, in the foreground.")
@_database_option
@name_server_option
@click.option(
    "--group", default="outbox", show_default=True, help="The producer group of the relay."
)
@click.pass_context
def relay(ctx: click.Context, url: str, name_server: str, group: str) -> None:
    """Send the rows of an outbox until Ctrl-C or SIGTERM; several relays share one outbox."""
    set_up_logging(ctx)
    from cometmq.client import Producer
    from cometmq.net.loop import run
    from cometmq.patterns.outbox import Relay

    rows = _open(url)
    rows.create()

    async def send() -> None:
        async with Producer(group, name_server=name_server) as producer, Relay(rows, producer):
            click.echo("relay is running", err=True)
            await asyncio.Event().wait()

    run(send())
