"""Sending values: messages from values, and functions whose result is sent."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, Unpack

from cometmq.app.handler import is_coroutine_function, is_verdict
from cometmq.app.options import ValueFields
from cometmq.app.serializers import CONTENT_TYPE, Serializer, serializer_of
from cometmq.client import Message, SendResult

__all__ = ["TopicProducer", "message_of", "sends_result"]

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_cometmq_sends_result"


def message_of(
    topic: str, value: Any, serializer: Serializer | None, fields: ValueFields
) -> Message:
    """A message whose body is the value, and whose property ``content-type`` says how to read it.

    Raises:
        TypeError: the value has no such form.
        LocalProtocolError: a field is wrong.
    """
    serializer = serializer or serializer_of(type(value))
    body = serializer.encode(value)
    if serializer.content_type is not None:
        properties = dict(fields.get("properties", ()))
        properties.setdefault(CONTENT_TYPE, serializer.content_type)
        fields = {**fields, "properties": properties}
    return Message(topic, body, **fields)


def sends_result(function: Callable[..., Any]) -> bool:
    """Whether the function's result is sent by a `TopicProducer`."""
    return getattr(function, _MARK, False)


class SendsValues(Protocol):
    """How a `TopicProducer` sends: an App, which need not run yet."""

    def send(
        self,
        topic: str,
        value: Any,
        *,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> Awaitable[SendResult]:
        """Send from the App's loop."""
        ...

    def send_from_thread(
        self,
        topic: str,
        value: Any,
        *,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> SendResult:
        """Send from any other thread."""
        ...


class TopicProducer:
    """Sends values to one topic; as a decorator it sends what a function returns.

    A function that returns None, True, False or a `RetryLater` sends nothing: for a handler these
    say what becomes of its message.
    """

    def __init__(
        self, app: SendsValues, topic: str, serializer: Serializer | None, fields: ValueFields
    ) -> None:
        self._app = app
        self.topic = topic
        self._serializer = serializer
        self._fields = fields

    async def send(self, value: Any, **fields: Unpack[ValueFields]) -> SendResult:
        """Send a value; fields of the message as in `App.send`, instead of the producer's own.

        Raises:
            CometError: as `cometmq.Producer.send`.
        """
        merged: ValueFields = {**self._fields, **fields}
        return await self._app.send(self.topic, value, serializer=self._serializer, **merged)

    def send_from_thread(self, value: Any, **fields: Unpack[ValueFields]) -> SendResult:
        """`send` for plain functions, outside the event loop's thread.

        Raises:
            CometError: as `cometmq.Producer.send`.
        """
        merged: ValueFields = {**self._fields, **fields}
        return self._app.send_from_thread(self.topic, value, serializer=self._serializer, **merged)

    def __call__(self, function: F) -> F:
        """Decorate a function, ``async`` or plain: its result is sent, then returned."""
        wrapped: Any
        if is_coroutine_function(function):

            @functools.wraps(function)
            async def wrapped_async(*arguments: Any, **options: Any) -> Any:
                value = await function(*arguments, **options)
                if not is_verdict(value):
                    await self.send(value)
                return value

            wrapped = wrapped_async
        else:

            @functools.wraps(function)
            def wrapped_plain(*arguments: Any, **options: Any) -> Any:
                value = function(*arguments, **options)
                if not is_verdict(value):
                    self.send_from_thread(value)
                return value

            wrapped = wrapped_plain
        setattr(wrapped, _MARK, True)
        return wrapped  # type: ignore[no-any-return]
