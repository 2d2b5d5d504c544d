"""`cometmq group`: list, members, offsets, reset, delete; `group_policy` has show and set."""

from typing import TYPE_CHECKING

import click

from cometmq.cli.admin.existing_group import require_group
from cometmq.cli.admin.group_policy import set_group, show
from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME, boundary_or_ms

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["group"]


@click.group(short_help="List consumer groups and inspect their progress.")
def group() -> None:
    """List consumer groups and inspect their progress."""


group.add_command(show)
group.add_command(set_group)


async def _members(admin: "Admin", name: str) -> list[str]:
    """Client ids of a group's members; a group without members is an answer, not an error."""
    from cometmq.errors import RemoteError

    try:
        return await admin.consumer_list(name)
    except RemoteError:
        return []


@group.command("list", short_help="All groups, their members and what they have still to do.")
@name_server_option
@click.option("--all", "include_system", is_flag=True, help="RocketMQ's own groups too.")
@timeout_option
@json_option
@click.pass_context
def list_groups(
    ctx: click.Context, name_server: str, include_system: bool, timeout_s: float, as_json: bool
) -> None:
    """All consumer groups: members online, topics, and messages not yet consumed."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        async with admin_client(name_server, timeout_s) as admin:
            for name in await admin.group_list(include_system=include_system):
                topics, lag = await _progress(admin, name)
                rows.append(
                    {
                        "group": name,
                        "members": len(await _members(admin, name)),
                        "lag": lag,
                        "topics": topics,
                    }
                )
        return rows

    print_listing(
        run(collect()), as_json=as_json, empty="no consumer groups; a consumer makes one by joining"
    )


async def _progress(admin: "Admin", name: str) -> tuple[list[str], int]:
    """Topics a group has offsets for, and its lag over those that still exist."""
    from cometmq.errors import NoRoute

    topics = await admin.group_topics(name)
    lag = 0
    for topic in topics:
        try:
            progress = await admin.group_offsets(name, [topic])
        except NoRoute:
            continue  # the topic was deleted, its offsets are kept
        lag += sum(queue.lag for queue in progress.values())
    return topics, lag


@group.command("members", short_help="Client ids of a group's members that are online.")
@click.argument("name", type=NAME)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def members(
    ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """Client ids of the members of group NAME that are online."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[str]:
        async with admin_client(name_server, timeout_s) as admin:
            return await _members(admin, name)

    print_listing(
        [{"client_id": client_id} for client_id in run(collect())],
        as_json=as_json,
        empty=f"no member of {name} is online",
    )


@group.command("offsets", short_help="A group's progress, queue by queue.")
@click.argument("name", type=NAME)
@name_server_option
@click.option(
    "--topic", "topics", type=NAME, multiple=True, help="Only this topic; may be repeated."
)
@timeout_option
@json_option
@click.pass_context
def offsets(
    ctx: click.Context,
    name: str,
    name_server: str,
    topics: tuple[str, ...],
    timeout_s: float,
    as_json: bool,
) -> None:
    """Progress of group NAME: broker offset, consumer offset and their difference per queue."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            progress = await admin.group_offsets(name, topics or None)
        return [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "broker_offset": reached.broker_offset,
                "consumer_offset": reached.consumer_offset,
                "lag": reached.lag,
            }
            for queue, reached in sorted(progress.items())
        ]

    print_listing(
        run(collect()), as_json=as_json, empty=f"group {name} has not committed any offset yet"
    )


@group.command("reset", short_help="Move a group to a time or to the end.")
@click.argument("name", type=NAME)
@click.argument("topic", type=NAME)
@name_server_option
@click.option("--to", "moment", default="last", show_default=True, metavar="first|last|TIME")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@json_option
@click.pass_context
def reset(
    ctx: click.Context,
    name: str,
    topic: str,
    name_server: str,
    moment: str,
    yes: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Move group NAME in TOPIC to a time, the first or the last message.

    Members that are online drop what they hold and go on there at once.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    wanted = boundary_or_ms(moment, "--to")
    timestamp_ms = wanted if isinstance(wanted, int) else 0 if wanted == "first" else None
    if not yes:
        confirm(f"Move group {name} in topic {topic} to {moment}?")

    async def move() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            moved = await admin.reset_offsets(name, topic, timestamp_ms=timestamp_ms)
        return [
            {"broker": queue.broker_name, "queue_id": queue.queue_id, "consumer_offset": reached}
            for queue, reached in sorted(moved.items())
        ]

    print_listing(run(move()), as_json=as_json)


@group.command("delete", short_help="Delete a consumer group.")
@click.argument("name", type=NAME)
@name_server_option
@click.option("--offsets", "clean_offsets", is_flag=True, help="Forget its offsets too.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@click.pass_context
def delete(
    ctx: click.Context,
    name: str,
    name_server: str,
    clean_offsets: bool,
    yes: bool,
    timeout_s: float,
) -> None:
    """Delete consumer group NAME on every broker."""
    set_up_logging(ctx)
    from cometmq.net.loop import run

    if not yes:
        confirm(f"Delete group {name} at {name_server}?")

    async def remove() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            await admin.delete_group(name, clean_offsets=clean_offsets)

    run(remove())
    print(f"group {name}: deleted")
