"""Clients in a namespace against a real broker that knows none."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq.client.admin.admin import Admin
from cometmq.client.base.instance import Connection
from cometmq.client.base.namespace import NO_NAMESPACE, Namespace
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.errors import ConfigError
from cometmq.model import Message
from cometmq.testing.cluster import embedded_cluster, threaded_cluster

Story = Callable[[str, Admin], Any]


def scenario(story: Story, **settings: str) -> None:
    """Run a story against a cluster with the topics t and Space%t of one queue."""

    async def run() -> None:
        async with (
            embedded_cluster(settings) as cluster,
            Admin(name_server=cluster.name_server_address) as admin,
        ):
            for topic in ("t", "Space%t"):
                await admin.create_topic(topic, queue_count=1)
            await story(cluster.name_server_address, admin)

    asyncio.run(asyncio.wait_for(run(), 50))


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("t", "Space%t"),
        ("Space%t", "Space%t"),
        ("Other%t", "Space%Other%t"),
        ("%RETRY%g", "%RETRY%Space%g"),
        ("%DLQ%g", "%DLQ%Space%g"),
        ("%RETRY%Space%g", "%RETRY%Space%g"),
        ("TBW102", "TBW102"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("CLIENT_INNER_PRODUCER", "CLIENT_INNER_PRODUCER"),
        ("DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),
        ("", ""),
    ],
)
def test_names_on_the_wire(name: str, wire: str) -> None:
    """As ``NamespaceUtil``: prefixes stay in front, system names stay as they are."""
    space = Namespace("Space")
    assert space.wrap(name) == wire
    assert space.unwrap(wire) == name.replace("Space%", "")
    assert NO_NAMESPACE.wrap(name) == NO_NAMESPACE.unwrap(name) == name


def test_a_namespace_is_a_name() -> None:
    """The separator is not part of it."""
    for wrong in ("a%b", "a b", "é"):
        with pytest.raises(ConfigError, match="namespace is"):
            Producer("pg", namespace=wrong)
    with pytest.raises(ConfigError, match="namespace is 5"):
        Namespace(5)  # type: ignore[arg-type]


def test_topics_and_groups_are_apart() -> None:
    """Namespaces isolate: the program says t, the cluster sees Space%t; handlers see t."""

    async def story(name_server: str, admin: Admin) -> None:
        async with (
            Producer("pg", name_server=name_server, namespace="Space") as inside,
            Producer("pg", name_server=name_server) as outside,
            PullConsumer("g", {"t": "*"}, name_server=name_server, namespace="Space") as reader,
            PullConsumer("g", {"t": "*"}, name_server=name_server) as other,
        ):
            result = await inside.send(Message("t", b"inside"))
            await outside.send(Message("t", b"outside"))
            (message,) = await reader.poll(10_000)
            assert (message.body, message.topic) == (b"inside", "t")
            assert message.message_queue == result.message_queue
            assert message.stored.topic == "Space%t"
            assert [m.body for m in await other.poll(10_000)] == [b"outside"]
            await reader.commit()
            assert await reader.committed(result.message_queue) == 1
            assert await admin.consumer_list("Space%g") == [reader.client_id]
            assert (await admin.topic_offsets("Space%t")).popitem()[1].count == 1
            await inside.create_topic("made", queue_count=1)
            assert "Space%made" in await admin.topic_list()
            await admin.reset_offsets("Space%g", "Space%t", timestamp_ms=0)
            assert [m.body for m in await reader.poll(10_000)] == [b"inside"]
        assert await admin.consumer_list("Space%g") == []

    scenario(story)


def test_failed_messages_come_back_in_their_namespace() -> None:
    """Through %RETRY%Space%g, with and without an order; the handler of t gets them again."""

    async def story(name_server: str, admin: Admin) -> None:
        for order in ("none", "group"):
            seen: list[tuple[str, int]] = []

            async def handle(message: ReceivedMessage, seen: Any = seen) -> None:
                seen.append((message.topic, message.reconsume_times))
                if len(seen) == 1:
                    raise ValueError("once")

            consumer: Any = PushConsumer(
                f"g-{order}",
                name_server=name_server,
                namespace="Space",
                order=order,  # type: ignore[arg-type]
                suspend_ms=10,
            )
            await consumer.subscribe("t", handler=handle)
            async with consumer, Producer(name_server=name_server, namespace="Space") as producer:
                await producer.send(Message("t", b"1", message_group="m"))
                await until(lambda seen=seen: len(seen) == 2, 30.0)  # type: ignore[misc]
            assert {topic for topic, _ in seen} == {"t"}
            assert seen[1][1] == 1
        assert "%RETRY%Space%g-none" in await admin.topic_list(include_system=True)

    scenario(story, messageDelayLevel="1s 1s 1s 1s")


def test_requests_and_transactions_within_a_namespace() -> None:
    """Replies and check-backs find their clients, on a shared connection too."""

    async def story(name_server: str, admin: Admin) -> None:
        checked: list[str] = []
        seen: list[bytes] = []

        def check(message: ReceivedMessage) -> bool:
            checked.append(message.topic)
            return True

        async def answer(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"ask":
                await producer.reply(message, b"answer")

        async with (
            Connection(name_server=name_server, namespace="Space") as connection,
            Producer("pg", connection=connection) as producer,
            TransactionProducer("tx", check=check, connection=connection) as sender,
            PushConsumer("g", {"t": "*"}, answer, connection=connection),
        ):
            reply = await producer.request(Message("t", b"ask"), timeout_ms=10_000)
            assert reply.body == b"answer"
            await sender.send_in_transaction(Message("t", b"half"), lambda _: None)
            await until(lambda: seen == [b"ask", b"half"], 30.0)
            assert checked == ["t"]

    scenario(story, transactionTimeOut="1", transactionCheckInterval="50")


def test_synchronous_clients_in_a_namespace() -> None:
    """Blocking sends carry the name on the wire too."""
    with (
        threaded_cluster() as cluster,
        cometmq.sync.Producer(
            name_server=cluster.name_server_address, namespace="Space"
        ) as producer,
        cometmq.sync.PullConsumer(
            "g",
            {"t": "*"},
            name_server=cluster.name_server_address,
            namespace="Space",
            consume_from="first",
        ) as consumer,
        cometmq.sync.Admin(name_server=cluster.name_server_address) as admin,
    ):
        producer.create_topic("t", queue_count=1)
        producer.send(Message("t", b"1"))
        producer.send_batch([Message("t", b"2"), Message("t", b"3")])
        bodies: list[bytes] = []
        while len(bodies) < 3:
            bodies += [message.body for message in consumer.poll(10_000)]
        assert bodies == [b"1", b"2", b"3"]
        assert admin.topic_list() == ["Space%t"]


def test_operators_use_the_names_of_the_cluster() -> None:
    """Admin, Staging and parking name topics of the whole cluster, so a namespace is refused."""
    with pytest.raises(ConfigError, match=r"Admin takes names as the cluster has them"):
        Admin(namespace="Space")
    with pytest.raises(ConfigError, match=r"Staging takes names as the cluster has them"):
        cometmq.sync.Staging(None, "sink", namespace="Space")
    with pytest.raises(ConfigError, match="parking takes names"):
        PushConsumer("g", {}, print, order="group", park_after=3, namespace="Space")  # type: ignore[arg-type]
