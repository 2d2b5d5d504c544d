"""Dead letters: their origin and reason, a selection of them, and the copies that resend them.

A message becomes a dead letter when a consumer group has refused it too often: the broker appends
it to the topic ``%DLQ%group``.  Brokers store its first topic in the property ``RETRY_TOPIC`` (gRPC
proxies in ``DLQ_ORIGIN_TOPIC``) and its first message id in ``ORIGIN_MESSAGE_ID``.  RocketMQ stores
no reason; applications may put one in a property.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.codec.properties import split_keys
from cometmq.model import MessageQueue
from cometmq.model import properties as prop

__all__ = [
    "REASON_PROPERTIES",
    "REPLAY_OF",
    "Death",
    "DeathSelection",
    "copy_properties",
    "death_of",
    "position_text",
]

#: Properties in which applications store the reason of a failure; the first that exists counts.
REASON_PROPERTIES: Final = ("error", "ERROR", "exception", "EXCEPTION", "reason", "REASON")
REPLAY_OF: Final = "REPLAY_OF"
"""Property of a resent message: the position of its dead letter, ``topic@broker:queue:offset``."""
_KEPT: Final = frozenset(
    {
        prop.KEYS,
        prop.TAGS,
        prop.SHARDING_KEY,
        prop.ORIGIN_MESSAGE_ID,
        prop.BUYER_ID,
        prop.INSTANCE_ID,
        prop.TRACE_CONTEXT,
    }
)
"""RocketMQ's own properties that describe the message rather than its delivery so far."""


@dataclass(frozen=True, slots=True)
class Death:
    """One dead letter; times in ms since 1970.

    ``origin_topic`` is empty if the message does not name it.  ``died_ms`` is when it was stored in
    the dead-letter topic, ``times_refused`` counts tries of the group.
    """

    queue: MessageQueue
    queue_offset: int
    died_ms: int
    message_id: str
    origin_topic: str
    origin_message_id: str
    times_refused: int
    tags: str
    keys: tuple[str, ...]
    reason: str
    body_bytes: int

    @property
    def position(self) -> str:
        """``topic@broker:queue:offset``, as the property `REPLAY_OF` of a copy has it."""
        return position_text(self.queue, self.queue_offset)


def position_text(queue: MessageQueue, queue_offset: int) -> str:
    """``topic@broker:queue:offset``."""
    return f"{queue}:{queue_offset}"


def death_of(
    queue: MessageQueue,
    queue_offset: int,
    *,
    died_ms: int,
    message_id: str,
    reconsume_times: int,
    body_bytes: int,
    properties: Mapping[str, str],
    reason_properties: Sequence[str] = REASON_PROPERTIES,
) -> Death:
    """Read a message of a dead-letter topic."""
    reasons = (properties[name] for name in reason_properties if name in properties)
    return Death(
        queue,
        queue_offset,
        died_ms,
        message_id,
        properties.get(prop.DLQ_ORIGIN_TOPIC) or properties.get(prop.RETRY_TOPIC, ""),
        properties.get(prop.DLQ_ORIGIN_MESSAGE_ID) or properties.get(prop.ORIGIN_MESSAGE_ID, ""),
        reconsume_times,
        properties.get(prop.TAGS, ""),
        split_keys(properties.get(prop.KEYS, "")),
        next(reasons, ""),
        body_bytes,
    )


@dataclass(frozen=True, slots=True)
class DeathSelection:
    """Selects dead letters: every condition must hold, with one of its values; empty means any.

    ``since_ms`` and ``until_ms`` bound when they died, the latter exclusively.  ``reasons`` are
    texts that the reason contains.  ``message_ids`` are either of a message's two ids.
    """

    topics: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    message_ids: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, death: Death) -> bool:
        """Whether a dead letter meets all conditions."""
        if self.since_ms is not None and death.died_ms < self.since_ms:
            return False
        if self.until_ms is not None and death.died_ms >= self.until_ms:
            return False
        return (
            (not self.topics or death.origin_topic in self.topics)
            and (not self.tags or death.tags in self.tags)
            and (not self.keys or any(key in self.keys for key in death.keys))
            and (not self.reasons or any(text in death.reason for text in self.reasons))
            and (
                not self.message_ids
                or death.message_id in self.message_ids
                or death.origin_message_id in self.message_ids
            )
        )


def copy_properties(
    death: Death, properties: Mapping[str, str], *, is_for_group: bool
) -> dict[str, str]:
    """Return the properties of the copy that is sent again.

    A copy for the group's retry topic keeps the message's unique id and names its first topic.  A
    copy for the first topic is a new message and gets a new id.
    """
    copy = {
        name: value
        for name, value in properties.items()
        if name in _KEPT or name not in prop.RESERVED_PROPERTIES
    }
    if is_for_group:
        if death.origin_topic:
            copy[prop.RETRY_TOPIC] = death.origin_topic
        if prop.UNIQ_KEY in properties:
            copy[prop.UNIQ_KEY] = properties[prop.UNIQ_KEY]
    copy[REPLAY_OF] = death.position
    return copy
