"""A message as a program passes it to a producer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cometmq.model.message_checks import (
    check_delays,
    check_flag,
    check_properties,
    check_sendable_topic,
    keys_text,
    plain_bytes,
    plain_text,
)

__all__ = ["Message"]

_NO_KEYS: Final = ()
_NO_PROPERTIES: Final[Mapping[str, str]] = {}
_check_topic: Final = lru_cache(maxsize=1024)(check_sendable_topic)


@dataclass(slots=True)
class Message:
    """A message to be sent.

    Give at most one of ``delay_level``, ``delay_ms`` and ``deliver_time_ms``. The last two need a
    broker of CometMQ, or of RocketMQ 5.0 and later. A producer checks the fields again, since a
    program may change them.

    Args:
        topic: where to.
        body: raw bytes, at most the broker's ``maxMessageSize`` (4 MiB by default). They may be
            none, as in a tombstone; RocketMQ's own brokers refuse that.
        tags: one tag, by which consumers filter.
        keys: business keys without blanks in them, by which operators find the message: a tuple,
            or one text for one key.
        properties: names and values of your own, both text; RocketMQ's own names are refused.
        flag: a number of your own, which consumers see.
        delay_level: 0 (at once), or a level from 1 to 18.
        message_group: messages that share it go to one queue and keep their order there (the
            property ``__SHARDINGKEY``).
        wait_store_ok: False: the broker's answer does not wait for a synchronous flush.
        deliver_time_ms: an exact time of delivery, ms since 1970 (``TIMER_DELIVER_MS``).
        delay_ms: a delay from the time at which the broker stores the message
            (``TIMER_DELAY_MS``).

    Raises:
        MessageTypeError: a field has another type.
        LocalProtocolError: a field has a value that RocketMQ does not allow, or reserves.
    """

    topic: str
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] | str = ()
    properties: Mapping[str, str] = field(default_factory=lambda: _NO_PROPERTIES)
    flag: int = 0
    delay_level: int = 0
    message_group: str | None = None
    wait_store_ok: bool = True
    deliver_time_ms: int | None = None
    delay_ms: int | None = None

    def __post_init__(self) -> None:
        topic = self.topic
        if type(topic) is str:
            _check_topic(topic)
        else:
            check_sendable_topic(topic)
        if type(self.body) is not bytes:
            plain_bytes(topic, self.body)
        tags = self.tags
        if tags is not None and (type(tags) is not str or "\x01" in tags or "\x02" in tags):
            plain_text(tags, f"tag for {topic}")
        keys = self.keys
        if keys is not _NO_KEYS:
            if type(keys) is not str and type(keys) is not tuple and isinstance(keys, Iterator):
                keys = self.keys = tuple(keys)  # an iterator gives its keys only once
            keys_text(topic, keys)
        group = self.message_group
        if group is not None and (type(group) is not str or "\x01" in group or "\x02" in group):
            plain_text(group, f"message group for {topic}")
        if self.properties:
            check_properties(topic, self.properties)
        if self.flag != 0:
            check_flag(topic, self.flag)
        if self.delay_level != 0 or self.deliver_time_ms is not None or self.delay_ms is not None:
            check_delays(self)

    @property
    def is_delayed(self) -> bool:
        """Whether the message waits at the broker; such messages are sent one by one."""
        return (
            self.delay_level != 0 or self.deliver_time_ms is not None or self.delay_ms is not None
        )
