"""Topics: a list in pages, one topic with its queues and groups, and a test message."""

from __future__ import annotations

import secrets
from asyncio import gather
from typing import TYPE_CHECKING, Any, Final

from cometmq.client import Message, Producer
from cometmq.console.visit import Endpoint
from cometmq.errors import ConfigError
from cometmq.listings.topics import queue_rows, route_rows, topic_rows

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.console.visit import Visit

__all__ = ["PAGES"]


async def topics(visit: Visit) -> Response:
    """The topics whose names contain a text, a page of them with their queues."""
    part = visit.query("q").lower()
    is_all = bool(visit.query("all"))
    names = await visit.admin.topic_list(include_system=is_all)
    chosen, where = visit.page_of([name for name in names if part in name.lower()])
    rows = await topic_rows(visit.admin, chosen)
    return visit.show("topics.html", rows=rows, where=where, part=visit.query("q"), is_all=is_all)


async def topic(visit: Visit) -> Response:
    """One topic: its brokers and queues, the groups that read it."""
    name = visit.path("topic")
    routes, queues, groups, configs = await gather(
        route_rows(visit.admin, name),
        queue_rows(visit.admin, name),
        visit.admin.topic_groups(name),
        visit.admin.topic_config(name),
    )
    types = {config.attributes.get("message.type", "") for config in configs.values()} - {""}
    return visit.show(
        "topic.html",
        topic=name,
        routes=routes,
        queues=queues,
        messages=sum(row["messages"] for row in queues),
        groups=groups,
        types=sorted(types),
        is_ordered=any(config.order for config in configs.values()),
    )


async def send(visit: Visit) -> Response:
    """Send one message to a topic that exists.

    Raises:
        ConfigError: a property has no value.
    """
    name = visit.path("topic")
    await visit.admin.topic_route(name)
    options: dict[str, Any] = {}
    for field in ("tags", "message_group"):
        if visit.form(field):
            options[field] = visit.form(field)
    if visit.form("keys"):
        options["keys"] = visit.form("keys").split()
    if visit.form("delay_s"):
        options["delay_ms"] = visit.number("delay_s", 0, most=40 * 86_400) * 1000
    properties = {}
    for line in visit.form("properties").splitlines():
        key, separator, value = line.partition("=")
        if not separator:
            raise ConfigError(f"the property {line!r:.60} has no '='; write name=value")
        properties[key.strip()] = value.strip()
    body = visit.raw_form("body").replace("\r\n", "\n").encode()
    message = Message(name, body, properties=properties, **options)
    own = secrets.token_hex(8)  # two visitors are two clients
    async with Producer("cometmq_console", instance_name=own, **visit.keys) as producer:
        receipt = await producer.send(message)
    queue = receipt.message_queue
    return visit.go(
        f"/topics/{visit.quoted(name)}",
        f"Sent {receipt.message_id} to {queue.broker_name}:{queue.queue_id},"
        f" offset {'later' if receipt.queue_offset is None else receipt.queue_offset}.",
    )


PAGES: Final = (
    Endpoint("GET", "/topics", topics),
    Endpoint("GET", "/topics/{topic}", topic),
    Endpoint("POST", "/topics/{topic}/send", send),
)
