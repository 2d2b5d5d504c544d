"""A publisher of one topic, and the publisher of replies."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.producer import ProducerProto
from faststream._internal.types import PublisherMiddleware
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from cometmq import ReceivedMessage, SendResult
from cometmq.integrations.faststream.config import CometBrokerConfig
from cometmq.integrations.faststream.message import CometStreamMessage
from cometmq.integrations.faststream.response import (
    CometPublishCommand,
    MessageFields,
    key_tuple,
)

__all__ = ["CometTopicPublisher", "ReplyPublisher", "create_publisher"]


@dataclass(kw_only=True)
class CometPublisherConfig(PublisherUsecaseConfig):
    """A publisher's own settings."""

    _outer_config: CometBrokerConfig
    topic: str
    is_batch: bool
    fields: MessageFields
    headers: dict[str, Any]
    reply_to: str


@dataclass(kw_only=True)
class CometPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What AsyncAPI needs of a publisher."""

    topic: str


class CometPublisherSpecification(
    PublisherSpecification[CometBrokerConfig, CometPublisherSpecificationConfig]
):
    """A publisher's channel in AsyncAPI: its topic."""

    @property
    def topic(self) -> str:
        """The topic with the routers' prefixes."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The channel's key."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """One channel."""
        message = Message(
            title=f"{self.name}:Message",
            payload=resolve_payloads(self.get_payloads(), "Publisher"),
        )
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class CometTopicPublisher(PublisherUsecase):
    """Publishes to one topic; as a decorator, what a handler returns."""

    _outer_config: CometBrokerConfig

    def __init__(
        self, config: CometPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.is_batch = config.is_batch
        self.fields = config.fields
        self.headers = config.headers
        self.reply_to = config.reply_to

    @property
    def topic(self) -> str:
        """The topic with the routers' prefixes."""
        return f"{self._outer_config.prefix}{self._topic}"

    def _command(
        self,
        publish_type: PublishType,
        bodies: tuple[Any, ...],
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        reply_to: str,
        fields: MessageFields,
        timeout: float = 3.0,
    ) -> CometPublishCommand:
        return CometPublishCommand(
            *bodies,
            publish_type=publish_type,
            topic=self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            fields=fields,
            timeout=timeout,
        )

    def _fields(
        self,
        tag: str | None,
        keys: Iterable[str],
        message_group: str | None,
        delay_level: int,
        delay_ms: int | None,
        deliver_time_ms: int | None,
    ) -> MessageFields:
        return replace(
            self.fields,
            tag=tag or self.fields.tag,
            keys=key_tuple(keys),
            message_group=message_group,
            delay_level=delay_level,
            delay_ms=delay_ms,
            deliver_time_ms=deliver_time_ms,
        )

    async def publish(
        self,
        message: Any = None,
        /,
        *messages: Any,
        tag: str | None = None,
        keys: Iterable[str] = (),
        message_group: str | None = None,
        delay_level: int = 0,
        delay_ms: int | None = None,
        deliver_time_ms: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> SendResult | list[SendResult]:
        """Send a message, or the messages of a batch publisher.

        Raises:
            CometError: as `cometmq.Producer.send`.
            TypeError: several messages for a publisher without ``batch=True``.
        """
        if messages and not self.is_batch:
            raise TypeError(
                f"the publisher of {self.topic} sends one message a call; make it with batch=True"
            )
        command = self._command(
            PublishType.PUBLISH,
            (message, *messages),
            headers,
            correlation_id,
            reply_to or self.reply_to,
            self._fields(tag, keys, message_group, delay_level, delay_ms, deliver_time_ms),
        )
        sending = self._basic_publish_batch if self.is_batch else self._basic_publish
        result: SendResult | list[SendResult] = await sending(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return result

    async def request(
        self,
        message: Any,
        /,
        *,
        tag: str | None = None,
        keys: Iterable[str] = (),
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = 3.0,
    ) -> CometStreamMessage:
        """Send a message and wait for the reply of its subscriber.

        Raises:
            RequestTimeout: no reply came in time.
            CometError: as `cometmq.Producer.send`.
        """
        command = self._command(
            PublishType.REQUEST,
            (message,),
            headers,
            correlation_id,
            "",
            self._fields(tag, keys, None, 0, None, None),
            timeout,
        )
        reply: CometStreamMessage = await self._basic_request(
            command, producer=self._outer_config.producer
        )
        return reply

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Send what a handler returned."""
        command = CometPublishCommand.from_cmd(cmd, batch=self.is_batch)
        command.destination = self.topic
        command.add_headers(self.headers, override=False)
        command.reply_to = command.reply_to or self.reply_to
        command.fields = replace(command.fields, tag=command.fields.tag or self.fields.tag)
        sending = self._basic_publish_batch if self.is_batch else self._basic_publish
        await sending(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )


class ReplyPublisher(FakePublisher):
    """Sends what a handler returns to the client that asked, or to the topic of ``reply_to``."""

    def __init__(
        self,
        producer: ProducerProto[CometPublishCommand],
        reply_to: str,
        request: ReceivedMessage,
    ) -> None:
        super().__init__(producer=producer)
        self._reply_to = reply_to
        self._request = request

    def patch_command(self, cmd: PublishCommand) -> CometPublishCommand:
        """The command with its destination; a request's reply goes to the broker, not a topic."""
        command = CometPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._reply_to
        if self._request.properties.get("REPLY_TO_CLIENT") == self._reply_to:
            command.destination = self._request.topic
            command.request = self._request
        return command


def create_publisher(
    config: CometBrokerConfig,
    topic: str,
    *,
    tag: str | None,
    batch: bool,
    headers: dict[str, Any] | None,
    reply_to: str,
    title: str | None,
    description: str | None,
    schema: Any | None,
    include_in_schema: bool,
) -> CometTopicPublisher:
    """A publisher from the arguments of ``@broker.publisher``."""
    return CometTopicPublisher(
        CometPublisherConfig(
            _outer_config=config,
            topic=topic,
            is_batch=batch,
            fields=MessageFields(tag=tag),
            headers=headers or {},
            reply_to=reply_to,
        ),
        CometPublisherSpecification(
            config,
            CometPublisherSpecificationConfig(
                topic=topic,
                schema_=schema,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        ),
    )
