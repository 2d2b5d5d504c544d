"""A message as the user gives it to a producer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Message"]

_NO_PROPERTIES: Mapping[str, str] = {}


@dataclass(slots=True)
class Message:
    """A message to be sent.

    ``body`` is raw bytes, at most the broker's ``maxMessageSize`` (4 MiB by default).
    ``tags`` is one tag; ``keys`` are searchable business keys without spaces in them.
    ``properties`` are the user's own, texts by text. The producer refuses names that RocketMQ
    reserves, and fields of a wrong type.
    ``message_group`` (the property ``__SHARDINGKEY``) keeps the messages that share it in order:
    they all go to one queue. ``delay_level`` is 0 (at once) or 1..18. ``deliver_time_ms`` (the
    property ``TIMER_DELIVER_MS``) is an exact time, ms since 1970. ``delay_ms``
    (``TIMER_DELAY_MS``) counts from the time at which the broker stores the message. Both times
    need a broker of CometMQ, or of RocketMQ 5.0 and later. Give at most one of the three.
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
        """Whether the message waits at the broker; such messages are sent one by one."""
        return (
            self.delay_level != 0 or self.deliver_time_ms is not None or self.delay_ms is not None
        )
