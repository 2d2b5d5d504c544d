"""Where a message is for a group, asked of a whole cluster on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.sim.single import SingleCluster

from cometmq.client.admin.admin import Admin
from cometmq.client.admin.whereabouts import Whereabouts
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.errors import QueryNotFound
from cometmq.model import Message
from cometmq.testing.simulation import Node, World, simulate

Handler = Callable[[ReceivedMessage], Awaitable[None]]
Story = Callable[[SingleCluster, Node, str], Awaitable[Whereabouts]]


async def fine(message: ReceivedMessage) -> None:
    pass


async def failing(message: ReceivedMessage) -> None:
    raise ValueError("no account")


def found(story: Story) -> Whereabouts:
    """Run a story on a cluster that has one message, with tag A in T; return what it found."""

    async def main(world: World) -> Whereabouts:
        cluster = SingleCluster(world)
        await cluster.start()
        node = world.node("client")

        async def clients() -> Whereabouts:
            async with cluster.producer(node) as producer:
                await producer.send(Message("U", b"other"))
                sent = await producer.send(Message("T", b"x", tags="A"))
                await asyncio.sleep(1)
                return await story(cluster, node, sent.message_id)

        return await node.run(clients)

    return simulate(1, main).value


def member(
    cluster: SingleCluster, node: Node, handler: Handler, topics: dict[str, str], **more: Any
) -> PushConsumer:
    options = {"consume_from": "first", **more}
    return PushConsumer("g", topics, handler, **cluster.at(node, "member"), **options)


async def ask(cluster: SingleCluster, node: Node, message_id: str) -> Whereabouts:
    async with Admin(**cluster.at(node, "admin")) as admin:
        return await admin.why(message_id, "g", "T")


def after(
    handler: Handler, topics: dict[str, str], wait_s: float, *, leaves: bool = False, **more: Any
) -> Whereabouts:
    """What is known of the message when a member has run for some time."""

    async def story(cluster: SingleCluster, node: Node, message_id: str) -> Whereabouts:
        async with member(cluster, node, handler, topics, **more):
            await asyncio.sleep(wait_s)
            if not leaves:
                return await ask(cluster, node, message_id)
        return await ask(cluster, node, message_id)

    return found(story)


def test_a_message_that_was_handled() -> None:
    """By whom and when; also after the member has left."""
    for leaves in (False, True):
        at = after(fine, {"T": "*"}, 20, leaves=leaves)
        assert (at.state, at.change) == ("acknowledged", "")
        assert any(fact.startswith("acknowledged by 10.0.0.3@member ") for fact in at.facts)


@pytest.mark.parametrize(
    ("topics", "state", "fact"),
    [
        ({"T": "B"}, "filtered", "TAG B leaves it out"),
        ({"U": "*"}, "not-wanted", "no member subscribes to T"),
    ],
)
def test_a_message_that_no_member_gets(topics: dict[str, str], state: str, fact: str) -> None:
    """The filter that leaves it out, or the topic that nobody wants."""
    at = after(fine, topics, 20)
    assert at.state == state
    assert any(fact in each for each in at.facts)
    assert at.change.startswith("subscribe to ")


def test_a_message_that_a_handler_has() -> None:
    """It is in the memory of a member, whose stacks say where the handler is."""
    never = asyncio.Event()

    async def waiting(message: ReceivedMessage) -> None:
        await never.wait()

    async def story(cluster: SingleCluster, node: Node, message_id: str) -> Whereabouts:
        async with member(cluster, node, waiting, {"T": "*"}):
            await asyncio.sleep(20)
            at = await ask(cluster, node, message_id)
            never.set()
        return at

    at = found(story)
    assert at.state == "in-hand"
    assert at.change == "cometmq client stacks 10.0.0.3@member --group g"


def test_a_message_that_fails() -> None:
    """Waiting for its next try, and given up after the last one."""
    at = after(failing, {"T": "*"}, 5)
    assert at.state == "delayed"
    assert any("failed 1 times" in fact for fact in at.facts)
    at = after(failing, {"T": "*"}, 60, max_reconsume_times=0)
    assert (at.state, at.change) == ("dead", "cometmq dead-letters redrive g")


def test_a_message_without_a_member_and_one_that_is_not_there() -> None:
    """The group exists, and nobody is online."""

    async def story(cluster: SingleCluster, node: Node, message_id: str) -> Whereabouts:
        async with member(cluster, node, fine, {"U": "*"}):
            await asyncio.sleep(5)
        with pytest.raises(QueryNotFound, match="no message has the id 0A00"):
            await ask(cluster, node, "0A" + "0" * 30)
        return await ask(cluster, node, message_id)

    at = found(story)
    assert (at.state, at.change) == ("no-member", "start a consumer of g")
