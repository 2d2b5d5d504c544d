"""Stored messages: their fields, their bodies, and those of a queue from an offset on."""

from __future__ import annotations

import base64
from asyncio import gather
from typing import TYPE_CHECKING, Any

from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.client.message.message import ReceivedMessage

__all__ = ["body_fields", "message_fields", "messages_between", "messages_from"]


def body_fields(body: bytes) -> dict[str, Any]:
    """The body for JSON: ``body`` is its text, or null with the bytes in ``body_base64``."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(body).decode()}


def message_fields(
    stored_message: ReceivedMessage, space: Namespace = NO_NAMESPACE
) -> dict[str, Any]:
    """Everything about a stored message, under the names that `consume --json` uses."""
    queue = stored_message.message_queue
    return {
        "message_id": stored_message.message_id,
        "offset_message_id": stored_message.stored.offset_message_id,
        "topic": space.unwrap(queue.topic),
        "broker": queue.broker_name,
        "queue_id": queue.queue_id,
        "queue_offset": stored_message.queue_offset,
        "tags": stored_message.tags,
        "keys": stored_message.keys,
        "born_timestamp_ms": stored_message.born_timestamp_ms,
        "store_timestamp_ms": stored_message.store_timestamp_ms,
        "born_host": stored_message.born_host,
        "reconsume_times": stored_message.reconsume_times,
        "properties": dict(stored_message.properties),
        **body_fields(stored_message.body),
    }


async def messages_from(
    admin: Admin, queue: MessageQueue, queue_offset: int | None, count: int
) -> tuple[list[ReceivedMessage], int, int]:
    """The messages of a queue from an offset on (None: from its first), and the queue's bounds.

    Raises:
        ConfigError: the topic has no such queue.
        NoRoute: the topic does not exist.
    """
    ranges = await admin.topic_offsets(queue.topic)
    if queue not in ranges:
        names = ", ".join(f"{each.broker_name}:{each.queue_id}" for each in sorted(ranges))
        raise ConfigError(f"{queue.topic} has no such queue; it has {names}")
    bounds = ranges[queue]
    first = bounds.min_offset if queue_offset is None else queue_offset
    end = min(first + count, bounds.max_offset)
    messages = [each async for each in admin.queue_reader().read(queue, first, end)]
    return messages, bounds.min_offset, bounds.max_offset


async def messages_between(
    admin: Admin, topic: str, begin_ms: int, end_ms: int, count: int
) -> list[ReceivedMessage]:
    """The first messages of a topic that were stored in a time, oldest first.

    Reads at most `count` messages of each queue.

    Raises:
        NoRoute: the topic does not exist.
    """

    async def of(queue: MessageQueue, end: int) -> list[ReceivedMessage]:
        first = await admin.search_offset(queue, begin_ms)
        end = min(end, first + count)
        messages = [each async for each in admin.queue_reader().read(queue, first, end)]
        return [each for each in messages if begin_ms <= each.store_timestamp_ms <= end_ms]

    ranges = await admin.topic_offsets(topic)
    parts = await gather(*(of(queue, bounds.max_offset) for queue, bounds in ranges.items()))
    matches = [message for part in parts for message in part]
    matches.sort(key=lambda each: (each.store_timestamp_ms, each.message_queue, each.queue_offset))
    return matches[:count]
