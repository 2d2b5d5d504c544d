"""What the push consumer's tests against the real broker share: a cluster, messages, offsets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.cluster import embedded_cluster

Story = Callable[[str, Producer], Awaitable[None]]


def scenario(story: Story) -> None:
    """Run a story against a cluster with a topic ``t`` of four queues."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=4)
            await story(cluster.name_server_address, producer)

    asyncio.run(run())


async def send(producer: Producer, *bodies: bytes, topic: str = "t", **fields: Any) -> None:
    await asyncio.gather(*[producer.send(Message(topic, body, **fields)) for body in bodies])


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def committed(name_server: str, group: str) -> int:
    """Sum of the group's stored offsets in topic t."""
    async with PullConsumer(group, name_server=name_server) as reader:
        queues = await reader.fetch_queues("t")
        return sum([await reader.committed(queue) or 0 for queue in queues])
