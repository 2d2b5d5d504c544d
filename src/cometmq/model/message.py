"""A message as a producer hands it over."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Message"]

_NO_PROPERTIES: Mapping[str, str] = {}


@dataclass(slots=True)
class Message:
    """What to send.

    ``body`` is raw bytes, at most the broker's ``maxMessageSize`` (4 MiB by default).
    ``tags`` is one tag; ``keys`` are searchable business keys without spaces in them.
    ``properties`` are the user's own, texts by text; names of RocketMQ's table are refused by the
    producer, as are fields of another kind than theirs, rather than stored as ``str`` has them.
    ``message_group`` (the property ``__SHARDINGKEY``) keeps the order of all messages that share
    it, by sending them to one queue. ``delay_level`` is 0 (at once) or 1..18;
    ``deliver_time_ms`` (the property ``TIMER_DELIVER_MS``) is an exact time, ms since 1970, and
    ``delay_ms`` (``TIMER_DELAY_MS``) one counted from when the broker stores the message; both are
    for CometMQ's brokers and RocketMQ's of 5.0 and later. Give one of the three.
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

    @property
    def is_delayed(self) -> bool:
        """Whether it is to wait at the broker; such messages travel one by one."""
        return (
            self.delay_level != 0 or self.deliver_time_ms is not None or self.delay_ms is not None
        )
