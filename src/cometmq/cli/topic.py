"""`cometmq topic`: list, create, delete, route, status."""

import click

from cometmq.cli.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)

__all__ = ["topic"]


@click.group(short_help="List, create, delete and look at topics.")
def topic() -> None:
    """List, create, delete and look at topics."""


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
    from cometmq.cli.output import print_listing
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
@click.argument("name")
@name_server_option
@click.option("--queues", type=click.IntRange(1, 65535), default=8, show_default=True)
@click.option("--cluster", help="Only on the masters of this cluster.")
@click.option("--broker", "broker_name", help="Only on this broker.")
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
@click.argument("name")
@name_server_option
@click.option("--cluster", help="Only on this cluster.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
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
        click.confirm(f"Delete topic {name} and its messages at {name_server}?", abort=True)

    async def remove() -> None:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.delete_topic(name, cluster=cluster)

    run(remove())
    print(f"topic {name}: deleted")


@topic.command("route", short_help="Which brokers have how many queues of a topic.")
@click.argument("name")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def route(ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool) -> None:
    """Which brokers have how many queues of topic NAME, and where they listen."""
    set_up_logging(ctx)
    from cometmq.cli.output import print_listing
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
@click.argument("name")
@name_server_option
@timeout_option
@json_option
@click.pass_context
def status(
    ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool
) -> None:
    """What each queue of topic NAME holds: its first and next queue offset, and the number."""
    set_up_logging(ctx)
    from cometmq.cli.output import print_listing
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
