"""Several clients of one process on one connection, and how they come and go."""

import asyncio
import os
from typing import Any

import pytest
from tests.unit.client.base.test_fork import in_child
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq.client.admin.admin import Admin
from cometmq.client.base.instance import Connection
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.extensions.staging.batches import Staging
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.errors import ClientClosed, ConfigError
from cometmq.model import Message, MessageModel
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster, threaded_cluster

QUICK_CHECKS = {"transactionTimeOut": "1", "transactionCheckInterval": "50"}


def client_connections(cluster: EmbeddedCluster) -> tuple[int, int]:
    """TCP connections of clients at the broker, and of all peers at the name server."""
    standalone = cluster.standalone
    broker = len(standalone.broker._server.connections)
    return broker, len(standalone.name_server._server.connections)


async def ignore(message: ReceivedMessage) -> None:
    """Handle a message with success."""


def test_clients_of_one_process_share_connections_on_request() -> None:
    """One TCP connection per server, one client id, one heartbeat with every group."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            name_server = cluster.name_server_address
            async with Admin(name_server=name_server) as admin:
                await admin.create_topic("t", queue_count=2)
            seen: list[bytes] = []

            async def handle(message: ReceivedMessage) -> None:
                seen.append(message.body)

            async with (
                Connection(name_server=name_server) as connection,
                Producer("pg", connection=connection) as producer,
                PushConsumer("g1", {"t": "*"}, handle, connection=connection) as first,
                PullConsumer("g2", {"t": "*"}, connection=connection) as second,
                Admin(connection=connection) as admin,
                Staging(None, "sink", connection=connection) as staging,
            ):
                await producer.send(Message("t", b"1"))
                (message,) = await second.poll(10_000)
                await until(lambda: seen == [b"1"])
                assert message.body == b"1"
                assert await staging.is_supported()
                assert await admin.consumer_list("g1") == [first.client_id]
                assert await admin.consumer_list("g2") == [second.client_id]
                assert first.client_id == second.client_id == producer.client_id
                assert connection.client_id == first.client_id
                # The broker has a connection to its name server too.
                assert client_connections(cluster) == (1, 2)
            assert connection.client_id is None

    asyncio.run(run())


def test_closing_one_client_leaves_the_others_alone() -> None:
    """Only its group is unregistered, and only its background work ends."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            connection = Connection(name_server=cluster.name_server_address)
            async with Admin(name_server=cluster.name_server_address) as admin:
                await admin.create_topic("t", queue_count=1)
                producer = Producer("pg", connection=connection)
                same_group = Producer("pg", connection=connection)
                consumers = [
                    PullConsumer(group, {"t": "*"}, connection=connection) for group in ("a", "b")
                ]
                await asyncio.gather(producer.start(), same_group.start())
                for consumer in consumers:
                    await consumer.start()
                client_id = connection.client_id
                await consumers[0].shutdown()
                await same_group.shutdown()
                assert await admin.consumer_list("a") == []
                assert await admin.consumer_list("b") == [client_id]
                await producer.send(Message("t", b"1"))
                assert [m.body for m in await consumers[1].poll(10_000)] == [b"1"]
                again = PullConsumer("a", {"t": "*"}, connection=connection)
                await again.start()
                assert again.client_id == client_id
                await again.shutdown()
                await consumers[1].shutdown()
                await producer.shutdown()
                # The last one has closed it; it opens again, as another client.
                assert connection.client_id is None
                async with PullConsumer("a", {"t": "*"}, connection=connection):
                    assert connection.client_id not in (None, client_id)

    asyncio.run(run())


