"""A consumer adds the bounds of the queue to the properties of a message, as RocketMQ's does."""

import asyncio

import pytest

from cometmq import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage
from cometmq.client.message.message import split_messages
from cometmq.codec.stored_message import encode_message
from cometmq.model import MessageQueue
from cometmq.testing import embedded_cluster


def test_a_record_alone_has_none() -> None:
    """Until a consumer says them; what is stored stays as it is."""
    record = encode_message("T", b"", b"a\x01b\x02")
    (message,) = split_messages(record, MessageQueue("T", "b", 0))
    assert message.properties == {"a": "b"}
    message.bounds = 3, 9
    assert message.properties == {"a": "b", "MIN_OFFSET": "3", "MAX_OFFSET": "9"}
    assert message.properties is message.properties
    assert message.stored.properties == {"a": "b"}


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_a_consumer_says_them(kind: str) -> None:
    """The end is that of the pull: behind the message at least."""

    async def main() -> list[ReceivedMessage]:
        received: list[ReceivedMessage] = []
        done = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            received.append(message)
            if len(received) == 5:
                done.set()

        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            async with Producer("shop", name_server=address) as producer:
                await producer.create_topic("Bounds", queue_count=1)
                for number in range(5):
                    await producer.send(Message("Bounds", b"%d" % number))
            if kind == "push":
                async with PushConsumer(
                    "push", {"Bounds": "*"}, handle, name_server=address, consume_from="first"
                ):
                    await asyncio.wait_for(done.wait(), 30)
                return received
            async with PullConsumer(
                "pull", {"Bounds": "*"}, name_server=address, consume_from="first"
            ) as consumer:
                async for message in consumer:
                    await handle(message)
                    if done.is_set():
                        return received
        return received

    for message in asyncio.run(main()):
        assert message.properties["MIN_OFFSET"] == "0"
        assert message.queue_offset < int(message.properties["MAX_OFFSET"]) <= 5
