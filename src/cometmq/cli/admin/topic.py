"""`cometmq topic`: list, create, delete, route, status; grow, shrink, growth, when-away."""

from typing import TYPE_CHECKING, Any, Final

import click

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
from cometmq.cli.terminal.values import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.client.extensions.growing_admin import GrowthStatus
    from cometmq.model import TopicConfig

__all__ = ["topic"]

AWAY_CHOICES: Final = ("wait", "move")


@click.group(short_help="List, create, inspect, resize and delete topics.")
def topic() -> None:
    """List, create, inspect, resize and delete topics."""


@topic.command("list", short_help="Names of all topics.")
@name_server_option
@namespace_option
@click.option("--all", "include_system", is_flag=True, help="RocketMQ's own topics too.")
@timeout_option
@json_option
@click.pass_context
def list_topics(
    ctx: click.Context, name_server: str, include_system: bool, timeout_s: float, as_json: bool
) -> None:
    """List all topics with their queues; --all adds retry, dead-letter and system topics."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.topics import topic_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        space = namespace()
        async with admin_client(name_server, timeout_s) as admin:
            names = filter(space.has, await admin.topic_list(include_system=include_system))
            return await topic_rows(admin, names, space)

    print_listing(
        run(collect()),
        as_json=as_json,
        empty="no topics; create one with: cometmq topic create NAME",
    )


@topic.command("create", short_help="Create a topic.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True)
@click.option("--cluster", type=NAME, help="Only on the masters of this cluster.")
@click.option("--broker", "broker_name", type=NAME, help="Only on this broker.")
@click.option("--order", is_flag=True, help="Mark the topic as ordered.")
@click.option("--priority", is_flag=True, help="Put a message into the queue of its priority.")
@timeout_option
@done_option
@click.pass_context
def create(
    ctx: click.Context,
    name: str,
    name_server: str,
    queues: int,
    cluster: str | None,
    broker_name: str | None,
    order: bool,
    priority: bool,
    timeout_s: float,
) -> None:
    """Create topic NAME with so many queues on every master.

    An existing topic stays as it is: with the same settings the command says so, with others it
    ends with exit code 1. `topic grow` and `topic shrink` change the queues.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_done
    from cometmq.model import TopicConfig
    from cometmq.net.loop import run

    async def make() -> tuple[bool, int]:
        async with admin_client(name_server, timeout_s) as admin:
            attributes = {"message.type": "PRIORITY"} if priority else {}
            wanted = TopicConfig(name, queues, queues, order=order, attributes=attributes)
            present = await admin.topic_at_masters(name, cluster=cluster, broker_name=broker_name)
            _refuse_change(wanted, present)
            missing = [broker for broker, config in present.items() if config is None]
            for broker in missing:
                await admin.create_topic(
                    name,
                    queue_count=queues,
                    order=order,
                    attributes="+message.type=PRIORITY" if priority else None,
                    broker_name=broker,
                )
            return bool(missing), len((await admin.topic_route(name)).queue_datas)

    is_new, count = run(make())
    print_done(
        f"topic {name}: {'' if is_new else 'exists already with '}{queues} queues on each of "
        f"{count} broker{'s' if count != 1 else ''}",
        topic=namespace().unwrap(name),
        created=is_new,
        queues=queues,
        brokers=count,
    )


def _refuse_change(wanted: "TopicConfig", present: "Mapping[str, TopicConfig | None]") -> None:
    for broker_name, config in present.items():
        if config is None:
            continue
        counts = (config.read_queue_count, config.write_queue_count)
        if counts != (wanted.read_queue_count, wanted.write_queue_count):
            verb = "grow" if wanted.write_queue_count > config.write_queue_count else "shrink"
            raise click.ClickException(
                f"topic {config.topic} exists on {broker_name} with {counts[1]} queues to write "
                f"and {counts[0]} to read, and nothing was changed; to change them: cometmq topic "
                f"{verb} {config.topic} --queues {wanted.write_queue_count}"
            )
        if wanted.attributes.items() - config.attributes.items():
            raise click.ClickException(
                f"topic {config.topic} exists on {broker_name} and is no priority topic, and"
                " nothing was changed: mqadmin updateTopic -a +message.type=PRIORITY changes it"
            )
        if config.order != wanted.order:
            raise click.ClickException(
                f"topic {config.topic} exists on {broker_name} "
                f"{'with' if config.order else 'without'} the mark of an ordered topic, and nothing"
                " was changed; mqadmin updateTopic -o changes the mark"
            )


