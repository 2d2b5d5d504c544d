"""Spans of sends and handlers, by OpenTelemetry's API with a tracer that keeps what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
)

import cometmq.sync
from cometmq import Message, Producer, PullConsumer, PushConsumer
from cometmq.integrations import otel
from cometmq.integrations.otel import traced_consumer, traced_handler, traced_producer
from cometmq.testing.cluster import embedded_cluster, threaded_cluster


@dataclass(eq=False)
class KeptSpan(NonRecordingSpan):
    """A span with what was said of it."""

    name: str
    kind: SpanKind
    own: SpanContext
    parent: SpanContext
    links: list[SpanContext]
    attributes: dict[str, Any]
    status: StatusCode = StatusCode.UNSET

    def get_span_context(self) -> SpanContext:
        return self.own

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = getattr(status, "status_code", status)


@dataclass(eq=False)
class KeepingTracer(Tracer):
    """Keeps every span."""

    spans: list[KeptSpan] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    def start_span(self, name: str, context: Any = None, *others: Any, **options: Any) -> KeptSpan:
        parent = trace.get_current_span(context).get_span_context()
        number = next(self.ids)
        own = SpanContext(
            parent.trace_id or number, number, is_remote=False, trace_flags=TraceFlags(1)
        )
        span = KeptSpan(
            name,
            options["kind"],
            own,
            parent,
            [link.context for link in options.get("links") or ()],
            dict(options["attributes"]),
        )
        self.spans.append(span)
        return span

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, *others: Any, **options: Any
    ) -> Iterator[KeptSpan]:
        span = self.start_span(name, None, **options)
        with trace.use_span(span):
            try:
                yield span
            except Exception:
                span.set_status(StatusCode.ERROR)
                raise


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> KeepingTracer:
    """The tracer of the wrappers."""
    kept = KeepingTracer()
    monkeypatch.setattr(otel, "_tracer", lambda: kept)
    return kept


def test_a_message_from_send_to_process(tracer: KeepingTracer) -> None:
    """The handler's span is a child of the send's, over the wire."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            done = asyncio.Event()

            async def handle(message: Any) -> bool:
                done.set()
                return False

            consumer = PushConsumer(
                "Billing",
                {"Orders": "*"},
                traced_handler(handle, group="Billing"),
                name_server=address,
                consume_from="first",
            )
            async with Producer("Shop", name_server=address) as inner, consumer:
                producer = traced_producer(inner)
                result = await producer.send(Message("Orders", b"x", tags="A", keys=("k",)))
                await asyncio.wait_for(done.wait(), 50)
            send, process = tracer.spans[:2]
            assert (send.name, send.kind) == ("send Orders", SpanKind.PRODUCER)
            assert send.attributes == {
                "messaging.system": "rocketmq",
                "messaging.operation.name": "send",
                "messaging.operation.type": "send",
                "messaging.destination.name": "Orders",
                "messaging.rocketmq.message.tag": "A",
                "messaging.rocketmq.message.keys": "k",
                "messaging.message.id": result.message_id,
            }
            assert (process.name, process.kind) == ("process Orders", SpanKind.CONSUMER)
            assert process.parent.span_id == send.own.span_id
            assert process.parent.trace_id == send.own.trace_id
            assert process.attributes["messaging.consumer.group.name"] == "Billing"
            assert process.attributes["messaging.message.id"] == result.message_id
            assert process.status is StatusCode.ERROR

    asyncio.run(story())


def test_lists_and_polls_link_to_their_sends(tracer: KeepingTracer) -> None:
    """A list has no single parent; the handler is still seen to take a list."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            seen: list[Any] = []
            done = asyncio.Event()

            def handle(messages: list[Any]) -> None:
                seen.extend(messages)
                if len(seen) == 2:
                    loop.call_soon_threadsafe(done.set)

            loop = asyncio.get_running_loop()
            async with Producer("Shop", name_server=address) as inner:
                producer = traced_producer(inner)
                await producer.send_batch([Message("Orders", b"1"), Message("Orders", b"2")])
                assert producer.group == "Shop"
            push = PushConsumer(
                "Billing",
                {"Orders": "*"},
                traced_handler(handle, group="Billing"),
                name_server=address,
                consume_from="first",
            )
            async with push:
                await asyncio.wait_for(done.wait(), 50)
            pull = PullConsumer("Mail", {"Orders": "*"}, name_server=address, consume_from="first")
            async with pull:
                polling = traced_consumer(pull)
                while not await polling.poll(1000):
                    pass
            (send,) = [span for span in tracer.spans if span.name == "send Orders"]
            assert send.attributes["messaging.batch.message_count"] == 2
            others = [span for span in tracer.spans if span is not send]
            assert {span.name for span in others} == {"process Orders", "receive Orders"}
            for span in others:
                assert {link.span_id for link in span.links} == {send.own.span_id}

    asyncio.run(story())


def test_the_synchronous_clients(tracer: KeepingTracer) -> None:
    """The same wrappers."""
    with threaded_cluster() as cluster:
        address = cluster.name_server_address
        with cometmq.sync.Producer("Shop", name_server=address) as inner:
            traced_producer(inner).send(Message("Orders", b"x"))
        with cometmq.sync.PullConsumer(
            "Mail", {"Orders": "*"}, name_server=address, consume_from="first"
        ) as consumer:
            polling = traced_consumer(consumer)
            messages: list[Any] = []
            while not messages:
                messages = polling.poll(1000)
        assert "traceparent" in messages[0].properties
        assert [span.name for span in tracer.spans] == ["send Orders", "receive Orders"]
