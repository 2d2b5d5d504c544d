"""`cometmq patterns`: what the tables of claims, sagas and outboxes have, and claims in Redis.

Job: options and a listing.  It must not know the tables; `cometmq.patterns` does.
"""

from collections.abc import Iterator
from typing import Any

import click

from cometmq.cli.terminal.options import json_option, set_up_logging
from cometmq.errors import ConfigError

__all__ = ["patterns"]


@click.group("patterns", short_help="Show claims, sagas and outboxes of a database or Redis.")
def patterns() -> None:
    """Show claims, sagas and outboxes of a database or Redis."""


@patterns.command("status", short_help="Count claims, flows and rows, by state.")
@click.option(
    "--database",
    "url",
    metavar="URL",
    envvar="COMETMQ_OUTBOX",
    show_envvar=True,
    help="SQLAlchemy's URL of the database, such as postgresql+psycopg://user@host/shop.",
)
@click.option(
    "--redis", "redis_url", metavar="URL", help="Of a Redis or Valkey, such as redis://host:6379/0."
)
@click.option("--group", help="Claims of this consumer group alone.")
@json_option
@click.option("--metrics", is_flag=True, help="Print the figures in Prometheus's text format.")
@click.pass_context
def status(
    ctx: click.Context,
    url: str | None,
    redis_url: str | None,
    group: str | None,
    as_json: bool,
    metrics: bool,
) -> None:
    """Count claims, flows and rows of an outbox, by state; tables that are missing are left out."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing

    if url is None and redis_url is None:
        raise click.UsageError("nothing is named to look into; give --database or --redis")
    found = [
        *(_tables(url, group) if url is not None else ()),
        *(_keys(redis_url, group) if redis_url is not None else ()),
    ]
    if metrics:
        for _, figures in found:
            click.echo(figures.metrics(), nl=False)
        return
    rows = [
        {"pattern": name, "figure": figure, "value": value}
        for name, figures in found
        for figure, value in figures.figures().items()
    ]
    print_listing(rows, as_json=as_json, empty="the database has no table of a pattern")


def _tables(url: str, group: str | None) -> Iterator[tuple[str, Any]]:
    from cometmq.extras import require

    require("patterns", "cometmq patterns")
    from sqlalchemy import create_engine, inspect

    from cometmq.patterns.idempotent import SqlClaims
    from cometmq.patterns.outbox import Outbox
    from cometmq.patterns.saga import Sagas

    engine = create_engine(url)
    names = set(inspect(engine).get_table_names())
    if "cometmq_claims" in names:
        yield "claims", SqlClaims(engine).status(group)
    if "cometmq_sagas" in names:
        yield "sagas", Sagas(engine, ()).status()
    if "cometmq_outbox" in names:
        yield "outbox", Outbox(engine).status()


def _keys(url: str, group: str | None) -> Iterator[tuple[str, Any]]:
    from cometmq.patterns.idempotent import RedisClaims

    try:
        from redis import Redis
    except ImportError as error:
        raise ConfigError("--redis needs the client of Redis: pip install redis") from error
    with Redis.from_url(url) as client:
        yield "claims in Redis", RedisClaims(client).status(group)
