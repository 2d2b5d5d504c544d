"""`cometmq topic`: list, create, delete, route, status; grow, shrink, growth."""

from typing import TYPE_CHECKING

import click

from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME

if TYPE_CHECKING:
    from cometmq.client.extensions.growing_admin import GrowthStatus

__all__ = ["topic"]


@click.group(short_help="List, create, inspect, resize and delete topics.")
def topic() -> None:
    """List, create, inspect, resize and delete topics."""


@topic.command("list", short_help="Names of all topics.")
@name_server_option
@click.option("--all", "include_system", is_flag=True, help="RocketMQ's own topics too.")
@timeout_option
@json_option
@click.pass_context
def list_topics(
    ctx: click.Context, name_server: str, include_system: bool, timeout_s: float, as_json: bool
) -> None:
    """Names of all topics with their queues; --all adds retry, dead-letter and system topics."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        async with admin_client(name_server, timeout_s) as admin:
            for name in await admin.topic_list(include_system=include_system):
                route = await admin.topic_route(name)
                rows.append(
                    {
                        "topic": name,
                        "read_queues": sum(q.read_queue_count for q in route.queue_datas),
                        "write_queues": sum(q.write_queue_count for q in route.queue_datas),
                        "brokers": [data.broker_name for data in route.queue_datas],
                    }
                )
        return rows

    print_listing(
        run(collect()),
        as_json=as_json,
        empty="no topics; create one with: cometmq topic create NAME",
    )


@topic.command("create", short_help="Create or change a topic.")
@click.argument("name", type=NAME)
@name_server_option
@click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True)
@click.option("--cluster", type=NAME, help="Only on the masters of this cluster.")
@click.option("--broker", "broker_name", type=NAME, help="Only on this broker.")
@click.option("--order", is_flag=True, help="Mark the topic as ordered.")
@timeout_option
@click.pass_context
def create(
    ctx: click.Context,
    name: str,
    name_server: str,
    queues: int,
    cluster: str | None,
    broker_name: str | None,
    order: bool,
    timeout_s: float,
) -> None:
    """Create topic NAME with so many queues on every master, or change it."""
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def make() -> int:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.create_topic(
                name, queue_count=queues, order=order, cluster=cluster, broker_name=broker_name
            )
            return len((await admin.topic_route(name)).queue_datas)

    count = run(make())
    print(f"topic {name}: {queues} queues on each of {count} broker{'s' if count != 1 else ''}")


@topic.command("delete", short_help="Delete a topic with its messages.")
@click.argument("name", type=NAME)
@name_server_option
@click.option("--cluster", type=NAME, help="Only on this cluster.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@click.pass_context
def delete(
    ctx: click.Context,
    name: str,
    name_server: str,
    cluster: str | None,
    yes: bool,
    timeout_s: float,
) -> None:
    """Delete topic NAME with its messages on all brokers and name servers."""
    set_up_logging(ctx)
    from cometmq.net.loop import run

    if not yes:
        confirm(f"Delete topic {name} and its messages at {name_server}?")

    async def remove() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.delete_topic(name, cluster=cluster)

    run(remove())
    print(f"topic {name}: deleted")


@topic.command("route", short_help="Which brokers have how many queues of a topic.")
@click.argument("name", type=NAME)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def route(ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool) -> None:
    """Which brokers have how many queues of topic NAME, and where they listen."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.model.flags import PERM_READ, PERM_WRITE
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            found = await admin.topic_route(name)
        brokers = {data.broker_name: data for data in found.broker_datas}
        return [
            {
                "broker": data.broker_name,
                "cluster": brokers[data.broker_name].cluster,
                "addresses": [
                    f"{number}={address}"
                    for number, address in sorted(brokers[data.broker_name].broker_addrs.items())
                ],
                "read_queues": data.read_queue_count,
                "write_queues": data.write_queue_count,
                "readable": bool(data.perm & PERM_READ),
                "writable": bool(data.perm & PERM_WRITE),
            }
            for data in found.queue_datas
            if data.broker_name in brokers
        ]

    print_listing(run(collect()), as_json=as_json)


