"""Every kind of send rides out the restart of the only broker, on virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.single import BROKER_PORT, SingleCluster

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.errors import CometError, NoBroker, SendFailed
from cometmq.model import Message, MessageQueue
from cometmq.testing.simulation import Node, World, simulate

AWAY_S = 5.0
COUNT = 40
Story = Callable[[SingleCluster, Node], Coroutine[Any, Any, Any]]


def told(story: Story, seed: int = 1) -> Any:
    """What a story gives on a client's node."""

    async def main(world: World) -> Any:
        cluster = SingleCluster(world)
        await cluster.start()
        node = world.node("client")
        return await node.run(lambda: story(cluster, node))

    return simulate(seed, main).value


async def restart(cluster: SingleCluster, port: int = BROKER_PORT, away_s: float = AWAY_S) -> None:
    """Kill the broker and start it again, at another port too."""
    cluster.broker.crash(power_cut=False)
    await asyncio.sleep(away_s)
    cluster.broker.restart()
    await cluster.start_broker(port)


async def stored(cluster: SingleCluster, node: Node, topic: str = "T") -> dict[int, list[str]]:
    """The bodies of each queue, in order; a repetition of one unique key is left out."""
    bodies: dict[int, list[str]] = {}
    keys: set[str | None] = set()
    async with PullConsumer("reader", auto_commit=False, **cluster.at(node, "reader")) as consumer:
        queues = await consumer.fetch_queues(topic)
        await consumer.assign(queues)
        for queue in queues:
            await consumer.seek_to_begin(queue)
            bodies[queue.queue_id] = []
        while messages := await consumer.poll(3_000):
            for message in messages:
                if message.message_id not in keys:
                    keys.add(message.message_id)
                    bodies[message.message_queue.queue_id].append(bytes(message.body).decode())
    return bodies


@pytest.mark.parametrize("linger_ms", [None, 2])
@pytest.mark.parametrize("port", [BROKER_PORT, BROKER_PORT + 1], ids=["same port", "moved"])
def test_the_default_producer_does_not_give_up_in_a_restart(
    port: int, linger_ms: int | None
) -> None:
    """One message every 50 ms; a broker that registers anew is found within the same send."""

    async def story(cluster: SingleCluster, node: Node) -> list[str]:
        async with cluster.producer(node, linger_ms=linger_ms) as producer:
            await producer.send(Message("T", b"0"))
            operator = asyncio.ensure_future(cluster_restart(cluster, port))
            sends = []
            for number in range(1, COUNT):
                sends.append(producer.send_nowait(Message("T", b"%d" % number)))
                await asyncio.sleep(0.05)
            await asyncio.gather(*sends)
            await operator
        bodies = await stored(cluster, node)
        return sorted(body for queue in bodies.values() for body in queue)

    assert told(story) == sorted(str(number) for number in range(COUNT))


async def cluster_restart(cluster: SingleCluster, port: int) -> None:
    await asyncio.sleep(0.5)
    await restart(cluster, port)


def test_a_producer_finds_its_broker_after_a_restart_of_the_name_server_too() -> None:
    """Both are away; the name server returns first and knows no topic for a while."""

    async def story(cluster: SingleCluster, node: Node) -> float:
        async with cluster.producer(node) as producer, cluster.producer(node, "fresh") as fresh:
            await producer.send(Message("T", b"x"))
            cluster.name_server.crash()
            cluster.broker.crash(power_cut=False)
            sends = [producer.send_nowait(Message("T", b"y"))]
            await asyncio.sleep(2)
            cluster.name_server.restart()
            await cluster.start_name_server()
            sends.append(fresh.send_nowait(Message("T", b"z")))
            await asyncio.sleep(2)
            cluster.broker.restart()
            begun = asyncio.get_running_loop().time()
            await cluster.start_broker(BROKER_PORT + 1)
            await asyncio.gather(*sends)
            return asyncio.get_running_loop().time() - begun

    assert told(story) < 3.0


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("kind", ["group", "queue", "selector"])
def test_pipelined_ordered_sends_keep_their_order_through_a_restart(kind: str, seed: int) -> None:
    """Many are in flight when the broker dies; each is stored, none before an earlier one."""

    async def story(cluster: SingleCluster, node: Node) -> list[list[str]]:
        kinds: dict[str, dict[str, Any]] = {
            "group": {"message_group": "G"},
            "queue": {"queue": MessageQueue("T", "broker-a", 1)},
            "selector": {"selector": lambda queues, message: queues[1]},
        }
        options = kinds[kind]
        async with cluster.producer(node) as producer:
            await producer.send(Message("T", b"first"), queue=MessageQueue("T", "broker-a", 0))
            cluster.world.loop.call_later(
                0.01 * seed, lambda: cluster.broker.crash(power_cut=False)
            )
            sends = []
            for number in range(100):
                sends.append(producer.send_nowait(Message("T", b"%03d" % number), **options))
                await asyncio.sleep(0.0005 * seed)
            await asyncio.sleep(2)
            cluster.broker.restart()
            await cluster.start_broker()
            await asyncio.gather(*sends)
        bodies = await stored(cluster, node)
        return [queue for queue in bodies.values() if len(queue) > 1]

    assert told(story, seed) == [[f"{number:03d}" for number in range(100)]]