def test_two_consumers_of_a_group_need_two_connections() -> None:
    """A broker knows one member per connection, so the second would take the first one's place."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Connection(name_server=cluster.name_server_address) as connection,
            PullConsumer("g", {}, connection=connection),
        ):
            second = PushConsumer("g", {}, ignore, connection=connection)
            with pytest.raises(ConfigError, match="has a consumer of group g already"):
                await second.start()
            async with TransactionProducer("tx", check=print, connection=connection):  # type: ignore[arg-type,return-value]
                twin = TransactionProducer("tx", check=print, connection=connection)  # type: ignore[arg-type,return-value]
                with pytest.raises(ConfigError, match="has a transactional producer of group tx"):
                    await twin.start()
                async with Producer("tx", connection=connection):
                    assert connection.client_id is not None

    asyncio.run(run())


def test_brokers_reach_the_right_client() -> None:
    """Replies, check-backs, rebalance notices and resets of clients on one connection."""

    async def run() -> None:
        async with embedded_cluster(QUICK_CHECKS) as cluster:
            name_server = cluster.name_server_address
            async with Admin(name_server=name_server) as admin:
                for topic in ("asked", "t"):
                    await admin.create_topic(topic, queue_count=1)
            checked: list[str] = []

            def check_of(group: str) -> Any:
                def check(message: ReceivedMessage) -> bool:
                    checked.append(f"{group} {message.body.decode()}")
                    return True

                return check

            async def answer(message: ReceivedMessage) -> None:
                await replier.reply(message, b"re: " + message.body)

            async with (
                Connection(name_server=name_server) as connection,
                Producer("one", connection=connection) as one,
                Producer("two", connection=connection) as two,
                Producer("three", connection=connection) as replier,
                TransactionProducer("x", check=check_of("x"), connection=connection) as x,
                TransactionProducer("y", check=check_of("y"), connection=connection) as y,
                PushConsumer("answers", {"asked": "*"}, answer, connection=connection),
                PullConsumer("g", {"t": "*"}, connection=connection) as reader,
                Admin(name_server=name_server) as admin,
            ):
                replies = await asyncio.gather(
                    *[
                        producer.request(Message("asked", name), timeout_ms=10_000)
                        for producer, name in ((one, b"one"), (two, b"two"))
                    ]
                )
                assert [reply.body for reply in replies] == [b"re: one", b"re: two"]

                for producer in (x, y):
                    await producer.send_in_transaction(
                        Message("t", producer.group.encode()), lambda _: None
                    )
                await until(lambda: set(checked) == {"x x", "y y"}, 30.0)
                async with PullConsumer("g", {"t": "*"}, name_server=name_server) as other:
                    await until(lambda: len(other.assignment()) + len(reader.assignment()) == 1)
                await until(lambda: len(reader.assignment()) == 1)
                got: list[bytes] = []
                while len(got) < 2:
                    got += [message.body for message in await reader.poll(1_000)]
                await admin.reset_offsets("g", "t", timestamp_ms=0)
                while len(got) < 4:
                    got += [message.body for message in await reader.poll(1_000)]
                assert sorted(got) == [b"x", b"x", b"y", b"y"]

    asyncio.run(asyncio.wait_for(run(), 50))


def test_options_of_the_connection_are_given_to_it() -> None:
    """A client that names its own name server would not use the connection's."""
    connection = Connection(name_server="127.0.0.1:1")
    options: list[tuple[str, Any]] = [
        ("name_server", "127.0.0.1:2"),
        ("instance_name", "x"),
        ("client_ip", "10.0.0.1"),
        ("access_key", "a"),
        ("tls", False),
    ]
    for name, value in options:
        with pytest.raises(ConfigError, match=f"{name}= belongs to the connection"):
            Producer("pg", connection=connection, **{name: value})
    with pytest.raises(ConfigError, match=r"connection is 'x' \(str\); give a Connection"):
        PullConsumer("g", connection="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give its Connection an instance_name="):
        PullConsumer("g", connection=connection, message_model=MessageModel.BROADCASTING)
    connection.update_name_servers("127.0.0.1:3")
    assert Producer("pg", connection=connection).core.options.name_servers.entries == (
        "127.0.0.1:3",
    )


