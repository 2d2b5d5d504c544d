"""`cometmq parking`: lists, retries and skips message groups that an ordered consumer parked.

Job: options, listings and the question before messages are given up. It must not read or write
parking topics; `cometmq.client.extensions.parking.admin` does.
"""

from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.terminal.bodies import body_text
from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.namespace import CLUSTER_NAME
from cometmq.cli.terminal.options import (
    admin_client,
    done_option,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.streams import utf8
from cometmq.cli.terminal.values import GIVEN

if TYPE_CHECKING:
    from cometmq.client.extensions.parking.admin import ParkedLane

__all__ = ["parking"]


@click.group(short_help="Inspect, retry and skip parked message groups.")
def parking() -> None:
    """Inspect, retry and skip parked message groups."""


@parking.command("list", short_help="Which message groups are parked, and why.")
@click.argument("group", type=CLUSTER_NAME, required=False)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def list_parked(
    ctx: click.Context, group: str | None, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List the message groups that are parked for GROUP (default: all groups), with the reason."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.parked import parked_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await parked_rows(admin, group)

    print_listing(run(collect()), as_json=as_json, empty="nothing is parked")


@parking.command("show", short_help="The messages of a parked message group.")
@click.argument("group", type=CLUSTER_NAME)
@click.argument("lane", type=GIVEN, callback=utf8)
@name_server_option
@click.option(
    "--count", type=click.IntRange(min=1), default=20, show_default=True, help="Show so many."
)
@timeout_option
@json_option
@click.pass_context
def show_parked(
    ctx: click.Context,
    group: str,
    lane: str,
    name_server: str,
    count: int,
    timeout_s: float,
    as_json: bool,
) -> None:
    """List the parked messages of LANE in order; LANE is a name from `list` or a message group."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_listing
    from cometmq.listings.messages import body_fields
    from cometmq.listings.parked import parked_lanes
    from cometmq.listings.times import utc
    from cometmq.net.loop import run

    async def collect() -> tuple[list[dict[str, Any]], int]:
        rows: list[dict[str, Any]] = []
        total = 0
        async with admin_client(name_server, timeout_s) as admin:
            lanes = parked_lanes(admin, group)
            for found in await lanes.named(lane):
                total += len(found.lane.messages)
                async for parked, message in found.messages(lanes.reader, count):
                    row = {
                        "position": parked.position,
                        "parked": utc(parked.parked_ms),
                        "message_id": parked.message_id,
                        "keys": parked.keys,
                        "reason": parked.reason,
                    }
                    if as_json:
                        row |= body_fields(message.body) | {"properties": message.properties}
                    else:
                        row["body"] = body_text(message.body)
                    rows.append(row)
        return rows, total

    rows, total = run(collect())
    print_listing(rows, as_json=as_json, empty=f"nothing of {lane} is parked")
    if total > len(rows):
        note(f"the first {len(rows):,} of {total:,}; --count shows more")


@parking.command("retry", short_help="Consume parked messages again, in order.")
@click.argument("group", type=CLUSTER_NAME)
@click.argument("lane", type=GIVEN, callback=utf8, required=False)
@name_server_option
@click.option("--all", "is_all", is_flag=True, help="Everything that is parked for GROUP.")
@timeout_option
@done_option
@click.pass_context
def retry_parked(
    ctx: click.Context,
    group: str,
    lane: str | None,
    name_server: str,
    is_all: bool,
    timeout_s: float,
) -> None:
    """Let the group's members consume the messages of LANE again, in order, before newer ones.

    When the last message is consumed, the message group continues as before. When a message fails
    too often again, the lane stays parked and the consumer's on_parked is called.

    \b
    cometmq parking retry billing customer-7
    cometmq parking retry billing --all
    """
    set_up_logging(ctx)
    if (lane is None) != is_all:
        raise click.UsageError("name one LANE, or give --all", ctx)
    from cometmq.cli.terminal.output import note, print_json, prints_json
    from cometmq.listings.parked import parked_lanes
    from cometmq.net.loop import run

    async def order() -> tuple[list["ParkedLane"], bool]:
        async with admin_client(name_server, timeout_s) as admin:
            lanes = parked_lanes(admin, group)
            found = await lanes.all() if lane is None else await lanes.named(lane)
            for one in found:
                await lanes.retry(one)
            return found, bool(await admin.consumer_list(group))

    found, is_online = run(order())
    if prints_json():
        print_json([{"lane": one.name, "messages": len(one.lane.messages)} for one in found])
        return
    for one in found:
        print(f"{one.name}: {_messages(len(one.lane.messages))} to be consumed again")
    if not found:
        note("nothing is parked")
    elif not is_online:
        note(f"no member of {group} is online; the next one begins with these")


@parking.command("skip", short_help="Give parked messages up.")
@click.argument("group", type=CLUSTER_NAME)
@click.argument("lane", type=GIVEN, callback=utf8)
@name_server_option
@click.option(
    "--count", type=click.IntRange(min=1), default=1, show_default=True, help="The first so many."
)
@click.option("--all", "is_all", is_flag=True, help="All of the lane's messages.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@done_option
@click.pass_context
def skip_parked(
    ctx: click.Context,
    group: str,
    lane: str,
    name_server: str,
    count: int,
    is_all: bool,
    yes: bool,
    timeout_s: float,
) -> None:
    """Give up the first message of LANE, or the first --count; the others stay parked.

    The messages stay in the topic %PARK%GROUP until they expire; nobody consumes them again.

    \b
    cometmq parking skip billing customer-7
    cometmq parking retry billing customer-7
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_json, prints_json
    from cometmq.listings.parked import parked_lanes
    from cometmq.net.loop import run

    async def order() -> list[tuple[str, int, int]]:
        done: list[tuple[str, int, int]] = []
        async with admin_client(name_server, timeout_s) as admin:
            lanes = parked_lanes(admin, group)
            for one in await lanes.named(lane):
                held = len(one.lane.messages)
                many = held if is_all else min(count, held)
                if not yes:
                    first = one.lane.messages[0]
                    confirm(
                        f"Give up {_messages(many)} of {one.name}, the first with key "
                        f"{first.keys or '(none)'}?"
                    )
                done.append((one.name, await lanes.skip(one, many), held - many))
        return done

    rows = run(order())
    if prints_json():
        print_json([dict(zip(("lane", "skipped", "messages"), row, strict=True)) for row in rows])
        return
    for name, count_skipped, left in rows:
        print(f"{name}: {_messages(count_skipped)} given up, {left:,} left")


def _messages(count: int) -> str:
    return f"{count:,} message{'s' if count != 1 else ''}"