@topic.command("status", short_help="First and next queue offset of each queue.")
@click.argument("name", type=NAME)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def status(
    ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """What each queue of topic NAME holds: its first and next queue offset, and the number."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, object]]:
        async with admin_client(name_server, timeout_s) as admin:
            offsets = await admin.topic_offsets(name)
        return [
            {
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "min_offset": held.min_offset,
                "max_offset": held.max_offset,
                "messages": held.count,
            }
            for queue, held in sorted(offsets.items())
        ]

    print_listing(run(collect()), as_json=as_json)


@topic.command("grow", short_help="More queues, with the order of message groups kept.")
@click.argument("name", type=NAME)
@name_server_option
@click.option("--queues", type=click.IntRange(1, 65535), required=True, help="On each broker.")
@click.option("--cluster", type=NAME, help="Only on the masters of this cluster.")
@click.option(
    "--broker", "broker_names", type=NAME, multiple=True, help="Only on this broker; repeatable."
)
@timeout_option
@click.pass_context
def grow(
    ctx: click.Context,
    name: str,
    name_server: str,
    queues: int,
    cluster: str | None,
    broker_names: tuple[str, ...],
    timeout_s: float,
) -> None:
    """Give topic NAME so many queues on each master, also on masters that do not have it yet.

    A message group of our producers stays in its old queue until all consumer groups are through
    with what it has there. The command returns at once; `cometmq topic growth` tells how far it is.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def change() -> "GrowthStatus":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.grow_topic(
                name, queues, cluster=cluster, broker_names=broker_names or None
            )

    _print_growth(run(change()))


@topic.command("shrink", short_help="Fewer queues, with the order of message groups kept.")
@click.argument("name", type=NAME)
@name_server_option
@click.option("--queues", type=click.IntRange(1, 65535), required=True, help="On each broker.")
@click.option("--cluster", type=NAME, help="Only on the masters of this cluster.")
@click.option("--without", multiple=True, help="No queue on this broker any more; repeatable.")
@timeout_option
@click.pass_context
def shrink(
    ctx: click.Context,
    name: str,
    name_server: str,
    queues: int,
    cluster: str | None,
    without: tuple[str, ...],
    timeout_s: float,
) -> None:
    """Leave topic NAME so many queues on each broker.

    A queue that is to go takes no new message group, and vanishes when it is consumed.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def change() -> "GrowthStatus":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.shrink_topic(name, queues, cluster=cluster, without=without)

    _print_growth(run(change()))


@topic.command("growth", short_help="How far a change of the queues is, and who is behind.")
@click.argument("name", type=NAME)
@name_server_option
@click.option("--close", is_flag=True, help="Move groups that never pause; their sends wait.")
@timeout_option
@json_option
@click.pass_context
def growth(
    ctx: click.Context, name: str, name_server: str, close: bool, timeout_s: float, as_json: bool
) -> None:
    """How far topic NAME is on its way to other queues, and which consumer groups it waits for.

    A message group that always has something under way keeps its old queue. With --close its sends
    wait until the consumers are through, and then it moves too.

    Once everything has moved, this command writes so to each broker: from then on no producer needs
    a broker that the topic has left, and one may be stopped for good.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_json
    from cometmq.net.loop import run

    async def look() -> "GrowthStatus":
        async with admin_client(name_server, timeout_s) as admin:
            return await (admin.close_topic_growth(name) if close else admin.topic_growth(name))

    found = run(look())
    if as_json:
        print_json(
            {
                "topic": found.topic,
                "phase": found.phase,
                "epoch": found.epoch,
                "old": found.old,
                "new": found.new,
                "moved": found.moved,
                "buckets": found.buckets,
                "absent": list(found.absent),
                "leaving": [str(queue) for queue in found.leaving],
                "waiting_for": [
                    {"group": one.group, "queue": str(one.queue), "lag": one.lag}
                    for one in found.waiting_for
                ],
            }
        )
    else:
        _print_growth(found)


def _print_growth(found: "GrowthStatus") -> None:
    if found.phase == "none":
        print(f"topic {found.topic}: never grew; cometmq topic grow changes its queues")
        return
    print(
        f"topic {found.topic}: growth {found.epoch} from {found.old} to {found.new} is "
        f"{found.phase}, {found.moved} of {found.buckets} buckets of message groups have moved"
    )
    for name in found.absent:
        print(f"  waits for the broker {name}, which is not there")
    for queue in found.leaving:
        print(f"  queue {queue.queue_id} of {queue.broker_name} goes when it is consumed")
    for one in found.waiting_for:
        print(
            f"  waits for {one.group}: {one.lag} messages in queue {one.queue.queue_id} of "
            f"{one.queue.broker_name}"
        )
