"""The offset at which a group without a stored offset begins, from the setting ``consume_from``.

A group begins at the end of a queue unless the program says otherwise.  A retry topic is always
read from its first message (docs/internals/delivery.md#where-a-group-starts).

"The end" is the end at the time when the consumer began to consume the topic.  A queue that did not
exist then is read from its smallest offset.  A queue whose end could not be asked then, because its
broker did not answer, is read from the first message stored since.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from cometmq.client.base.arguments import check_count
from cometmq.client.base.calls import BrokerCalls
from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.model import ConsumeFromWhere, MessageQueue
from cometmq.model.names import RETRY_PREFIX

__all__ = ["StartFrom", "TopicStart", "first_offset", "parse_start"]

StartFrom: TypeAlias = str | int | datetime | ConsumeFromWhere
"""``"last"``, ``"first"``, ms since 1970, an aware datetime, or a `ConsumeFromWhere`."""

_WORDS: Final = {
    "last": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
    "first": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "timestamp": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
}
_DEFAULT_AGE_MS: Final = 30 * 60 * 1000
"""How far back "timestamp" without a time reaches, as in Java."""


def parse_start(start: StartFrom) -> tuple[ConsumeFromWhere, int | None]:
    """The setting as RocketMQ's enum and, for a time, as ms since 1970.

    Raises:
        ConfigError: the word is unknown, or the datetime has no time zone.
    """
    if isinstance(start, ConsumeFromWhere):
        return start, None
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(f"consume_from={start!r} has no time zone; use an aware datetime")
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, int(start.timestamp() * 1000)
    if isinstance(start, int) and not isinstance(start, bool):
        check_count("consume_from", start, 0, 2**63 - 1)
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, start
    where = _WORDS.get(start.lower()) if isinstance(start, str) else None
    if where is None:
        error = ConfigError if isinstance(start, str) else ConfigTypeError
        raise error(
            f"consume_from={start!r} is unknown; give {', '.join(_WORDS)}, milliseconds since "
            "1970 or an aware datetime"
        )
    return where, None


@dataclass(slots=True)
class TopicStart:
    """When a consumer began to consume a topic, and which queues the topic had then."""

    began_ms: int
    queues: frozenset[MessageQueue] | None
    """None until a name server has answered."""
    is_joining: bool = True
    """Whether the consumer has not yet taken its first share of the queues."""


async def first_offset(
    calls: BrokerCalls,
    address: str,
    queue: MessageQueue,
    where: ConsumeFromWhere,
    timestamp_ms: int | None,
    now_ms: int,
    start: TopicStart | None,
) -> int:
    """The offset at which a group without a stored offset begins to read a queue.

    Args:
        start: None for a queue that the program assigned by hand.

    Raises:
        CometError: the broker does not answer, or refuses.
    """
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if where == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and not is_retry:
        if timestamp_ms is None:
            timestamp_ms = now_ms - _DEFAULT_AGE_MS
        return await calls.search_offset(address, queue, timestamp_ms)
    if is_retry or where in (
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET,
    ):
        return await calls.min_offset(address, queue)
    if start is not None and start.queues is not None and queue not in start.queues:
        return await calls.min_offset(address, queue)
    if start is not None and not start.is_joining:
        return await calls.search_offset(address, queue, start.began_ms)
    return await calls.max_offset(address, queue)
