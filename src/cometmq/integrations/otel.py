"""OpenTelemetry: spans for send, receive and process, and the context in message properties.

    producer = traced_producer(producer)
    consumer = PushConsumer("Billing", {"Orders": "*"}, traced_handler(handle, group="Billing"))

Spans and attributes follow OpenTelemetry's conventions for messaging (version 1.30).  The context
travels in the properties that the program's propagator writes, ``traceparent`` by default.  Without
an SDK the API does nothing and the wrappers cost little.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from cometmq import Message, ReceivedMessage, RetryLater, StopConsuming

__all__ = ["traced_consumer", "traced_handler", "traced_producer"]

_SYSTEM: Final = "rocketmq"
_NAME: Final = "cometmq"
T = TypeVar("T")


def _tracer() -> trace.Tracer:
    return trace.get_tracer(_NAME)


def _attributes(operation: str, topic: str, **others: Any) -> dict[str, Any]:
    found = {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        **{f"messaging.{name.replace('__', '.')}": value for name, value in others.items()},
    }
    return {name: value for name, value in found.items() if value not in (None, "", ())}


def _with_context(message: Message) -> Message:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return message
    return dataclasses.replace(message, properties={**message.properties, **carrier})


@contextmanager
def _sending(messages: Sequence[Message]) -> Iterator[Span]:
    first = messages[0]
    keys = first.keys if isinstance(first.keys, str) else " ".join(first.keys)
    attributes = _attributes(
        "send",
        first.topic,
        batch__message_count=len(messages) if len(messages) > 1 else None,
        rocketmq__message__tag=first.tags,
        rocketmq__message__keys=keys,
        rocketmq__message__group=first.message_group,
    )
    name = f"send {first.topic}"
    with _tracer().start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as it:
        yield it


def _note_id(span: Span, result: Any) -> None:
    """Take the id of a message, or nothing from a batch."""
    message_id = getattr(result, "message_id", None)
    if message_id:
        span.set_attribute("messaging.message.id", message_id)


class _Wrapped:
    """Passes on whatever it does not do itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _TracedProducer(_Wrapped):
    def send(self, message: Message, **options: Any) -> Any:
        if not inspect.iscoroutinefunction(self._inner.send):
            with _sending([message]) as span:
                result = self._inner.send(_with_context(message), **options)
                _note_id(span, result)
                return result

        async def send() -> Any:
            with _sending([message]) as span:
                result = await self._inner.send(_with_context(message), **options)
                _note_id(span, result)
                return result

        return send()

    def send_batch(self, messages: Sequence[Message], **options: Any) -> Any:
        if not inspect.iscoroutinefunction(self._inner.send_batch):
            with _sending(messages):
                return self._inner.send_batch([_with_context(each) for each in messages], **options)

        async def send() -> Any:
            with _sending(messages):
                marked = [_with_context(each) for each in messages]
                return await self._inner.send_batch(marked, **options)

        return send()


class _TracedConsumer(_Wrapped):
    def poll(self, *arguments: Any, **options: Any) -> Any:
        if not inspect.iscoroutinefunction(self._inner.poll):
            messages = self._inner.poll(*arguments, **options)
            self._received(messages)
            return messages

        async def poll() -> Any:
            messages = await self._inner.poll(*arguments, **options)
            self._received(messages)
            return messages

        return poll()

    def _received(self, messages: Sequence[ReceivedMessage]) -> None:
        """Write a span for what a poll has brought; an empty one is no span."""
        if not messages:
            return
        with _consuming("receive", messages, self._inner.group, SpanKind.CLIENT):
            pass


def traced_producer(producer: T) -> T:
    """Return the producer with a span around each `send` and `send_batch`.

    All else is the producer's own.  The context of the span travels with the message.
    """
    wrapped: Any = _TracedProducer(producer)
    return wrapped  # type: ignore[no-any-return]


def traced_consumer(consumer: T) -> T:
    """Return the pull consumer with a span for each `poll` that brings messages."""
    wrapped: Any = _TracedConsumer(consumer)
    return wrapped  # type: ignore[no-any-return]


@contextmanager
def _consuming(
    operation: str, messages: Sequence[ReceivedMessage], group: str, kind: SpanKind
) -> Iterator[Span]:
    """A span for messages: a child of one message's context, with links to those of several."""
    first = messages[0]
    contexts = [propagate.extract(dict(message.properties)) for message in messages]
    spans = [trace.get_current_span(each).get_span_context() for each in contexts]
    attributes = _attributes(
        operation,
        first.topic,
        consumer__group__name=group,
        message__id=first.message_id if len(messages) == 1 else None,
        batch__message_count=len(messages) if len(messages) > 1 else None,
        rocketmq__message__tag=first.tags if len(messages) == 1 else None,
    )
    is_child = operation == "process" and len(messages) == 1 and spans[0].is_valid
    token = context.attach(contexts[0]) if is_child else None
    try:
        with _tracer().start_as_current_span(
            f"{operation} {first.topic}",
            kind=kind,
            attributes=attributes,
            links=[Link(each) for each in spans if each.is_valid],
        ) as span:
            yield span
    finally:
        if token is not None:
            context.detach(token)


def _note_result(span: Span, result: Any) -> None:
    """Mark the span of a handler that asks for another try."""
    if result is False or isinstance(result, (RetryLater, StopConsuming)):
        span.set_status(Status(StatusCode.ERROR, str(result)))


def traced_handler(handler: Callable[[Any], Any], *, group: str) -> Callable[[Any], Any]:
    """Return a push consumer's handler with a span around each call.

    Args:
        handler: takes a message or a list of them; a coroutine function stays one.
        group: the consumer's.
    """

    def listed(argument: Any) -> Sequence[ReceivedMessage]:
        return [argument] if isinstance(argument, ReceivedMessage) else argument

    async def handle_async(argument: Any) -> Any:
        with _consuming("process", listed(argument), group, SpanKind.CONSUMER) as span:
            result = await handler(argument)
            _note_result(span, result)
            return result

    def handle(argument: Any) -> Any:
        with _consuming("process", listed(argument), group, SpanKind.CONSUMER) as span:
            result = handler(argument)
            _note_result(span, result)
            return result

    chosen: Callable[[Any], Any] = handle_async if inspect.iscoroutinefunction(handler) else handle
    # A push consumer sees by the annotation of the parameter whether the handler takes a list.
    chosen.__annotations__ = dict(getattr(handler, "__annotations__", {}))
    chosen.__signature__ = inspect.signature(handler)  # type: ignore[attr-defined]
    return chosen
