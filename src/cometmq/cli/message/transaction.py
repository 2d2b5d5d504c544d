"""`cometmq transaction`: lists open transactions, and resumes those that brokers gave up."""

from typing import Any

import click

from cometmq.cli.terminal.options import (
    admin_client,
    done_option,
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
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.transactions import given_up_rows, open_transaction_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        rows = given_up_rows if is_given_up else open_transaction_rows
        async with admin_client(name_server, timeout_s) as admin:
            return await rows(admin, only_group)

    print_listing(
        run(collect()),
        as_json=as_json,
        empty="no transaction was given up" if is_given_up else "no open transactions",
    )


@transaction.command("resume", short_help="Let brokers check given up transactions again.")
@click.argument("transactions", type=NAME, metavar="TRANSACTION...", nargs=-1, required=True)
@name_server_option
@timeout_option
@done_option
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
    from cometmq.cli.terminal.output import note, print_json, prints_json
    from cometmq.client.admin.given_up import given_up_transactions, resume_transaction
    from cometmq.errors import RemoteError
    from cometmq.net.loop import run

    resumed: list[dict[str, Any]] = []

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
                    resumed.append({"transaction": name, "group": one.group})
                    if not prints_json():
                        click.echo(f"{name}: a producer of {one.group} will be asked again")
        return code

    code = run(resume_all())
    if prints_json():
        print_json(resumed)
    return code
