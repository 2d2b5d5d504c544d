"""Messages: a search by id, key, time or offset, one message with its body, and why it waits."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from cometmq.client.admin.calls import NEVER_MS
from cometmq.console.body_view import BODY_KINDS, view_body
from cometmq.console.moments import moment_of
from cometmq.console.visit import ROWS_PER_PAGE, Endpoint
from cometmq.errors import CometError, ConfigError, QueryNotFound, ResponseCode
from cometmq.listings.existing_group import require_group
from cometmq.listings.messages import message_fields, messages_between, messages_from
from cometmq.listings.times import utc
from cometmq.listings.traces import trace_rows
from cometmq.model import MessageQueue

if TYPE_CHECKING:
    from starlette.responses import Response

    from cometmq.client.message.message import ReceivedMessage
    from cometmq.console.visit import Visit

__all__ = ["PAGES"]

BODY_LETTERS: Final = 80


async def messages(visit: Visit) -> Response:
    """A form, and the messages that it finds."""
    topic = visit.query("topic")
    if topic and visit.query("id"):
        return visit.go(f"/message?{urlencode({'topic': topic, 'id': visit.query('id')})}")
    rows = None
    if topic:
        rows = [_row(each) for each in await _search(visit, topic)]
    return visit.show("messages.html", topic=topic, rows=rows, count_max=ROWS_PER_PAGE)


async def _search(visit: Visit, topic: str) -> list[ReceivedMessage]:
    begin_ms = moment_of(visit.query("from")) if visit.query("from") else 0
    end_ms = moment_of(visit.query("to")) if visit.query("to") else NEVER_MS
    if begin_ms > end_ms:
        raise ConfigError("no message lies between these times: the first is the later one")
    if visit.query("key"):
        return await visit.admin.query_message(
            topic,
            visit.query("key"),
            count_max=ROWS_PER_PAGE,
            begin_ms=begin_ms,
            end_ms=end_ms,
        )
    if visit.query("queue"):
        queue_offset = visit.number("offset", 0) if visit.query("offset") else None
        found = await messages_from(
            visit.admin, _queue(topic, visit.query("queue")), queue_offset, ROWS_PER_PAGE
        )
        return found[0]
    return await messages_between(visit.admin, topic, begin_ms, end_ms, ROWS_PER_PAGE)


def _queue(topic: str, text: str) -> MessageQueue:
    broker_name, _, number = text.rpartition(":")
    if not broker_name or not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise ConfigError(f"{text!r:.100} is no queue; write BROKER:ID")
    return MessageQueue(topic, broker_name, int(number))


def _row(message: ReceivedMessage) -> dict[str, Any]:
    queue = message.message_queue
    body = view_body(message.body[: 4 * BODY_LETTERS])
    text = f"{len(message.body):,} bytes" if body.kind == "hex" else " ".join(body.text.split())
    return {
        "message_id": message.message_id,
        "queue": f"{queue.broker_name}:{queue.queue_id}",
        "queue_offset": message.queue_offset,
        "stored": utc(message.store_timestamp_ms),
        "tags": message.tags,
        "keys": list(message.keys),
        "body": text[:BODY_LETTERS],
        "link": "/message?"
        + urlencode(
            {
                "topic": queue.topic,
                "queue": f"{queue.broker_name}:{queue.queue_id}",
                "offset": message.queue_offset,
            }
        ),
    }


async def message(visit: Visit) -> Response:
    """One message: where it is, its properties, its body, and the groups that read its topic.

    Raises:
        ConfigError: the address names none.
        QueryNotFound: there is no such message.
    """
    topic, message_id = visit.query("topic"), visit.query("id")
    if not (message_id or visit.query("queue")):
        raise ConfigError("name a message: by its id, or by its queue and offset")
    if visit.query("queue"):
        queue, queue_offset = _queue(topic, visit.query("queue")), visit.number("offset", 0)
        stored, first, end = await messages_from(visit.admin, queue, queue_offset, 1)
        if not stored:
            raise QueryNotFound(
                ResponseCode.QUERY_NOT_FOUND,
                f"{visit.query('queue')} of {topic} has no message at offset {queue_offset}: it has"
                f" {first} to {end - 1}",
            )
        one = stored[0]
    else:
        one = await visit.admin.view_message(message_id, topic or None)
    kind = visit.query("body")
    fields = message_fields(one)
    for name in ("body", "body_base64", "properties"):
        fields.pop(name, None)
    for name in ("born_timestamp_ms", "store_timestamp_ms"):
        fields[name.removesuffix("_timestamp_ms")] = utc(fields.pop(name))
    try:
        groups = await visit.admin.topic_groups(one.message_queue.topic)
    except CometError:
        groups = []  # a retry topic, for example, whose groups nobody may ask for
    try:
        traces = await trace_rows(visit.admin, one.message_id)
    except CometError:
        traces = []  # there is no topic of traces, or the visitor may not read it
    return visit.show(
        "message.html",
        message=one,
        topic=one.message_queue.topic,
        fields=[{"field": name, "value": value} for name, value in fields.items()],
        properties=[
            {"property": name, "value": value} for name, value in sorted(one.properties.items())
        ],
        body=view_body(one.body, kind if kind in BODY_KINDS else ""),
        body_kinds=BODY_KINDS,
        body_bytes=len(one.body),
        groups=groups,
        traces=traces,
    )


async def why(visit: Visit) -> Response:
    """Where a message is for a group, and the one change that would deliver it."""
    message_id, group = visit.query("id"), visit.query("group")
    await require_group(visit.admin, group)
    found_at = await visit.admin.why(message_id, group, visit.query("topic") or None)
    return visit.show("why.html", group=group, **asdict(found_at))


async def send_direct(visit: Visit) -> Response:
    """Let a member of a group run its handler on the message now.

    Raises:
        ConfigError: no member is online.
    """
    message_id, group, topic = visit.form("id"), visit.form("group"), visit.form("topic")
    members = await visit.admin.consumer_list(group)
    if not members:
        raise ConfigError(f"no member of {group} is online")
    one = await visit.admin.view_message(message_id, topic or None)
    outcome = await visit.admin.consume_directly(group, members[0], one)
    return visit.go(
        f"/message?{urlencode({'topic': topic, 'id': message_id})}",
        f"{members[0]} handled it in {outcome.spent_time_ms} ms: {outcome.result}"
        + (f", {outcome.remark}" if outcome.remark else "."),
    )


PAGES: Final = (
    Endpoint("GET", "/messages", messages),
    Endpoint("GET", "/message", message),
    Endpoint("GET", "/why", why),
    Endpoint("POST", "/message/send-direct", send_direct),
)
