"""Why a group lags, asked of a whole cluster on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.sim.single import SingleCluster

from cometmq.client.admin.admin import Admin
from cometmq.client.admin.lag_causes import LagCause
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulation import Node, World, simulate

Story = Callable[[SingleCluster, Node, Producer], Awaitable[list[LagCause]]]


def causes_of(story: Story) -> dict[str, LagCause]:
    """Run a story on a cluster with 40 messages in T; return the causes by their kinds."""

    async def main(world: World) -> list[LagCause]:
        cluster = SingleCluster(world)
        await cluster.start()
        node = world.node("client")

        async def clients() -> list[LagCause]:
            async with cluster.producer(node) as producer:
                for number in range(40):
                    body = str(number).encode()
                    await producer.send(Message("T", body, tags="A", keys=f"k{number}"))
                await asyncio.sleep(1)
                return await story(cluster, node, producer)

        return await node.run(clients)

    return {cause.kind: cause for cause in simulate(1, main).value}


async def explained(cluster: SingleCluster, node: Node) -> list[LagCause]:
    async with Admin(**cluster.at(node, "admin")) as admin:
        view, causes = await admin.explain_lag("g")
        assert sum(map(view.lag, view.offsets)) > 0
    return causes


def test_a_handler_that_waits_for_ever_is_shown_with_its_coroutine() -> None:
    """The message, what is done behind it, and the line at which the handler waits."""
    never = asyncio.Event()

    async def ask_the_bank() -> None:
        await never.wait()

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"5":
            await ask_the_bank()

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[LagCause]:
        consumer = PushConsumer(
            "g", {"T": "*"}, handle, consume_from="first", **cluster.at(node, "member")
        )
        async with consumer:
            await asyncio.sleep(20)
            causes = await explained(cluster, node)
            never.set()
        return causes

    cause = causes_of(story)["stuck-message"]
    assert "keys k5" in cause.evidence
    assert "; 8 behind it are done" in cause.evidence
    assert "ask_the_bank" in cause.stack
    assert "never.wait()" in cause.stack


def test_a_paused_member_and_a_group_without_one() -> None:
    """The two causes that need no look at a handler."""

    async def handle(message: ReceivedMessage) -> None:
        pass

    async def paused(cluster: SingleCluster, node: Node, producer: Producer) -> list[LagCause]:
        consumer = PushConsumer(
            "g", {"T": "*"}, handle, consume_from="first", **cluster.at(node, "member")
        )
        consumer.pause()
        async with consumer:
            await asyncio.sleep(20)
            return await explained(cluster, node)

    async def alone(cluster: SingleCluster, node: Node, producer: Producer) -> list[LagCause]:
        await paused(cluster, node, producer)
        return await explained(cluster, node)

    assert set(causes_of(paused)) == {"paused"}
    assert set(causes_of(alone)) == {"no-consumer"}


def test_a_filter_that_wants_none_of_the_waiting_messages() -> None:
    """They wait only until a member has pulled, which here it may not yet."""

    async def handle(message: ReceivedMessage) -> None:
        pass

    async def story(cluster: SingleCluster, node: Node, producer: Producer) -> list[LagCause]:
        consumer = PushConsumer(
            "g", {"T": "B"}, handle, consume_from="first", **cluster.at(node, "member")
        )
        consumer.pause()
        async with consumer:
            await asyncio.sleep(1)
            return await explained(cluster, node)

    causes = causes_of(story)
    assert "match no filter (TAG B)" in causes["filtered"].evidence
