"""An App without a broker: handlers are called with values, and what they send is listed.

Values pass through their serializer and the wire format, as they do between two programs.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from cometmq.app.handler import AppHandler
from cometmq.app.options import ValueFields
from cometmq.app.producing import message_of
from cometmq.app.serializers import Serializer
from cometmq.client import Message, MessageQueue, ReceivedMessage, SendResult, SendStatus
from cometmq.client.message.message import split_messages
from cometmq.client.message.send_codec import SendCodec
from cometmq.codec.stored_message import encode_message
from cometmq.core.filter.subscription import subscription_of
from cometmq.errors import ConfigError, RequestTimeout

if TYPE_CHECKING:
    from cometmq.app.app import App
    from cometmq.client.producer.request_reply import Reply

__all__ = ["AppTrial"]

BROKER_NAME = "trial"


class AppTrial:
    """Calls an App's handlers without a broker; ``async with app.trial() as trial`` runs its hooks.

        async with app.trial() as trial:
            await trial.deliver("Orders", Order(7))
            assert trial.sent[0].topic == "Bills"

    ``sent`` lists the messages that the App has sent.  ``replies`` has the reply that a request to
    a topic gets; one to another topic is a `RequestTimeout`.
    """

    def __init__(self, app: "App") -> None:
        self._app = app
        self._stack = contextlib.AsyncExitStack()
        self._codec = SendCodec("trial", self._new_id, lambda: 0)
        self._count = 0
        self.sent: list[Message] = []
        self.replies: dict[str, Any] = {}

    def _new_id(self) -> str:
        self._count += 1
        return f"{self._count:032X}"

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._app.running_with(self))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def deliver(
        self,
        topic: str,
        value: Any,
        *,
        group: str | None = None,
        reconsume_times: int = 0,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> Any:
        """Call the topic's handler, through the middlewares, and return what it returns.

        What the handler raises is raised here, a `SchemaError` too.

        Args:
            topic: one that a handler consumes.
            value: of the message, or bytes for its body; a list of values for a handler of batches.
            group: the handler's, where several groups consume the topic.
            reconsume_times: how often the message was tried before.
            serializer: by default the value's type chooses.
            fields: of the message, as for `App.send`.

        Raises:
            ConfigError: no handler, or several, consume the topic, or its tags exclude the message.
        """
        handler = self._handler(topic, group)
        values = value if handler.batch is not None else [value]
        if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
            raise ConfigError(f"{handler.name}() takes batches; deliver a list of values")
        messages = [
            self._received(message_of(topic, single, serializer, fields), reconsume_times)
            for single in values
        ]
        tags = subscription_of(topic, handler.expression, 0).tags_set
        if tags and fields.get("tags") not in tags:
            raise ConfigError(
                f"{handler.name}() consumes the tags {', '.join(sorted(tags))} of {topic}; the "
                f"message has {fields.get('tags')!r}"
            )
        call = handler.uncounted(self._app.middlewares, 1)
        work = messages if handler.batch is not None else messages[0]
        if handler.is_async or self._app.middlewares:
            return await call(work)
        return await asyncio.to_thread(call, work)

    def _handler(self, topic: str, group: str | None) -> AppHandler:
        handlers = [
            handler
            for handler in self._app.handlers()
            if handler.topic == topic and group in (None, handler.group)
        ]
        if len(handlers) != 1:
            names = ", ".join(handler.group for handler in handlers)
            raise ConfigError(
                f"{len(handlers)} handlers consume {topic}: say which by group=, one of {names}"
                if handlers
                else f"no handler consumes {topic}" + (f" in group {group}" if group else "")
            )
        return handlers[0]

    def _received(self, message: Message, reconsume_times: int) -> ReceivedMessage:
        prepared = self._codec.prepare(message)
        queue = MessageQueue(message.topic, BROKER_NAME, 0)
        record = encode_message(
            message.topic,
            prepared.body,
            prepared.properties.encode(),
            queue_offset=self._count,
            sys_flag=prepared.sys_flag,
            flag=prepared.flag,
            reconsume_times=reconsume_times,
        )
        return split_messages(record, queue)[0]

    # -- in place of the producer -----------------------------------------------------------------

    async def send(self, message: Message) -> SendResult:
        """Check and list a message.

        Raises:
            LocalProtocolError: as `cometmq.Producer.send`.
        """
        prepared = self._codec.prepare(message)
        self.sent.append(message)
        queue = MessageQueue(message.topic, BROKER_NAME, 0)
        return SendResult(
            status=SendStatus.SEND_OK,
            message_id=prepared.message_id,
            offset_message_id=prepared.message_id,
            message_queue=queue,
            queue_offset=len(self.sent) - 1,
        )

    async def request(self, message: Message, *, timeout_ms: int) -> "Reply":
        """List a request, and answer it from ``replies``.

        Raises:
            RequestTimeout: ``replies`` has none for the topic.
        """
        await self.send(message)
        if message.topic not in self.replies:
            raise RequestTimeout(f"the trial has no reply for {message.topic}; put it into replies")
        from cometmq.client.producer.request_reply import Reply

        reply = message_of(message.topic, self.replies[message.topic], None, {})
        return Reply(reply.body, reply.properties, message.topic, 0, 0, 0)

    async def reply(self, request: ReceivedMessage, message: Message) -> None:
        """Nothing: `deliver` returns the reply."""
