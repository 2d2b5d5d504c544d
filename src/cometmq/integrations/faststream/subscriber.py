"""A subscriber: one push consumer whose handler is FastStream's chain of middlewares."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.message import StreamMessage
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from cometmq import (
    ConsumeFromWhere,
    MessageModel,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    Sql92,
)
from cometmq.integrations.faststream.config import CometBrokerConfig
from cometmq.integrations.faststream.message import (
    CometStreamMessage,
    RawMessage,
    Settlement,
    current_settlement,
)
from cometmq.integrations.faststream.parser import CometParser
from cometmq.integrations.faststream.publisher import ReplyPublisher

__all__ = ["CometSubscriber", "CometSubscriberConfig", "Order", "create_subscriber"]

Order = Literal["none", "queue", "group"]


@dataclass(kw_only=True)
class CometSubscriberConfig(SubscriberUsecaseConfig):
    """A subscriber's own settings."""

    _outer_config: CometBrokerConfig
    topics: tuple[str, ...]
    group: str
    expression: str | Sql92
    is_batch: bool
    consumer_options: dict[str, Any] = field(default_factory=dict)

    @property
    def ack_policy(self) -> AckPolicy:
        """By default an error means another try, as for every consumer of RocketMQ."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        if self._outer_config.ack_policy is not EMPTY:
            return self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class CometSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What AsyncAPI needs of a subscriber."""

    topics: tuple[str, ...]