def test_the_end_of_a_connection_ends_its_clients() -> None:
    """Also those that nobody shut down; afterwards none can begin on it."""

    async def run() -> None:
        async with embedded_cluster() as cluster:
            connection = Connection(name_server=cluster.name_server_address)
            async with connection:
                producer = Producer("pg", connection=connection)
                await producer.start()
                consumer = PushConsumer("g", {}, ignore, connection=connection)
                await consumer.start()
            with pytest.raises(ClientClosed, match="the producer pg is closed"):
                await producer.send(Message("t", b"1"))
            with pytest.raises(ClientClosed, match="this connection is shut down"):
                await PullConsumer("g2", {}, connection=connection).start()
            await connection.shutdown()
            async with Admin(name_server=cluster.name_server_address) as admin:
                assert await admin.consumer_list("g") == []

    asyncio.run(run())


def test_a_cancelled_start_leaves_the_connection_usable() -> None:
    """A consumer whose start is cut off does not keep its group on the connection."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Connection(name_server=cluster.name_server_address) as connection,
        ):
            starting = asyncio.create_task(
                PullConsumer("g", {"t": "*"}, connection=connection).start()
            )
            await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            async with PullConsumer("g", {"t": "*"}, connection=connection) as consumer:
                assert consumer.client_id == connection.client_id

    asyncio.run(run())


def test_each_event_loop_needs_a_connection_of_its_own() -> None:
    """Sockets belong to a loop; the error says what to do."""
    with threaded_cluster() as cluster:
        connection = Connection(name_server=cluster.name_server_address)

        async def run() -> None:
            async with Producer("pg", connection=connection) as producer:
                assert producer.client_id == connection.client_id
                with pytest.raises(ConfigError, match="another event loop"):
                    await asyncio.to_thread(
                        cometmq.sync.Producer("p2", connection=connection).start
                    )

        asyncio.run(run())


def test_synchronous_clients_share_too() -> None:
    """Blocking requests take sockets from one pool, background work has one connection."""
    with threaded_cluster() as cluster:
        seen: list[bytes] = []
        with (
            cometmq.sync.Connection(name_server=cluster.name_server_address) as connection,
            cometmq.sync.Admin(connection=connection) as admin,
            cometmq.sync.Producer("pg", connection=connection) as producer,
            cometmq.sync.Staging(None, "sink", connection=connection) as staging,
        ):
            admin.create_topic("t", queue_count=1)
            with cometmq.sync.PullConsumer(
                "g", {"t": "*"}, connection=connection, consume_from="first"
            ) as consumer:
                producer.send(Message("t", b"1"))
                seen += [message.body for message in consumer.poll(10_000)]
                assert admin.consumer_list("g") == [producer.client_id]
                assert consumer.client_id == connection.client_id
            assert admin.consumer_list("g") == []
            assert staging.is_supported()
            producer.shutdown()
            assert "t" in admin.topic_list()  # the pool is the others' too
        assert seen == [b"1"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on this platform")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_gives_the_child_a_connection_of_its_own() -> None:
    """The clients of the parent share theirs as before, those of the child a new one."""
    with threaded_cluster() as cluster:
        connection = cometmq.sync.Connection(name_server=cluster.name_server_address)
        with (
            connection,
            cometmq.sync.Producer("one", connection=connection) as one,
            cometmq.sync.Producer("two", connection=connection) as two,
        ):
            one.create_topic("t", queue_count=1)
            one.send(Message("t", b"parent"))

            def child() -> str:
                one.send(Message("t", b"child one"))
                two.send(Message("t", b"child two"))
                assert one.client_id == two.client_id == connection.client_id
                return str(one.client_id)

            parent_id = one.client_id
            assert in_child(child) != parent_id
            assert two.send(Message("t", b"parent again")).queue_offset == 3
            assert two.client_id == parent_id == connection.client_id
