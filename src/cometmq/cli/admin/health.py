"""`cometmq ping` and `cometmq doctor`: whether servers answer, and what is wrong with a cluster."""

from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.exit_codes import FAILED, UNREACHABLE
from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)

if TYPE_CHECKING:
    from cometmq.client.admin.checkup import Diagnosis

__all__ = ["doctor", "ping"]


@click.command(short_help="Whether name servers and brokers answer, for health checks.")
@name_server_option
@click.option("--broker", "address", metavar="HOST:PORT", help="Ask this broker and nobody else.")
@timeout_option
@json_option
@click.pass_context
def ping(
    ctx: click.Context, name_server: str, address: str | None, timeout_s: float, as_json: bool
) -> int:
    """Ask each name server and each broker that they know; exit code 3 if one does not answer.

    \b
    cometmq ping --broker 127.0.0.1:10911 -q    # for a container's health check
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def ask() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            return [
                {
                    "server": each.server,
                    "address": each.address,
                    "took_ms": each.took_ms,
                    "answer": each.error or "ok",
                }
                for each in await admin.answer_times(address)
            ]

    rows = run(ask())
    print_listing(rows, as_json=as_json)
    return 0 if rows and all(row["answer"] == "ok" for row in rows) else UNREACHABLE


@click.command(short_help="What is wrong with a cluster, and what to do.")
@name_server_option
@click.option("--all", "shows_all", is_flag=True, help="Print the checks that found nothing too.")
@timeout_option
@json_option
@click.pass_context
def doctor(
    ctx: click.Context, name_server: str, shows_all: bool, timeout_s: float, as_json: bool
) -> int:
    """Look at a cluster from here: every address, releases, disks, clocks, groups and queues.

    Each finding says what was measured and what to do. Exit code 1 when something is wrong; a
    warning alone is 0.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_listing
    from cometmq.net.loop import run

    async def examine() -> "list[Diagnosis]":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.check_up()

    findings = run(examine())
    shown = [each for each in findings if shows_all or each.level != "ok"]
    print_listing(
        [
            {
                "level": each.level,
                "check": each.check,
                "measured": each.measured,
                "remedy": each.remedy,
            }
            for each in shown
        ],
        as_json=as_json,
        empty=f"{len(findings)} checks found nothing wrong",
    )
    wrong = sum(each.level == "wrong" for each in findings)
    if shown and not as_json:
        note(f"{len(findings)} checks, {wrong} wrong")
    return FAILED if wrong else 0
