"""Our consumers with SQL92 subscriptions at our broker: all kinds, both faces, mistakes."""

import asyncio
from collections.abc import Iterator

import pytest

import cometmq.sync
from cometmq import Message, MessageQueue, PullConsumer, PushConsumer, Sql92
from cometmq.errors import ConfigError, ExpressionIllegal, RemoteError
from cometmq.testing import EmbeddedCluster, threaded_cluster

TOPIC = "Filtered"
COUNT = 90
WANTED = "n >= 30 AND color <> 'blue'"
EXPECTED = {b"%d" % number for number in range(30, COUNT) if number % 3 and number % 5}


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster with messages; every third is blue, every fifth has no color."""
    with threaded_cluster() as found:
        with cometmq.sync.Admin(name_server=found.name_server_address) as admin:
            admin.create_topic(TOPIC, queue_count=3)
        with cometmq.sync.Producer("p", name_server=found.name_server_address) as producer:
            for number in range(COUNT):
                properties = {"n": str(number), "color": "red" if number % 3 else "blue"}
                if number % 5 == 0:
                    del properties["color"]
                queue = MessageQueue(TOPIC, "broker-a", number % 3)
                producer.send(Message(TOPIC, b"%d" % number, properties=properties), queue=queue)
        yield found


async def pushed(cluster: EmbeddedCluster, group: str, subscribe_late: bool) -> set[bytes]:
    """What a push consumer gets until all that is wanted has come."""
    got: set[bytes] = set()
    done = asyncio.Event()

    async def handle(message: cometmq.ReceivedMessage) -> None:
        got.add(message.body)
        if got >= EXPECTED:
            done.set()

    given = None if subscribe_late else {TOPIC: Sql92(WANTED)}
    name_server = cluster.name_server_address
    async with PushConsumer(
        group, given, handle, name_server=name_server, consume_from="first"
    ) as consumer:
        if subscribe_late:
            await consumer.subscribe(TOPIC, WANTED, expression_type="SQL92")
        async with asyncio.timeout(30):
            await done.wait()
    return got


@pytest.mark.parametrize("subscribe_late", [False, True])
def test_a_push_consumer(cluster: EmbeddedCluster, subscribe_late: bool) -> None:
    """Subscribed at its start, or later by the name of the expression's type."""
    got = asyncio.run(pushed(cluster, f"push-{subscribe_late}", subscribe_late))
    assert got == EXPECTED


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_pull_consumer(cluster: EmbeddedCluster, by_hand: bool) -> None:
    """With a share of the group's queues, or with queues of its own choice."""

    async def main() -> set[bytes]:
        got: set[bytes] = set()
        given = None if by_hand else {TOPIC: Sql92(WANTED)}
        consumer = PullConsumer(
            f"pull-{by_hand}",
            given,
            name_server=cluster.name_server_address,
            consume_from="first",
        )
        async with consumer, asyncio.timeout(30):
            if by_hand:
                await consumer.assign(await consumer.fetch_queues(TOPIC), Sql92(WANTED))
            while not got >= EXPECTED:
                got |= {message.body for message in await consumer.poll(200)}
        return got

    assert asyncio.run(main()) == EXPECTED


def test_the_face_without_asyncio(cluster: EmbeddedCluster) -> None:
    """The same names and the same messages."""
    got: set[bytes] = set()
    with cometmq.sync.PullConsumer(
        "sync",
        {TOPIC: cometmq.sync.Sql92(WANTED)},
        name_server=cluster.name_server_address,
        consume_from="first",
    ) as consumer:
        while not got >= EXPECTED:
            got |= {message.body for message in consumer.poll(30_000)}
    assert got == EXPECTED


def test_a_filter_that_is_none(cluster: EmbeddedCluster) -> None:
    """It fails where it is written, with the place; nothing has been subscribed."""
    with pytest.raises(ExpressionIllegal, match=r"line 1 column 5: expected .*, found ="):
        Sql92("a = = 1")

    async def main() -> None:
        async with PullConsumer("none", name_server=cluster.name_server_address) as consumer:
            with pytest.raises(ConfigError, match="line 1 column 7"):
                await consumer.subscribe(TOPIC, "a = 1 b = 2", expression_type="SQL92")

    asyncio.run(main())


def test_a_broker_that_does_not_filter() -> None:
    """The consumer does not start; the broker's answer says which setting it wants."""

    async def main(name_server: str) -> None:
        consumer = PullConsumer("off", {TOPIC: Sql92(WANTED)}, name_server=name_server)
        with pytest.raises(RemoteError, match="enablePropertyFilter=true"):
            async with consumer:
                pass

    with threaded_cluster({"enablePropertyFilter": False}) as cluster:
        with cometmq.sync.Admin(name_server=cluster.name_server_address) as admin:
            admin.create_topic(TOPIC, queue_count=1)
        asyncio.run(main(cluster.name_server_address))
