"""`TestCometBroker`: subscribers run without a cluster, by the same topics, groups and tags."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from faststream.exceptions import FeatureNotSupportedException, SetupError, SubscriberNotFound

import cometmq.sync
from cometmq.integrations.faststream import (
    CometBroker,
    CometMessage,
    CometResponse,
    TestCometBroker,
)
from cometmq.testing.cluster import EmbeddedCluster


def play(story: Callable[[CometBroker], Coroutine[Any, Any, None]]) -> None:
    """Run a story with a broker that nobody connects; port 1 answers nobody."""
    asyncio.run(story(CometBroker("127.0.0.1:1")))


def test_handlers_and_publishers_are_recorded() -> None:
    """Handlers run inside ``publish``, and both sides can be asked for their calls."""

    async def story(broker: CometBroker) -> None:
        publisher = broker.publisher("Bills")

        @broker.subscriber("Orders", group="billing", tag="a || b")
        @publisher
        async def bill(number: int, message: CometMessage) -> CometResponse:
            assert message.raw_message.topic == "Orders"  # type: ignore[union-attr]
            return CometResponse(number * 10, headers={"from": message.message_id})

        async with TestCometBroker(broker) as tested:
            await tested.publish(4, "Orders", tag="b")
            await tested.publish(5, "Orders", tag="c")
            bill.mock.assert_called_once_with(4)
            publisher.mock.assert_called_once_with(40)
            with pytest.raises(ValueError, match="int_parsing"):
                await tested.publish("four", "Orders", tag="a")

    play(story)


def test_groups_batches_and_requests() -> None:
    """Each group gets a message once; batch handlers get lists; requests get the result."""
    seen: list[tuple[str, object]] = []

    async def story(broker: CometBroker) -> None:
        for group in ("g1", "g1", "g2"):

            async def hear(body: str, group: str = group) -> None:
                seen.append((group, body))

            broker.subscriber("Heard", group=group)(hear)

        @broker.subscriber("Sums", group="sums", batch=True)
        async def add(numbers: list[int]) -> None:
            seen.append(("sum", sum(numbers)))

        @broker.subscriber("Questions", group="answers")
        async def answer(number: int) -> int:
            return -number

        async with TestCometBroker(broker) as tested:
            await tested.publish("x", "Heard")
            await tested.publish_batch(1, 2, 3, topic="Sums")
            await tested.publish(9, "Sums")
            assert await (await tested.request(5, "Questions")).decode() == -5
            with pytest.raises(SubscriberNotFound):
                await tested.request(5, "Nobody")
        assert sorted(seen, key=str) == [("g1", "x"), ("g2", "x"), ("sum", 6), ("sum", 9)]

    play(story)


def test_what_only_a_broker_does_is_said() -> None:
    """SQL is not evaluated here, and a mistaken group is refused as with a cluster."""

    async def story(broker: CometBroker) -> None:
        @broker.subscriber("Filtered", group="filtered", sql="a > 1")
        async def handle(body: str) -> None: ...

        async with TestCometBroker(broker) as tested:
            with pytest.raises(FeatureNotSupportedException, match="with_real=True"):
                await tested.publish("x", "Filtered")

        @broker.subscriber("Other", group="filtered")
        async def mistaken(body: str) -> None: ...

        with pytest.raises(SetupError, match="group filtered differ"):
            async with TestCometBroker(broker):
                pass

    play(story)


def test_the_same_test_with_a_cluster(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """``with_real=True`` sends for real, and ``wait_call`` waits for the handler."""
    admin.create_topic("Real", queue_count=1)

    async def run() -> None:
        broker = CometBroker(cluster.name_server_address)

        @broker.subscriber("Real", group="real", sql="size > 1", consume_from="first")
        async def handle(body: str) -> None: ...

        async with TestCometBroker(broker, with_real=True) as tested:
            await tested.publish("small", "Real", headers={"size": "1"})
            await tested.publish("big", "Real", headers={"size": "2"})
            await handle.wait_call(timeout=20)
            handle.mock.assert_called_once_with("big")

    asyncio.run(run())