def test_batches_half_messages_and_one_way_sends_wait_for_the_broker() -> None:
    """They begin while it is away; a one-way send is written when it is back."""

    async def story(cluster: SingleCluster, node: Node) -> tuple[list[str], list[str]]:
        transactional = TransactionProducer(
            "deals", **cluster.at(node, "deals"), check=lambda message: True
        )
        async with cluster.producer(node) as producer, transactional:
            await producer.send(Message("T", b"0"))
            await transactional.send_in_transaction(Message("D", b"0"), lambda _: True)
            operator = asyncio.ensure_future(restart(cluster))
            await asyncio.sleep(0.1)
            await asyncio.gather(
                producer.send_batch([Message("T", b"1"), Message("T", b"2")]),
                producer.send_oneway(Message("T", b"3")),
                transactional.send_in_transaction(Message("D", b"1"), lambda _: True),
            )
            await operator
            await asyncio.sleep(60)
        sent = [await stored(cluster, node, topic) for topic in "TD"]
        plain, halves = ([b for queue in s.values() for b in queue] for s in sent)
        return sorted(plain), sorted(halves)

    assert told(story) == (["0", "1", "2", "3"], ["0", "1"])


def test_a_request_tries_again_within_its_own_timeout() -> None:
    """Its 3 s are over before the broker returns, and 20 s are enough."""

    async def story(cluster: SingleCluster, node: Node) -> list[str]:
        answers: list[str] = []
        async with cluster.producer(node) as producer, cluster.producer(node, "answers") as replies:

            async def answer(message: Any) -> None:
                await replies.reply(message, b"pong")

            async with PushConsumer("answerers", {"Q": "*"}, answer, **cluster.at(node, "c")):
                await producer.send(Message("Other", b"x"))
                answers.append((await producer.request(Message("Q", b"0"))).body.decode())
                operator = asyncio.ensure_future(restart(cluster))
                await asyncio.sleep(0.1)
                begun = asyncio.get_running_loop().time()
                try:
                    await producer.request(Message("Q", b"1"))
                except CometError:
                    answers.append(f"{asyncio.get_running_loop().time() - begun:.0f} s")
                reply = await producer.request(Message("Q", b"2"), timeout_ms=40_000)
                answers.append(reply.body.decode())
                await operator
        return answers

    assert told(story) == ["pong", "3 s", "pong"]


@pytest.mark.parametrize("kind", ["plain", "group", "queue", "batch", "oneway", "half", "unknown"])
def test_a_send_never_takes_longer_than_asked(kind: str) -> None:
    """The broker stays away; the error comes when the time is over, and not much earlier."""

    async def send(producer: TransactionProducer) -> object:
        queue = MessageQueue("T", "broker-a", 1)
        message, timeout_ms = Message("T", b"x"), 4_000
        if kind == "group":
            return await producer.send(message, message_group="G", timeout_ms=timeout_ms)
        if kind == "queue":
            return await producer.send(message, queue=queue, timeout_ms=timeout_ms)
        if kind == "batch":
            return await producer.send_batch([message], timeout_ms=timeout_ms)
        if kind == "oneway":
            await producer.send_oneway(message)
            return None
        if kind == "half":
            return await producer.begin(message, timeout_ms=timeout_ms)
        if kind == "unknown":
            return await producer.send(Message("Unknown", b"x"), timeout_ms=timeout_ms)
        return await producer.send(message, timeout_ms=timeout_ms)

    async def story(cluster: SingleCluster, node: Node) -> tuple[float, bool]:
        async with TransactionProducer(
            "deals", **cluster.at(node, "deals"), timeout_ms=4_000, check=lambda message: True
        ) as producer:
            await producer.send(Message("T", b"x"))
            cluster.broker.crash(power_cut=False)
            await asyncio.sleep(0.1)
            begun = asyncio.get_running_loop().time()
            with pytest.raises((SendFailed, NoBroker)):
                await send(producer)
            return asyncio.get_running_loop().time() - begun, True

    seconds, _ = told(story)
    assert 3.9 < seconds <= 4.1


