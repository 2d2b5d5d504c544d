"""`cometmq transaction`: which transactions are open, and why."""

from datetime import UTC, datetime

import click

from cometmq.cli.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)

__all__ = ["transaction"]


@click.group(short_help="List open transactions.")
def transaction() -> None:
    """List open transactions."""


@transaction.command("list", short_help="Half messages that wait for their end, and why.")
@name_server_option
@click.option("--group", "only_group", help="Only this producer group.")
@timeout_option
@json_option
@click.pass_context
def list_transactions(
    ctx: click.Context, name_server: str, only_group: str | None, timeout_s: float, as_json: bool
) -> None:
    """Half messages that wait for their end: why, how old, checks so far, and the next check.

    The next check is the earliest time; there is none while no producer of the group is online.
    """
    set_up_logging(ctx)
    from cometmq.cli.output import print_listing
    from cometmq.client.open_transactions import OpenTransaction
    from cometmq.net.env import SystemClock
    from cometmq.net.loop import run

    async def collect() -> list[OpenTransaction]:
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.open_transactions()

    now_ms = SystemClock().now_ms()
    rows = [
        {
            "broker": one.broker_name,
            "transaction": one.transaction_id,
            "group": one.group,
            "topic": one.topic,
            "keys": one.keys,
            "age_s": max(0, now_ms - one.born_ms) // 1000,
            "checks": one.checks,
            "next_check": "" if one.next_check_ms is None else _utc(one.next_check_ms),
            "why": one.why,
        }
        for one in run(collect())
        if only_group in (None, one.group)
    ]
    print_listing(rows, as_json=as_json, empty="no open transactions")


def _utc(time_ms: int) -> str:
    """A time as a person reads it and a script sorts it."""
    return datetime.fromtimestamp(time_ms // 1000, tz=UTC).isoformat()
