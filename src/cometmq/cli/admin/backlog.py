"""`cometmq group backlog`, `rescue`, `replay` and `skipped`: what a group does in a backlog."""

from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.admin.group_policy import duration_ms, duration_text
from cometmq.cli.terminal.namespace import CLUSTER_NAME, namespace, namespace_option
from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.listings.existing_group import require_group

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.wire.extensions.backlog import BacklogBody

__all__ = ["backlog", "replay", "rescue", "skipped"]

LOOK_EVERY_S = 0.2


def _age(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    return None if value is None else duration_ms(value)


@click.command("backlog", short_help="Rules for a backlog: drop old messages, newest first.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option(
    "--drop-older-than",
    "drop_age_ms",
    metavar="1h",
    callback=_age,
    help="Drop messages that were stored longer ago.",
)
@click.option(
    "--drop-beyond",
    "drop_lag",
    type=click.IntRange(min=1),
    metavar="N",
    help="Where more than N wait in a queue, drop the oldest, down to N/2.",
)
@click.option(
    "--fresh-share",
    type=click.FloatRange(0.01, 0.99),
    metavar="0.8",
    help="Under a backlog, the part of deliveries for the newest messages.",
)
@click.option(
    "--fresh-lag",
    type=click.IntRange(min=1),
    metavar="N",
    help="Where more than N wait in a queue, they belong to the past (1000).",
)
@click.option("--off", is_flag=True, help="Remove all rules.")
@timeout_option
@json_option
@click.pass_context
def backlog(
    ctx: click.Context,
    name: str,
    name_server: str,
    drop_age_ms: int | None,
    drop_lag: int | None,
    fresh_share: float | None,
    fresh_lag: int | None,
    off: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show the rules of group NAME for a backlog, or replace them.

    Dropped messages stay in the topic; `cometmq group replay` hands them to the group later.

    \b
    cometmq group backlog tracking --drop-older-than 1h
    cometmq group backlog dispatch --fresh-share 0.8 --fresh-lag 5000
    cometmq group backlog dispatch --off
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    changes = [drop_age_ms, drop_lag, fresh_share, fresh_lag]
    if off and any(value is not None for value in changes):
        raise click.UsageError("--off removes all rules, so it stands alone")

    async def change() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            if off or any(value is not None for value in changes):
                await admin.set_backlog_rules(
                    name,
                    drop_age_ms=drop_age_ms,
                    drop_lag=drop_lag,
                    fresh_share=fresh_share,
                    fresh_lag=fresh_lag,
                )
            return [
                _rules_row(broker, config.attributes)
                for broker, config in sorted((await admin.group_configs(name)).items())
            ]

    print_listing(run(change()), as_json=as_json)


def _rules_row(broker: str, attributes: "Mapping[str, str]") -> dict[str, Any]:
    from cometmq.core.group.backlog_rules import BacklogRules

    rules = BacklogRules.of(attributes)
    age_ms = rules.drop_age_ms
    return {
        "broker": broker,
        "drop_older_than": None if age_ms is None else duration_text(age_ms),
        "drop_beyond": rules.drop_lag,
        "fresh_share": rules.fresh_share,
        "fresh_lag": None if rules.fresh_share is None else rules.fresh_lag,
    }


@click.command("skipped", short_help="What a group passed over: dropped, or copied how far.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def skipped(
    ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List the messages that group NAME passed over in a backlog, by range of a queue."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> "dict[str, BacklogBody]":
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            return await admin.skipped(name)

    print_listing(
        _rows(run(collect())), as_json=as_json, empty=f"group {name} has passed over nothing"
    )


def _rows(bodies: "Mapping[str, BacklogBody]") -> list[dict[str, Any]]:
    from datetime import UTC, datetime

    rows = []
    for broker, body in sorted(bodies.items()):
        for item in body.ranges:
            at = datetime.fromtimestamp(item.at_ms / 1000, tz=UTC)
            copied = item.copied_to
            rows.append(
                {
                    "topic": namespace().unwrap(item.topic),
                    "broker": broker,
                    "queue_id": item.queue_id,
                    "from_offset": item.begin,
                    "to_offset": item.end - 1,
                    "messages": item.end - item.begin,
                    "because_of": item.reason,
                    "at": at.isoformat(timespec="seconds"),
                    "state": "dropped" if copied is None else "copied",
                    "left": item.end - item.begin if copied is None else item.end - copied,
                }
            )
    return rows


@click.command("rescue", short_help="Copy a group's backlog to more queues.")
@click.argument("name", type=CLUSTER_NAME)
@click.argument("topic", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option(
    "--queues",
    type=click.IntRange(1, 1024),
    default=16,
    show_default=True,
    help="Of the group's retry topic, to which each broker copies.",
)
@timeout_option
@json_option
@click.pass_context
def rescue(
    ctx: click.Context,
    name: str,
    topic: str,
    name_server: str,
    queues: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Copy the messages of TOPIC that group NAME has not got to more queues, for more members.

    The group goes on behind them at once, and its members get the copies beside new messages. The
    brokers copy: if this command is stopped they go on, and the same command shows the progress.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def carry_out() -> "dict[str, BacklogBody]":
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            begun = await admin.rescue(name, topic, queues)
            _note_unknown(begun, topic, name)
            return await _watch(admin, name)

    _print_done(run(carry_out()), as_json)


@click.command("replay", short_help="Hand a group the messages that it dropped.")
@click.argument("name", type=CLUSTER_NAME)
@click.argument("topic", type=CLUSTER_NAME, required=False)
@name_server_option
@namespace_option
@click.option(
    "--queues",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Of the group's retry topic, to which each broker copies.",
)
@timeout_option
@json_option
@click.pass_context
def replay(
    ctx: click.Context,
    name: str,
    topic: str | None,
    name_server: str,
    queues: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Copy the messages that group NAME dropped, of TOPIC or of all topics, to the group."""
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def carry_out() -> "dict[str, BacklogBody]":
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            await admin.replay(name, topic, queues)
            return await _watch(admin, name)

    _print_done(run(carry_out()), as_json)


def _note_unknown(bodies: "Mapping[str, BacklogBody]", topic: str, name: str) -> None:
    from cometmq.cli.terminal.output import note

    for broker, body in sorted(bodies.items()):
        if body.changed:
            note(f"{broker}: {body.changed:,} messages are copied")
        if body.unknown_queues:
            numbers = ", ".join(map(str, body.unknown_queues))
            note(
                f"{broker}: no member has pulled from {topic} queues {numbers} since the broker "
                f"started, so they are left out; run the same command again when members of "
                f"{name} pull"
            )


async def _watch(admin: Any, name: str) -> "dict[str, BacklogBody]":
    """Wait until everything is copied."""
    import asyncio

    while True:
        bodies: dict[str, BacklogBody] = await admin.skipped(name)
        if not sum(_remaining(body) for body in bodies.values()):
            return bodies
        await asyncio.sleep(LOOK_EVERY_S)


def _remaining(body: "BacklogBody") -> int:
    return sum(item.end - item.copied_to for item in body.ranges if item.copied_to is not None)


def _print_done(bodies: "Mapping[str, BacklogBody]", as_json: bool) -> None:
    from cometmq.cli.terminal.output import print_listing

    print_listing(
        [
            {
                "broker": broker,
                "left_to_copy": _remaining(body),
                "copies_unfinished": body.unfinished,
            }
            for broker, body in sorted(bodies.items())
        ],
        as_json=as_json,
    )
