"""A paying customer's message does not wait behind free ones, on virtual time."""

import asyncio

from tests.sim.single import SingleCluster

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.model.properties import PRIORITY
from cometmq.testing.simulation import Node, World, simulate

FREE, PAYING = 400, 40


async def send(producer: Producer, word: str, priority: int, count: int) -> None:
    for number in range(count):
        body = f"{word} {number}".encode()
        await producer.send(Message("Jobs", body, properties={PRIORITY: str(priority)}))


def handled(low_priority_share: float | None) -> list[str]:
    """The order in which one handler of 10 ms takes 400 free jobs and then 40 paid ones."""
    order: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0.01)
        order.append(bytes(message.body).decode())

    async def story(cluster: SingleCluster, node: Node) -> list[str]:
        async with Admin(**cluster.at(node, "admin")) as admin:
            await admin.create_topic("Jobs", queue_count=3, attributes="+message.type=PRIORITY")
        async with cluster.producer(node) as producer:
            await send(producer, "free", 0, FREE)
            consumer = PushConsumer(
                "workers",
                {"Jobs": "*"},
                handle,
                consume_from="first",
                concurrency=1,
                low_priority_share=low_priority_share,
                **cluster.at(node, "member"),
            )
            async with consumer:
                await asyncio.sleep(1)
                await send(producer, "paid", 2, PAYING)
                await asyncio.sleep(10)
        return order

    async def main(world: World) -> list[str]:
        cluster = SingleCluster(world)
        await cluster.start()
        node = world.node("client")
        return await node.run(lambda: story(cluster, node))

    return simulate(1, main).value


def test_paid_jobs_go_first_and_free_ones_are_never_starved() -> None:
    """The last paid job waits for no free one but the share; without lanes it waits for all."""
    order = handled(0.2)
    assert sorted(order) == sorted(
        [f"free {number}" for number in range(FREE)]
        + [f"paid {number}" for number in range(PAYING)]
    )
    first, last = order.index("paid 0"), order.index(f"paid {PAYING - 1}")
    between = [body for body in order[first:last] if body.startswith("free")]
    assert PAYING * 0.2 - 2 <= len(between) <= PAYING * 0.25 + 2
    assert last < FREE  # most of the free ones come after it
    plain = handled(None)
    assert plain.index(f"paid {PAYING - 1}") > FREE - PAYING
