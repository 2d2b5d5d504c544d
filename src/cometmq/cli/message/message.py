"""`cometmq message`: get by id, query by key, show by offset, send-direct to one consumer."""

from typing import TYPE_CHECKING, Any

import click

from cometmq.cli.terminal.namespace import CLUSTER_NAME, namespace, namespace_option
from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import NAME, boundary_or_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.client.message.message import ReceivedMessage

__all__ = ["message"]

SHOWN_BODY_BYTES = 60


@click.group(short_help="Look messages up by id, key or offset; give one to a consumer.")
def message() -> None:
    """Look messages up by id, key or offset; give one to a consumer."""


_topic_option = click.option(
    "--topic",
    type=CLUSTER_NAME,
    help="The message's topic: needed for the id that a producer gives, not for a broker's.",
)


@message.command("get", short_help="One message by its id.")
@click.argument("message_id", type=NAME)
@_topic_option
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.option("--body", "only_body", is_flag=True, help="Print the body's bytes and nothing else.")
@click.pass_context
def get(
    ctx: click.Context,
    message_id: str,
    topic: str | None,
    name_server: str,
    timeout_s: float,
    as_json: bool,
    only_body: bool,
) -> None:
    """Show the message MESSAGE_ID: where it is stored, its properties and its body.

    \b
    cometmq message get 0A0000031092F5739FF147B765E30005 --topic Orders
    cometmq message get 0A00000300002A9F0000000000000000 --body > body.bin
    """
    set_up_logging(ctx)
    if only_body and as_json:
        raise click.UsageError("--body and --json do not go together")
    import sys

    from cometmq.cli.terminal.output import print_json, print_listing
    from cometmq.listings.messages import message_fields
    from cometmq.net.loop import run

    async def collect() -> "ReceivedMessage":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.view_message(message_id, topic)

    stored_message = run(collect())
    if only_body:
        sys.stdout.buffer.write(stored_message.body)
        return
    fields = message_fields(stored_message, namespace())
    if as_json:
        print_json(fields)
        return
    properties = fields.pop("properties")
    assert isinstance(properties, dict)
    rows = [*fields.items(), *((f"property {key}", value) for key, value in properties.items())]
    print_listing([{"field": key, "value": value} for key, value in rows], as_json=False)


def _print(messages: "Sequence[ReceivedMessage]", *, as_json: bool, empty: str) -> None:
    from datetime import UTC, datetime

    from cometmq.cli.terminal.bodies import body_text
    from cometmq.cli.terminal.output import print_json, print_listing
    from cometmq.listings.messages import message_fields

    if as_json:
        print_json([message_fields(each, namespace()) for each in messages])
        return
    print_listing(
        [
            {
                "message_id": each.message_id,
                "queue": f"{each.message_queue.broker_name}:{each.message_queue.queue_id}",
                "offset": each.queue_offset,
                "stored": datetime.fromtimestamp(each.store_timestamp_ms / 1000, UTC).isoformat(
                    timespec="milliseconds"
                ),
                "tags": each.tags,
                "keys": list(each.keys),
                "body": body_text(each.body, SHOWN_BODY_BYTES),
            }
            for each in messages
        ],
        as_json=False,
        empty=empty,
    )


