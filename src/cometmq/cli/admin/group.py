"""`cometmq group`: list, members, offsets, reset, delete; `group_policy` has show and set."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.admin.backlog import backlog, replay, rescue, skipped
from cometmq.cli.admin.group_policy import set_group, show
from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.namespace import CLUSTER_NAME, namespace, namespace_option
from cometmq.cli.terminal.options import (
    admin_client,
    done_option,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import moment_ms
from cometmq.listings.existing_group import require_group

if TYPE_CHECKING:
    from cometmq.client.admin.group_reset import QueueReset
    from cometmq.client.admin.lag_causes import LagCause

__all__ = ["group"]


@click.group(short_help="List consumer groups and inspect their progress.")
def group() -> None:
    """List consumer groups and inspect their progress."""


group.add_command(show)
group.add_command(set_group)
for _command in (backlog, skipped, rescue, replay):
    group.add_command(_command)


@group.command("list", short_help="All groups with their members and their lag.")
@name_server_option
@namespace_option
@click.option("--all", "include_system", is_flag=True, help="RocketMQ's own groups too.")
@timeout_option
@json_option
@click.pass_context
def list_groups(
    ctx: click.Context, name_server: str, include_system: bool, timeout_s: float, as_json: bool
) -> None:
    """List all consumer groups: members online, topics, and messages not yet consumed."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.groups import group_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        space = namespace()
        async with admin_client(name_server, timeout_s) as admin:
            names = filter(space.has, await admin.group_list(include_system=include_system))
            return await group_rows(admin, names, space)

    print_listing(
        run(collect()), as_json=as_json, empty="no consumer groups; a consumer makes one by joining"
    )