@topic.command("delete", short_help="Delete a topic with its messages.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option("--cluster", type=NAME, help="Only on this cluster.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@done_option
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
    from cometmq.cli.terminal.output import print_done
    from cometmq.net.loop import run

    if not yes:
        confirm(f"Delete topic {name} and its messages at {name_server}?")

    async def remove() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.delete_topic(name, cluster=cluster)

    run(remove())
    print_done(f"topic {name}: deleted", topic=namespace().unwrap(name), deleted=True)


@topic.command("route", short_help="Brokers of a topic, with their queues.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def route(ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool) -> None:
    """List the brokers of topic NAME with their queues and the addresses they listen on."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.topics import route_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await route_rows(admin, name)

    print_listing(run(collect()), as_json=as_json)


@topic.command("status", short_help="First and next queue offset of each queue.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def status(
    ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """List each queue of topic NAME: its first and next queue offset and its message count."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.topics import queue_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await queue_rows(admin, name)

    print_listing(run(collect()), as_json=as_json)


@topic.command("grow", short_help="More queues, with the order of message groups kept.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option("--queues", type=click.IntRange(1, 65535), required=True, help="On each broker.")
@click.option("--cluster", type=NAME, help="Only on the masters of this cluster.")
@click.option(
    "--broker",
    "broker_names",
    type=NAME,
    multiple=True,
    help="Only on this broker; may be repeated.",
)
@click.option(
    "--when-away",
    type=click.Choice(AWAY_CHOICES),
    help="What message groups do while their broker is away (topic when-away).  [default: as "
    "before; wait at the first growth]",
)
@timeout_option
@done_option
@click.pass_context
def grow(
    ctx: click.Context,
    name: str,
    name_server: str,
    queues: int,
    cluster: str | None,
    broker_names: tuple[str, ...],
    when_away: str | None,
    timeout_s: float,
) -> None:
    """Give topic NAME more queues on each master, also on masters that do not have it yet.

    A message group of our producers stays in its old queue until every consumer group has consumed
    its messages there. The command returns at once; `cometmq topic growth` shows the progress.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def change() -> "GrowthStatus":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.grow_topic(
                name,
                queues,
                cluster=cluster,
                broker_names=broker_names or None,
                when_away=when_away,
            )

    _print_growth(run(change()))


@topic.command("shrink", short_help="Fewer queues, with the order of message groups kept.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option("--queues", type=click.IntRange(1, 65535), required=True, help="On each broker.")
@click.option("--cluster", type=NAME, help="Only on the masters of this cluster.")
@click.option("--without", multiple=True, help="Leave no queue on this broker; may be repeated.")
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@done_option
@click.pass_context
def shrink(
    ctx: click.Context,
    name: str,
    name_server: str,
    queues: int,
    cluster: str | None,
    without: tuple[str, ...],
    yes: bool,
    timeout_s: float,
) -> None:
    """Leave topic NAME so many queues on each broker.

    The command lists the queues that go, with their messages. Such a queue takes no new message
    group. Its messages stay readable until every consumer group has consumed them; then it
    disappears. The command asks first where messages are stored and no consumer group reads them.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing, prints_json
    from cometmq.net.loop import run

    async def change() -> "GrowthStatus":
        async with admin_client(name_server, timeout_s) as admin:
            offsets = await admin.topic_offsets(name)
            rows = [
                {
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "messages": bounds.count,
                }
                for queue, bounds in sorted(offsets.items())
                if queue.queue_id >= queues or queue.broker_name in without
            ]
            if not prints_json():
                print_listing(rows, as_json=False, empty=f"no queue of {name} goes")
            messages = sum(int(str(row["messages"])) for row in rows)
            if messages and not yes and not await admin.topic_groups(name):
                confirm(
                    f"No consumer group reads {name}: a queue that goes hides its messages. Shrink?"
                )
            return await admin.shrink_topic(name, queues, cluster=cluster, without=without)

    _print_growth(run(change()))


@topic.command("when-away", short_help="What message groups do while their broker is away.")
@click.argument("name", type=CLUSTER_NAME)
@click.argument("choice", type=click.Choice(AWAY_CHOICES))
@name_server_option
@namespace_option
@timeout_option
@done_option
@click.pass_context
def when_away(
    ctx: click.Context, name: str, choice: str, name_server: str, timeout_s: float
) -> None:
    """Choose what producers do with the message groups of topic NAME whose broker is away.

    With `wait` the sends wait for the broker until their timeout, and the order is kept. With
    `move` they go to other brokers until it is back, and consumers may get newer messages of a
    group before older ones. Without a choice a topic that never grew moves its groups, as
    RocketMQ does, and also those of brokers that live. Java's and Go's producers always do.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def choose() -> "GrowthStatus":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.set_when_away(name, choice)

    _print_growth(run(choose()))


@topic.command("growth", short_help="Progress of a change of queues, and the groups it waits for.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option(
    "--close", is_flag=True, help="Move message groups that never pause; their sends wait."
)
@timeout_option
@done_option
@click.pass_context
def growth(ctx: click.Context, name: str, name_server: str, close: bool, timeout_s: float) -> None:
    """Show how far the change of topic NAME's queues is and which consumer groups it waits for.

    A message group that always has unconsumed messages keeps its old queue. With --close, its
    sends wait until consumers have caught up, and then it moves too.

    When everything has moved, this command records that at each broker. From then on no producer
    needs a broker that the topic has left, and such a broker may be stopped for good.
    """
    set_up_logging(ctx)
    from cometmq.net.loop import run

    async def ask() -> "GrowthStatus":
        async with admin_client(name_server, timeout_s) as admin:
            return await (admin.close_topic_growth(name) if close else admin.topic_growth(name))

    _print_growth(run(ask()))


def _growth_fields(status: "GrowthStatus") -> dict[str, Any]:
    space = namespace()
    return {
        "topic": space.unwrap(status.topic),
        "phase": status.phase,
        "epoch": status.epoch,
        "old": status.old,
        "new": status.new,
        "moved": status.moved,
        "buckets": status.buckets,
        "when_away": status.away or None,
        "absent": list(status.absent),
        "leaving": [str(space.unwrap_queue(queue)) for queue in status.leaving],
        "waiting_for": [
            {
                "group": space.unwrap(waiting.group),
                "queue": str(space.unwrap_queue(waiting.queue)),
                "lag": waiting.lag,
            }
            for waiting in status.waiting_for
        ],
    }


def _print_growth(status: "GrowthStatus") -> None:
    from cometmq.cli.terminal.output import print_json, prints_json

    if prints_json():
        print_json(_growth_fields(status))
        return
    if status.phase == "none":
        print(f"topic {status.topic}: never grew; cometmq topic grow changes its queues")
        return
    if status.old == status.new:
        print(f"topic {status.topic}: never grew, {status.new}")
    else:
        print(
            f"topic {status.topic}: growth {status.epoch} from {status.old} to {status.new} is "
            f"{status.phase}, {status.moved} of {status.buckets} buckets of message groups have "
            "moved"
        )
    if status.away:
        verb = "move from" if status.away == "move" else "wait for"
        print(f"  message groups {verb} a broker that is away")
    for name in status.absent:
        print(f"  waits for the broker {name}, which does not answer")
    for queue in status.leaving:
        print(f"  queue {queue.queue_id} of {queue.broker_name} goes when it is consumed")
    for waiting in status.waiting_for:
        print(
            f"  waits for {waiting.group}: {waiting.lag} messages in queue "
            f"{waiting.queue.queue_id} of {waiting.queue.broker_name}"
        )