def test_a_number_of_retries_is_a_limit() -> None:
    """As RocketMQ's setting: two tries, then the error."""

    async def story(cluster: SingleCluster, node: Node) -> str:
        async with cluster.producer(node, retries=1) as producer:
            await producer.send(Message("T", b"x"))
            cluster.broker.crash(power_cut=False)
            with pytest.raises(NoBroker) as caught:
                await producer.send(Message("T", b"x"))
            return str(caught.value)

    assert told(story).startswith("2 tries to send to T failed")


def test_a_send_whose_outcome_is_unknown_goes_again_under_its_unique_key() -> None:
    """The answer is cut off: the message is stored twice, and both copies have one id."""

    async def story(cluster: SingleCluster, node: Node) -> list[str | None]:
        async with cluster.producer(node) as producer:
            await producer.send(Message("T", b"warm"))
            (channel,) = [
                channel
                for channel in producer._instance.pool.channels()  # type: ignore[union-attr]
                if channel.address.endswith(str(BROKER_PORT))
            ]

            class Deaf(type(channel)):  # type: ignore[misc]
                __slots__ = ()

                def data_received(self, data: bytes) -> None:
                    self.abort()

            channel.__class__ = Deaf
            sent = await producer.send(Message("T", b"x", keys="k"))
        ids: list[str | None] = []
        async with PullConsumer("reader", **cluster.at(node, "r"), consume_from="first") as reader:
            await reader.subscribe("T")
            while messages := await reader.poll(3_000):
                ids += [m.message_id for m in messages if m.body == b"x"]
        assert set(ids) == {sent.message_id}
        return ids

    assert len(told(story)) == 2


def test_a_silent_broker_is_left_for_another_one_within_one_send() -> None:
    """Packets to the first broker vanish; the second one gets the message after 3.3 s."""

    async def main(world: World) -> tuple[str, float]:
        cluster = SingleCluster(world)
        await cluster.start()
        other = SingleCluster(world, "other ")
        other.name_server = cluster.name_server
        await other.start_broker(BROKER_PORT, "broker-b")
        node = world.node("client")

        async def clients() -> tuple[str, float]:
            async with cluster.producer(node) as producer:
                await producer.create_topic("T", queue_count=1)
                for _ in range(4):
                    await producer.send(Message("T", b"warm"))
                world.network.part(node.address, cluster.broker.address)
                loop = asyncio.get_running_loop()
                begun = loop.time()
                results = await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in "ab"))
                names = {result.message_queue.broker_name for result in results}
                return ",".join(names), loop.time() - begun

        return await node.run(clients)

    names, seconds = simulate(1, main).value
    assert names == "broker-b"
    assert 3.0 < seconds < 4.0


def test_a_producer_that_never_met_a_broker_says_so() -> None:
    """A cluster without any broker: the send waits for one, and the error names the cause."""

    async def main(world: World) -> str:
        cluster = SingleCluster(world)
        await cluster.start_name_server()
        node = world.node("client")

        async def send() -> str:
            async with cluster.producer(node) as producer:
                with pytest.raises(NoBroker) as caught:
                    await producer.send(Message("T", b"x"))
                late = asyncio.ensure_future(producer.send(Message("T", b"y")))
                await asyncio.sleep(4)
                await cluster.start_broker()
                await late
                return str(caught.value)

        return await node.run(send)

    assert simulate(1, main).value.startswith("no broker is registered at the name servers")
