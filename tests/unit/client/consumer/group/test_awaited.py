"""Consumers that start before their topic exists, or while their name server comes and goes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq.client.base.options import ClientOptions
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import ConnectFailed, NoRoute, RequestTimeout
from cometmq.model import Message
from cometmq.net.server import ServerConnection
from cometmq.testing.cluster import embedded_cluster, threaded_cluster
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
Handle = Callable[[ReceivedMessage], Awaitable[None]]


def keep(seen: list[bytes]) -> Handle:
    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)

    return handle


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("cometmq.client") and record.levelno >= logging.WARNING
    ]


def test_a_push_consumer_starts_before_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    """One warning; the topic that a first send makes is consumed from its first message."""

    async def run() -> None:
        seen: list[bytes] = []
        async with (
            embedded_cluster() as cluster,
            PushConsumer(
                "g", {"later": "*"}, keep(seen), name_server=cluster.name_server_address
            ) as consumer,
        ):
            assert consumer.assignment() == []
            async with Producer("pg", name_server=cluster.name_server_address) as producer:
                await producer.send(Message("later", b"first"))
                await until(lambda: seen == [b"first"])
                # The retry topic, which the late heartbeat made, is consumed too.
                await until(lambda: any(q.topic == "%RETRY%g" for q in consumer.assignments))
        assert {queue.topic for queue in consumer.assignments} == set()

    asyncio.run(run())
    (warning,) = warnings(caplog)
    assert "group g waits for the topic later: it does not exist yet" in warning


def test_one_missing_topic_does_not_hold_up_the_others() -> None:
    """What exists is consumed at once, what is subscribed while running is waited for too."""

    async def run() -> None:
        seen: list[bytes] = []
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("now", queue_count=2)
            async with PushConsumer(
                "g",
                {"now": "*", "later": "*"},
                keep(seen),
                name_server=cluster.name_server_address,
                consume_from="first",
            ) as consumer:
                assert [queue.topic for queue in consumer.assignment()] == ["now", "now"]
                await producer.send(Message("now", b"now"))
                await until(lambda: seen == [b"now"])
                await consumer.subscribe("even-later")
                for topic in ("later", "even-later"):
                    await producer.send(Message(topic, topic.encode()))
                await until(lambda: len(seen) == 3)
                assert sorted(seen) == [b"even-later", b"later", b"now"]

    asyncio.run(run())


def test_a_pull_consumer_subscribes_before_its_topic() -> None:
    """`subscribe` and `start` wait; `assign` and `fetch_queues` ask for what must be there."""

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
            PullConsumer("g", name_server=cluster.name_server_address) as consumer,
            PullConsumer("h", {"later": "*"}, name_server=cluster.name_server_address) as other,
        ):
            await consumer.subscribe("later")
            for pull in (consumer, other):
                assert await pull.poll(1) == []
                with pytest.raises(NoRoute, match="later"):
                    await pull.fetch_queues("later")
            await producer.send(Message("later", b"x"))
            for pull in (consumer, other):
                assert [message.body for message in await pull.poll(15_000)] == [b"x"]

    asyncio.run(run())


def test_the_synchronous_consumer_too() -> None:
    """The same through the blocking face."""
    with (
        threaded_cluster() as cluster,
        cometmq.sync.PullConsumer(
            "g", {"later": "*"}, name_server=cluster.name_server_address
        ) as consumer,
        cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer,
    ):
        producer.send(Message("later", b"x"))
        assert [message.body for message in consumer.poll(15_000)] == [b"x"]


def test_an_unsubscribed_topic_is_no_longer_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses grow, and end with the subscription."""
    monkeypatch.setattr("cometmq.client.consumer.group.awaited.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("cometmq.client.consumer.group.awaited.LAST_PAUSE_S", 0.02)

    async def run() -> None:
        broker = FakeBroker({})
        await broker.start()

        def asked(topic: str) -> int:
            return sum(command.ext_fields.get("topic") == topic for command in broker.seen)

        topics = {"gone": "*", "still": "*"}
        async with PullConsumer("g", topics, name_server=broker.name_server) as consumer:
            await until(lambda: asked("gone") > 4)
            await consumer.unsubscribe("gone")
            # A question that was under way when it was unsubscribed has come by then.
            so_far = asked("still")
            await until(lambda: asked("still") > so_far + 2)
            before, so_far = asked("gone"), asked("still")
            await until(lambda: asked("still") > so_far + 4)
            assert asked("gone") == before
        await broker.stop()

    asyncio.run(run())


# -- the name server at start -----------------------------------------------------------------


def test_a_connection_cut_during_start_is_made_again() -> None:
    """The only name server hangs up twice before it answers."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        cuts = 0

        def cut(command: RemotingCommand, connection: ServerConnection) -> None:
            nonlocal cuts
            cuts += 1
            if cuts == 2:
                del broker.override[ROUTE]
            connection.abort("the test says so")

        broker.override[ROUTE] = cut
        seen: list[bytes] = []
        async with PushConsumer(
            "g", {"t": "*"}, keep(seen), name_server=broker.name_server, consume_from="first"
        ):
            assert cuts == 2
            broker.store("t", 0, b"x", b"")
            await until(lambda: seen == [b"x"])
        await broker.stop()

    asyncio.run(run())


def test_a_name_server_lost_in_the_middle_of_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After one answer the address is right, so the rest of the topics is waited for."""
    monkeypatch.setattr("cometmq.client.consumer.group.awaited.FIRST_PAUSE_S", 0.05)

    async def run() -> None:
        broker = FakeBroker({"a": 1, "b": 1})
        await broker.start()
        is_down = True

        def answer(
            command: RemotingCommand, connection: ServerConnection
        ) -> RemotingCommand | None:
            if is_down and command.ext_fields["topic"] == "b":
                connection.abort("the test says so")
                return None
            return broker.ordinary(command, connection)

        broker.override[ROUTE] = answer
        seen: list[bytes] = []
        async with PushConsumer(
            "g", {"a": "*", "b": "*"}, keep(seen), name_server=broker.name_server
        ) as consumer:
            assert [queue.topic for queue in consumer.assignment()] == ["a"]
            is_down = False
            await until(lambda: len(consumer.assignment()) == 2)
        await broker.stop()

    asyncio.run(run())
    first = warnings(caplog)[0]
    assert "waits for the topic b" in first
    assert "was closed" in first


@pytest.mark.parametrize("kind", ["push", "pull", "pull, then subscribe", "push without topics"])
def test_an_unreachable_name_server_is_told(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens: ConnectFailed with the address, and the consumer can be started again."""
    options_of = ClientOptions.of

    def hasty(name_server: str, **fields: object) -> ClientOptions:
        return options_of(name_server, **{**fields, "request_timeout_ms": 250})  # type: ignore[arg-type]

    monkeypatch.setattr(ClientOptions, "of", hasty)

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        address = broker.name_server
        await broker.stop()
        consumer: PushConsumer | PullConsumer
        if kind.startswith("push"):
            topics = {} if "without" in kind else {"t": "*"}
            consumer = PushConsumer("g", topics, keep([]), name_server=address)
        elif "subscribe" in kind:
            consumer = PullConsumer("g", name_server=address)
            await consumer.start()
        else:
            consumer = PullConsumer("g", {"t": "*"}, name_server=address)
        with pytest.raises(ConnectFailed, match=f"{address}.*check the addresses"):
            await (consumer.subscribe("t") if "subscribe" in kind else consumer.start())
        await broker.start()
        await (consumer.subscribe("t") if "subscribe" in kind else consumer.start())
        if "without" not in kind:
            await until(lambda: [queue.topic for queue in consumer.assignment()] == ["t"])
        await consumer.shutdown()
        await broker.stop()

    asyncio.run(run())


def test_a_silent_name_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and says nothing."""
    options_of = ClientOptions.of
    monkeypatch.setattr(
        ClientOptions,
        "of",
        lambda name_server, **fields: options_of(
            name_server, **{**fields, "request_timeout_ms": 200}
        ),
    )

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        broker.override[ROUTE] = lambda command, connection: None
        with pytest.raises(RequestTimeout, match=broker.name_server):
            await PushConsumer("g", {"t": "*"}, keep([]), name_server=broker.name_server).start()
        await broker.stop()

    asyncio.run(run())
