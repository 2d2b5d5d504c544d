"""One where several are meant, and texts where none can be: taken as one, or refused in words."""

import asyncio
from typing import Any

import pytest

import cometmq.sync
from cometmq.client import Admin, Producer, PullConsumer, PushConsumer
from cometmq.core.allocate import AllocateByConfig
from cometmq.errors import ConfigError
from cometmq.model import Message, MessageQueue, SubscriptionGroupConfig
from cometmq.testing.cluster import embedded_cluster, threaded_cluster

QUEUE = MessageQueue("orders", "broker-a", 0)
KINDS = (PushConsumer, PullConsumer, cometmq.sync.PushConsumer, cometmq.sync.PullConsumer)


def test_a_topic_is_no_list_of_letters() -> None:
    """`group_offsets` takes the name of one topic, or several."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            async with Admin(name_server=address) as admin, Producer(name_server=address) as sender:
                await admin.create_topic("orders", queue_count=1)
                await sender.send(Message("orders", b"x"))
                await admin.create_group(SubscriptionGroupConfig("g"))
                await admin.commit_offsets("g", {QUEUE: 0})
                one = await admin.group_offsets("g", "orders")
                assert one == await admin.group_offsets("g", ["orders"])
                assert one[QUEUE].lag == 1

    asyncio.run(run())


def test_a_topic_is_no_list_of_letters_without_asyncio() -> None:
    """The same of the synchronous face."""
    with (
        threaded_cluster() as cluster,
        cometmq.sync.Admin(name_server=cluster.name_server_address) as admin,
    ):
        admin.create_topic("orders", queue_count=1)
        admin.create_group(SubscriptionGroupConfig("g"))
        assert list(admin.group_offsets("g", "orders")) == [QUEUE]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subscriptions", ["orders", ["orders"], {"orders"}, ("orders", "*")])
def test_subscriptions_are_a_mapping(kind: Any, subscriptions: Any) -> None:
    """The words show how it is written."""
    with pytest.raises(ConfigError, match=r"must map topics to tag expressions, such as {'"):
        kind("g", subscriptions, name_server="127.0.0.1:1")


def test_queues_of_a_pull_consumer() -> None:
    """A single queue is one queue, not its topic, broker and number; a topic is none."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            PullConsumer("g", name_server=cluster.name_server_address) as consumer,
            Producer(name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("orders", queue_count=2)
            one: Any = QUEUE
            await consumer.assign(one)
            assert consumer.assignment() == [QUEUE]
            assert await consumer.begin_offsets(one) == {QUEUE: 0}
            assert await consumer.end_offsets(one) == {QUEUE: 0}
            consumer.pause(one)
            assert consumer.paused() == [QUEUE]
            consumer.resume(one)
            assert consumer.paused() == []
            for wrong in ("orders", ["orders"], ("orders", "broker-a", 0)):
                queues: Any = wrong
                for method in (consumer.assign, consumer.begin_offsets, consumer.end_offsets):
                    with pytest.raises(ConfigError, match="no list of MessageQueue"):
                        await method(queues)
                for plain in (consumer.pause, consumer.resume):
                    with pytest.raises(ConfigError, match="no list of MessageQueue"):
                        plain(queues)
            assert consumer.assignment() == [QUEUE]
            assert consumer.paused() == []

    asyncio.run(run())


@pytest.mark.parametrize("queues", ["orders", ["orders"], QUEUE])
def test_configured_queues(queues: Any) -> None:
    """A strategy that would hand out letters hands out nothing, so it is refused when made."""
    with pytest.raises(ConfigError, match="no list of MessageQueue"):
        AllocateByConfig(queues)