@message.command("query", short_help="Messages of a topic with a key.")
@click.argument("topic", type=CLUSTER_NAME)
@click.argument("key", type=NAME)
@click.option(
    "--count", type=click.IntRange(1, 1000), default=32, show_default=True, help="At most so many."
)
@click.option(
    "--from", "begin", metavar="TIME", default="first", help="Stored at this time or later."
)
@click.option("--to", "end", metavar="TIME", default="last", help="Stored at this time or before.")
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def query(
    ctx: click.Context,
    topic: str,
    key: str,
    count: int,
    begin: str,
    end: str,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """List the messages of TOPIC whose keys contain KEY, oldest first.

    TIME is a date, 2026-01-31T12:00, milliseconds since 1970, or an age such as 1h.

    \b
    cometmq message query Orders order-4711 --from 1h
    """
    set_up_logging(ctx)
    from cometmq.client.admin.calls import NEVER_MS
    from cometmq.net.loop import run

    first, last = boundary_or_ms(begin, "--from"), boundary_or_ms(end, "--to")
    begin_ms = 0 if first == "first" else first
    end_ms = NEVER_MS if last == "last" else last
    if isinstance(begin_ms, str) or isinstance(end_ms, str) or begin_ms > end_ms:
        raise click.UsageError(f"no message lies between --from {begin} and --to {end}")

    async def collect() -> "list[ReceivedMessage]":
        async with admin_client(name_server, timeout_s) as admin:
            return await admin.query_message(
                topic, key, count_max=count, begin_ms=begin_ms, end_ms=end_ms
            )

    _print(run(collect()), as_json=as_json, empty=f"no message of {topic} has the key {key}")


@message.command("trace", short_help="What became of a message, from its traces.")
@click.argument("message_id", type=NAME)
@click.option(
    "--topic",
    type=CLUSTER_NAME,
    default="RMQ_SYS_TRACE_TOPIC",
    show_default=True,
    help="The topic of the traces.",
)
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def trace(
    ctx: click.Context,
    message_id: str,
    topic: str,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show the steps of the message MESSAGE_ID by time: sent, handled by each group, tried again.

    Clients write traces where a program switches them on: ours with trace=True, Java's with
    enableMsgTrace. Step "handling" without a "handled" of the same call is a handler that has not
    ended, or a client that was killed.

    \b
    cometmq message trace 0A0000031092F5739FF147B765E30005
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.listings.traces import trace_rows
    from cometmq.net.loop import run

    async def collect() -> list[dict[str, Any]]:
        async with admin_client(name_server, timeout_s) as admin:
            return await trace_rows(admin, message_id, topic)

    print_listing(
        run(collect()),
        as_json=as_json,
        empty=f"no trace of {message_id} in {topic}: its clients write none, or it is too old",
    )


@message.command("show", short_help="Messages of one queue from an offset on.")
@click.argument("topic", type=CLUSTER_NAME)
@click.option("--queue", "queue_name", required=True, metavar="BROKER:ID", help="The queue.")
@click.option(
    "--offset",
    "queue_offset",
    type=click.IntRange(min=0),
    help="The first queue offset.  [default: the first one]",
)
@click.option(
    "--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="So many messages."
)
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def show(
    ctx: click.Context,
    topic: str,
    queue_name: str,
    queue_offset: int | None,
    count: int,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show messages of one queue of TOPIC, read as a tool: no group's offsets change.

    \b
    cometmq message show Orders --queue broker-a:0 --offset 1500 --count 3
    """
    set_up_logging(ctx)
    from cometmq.listings.messages import messages_from
    from cometmq.model import MessageQueue
    from cometmq.net.loop import run

    broker_name, _, number = queue_name.rpartition(":")
    if not broker_name or not number.isdecimal():
        raise click.BadParameter(f"{queue_name!r} is not BROKER:ID", param_hint="--queue")

    async def collect() -> "tuple[list[ReceivedMessage], int, int]":
        async with admin_client(name_server, timeout_s) as admin:
            queue = MessageQueue(topic, broker_name, int(number))
            return await messages_from(admin, queue, queue_offset, count)

    messages, first, end = run(collect())
    _print(
        messages,
        as_json=as_json,
        empty=f"no message there: {queue_name} of {topic} has the offsets {first} to {end - 1}"
        if end > first
        else f"{queue_name} of {topic} is empty",
    )


@message.command("send-direct", short_help="Let one consumer handle a stored message now.")
@click.argument("message_id", type=NAME)
@click.option("--group", required=True, type=CLUSTER_NAME, help="The consumer's group.")
@click.option("--client", "client_id", type=NAME, help="The member's client id.  [default: any]")
@_topic_option
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def send_direct(
    ctx: click.Context,
    message_id: str,
    group: str,
    client_id: str | None,
    topic: str | None,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Let a member of GROUP run its handler on the message MESSAGE_ID, and print the outcome.

    The handler's effects happen; offsets, retries and dead letters stay as they are. Exit code 1
    when the handler failed.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.errors import NoRoute
    from cometmq.net.loop import run

    async def call() -> dict[str, object]:
        async with admin_client(name_server, timeout_s) as admin:
            stored_message = await admin.view_message(message_id, topic)
            members = [client_id] if client_id else await admin.consumer_list(group)
            if not members:
                raise NoRoute(f"no member of {group} is online")
            outcome = await admin.consume_directly(group, members[0], stored_message)
        return {
            "client_id": members[0],
            "result": outcome.result,
            "took_ms": outcome.spent_time_ms,
            "remark": outcome.remark,
        }

    row = run(call())
    print_listing([row], as_json=as_json)
    return 0 if row["result"] in ("CR_SUCCESS", "CR_COMMIT") else 1
