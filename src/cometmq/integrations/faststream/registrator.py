"""``subscriber`` and ``publisher``: what brokers and routers have in common."""

from collections.abc import Sequence
from typing import Any

from fast_depends.dependencies import Dependant
from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.parser import CodecProto
from faststream._internal.types import CustomCallable
from faststream.middlewares import AckPolicy

from cometmq import ConsumeFromWhere, FlowLimits
from cometmq.integrations.faststream.config import CometBrokerConfig
from cometmq.integrations.faststream.message import RawMessage
from cometmq.integrations.faststream.publisher import CometTopicPublisher, create_publisher
from cometmq.integrations.faststream.subscriber import CometSubscriber, Order, create_subscriber

__all__ = ["CometRegistrator"]


class CometRegistrator(Registrator[RawMessage, CometBrokerConfig]):
    """Makes subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self,
        *topics: str,
        group: str,
        tag: str = "*",
        sql: str | None = None,
        batch: bool = False,
        max_records: int | None = None,
        ordered: bool | Order = False,
        broadcast: bool = False,
        consume_from: ConsumeFromWhere | str | int = "last",
        max_workers: int = 20,
        max_retries: int | None = None,
        suspend_ms: int = 1_000,
        consume_timeout_ms: int = 900_000,
        flow_limits: FlowLimits | None = None,
        offset_folder: str | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> CometSubscriber:
        """Consume topics with a group.

        Args:
            topics: one or several; a router's prefix goes before each.
            group: consumer group; its members, in all processes, share the messages. All members
                must have the same topics and filter.
            tag: tag expression, ``*`` or ``TagA || TagB``.
            sql: a filter over properties, instead of ``tag``.
            batch: the handler takes a list of messages.
            max_records: messages per call of a batch handler, 32 by default.
            ordered: True or ``"queue"``: one message at a time per queue, and one that fails is
                tried again before the next. ``"group"``: the same for each message group.
            broadcast: every member gets every message; nothing is tried again.
            consume_from: ``"last"``, ``"first"`` or ms since 1970: where a new group begins.
            max_workers: handlers that run at a time.
            max_retries: tries after the first before a message becomes a dead letter; None is the
                group's setting at its broker (16), or no limit with an order.
            suspend_ms: how long an ordered queue waits after a failure.
            consume_timeout_ms: a handler that runs longer has its message tried again.
            flow_limits: when a queue stops pulling.
            offset_folder: where a broadcasting consumer keeps its offsets.
            ack_policy: what an error of the handler means; default `AckPolicy.NACK_ON_ERROR`.
            no_reply: send no replies to requests.
            dependencies: FastDepends' dependencies of the handlers.
            parser: from a `ReceivedMessage` to FastStream's message.
            decoder: from FastStream's message to the handler's argument.
            codec: decoder and encoder in one.
            persistent: keep the subscriber alive as long as the broker.
            title: of the channel in AsyncAPI.
            description: in AsyncAPI; the handler's docstring by default.
            include_in_schema: show it in AsyncAPI.

        Raises:
            SetupError: two arguments contradict each other, or there is no topic.
        """
        subscriber = create_subscriber(
            self.config,  # type: ignore[arg-type]  # FastStream's composition reads like a config
            topics,
            group=group,
            tag=tag,
            sql=sql,
            batch=batch,
            ordered=ordered,
            broadcast=broadcast,
            consume_from=consume_from,
            max_records=max_records,
            max_workers=max_workers,
            max_retries=max_retries,
            consumer_options={
                "suspend_ms": suspend_ms,
                "consume_timeout_ms": consume_timeout_ms,
                "flow_limits": flow_limits,
                "offset_folder": offset_folder,
            },
            ack_policy=ack_policy,
            no_reply=no_reply,
            title=title,
            description=description,
            include_in_schema=include_in_schema,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser, decoder_=decoder, dependencies_=dependencies, codec_=codec
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tag: str | None = None,
        batch: bool = False,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> CometTopicPublisher:
        """Publish to a topic; as a decorator, what the handler returns.

        Args:
            topic: a router's prefix goes before it.
            tag: of each message, unless it names its own.
            batch: what is published is a list, and each element becomes a message.
            headers: properties of each message.
            reply_to: topic for the subscribers' answers.
            persistent: keep the publisher alive as long as the broker.
            title: of the channel in AsyncAPI.
            description: in AsyncAPI.
            schema: type of the message in AsyncAPI; the handler's annotation by default.
            include_in_schema: show it in AsyncAPI.
        """
        publisher = create_publisher(
            self.config,  # type: ignore[arg-type]
            topic,
            tag=tag,
            batch=batch,
            headers=headers,
            reply_to=reply_to,
            title=title,
            description=description,
            schema=schema,
            include_in_schema=include_in_schema,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher
