"""Consumers with a backlog pull in bulk where the broker offers it, within their flow control."""

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from tests.unit.client.waiting import until

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.core.consume.process_queue import FlowLimits
from cometmq.core.filter.subscription import Sql92
from cometmq.model import Message, MessageQueue
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster
from cometmq.wire.extensions.bulk_pull import BulkPullCode, BulkPullHeader

QUEUES = 2
COUNT = 1200
WAIT_S = 30.0


async def fill(name_server: str) -> None:
    """A topic of two queues with 600 messages each, tags A and B in turn."""
    async with Producer("pg", name_server=name_server) as producer:
        await producer.create_topic("t", queue_count=QUEUES)
        for queue_id in range(QUEUES):
            queue = MessageQueue("t", "broker-a", queue_id)
            await asyncio.gather(
                *[
                    producer.send(Message("t", b"%d" % n, tags="AB"[n // QUEUES % 2]), queue=queue)
                    for n in range(queue_id, COUNT, QUEUES)
                ]
            )


def watch(cluster: EmbeddedCluster) -> list[BulkPullHeader]:
    """What bulk pulls the broker is asked for from now on."""
    asked: list[BulkPullHeader] = []
    handlers = cluster.standalone.broker._server.handlers
    real = handlers[BulkPullCode.BULK_PULL]

    def serve(request: Any, connection: Any, now_ms: int) -> Any:
        asked.append(BulkPullHeader.from_command(request))
        return real(request, connection, now_ms)

    handlers[BulkPullCode.BULK_PULL] = serve
    return asked


def check(offsets: dict[int, list[int]]) -> None:
    """Each queue's messages once."""
    assert {queue_id: sorted(found) for queue_id, found in offsets.items()} == {
        queue_id: list(range(COUNT // QUEUES)) for queue_id in range(QUEUES)
    }


@pytest.mark.parametrize("limits", [None, FlowLimits(count_max=150), FlowLimits(span_max=130)])
def test_a_push_consumer_catches_up_in_bulk(limits: FlowLimits | None) -> None:
    """Every message once, in spans that stay within the limits."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            await fill(cluster.name_server_address)
            asked = watch(cluster)
            offsets: dict[int, list[int]] = defaultdict(list)

            async def handle(message: ReceivedMessage) -> None:
                offsets[message.message_queue.queue_id].append(message.queue_offset)
                await asyncio.sleep(0)

            async with PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=cluster.name_server_address,
                consume_from="first",
                flow_limits=limits,
            ):
                await until(lambda: sum(map(len, offsets.values())) == COUNT, WAIT_S)
            check(offsets)
            assert asked
            most = max(header.max_msg_nums for header in asked)
            bound = 512 if limits is None else min(limits.count_max, limits.span_max)
            assert 64 <= most <= bound

    asyncio.run(story())


def test_a_pull_consumer_catches_up_in_bulk() -> None:
    """Its buffer never holds more than it may, and tags are kept to."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            await fill(cluster.name_server_address)
            asked = watch(cluster)
            offsets: dict[int, list[int]] = defaultdict(list)
            async with PullConsumer(
                "g",
                {"t": "B"},
                name_server=cluster.name_server_address,
                consume_from="first",
                buffer_count_max=200,
            ) as consumer:
                while sum(map(len, offsets.values())) < COUNT // 2:
                    for message in await consumer.poll(timeout_ms=30_000, count_max=50):
                        assert message.tags == "B"
                        offsets[message.message_queue.queue_id].append(message.queue_offset)
                    held = [one.state.buffered_count for one in consumer._assignments.values()]
                    assert max(held) <= 200
            assert offsets == {queue_id: list(range(1, 600, 2)) for queue_id in range(QUEUES)}
            assert asked
            assert all(64 <= header.max_msg_nums <= 200 for header in asked)

    asyncio.run(story())


def test_a_filter_over_properties_catches_up_in_bulk() -> None:
    """What matches, each once; what does not is passed by."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            await fill(cluster.name_server_address)
            asked = watch(cluster)
            offsets: dict[int, list[int]] = defaultdict(list)

            async def handle(message: ReceivedMessage) -> None:
                offsets[message.message_queue.queue_id].append(message.queue_offset)

            async with PushConsumer(
                "g",
                {"t": Sql92("TAGS = 'B'")},
                handle,
                name_server=cluster.name_server_address,
                consume_from="first",
            ):
                await until(lambda: sum(map(len, offsets.values())) == COUNT // 2, WAIT_S)
            found = {queue_id: sorted(one) for queue_id, one in offsets.items()}
            assert found == {queue_id: list(range(1, 600, 2)) for queue_id in range(QUEUES)}
            assert asked

    asyncio.run(story())


def test_a_broker_that_no_longer_knows_it_is_pulled_as_before() -> None:
    """The answer "not supported" costs one request, not a message."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            await fill(cluster.name_server_address)
            refused: list[int] = []
            handlers = cluster.standalone.broker._server.handlers

            class Refusing(dict[int, Any]):
                def get(self, code: int, default: Any = None) -> Any:
                    if code == BulkPullCode.BULK_PULL:
                        refused.append(code)
                        return None
                    return super().get(code, default)

            cluster.standalone.broker._server.handlers = Refusing(handlers)
            offsets: dict[int, list[int]] = defaultdict(list)

            async def handle(message: ReceivedMessage) -> None:
                offsets[message.message_queue.queue_id].append(message.queue_offset)

            async with PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=cluster.name_server_address,
                consume_from="first",
            ):
                await until(lambda: sum(map(len, offsets.values())) == COUNT, WAIT_S)
            check(offsets)
            assert 1 <= len(refused) <= QUEUES

    asyncio.run(story())


def test_who_wants_few_per_pull_gets_few() -> None:
    """A consumer that set its pull size below the usual is not given spans."""

    async def story() -> None:
        async with embedded_cluster() as cluster:
            await fill(cluster.name_server_address)
            asked = watch(cluster)
            seen: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                seen.append(message.body)

            async with PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=cluster.name_server_address,
                consume_from="first",
                pull_count_max=20,
            ):
                await until(lambda: len(seen) == COUNT, WAIT_S)
            assert not asked

    asyncio.run(story())
