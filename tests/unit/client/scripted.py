"""A push consumer against a scripted broker, and a handler that keeps what it saw."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.unit.client.fake import FakeBroker

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.model import MessageQueue

Q0 = MessageQueue("t", "broker-a", 0)


class Reader:
    """A handler that keeps what it saw and fails where it is told to."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.fail: Callable[[ReceivedMessage], Any] = lambda message: None

    async def handle(self, message: ReceivedMessage) -> Any:
        self.seen.append(message.body)
        return self.fail(message)


Story = Callable[[FakeBroker, PushConsumer, Reader], Awaitable[None]]


def scenario(story: Story, *, queue_count: int = 1, **options: Any) -> FakeBroker:
    """Run a story with a fake broker and a push consumer of one topic."""

    async def run() -> FakeBroker:
        broker = FakeBroker({"t": queue_count})
        await broker.start()
        reader = Reader()
        try:
            async with PushConsumer(
                "g",
                {"t": "*"},
                reader.handle,
                name_server=broker.name_server,
                consume_from="first",
                **options,
            ) as consumer:
                await story(broker, consumer, reader)
        finally:
            await broker.stop()
        return broker

    return asyncio.run(run())
