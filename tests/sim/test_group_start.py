"""Where a new group begins, on virtual time: at the end means behind every message sent before."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.sim.single import SingleCluster

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import ConsumeFromWhere, Message
from cometmq.testing.simulation import Node, World, simulate

BACKLOG = 40
LATER = [f"later {number}" for number in range(8)]
Story = Callable[[SingleCluster, Node, Producer], Awaitable[list[str]]]


def told(story: Story) -> list[str]:
    """Run a story on a cluster whose topic T has a young backlog; return its result."""

    async def main(world: World) -> list[str]:
        cluster = SingleCluster(world)
        await cluster.start()
        node = world.node("client")

        async def clients() -> list[str]:
            async with cluster.producer(node) as producer:
                await send(producer, [f"old {number}" for number in range(BACKLOG)])
                await asyncio.sleep(1)
                return await story(cluster, node, producer)

        return await node.run(clients)

    return simulate(1, main).value


async def send(producer: Producer, bodies: list[str], topic: str = "T") -> None:
    for body in bodies:
        await producer.send(Message(topic, body.encode(), message_group=body[-1]))


def push(
    cluster: SingleCluster, node: Node, topic: str, seen: list[str], **more: Any
) -> PushConsumer:
    async def handle(message: ReceivedMessage) -> None:
        seen.append(bytes(message.body).decode())

    name = more.pop("name", "consumer")
    return PushConsumer("new", {topic: "*"}, handle, **cluster.at(node, name), **more)


@pytest.mark.parametrize("order", ["none", "queue", "group"])
@pytest.mark.parametrize(
    "start",
    ["last", ConsumeFromWhere.CONSUME_FROM_MAX_OFFSET, "timestamp of now"],
    ids=["last", "max offset", "timestamp of now"],
)
def test_a_new_group_does_not_get_the_backlog(start: Any, order: Any) -> None:
    """Offset 0 is in memory, so the broker would answer 0 to a client that does not say so."""

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[str]:
        seen: list[str] = []
        now_ms = node.environment().clock.now_ms()
        where = now_ms if start == "timestamp of now" else start
        async with push(cluster, node, "T", seen, consume_from=where, order=order):
            await send(producer, LATER)
            await asyncio.sleep(60)
        return sorted(seen)

    assert told(story) == LATER


def test_a_pull_consumer_of_a_new_group_does_not_get_the_backlog() -> None:
    """By subscription and by hand; `committed` says None until something is committed."""

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[str]:
        async with (
            PullConsumer("new", {"T": "*"}, **cluster.at(node, "subscribed")) as subscribed,
            PullConsumer("hand", auto_commit=False, **cluster.at(node, "by hand")) as by_hand,
        ):
            queues = await by_hand.fetch_queues("T")
            await by_hand.assign(queues)
            assert [await by_hand.committed(queue) for queue in queues] == [None] * 4
            await send(producer, LATER)
            seen: list[str] = []
            for consumer in (subscribed, by_hand):
                while messages := await consumer.poll(5_000):
                    seen += [bytes(message.body).decode() for message in messages]
        return sorted(seen)

    assert told(story) == sorted(LATER * 2)


def test_a_topic_that_appears_after_the_start_is_consumed_from_its_first_message() -> None:
    """The consumer learns of the topic some time after the first messages."""

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[str]:
        seen: list[str] = []
        async with push(cluster, node, "Fresh", seen):
            await asyncio.sleep(20)
            await send(producer, LATER, "Fresh")
            await asyncio.sleep(60)
        return sorted(seen)

    assert told(story) == LATER


def test_queues_that_a_topic_gets_after_the_start_are_read_from_their_first_message() -> None:
    """The consumer learns of them with its next look at the route, up to 30 s later."""

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[str]:
        seen: list[str] = []
        async with (
            push(cluster, node, "T", seen),
            Admin(**cluster.at(node, "admin")) as admin,
        ):
            await admin.create_topic("T", queue_count=8)
            async with cluster.producer(node, "second") as second:
                queues = await second.fetch_publish_queues("T")
                assert len(queues) == 8
                for queue in queues:
                    message = Message("T", f"later {queue.queue_id}".encode())
                    await second.send(message, queue=queue)
            await asyncio.sleep(90)
        return sorted(seen)

    assert told(story) == LATER


def test_a_group_whose_first_member_dies_at_once_keeps_its_beginning() -> None:
    """The member never commits what it read; the next one begins where the group began."""

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[str]:
        seen: list[str] = []
        world = cluster.world
        first_node = world.node("first member")

        async def die_young() -> None:
            await push(cluster, first_node, "T", [], name="first").start()

        await first_node.run(die_young)
        first_node.crash()
        await send(producer, LATER)
        await asyncio.sleep(130)  # until the broker gives the dead member up
        async with push(cluster, node, "T", seen, name="second"):
            await asyncio.sleep(60)
        return sorted(seen)

    assert told(story) == LATER


def test_a_queue_whose_broker_is_down_at_the_start_is_read_from_the_start_on() -> None:
    """Its end cannot be asked then; what is sent before the consumer can ask is not skipped."""

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[str]:
        seen: list[str] = []
        cluster.world.network.part(node.address, cluster.broker.address)
        second_node = cluster.world.node("second client")
        async with push(cluster, node, "T", seen):

            async def go_on() -> None:
                async with cluster.producer(second_node, "second") as second:
                    await send(second, LATER)

            await second_node.run(go_on)
            cluster.world.network.heal()
            await asyncio.sleep(60)
        return sorted(seen)

    assert told(story) == LATER