class CometSubscriberSpecification(
    SubscriberSpecification[CometBrokerConfig, CometSubscriberSpecificationConfig]
):
    """A subscriber's channels in AsyncAPI: its topics."""

    @property
    def channel_labels(self) -> list[str]:
        """The topics with the routers' prefixes."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """A channel per topic."""
        payloads = self.get_payloads()
        topics = self.channel_labels
        channels = {}
        for topic in topics:
            key = self._channel_key(topic, split=len(topics) > 1)
            message = Message(title=f"{key}:Message", payload=resolve_payloads(payloads))
            channels[key] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,  # AsyncAPI has none for RocketMQ
            )
        return channels


class CometSubscriber(SubscriberUsecase[RawMessage]):
    """Consumes topics with a group; with handlers by push, without by `get_one`."""

    _outer_config: CometBrokerConfig

    def __init__(
        self,
        config: CometSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[RawMessage],
    ) -> None:
        parser = CometParser()
        config.parser = parser.parse_batch if config.is_batch else parser.parse_message
        config.decoder = parser.decode_batch if config.is_batch else parser.decode_message
        super().__init__(config, specification, calls)
        self.group = config.group
        self.expression = config.expression
        self.is_batch = config.is_batch
        self._topics = config.topics
        self._consumer_options = config.consumer_options
        self._consumer: PushConsumer | None = None
        self._puller: PullConsumer | None = None

    @property
    def topics(self) -> list[str]:
        """The topics with the routers' prefixes."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self._topics]

    @property
    def subscription(self) -> tuple[frozenset[str], str | Sql92, bool]:
        """What all members of a group must have in common."""
        model = self._consumer_options["message_model"]
        return frozenset(self.topics), self.expression, model is MessageModel.BROADCASTING

    async def start(self) -> None:
        """Join the group and begin to consume.

        Raises:
            CometError: as `cometmq.PushConsumer.start`.
        """
        await super().start()
        # Before the consumer: a message that comes at once must not be refused.
        self._post_start()
        if not self.calls:
            return
        self._consumer = PushConsumer(
            self.group,
            dict.fromkeys(self.topics, self.expression),
            self._handle_batch if self.is_batch else self._handle,
            drain_timeout_ms=self._outer_config.drain_timeout_ms,
            **self._consumer_options,
            **self._outer_config.client_options,
        )
        await self._consumer.start()

    async def stop(self) -> None:
        """Stop pulling, let handlers finish, commit and leave the group."""
        consumer, self._consumer = self._consumer, None
        puller, self._puller = self._puller, None
        try:
            if consumer is not None:
                await consumer.shutdown()
            if puller is not None:
                await puller.shutdown()
        finally:
            await super().stop()

    async def _handle(self, message: ReceivedMessage) -> RetryLater | None:
        return await self._settled(message)

    async def _handle_batch(self, messages: list[ReceivedMessage]) -> RetryLater | None:
        return await self._settled(messages)

    async def _settled(self, raw: RawMessage) -> RetryLater | None:
        """Run the handlers on what was pulled; the outcome is what they acknowledged."""
        settlement = Settlement()
        token = current_settlement.set(settlement)
        try:
            await self.consume(raw)
        finally:
            current_settlement.reset(token)
        return settlement.outcome()

    def _make_response_publisher(
        self, message: StreamMessage[RawMessage]
    ) -> Iterable[PublisherProto]:
        raw = message.raw_message
        if isinstance(raw, ReceivedMessage):
            yield ReplyPublisher(self._outer_config.producer, message.reply_to, raw)

    # -- without handlers -------------------------------------------------------------------

    async def get_one(self, *, timeout: float = 5.0) -> CometStreamMessage | None:
        """The next message of a subscriber without handlers, or None when the time runs out.

        It counts as consumed when the next one is asked for, or when the subscriber stops.

        Raises:
            CometError: as `cometmq.PullConsumer.poll`.
            SetupError: the subscriber has handlers, or is not started.
        """
        consumer = await self._pull()
        messages = await consumer.poll(timeout_ms=round(timeout * 1000), count_max=1)
        return await self._parsed(messages[0]) if messages else None

    async def __aiter__(self) -> AsyncIterator[CometStreamMessage]:
        async for raw in await self._pull():
            yield await self._parsed(raw)

    async def _pull(self) -> PullConsumer:
        if self.calls:
            raise SetupError("the subscriber has a handler, which gets its messages")
        if not self.running:
            raise SetupError("the subscriber is not started; await broker.start() first")
        if self._puller is None:
            options = self._consumer_options
            self._puller = PullConsumer(
                self.group,
                dict.fromkeys(self.topics, self.expression),
                consume_from=options["consume_from"],
                message_model=options["message_model"],
                **self._outer_config.client_options,
            )
            await self._puller.start()
        return self._puller

    async def _parsed(self, raw: ReceivedMessage) -> CometStreamMessage:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        message = await process_msg(
            raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(message, CometStreamMessage)
        return message

    def get_log_context(self, message: StreamMessage[RawMessage] | None) -> dict[str, str]:
        """What a line of the log says about the message."""
        raw = message.raw_message if message is not None else None
        first = raw[0] if isinstance(raw, list) else raw
        return {
            "topic": first.topic if first is not None else ",".join(self.topics),
            "group": self.group,
            "message_id": getattr(message, "message_id", ""),
        }


def create_subscriber(
    config: CometBrokerConfig,
    topics: tuple[str, ...],
    *,
    group: str,
    tag: str,
    sql: str | None,
    batch: bool,
    ordered: bool | Order,
    broadcast: bool,
    consume_from: ConsumeFromWhere | str | int,
    max_records: int | None,
    max_workers: int,
    max_retries: int | None,
    consumer_options: dict[str, Any],
    ack_policy: AckPolicy,
    no_reply: bool,
    title: str | None,
    description: str | None,
    include_in_schema: bool,
) -> CometSubscriber:
    """A subscriber from the arguments of ``@broker.subscriber``.

    Raises:
        SetupError: two arguments contradict each other, or there is no topic.
    """
    if not topics:
        raise SetupError("a subscriber needs at least one topic")
    if sql is not None and tag != "*":
        raise SetupError(f"the subscriber of {topics[0]} has tag={tag!r} and sql=; give one")
    if max_records is not None and not batch:
        raise SetupError(f"max_records={max_records} is for batch=True")
    order: Order = ("queue" if ordered else "none") if isinstance(ordered, bool) else ordered
    calls = CallsCollection[RawMessage]()
    specification = CometSubscriberSpecification(
        config,
        CometSubscriberSpecificationConfig(
            topics=topics,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        ),
        calls,
    )
    options = {
        "consume_from": consume_from,
        "concurrency": max_workers,
        "batch_count_max": (max_records or 32) if batch else None,
        "message_model": MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING,
        "max_reconsume_times": max_retries,
        "order": order,
        **consumer_options,
    }
    return CometSubscriber(
        CometSubscriberConfig(
            _outer_config=config,
            _ack_policy=ack_policy,
            no_reply=no_reply,
            topics=topics,
            group=group,
            expression=tag if sql is None else Sql92(sql),
            is_batch=batch,
            consumer_options=options,
        ),
        specification,
        calls,
    )
