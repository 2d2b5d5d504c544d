"""A producer that numbers its messages repeats a send whose answer was lost, and stores one."""

import asyncio
from typing import Any

import pytest
from tests.unit.client.producer.lost_answers import lost_answers

import cometmq
import cometmq.sync
from cometmq import Message
from cometmq.client.producer.sending import SEQUENCED_MAX
from cometmq.errors import BrokerBusy, ConfigError
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster, threaded_cluster


def stored(cluster: EmbeddedCluster) -> int:
    broker = cluster.standalone.broker
    assert broker is not None
    return sum(broker.services.store.message_count(topic) for topic in ("t",))


@pytest.mark.parametrize("producer_id", [None, "orders"])
@pytest.mark.parametrize("how", ["send", "queue", "group", "batch", "linger"])
def test_a_lost_answer(producer_id: str | None, how: str) -> None:
    """Every way to send: stored once with an id, twice without; the answer is the first one's."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            options: dict[str, Any] = {"linger_ms": 1} if how == "linger" else {}
            async with cometmq.Producer(
                "p", name_server=address, producer_id=producer_id, **options
            ) as producer:
                await producer.create_topic("t", queue_count=4)
                await producer.send(Message("t", b"first"))
                queues = await producer.fetch_publish_queues("t")
                with lost_answers(1) as lost:
                    message = Message("t", b"x", message_group="g" if how == "group" else None)
                    if how == "batch":
                        (sent,) = await producer.send_batch([message])
                    elif how == "queue":
                        sent = await producer.send(message, queue=queues[2])
                    else:
                        sent = await producer.send(message)
            assert lost.count == 1
            assert stored(cluster) == 1 + (1 if producer_id else 2)
            is_first = (sent.message_queue.queue_id, sent.queue_offset) == lost.places[0]
            assert is_first == (producer_id is not None)

    asyncio.run(run())


def test_a_lost_answer_of_a_synchronous_producer() -> None:
    """In the caller's thread."""
    with (
        threaded_cluster() as cluster,
        cometmq.sync.Producer(
            "p", name_server=cluster.name_server_address, producer_id="orders"
        ) as producer,
    ):
        producer.create_topic("t", queue_count=4)
        producer.send(Message("t", b"first"))
        with lost_answers(2) as lost:
            sent = producer.send(Message("t", b"x"))
        assert lost.count == 2
        assert stored(cluster) == 2
        assert (sent.message_queue.queue_id, sent.queue_offset) == lost.places[0]
        assert producer.send(Message("t", b"y")).status is cometmq.SendStatus.SEND_OK


def test_each_life_has_an_id_of_its_own() -> None:
    """A new process counts from 1, and its messages are stored."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            for _ in range(3):
                async with cometmq.Producer(
                    "p", name_server=cluster.name_server_address, producer_id="orders"
                ) as producer:
                    await producer.send(Message("t", b"x"))
            assert stored(cluster) == 3

    asyncio.run(run())


def test_numbered_sends_in_flight_are_fewer_than_the_broker_knows() -> None:
    """Otherwise the first of them could be forgotten before it is repeated."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            cometmq.Producer(
                "p", name_server=cluster.name_server_address, producer_id="orders"
            ) as producer,
        ):
            await producer.send(Message("t", b"x"))
            sends = [producer.send_nowait(Message("t", b"x")) for _ in range(SEQUENCED_MAX)]
            with pytest.raises(BrokerBusy, match=f"{SEQUENCED_MAX} sends"):
                sends.append(producer.send_nowait(Message("t", b"x")))
            await asyncio.gather(*sends)
            assert stored(cluster) == 1 + SEQUENCED_MAX

    asyncio.run(run())


@pytest.mark.parametrize("producer_id", ["", "a:b", "ä", "x" * 101])
def test_an_id_is_a_plain_word(producer_id: str) -> None:
    """It is a part of a property."""
    with pytest.raises(ConfigError, match="producer_id is"):
        cometmq.Producer("p", producer_id=producer_id)
