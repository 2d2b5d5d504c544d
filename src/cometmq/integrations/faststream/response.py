"""What a program publishes: a response with RocketMQ's fields, and the command made of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

from cometmq import ReceivedMessage

__all__ = ["CometPublishCommand", "CometResponse", "MessageFields"]


@dataclass(frozen=True, slots=True)
class MessageFields:
    """The fields of `cometmq.Message` beside topic, body and properties."""

    tag: str | None = None
    keys: tuple[str, ...] = ()
    message_group: str | None = None
    delay_level: int = 0
    delay_ms: int | None = None
    deliver_time_ms: int | None = None


class CometResponse(Response):
    """A handler's return value with headers and RocketMQ's fields.

    Args:
        body: what is sent.
        headers: properties of the message.
        correlation_id: default is that of the handled message.
        tag: the tag that consumers filter by.
        keys: searchable business keys.
        message_group: messages that share it keep their order.
        delay_level: 1..18; 0 is at once.
        delay_ms: a delay from the time at which the broker stores the message.
        deliver_time_ms: an exact time, ms since 1970.
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tag: str | None = None,
        keys: Iterable[str] = (),
        message_group: str | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_time_ms: int | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.fields = MessageFields(
            tag, key_tuple(keys), message_group, delay_level, delay_ms, deliver_time_ms
        )

    def as_publish_command(self) -> "CometPublishCommand":
        """The command that a publisher completes with its topic."""
        return CometPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            fields=self.fields,
            publish_type=PublishType.PUBLISH,
        )


class CometPublishCommand(BatchPublishCommand):
    """One send, batch, request or reply; middlewares may change it.

    ``request`` is the message that a reply answers, None for everything else.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        publish_type: PublishType,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        fields: MessageFields | None = None,
        timeout: float = 3.0,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            _publish_type=publish_type,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
        )
        self.fields = fields or MessageFields()
        self.timeout = timeout
        self.request: ReceivedMessage | None = None

    @property
    def batch_bodies(self) -> tuple[Any, ...]:
        """The bodies, None included: it is a message too."""
        return (self.body, *self.extra_bodies)

    @batch_bodies.setter
    def batch_bodies(self, value: Sequence[Any]) -> None:
        self.body, *bodies = value or (None,)
        self.extra_bodies = tuple(bodies)

    @classmethod
    def from_cmd(
        cls, cmd: PublishCommand | BatchPublishCommand, *, batch: bool = False
    ) -> "CometPublishCommand":
        """The command itself, or one made of a command without RocketMQ's fields."""
        if isinstance(cmd, CometPublishCommand):
            if batch and not cmd.extra_bodies:
                cmd.body, cmd.extra_bodies = cls._parse_bodies(cmd.body, batch=True)
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            publish_type=cmd.publish_type,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
        )


def key_tuple(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys as a tuple; a text is one key."""
    return (keys,) if isinstance(keys, str) else tuple(keys)
