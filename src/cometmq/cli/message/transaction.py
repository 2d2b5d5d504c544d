"""`cometmq transaction`: lists open transactions, and resumes those that brokers gave up."""

from datetime import UTC, datetime

import click

from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

__all__ = ["transaction"]


@click.group(short_help="List open transactions; resume those that brokers gave up.")
def transaction() -> None:
    """List open transactions; resume those that brokers gave up."""


@transaction.command("list", short_help="Half messages without a decision, with the reason.")
@name_server_option
@click.option("--group", "only_group", type=NAME, help="Only this producer group.")
@click.option(
    "--given-up", "is_given_up", is_flag=True, help="Transactions that brokers no longer check."
)
@timeout_option
@json_option
@click.pass_context
def list_transactions(
    ctx: click.Context,
    name_server: str,
    only_group: str | None,
    is_given_up: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """List half messages without a decision: the reason, age, checks so far, and the next check.

    The next check comes at this time or later; there is none while no producer of the group is
    online. --given-up lists the messages that nobody decided in time; `resume` lets brokers check
    them again.
    """
    set_up_logging(ctx)
    if is_given_up:
        _list_given_up(name_server, only_group, timeout_s, as_json=as_json)
        return
    from cometmq.cli.terminal.output import print_listing
    from cometmq.client.admin.open_transactions import OpenTransaction
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


def _list_given_up(
    name_server: str, only_group: str | None, timeout_s: float, *, as_json: bool
) -> None:
    from cometmq.cli.terminal.output import print_listing
    from cometmq.client.admin.given_up import GivenUpTransaction, given_up_transactions
    from cometmq.net.loop import run

    async def collect() -> list[GivenUpTransaction]:
        async with admin_client(name_server, timeout_s) as admin:
            return await given_up_transactions(admin.queue_reader())

    rows = [
        {
            "broker": one.queue.broker_name,
            "transaction": one.transaction_id,
            "group": one.group,
            "topic": one.topic,
            "keys": one.keys,
            "sent": _utc(one.born_ms),
            "given_up": _utc(one.given_up_ms),
        }
        for one in run(collect())
        if only_group in (None, one.group)
    ]
    print_listing(rows, as_json=as_json, empty="no transaction was given up")


@transaction.command("resume", short_help="Let brokers check given up transactions again.")
@click.argument("transactions", type=NAME, metavar="TRANSACTION...", nargs=-1, required=True)
@name_server_option
@timeout_option
@click.pass_context
def resume(
    ctx: click.Context, transactions: tuple[str, ...], name_server: str, timeout_s: float
) -> int:
    """Let brokers ask producers about given up transactions again, from the first check on.

    TRANSACTION is an id that `list --given-up` prints. The producer's answer to the check decides
    whether the message is delivered. A broker resumes each transaction once. A refused one is
    named, and the others are resumed.

    \b
    cometmq transaction list --given-up
    cometmq transaction resume C000020232D5950215B46EA2A96F0002
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.exit_codes import FAILED, NOT_FOUND
    from cometmq.cli.terminal.output import note
    from cometmq.client.admin.given_up import given_up_transactions, resume_transaction
    from cometmq.errors import RemoteError
    from cometmq.net.loop import run

    async def resume_all() -> int:
        code = 0
        async with admin_client(name_server, timeout_s) as admin:
            reader = admin.queue_reader()
            known = await given_up_transactions(reader)
            for name in dict.fromkeys(transactions):
                # A transaction that was resumed and given up again is listed twice.
                one = next(
                    (
                        one
                        for one in reversed(known)
                        if name in (one.transaction_id, one.offset_message_id)
                    ),
                    None,
                )
                if one is None:
                    note(f"{name}: no broker gave it up; see `cometmq transaction list --given-up`")
                    code = code or NOT_FOUND
                    continue
                try:
                    await resume_transaction(reader, one)
                except RemoteError as error:
                    note(f"{name}: {error}")
                    code = FAILED
                else:
                    click.echo(f"{name}: a producer of {one.group} will be asked again")
        return code

    return run(resume_all())


def _utc(time_ms: int) -> str:
    """An ISO time in UTC, which people read and scripts sort."""
    return datetime.fromtimestamp(time_ms // 1000, tz=UTC).isoformat()
