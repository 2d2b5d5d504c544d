"""What the App's tests against the real broker share: a cluster with an App on it."""

import asyncio
from collections.abc import Awaitable, Callable

from cometmq import App
from cometmq.client.producer.producer import Producer
from cometmq.testing.cluster import embedded_cluster

Story = Callable[[App, Producer], Awaitable[None]]


def scenario(story: Story, group: str = "g") -> None:
    """Run a story with an App that is not started, and a topic ``t`` of four queues."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=4)
            await story(App(group, name_server=cluster.name_server_address), producer)

    asyncio.run(run())