@group.command("members", short_help="Client ids of a group's members that are online.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def members(
    ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List the client ids of the members of group NAME that are online."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.groups import member_ids
    from cometmq.net.loop import run

    async def collect() -> list[str]:
        async with admin_client(name_server, timeout_s) as admin:
            return await member_ids(admin, name)

    print_listing(
        [{"client_id": client_id} for client_id in run(collect())],
        as_json=as_json,
        empty=f"no member of {name} is online",
    )


@group.command("offsets", short_help="A group's progress, queue by queue.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option(
    "--topic", "topics", type=CLUSTER_NAME, multiple=True, help="Only this topic; may be repeated."
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
    """List the progress of group NAME: broker offset, consumer offset and lag of each queue."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.groups import offset_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            return await offset_rows(admin, name, topics or None, namespace())

    print_listing(
        run(collect()), as_json=as_json, empty=f"group {name} has not committed any offset yet"
    )


@group.command("lag", short_help="How far a group, or each group, is behind, and why.")
@click.argument("name", type=CLUSTER_NAME, required=False)
@name_server_option
@namespace_option
@click.option(
    "--topic", "topics", type=CLUSTER_NAME, multiple=True, help="Only this topic; may be repeated."
)
@click.option("--explain", "explains", is_flag=True, help="Say why messages wait, and what to do.")
@timeout_option
@json_option
@click.pass_context
def lag(
    ctx: click.Context,
    name: str | None,
    name_server: str,
    topics: tuple[str, ...],
    explains: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show how many messages wait for group NAME in each topic; without NAME, of each group.

    With --explain: why they wait, the evidence, and the remedy. Members of any language are asked
    for their queues and stacks, and a few of the waiting messages are read; nothing is changed.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.groups import lag_rows, offset_rows
    from cometmq.net.loop import run

    if name is None:
        if topics:
            raise click.UsageError("--topic needs the group's NAME")
        rows = run(_lags(name_server, timeout_s, explains=explains))
        print_listing(rows, as_json=as_json, empty="no group has committed an offset yet")
        return

    async def explain() -> "list[LagCause]":
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            return (await admin.explain_lag(name, topics or None))[1]

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            return lag_rows(await offset_rows(admin, name, topics or None, namespace()))

    if not explains:
        print_listing(run(collect()), as_json=as_json, empty=f"group {name} has no offsets yet")
        return
    causes = run(explain())
    if as_json or not causes:
        rows = [asdict(cause) for cause in causes]
        print_listing(rows, as_json=as_json, empty=f"nothing waits for group {name}")
        return
    for number, cause in enumerate(causes, 1):
        click.echo(f"{number}. {cause.kind}: {cause.evidence}\n   do: {cause.remedy}")
        for line in cause.stack.splitlines():
            click.echo(f"   | {line}")


async def _lags(name_server: str, timeout_s: float, *, explains: bool) -> list[dict[str, object]]:
    """A row for each group; with the first cause where messages wait."""
    space = namespace()
    rows: list[dict[str, object]] = []
    async with admin_client(name_server, timeout_s) as admin:
        for name, (view, causes) in (await admin.explain_lags()).items():
            if not space.has(name):
                continue
            row: dict[str, object] = {
                "group": space.unwrap(name),
                "lag": sum(map(view.lag, view.waiting)),
            }
            if explains:
                first = causes[0] if causes else None
                row |= {
                    "cause": first and first.kind,
                    "evidence": first and first.evidence,
                    "do": first and first.remedy,
                }
            rows.append(row)
    return sorted(rows, key=lambda row: (-int(str(row["lag"])), str(row["group"])))


def _time_ms(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    moment = None if value is None else moment_ms(value)
    if value is not None and moment is None:
        raise click.BadParameter(
            f"{value!r} is no time: 2026-01-31T12:00:00+00:00, or ms since 1970"
        )
    return moment


@group.command("reset", short_help="Move a group to its first, its last or another message.")
@click.argument("name", type=CLUSTER_NAME)
@click.argument("topic", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option("--to-earliest", is_flag=True, help="Consume everything again.")
@click.option("--to-latest", is_flag=True, help="Skip everything that is stored now.")
@click.option(
    "--to-time",
    metavar="TIME",
    callback=_time_ms,
    help="To the first message stored at TIME or later: 2026-01-31T12:00, or ms since 1970.",
)
@click.option(
    "--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset; with --queue."
)
@click.option(
    "--queue",
    "queue_names",
    multiple=True,
    metavar="BROKER:ID",
    help="Move the group in this queue only; may be repeated.",
)
@click.option("--preview", is_flag=True, help="Count skipped and repeated messages; move nothing.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@json_option
@click.pass_context
def reset(
    ctx: click.Context,
    name: str,
    topic: str,
    name_server: str,
    to_earliest: bool,
    to_latest: bool,
    to_time: int | None,
    to_offset: int | None,
    queue_names: tuple[str, ...],
    preview: bool,
    yes: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Move group NAME in TOPIC; messages that it skips are not consumed.

    Members that are online drop the messages in their memory and continue at the new offsets.

    \b
    cometmq group reset billing Orders --to-time 2026-11-22T10:00 --preview
    cometmq group reset billing Orders --to-offset 1500 --queue broker-a:0
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_listing
    from cometmq.client.admin.group_reset import GroupReset, ResetTarget
    from cometmq.listings.groups import reset_rows, reset_sums
    from cometmq.net.loop import run

    if [to_earliest, to_latest, to_time is not None, to_offset is not None].count(True) != 1:
        raise click.UsageError(
            "say where to: give one of --to-earliest, --to-latest, --to-time and --to-offset"
        )
    if to_offset is not None and not queue_names:
        raise click.UsageError(
            "--to-offset needs --queue BROKER:ID: each queue has its own offsets"
        )
    target = ResetTarget(0 if to_earliest else to_time, to_offset)

    async def move() -> "list[QueueReset]":
        async with admin_client(name_server, timeout_s) as admin:
            change = GroupReset(admin, name, topic, target, queue_names)
            resets = await change.plan()
            if preview:
                return resets
            if not yes:
                if not as_json:
                    print_listing(reset_rows(resets), as_json=False)
                confirm(f"Move group {name} in topic {topic}: {reset_sums(resets)}?")
            return await change.carry_out(resets)

    resets = run(move())
    print_listing(reset_rows(resets), as_json=as_json)
    if not as_json:
        note(reset_sums(resets) + ("; nothing was moved: a preview" if preview else ""))


@group.command("delete", short_help="Delete a consumer group.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option("--offsets", "clean_offsets", is_flag=True, help="Forget its offsets too.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@done_option
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
    from cometmq.cli.terminal.output import print_done
    from cometmq.net.loop import run

    if not yes:
        confirm(f"Delete group {name} at {name_server}?")

    async def remove() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await require_group(admin, name)
            await admin.delete_group(name, clean_offsets=clean_offsets)

    run(remove())
    print_done(f"group {name}: deleted", group=namespace().unwrap(name), deleted=True)
