"""Ends that come at the wrong time or from the wrong place: nothing hangs, leaks or stays."""

import asyncio
import contextlib
import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.client.push_stage import committed, numbered, scenario, send
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import ClientClosed, ClientError, CometError, ConfigError
from cometmq.model import Message, MessageQueue
from cometmq.testing.cluster import embedded_cluster


def _handler_tasks() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "cometmq-handler" in task.get_name()]


def _handler_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("cometmq-handler")]


@pytest.mark.parametrize("kind", ["coroutine", "plain"])
def test_a_start_that_failed_can_be_tried_again(kind: str) -> None:
    """The handler's workers are made anew with it, and those of the failed one are gone."""

    async def run() -> None:
        seen: list[bytes] = []
        before = _handler_threads()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        def handle_plainly(message: ReceivedMessage) -> None:
            seen.append(message.body)

        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            port = int(address.rpartition(":")[2])
            consumer = PushConsumer(
                "g",
                {"t": "*"},
                handle if kind == "coroutine" else handle_plainly,
                name_server=address,
                consume_from="first",
            )
            consumer._options = _at(consumer, "127.0.0.1:1")
            with pytest.raises(ClientError, match="no name server answered"):
                await consumer.start()
            await until(lambda: not _handler_tasks())
            await until(lambda: len(_handler_threads()) == len(before))
            consumer._options = _at(consumer, f"127.0.0.1:{port}")
            async with Producer(name_server=address) as producer, consumer:
                await producer.send(Message("t", b"1"))
                await until(lambda: seen == [b"1"])

    asyncio.run(run())


def _at(consumer: PushConsumer, address: str) -> Any:
    """The consumer's options as if the name server came and went at its address."""
    consumer.update_name_servers(address)
    return replace(consumer._options, request_timeout_ms=300)


@pytest.mark.parametrize("order", ["none", "queue"])
def test_a_handler_may_shut_its_consumer_down(order: Any, caplog: Any) -> None:
    """It is not waited for, so its message comes again; its worker ends when it does."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []
        ended = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            await consumer.shutdown()
            ended.set()

        consumer = PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            concurrency=1,
            drain_timeout_ms=600_000,
            order=order,
        )
        await producer.send(Message("t", b"1"))
        with contextlib.suppress(ClientClosed):  # the handler may be there before the start ends
            await consumer.start()
        await asyncio.wait_for(ended.wait(), 20)
        await until(lambda: not _handler_tasks())
        assert seen == [b"1"]
        assert await committed(name_server, "g") == (order == "none")

    scenario(story)
    assert "or is what shuts the consumer down" in caplog.text


def test_a_plain_handler_may_shut_its_consumer_down() -> None:
    """The same of the synchronous face, and the thread is gone afterwards."""

    async def story(name_server: str, producer: Producer) -> None:
        ended = threading.Event()
        before = _handler_threads()

        def handle(message: ReceivedMessage) -> None:
            consumer.shutdown()
            ended.set()

        consumer = cometmq.sync.PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            concurrency=2,
            drain_timeout_ms=600_000,
        )
        await producer.send(Message("t", b"1"))
        with contextlib.suppress(ClientClosed):  # as above
            await asyncio.to_thread(consumer.start)
        assert await asyncio.to_thread(ended.wait, 20)
        await until(lambda: len(_handler_threads()) == len(before))
        assert await committed(name_server, "g") == 1

    scenario(story)


def test_a_handler_may_unsubscribe_while_the_consumer_starts() -> None:
    """The queues that the first round has not taken yet are left alone."""

    async def story(name_server: str, producer: Producer) -> None:
        left = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await consumer.unsubscribe("t")
            left.set()

        consumer = PushConsumer(
            "g", {"t": "*"}, handle, name_server=name_server, consume_from="first", concurrency=1
        )
        await send(producer, *numbered(8))
        async with consumer:
            await asyncio.wait_for(left.wait(), 20)
            await until(lambda: not consumer.assignment())
        assert "t" not in consumer.subscriptions

    scenario(story)


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 10])
def test_a_cancelled_shutdown_leaves_nothing_behind(turns: int) -> None:
    """Nobody can ask for it a second time, so it lets go of connections and tasks all the same."""

    async def story(name_server: str, producer: Producer) -> None:
        busy = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            busy.set()
            await asyncio.Event().wait()

        pushing = PushConsumer(
            "g", {"t": "*"}, handle, name_server=name_server, consume_from="first"
        )
        pulling = PullConsumer("h", {"t": "*"}, name_server=name_server, consume_from="first")
        sending = Producer(name_server=name_server)
        clients: list[Any] = [pushing, pulling, sending]
        for client in clients:
            await client.start()
        await sending.send(Message("t", b"1"))
        await busy.wait()
        channels = [channel for client in clients for channel in client._instance.pool.channels()]
        in_flight: asyncio.Future[Any] | None = None
        for client in clients:
            if client is sending:
                in_flight = client.send_nowait(Message("t", b"2"))
            task = asyncio.create_task(client.shutdown())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.shutdown()
        await until(lambda: all(channel.is_closed for channel in channels))
        await until(lambda: not _handler_tasks())
        assert in_flight is not None
        await asyncio.wait_for(asyncio.gather(in_flight, return_exceptions=True), 20)
        with pytest.raises(ClientClosed, match="closed; make a new one"):
            await pushing.start()

    scenario(story)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_ms": "5"},
        {"timeout_ms": 0},
        {"timeout_ms": float("nan")},
        {"queue": 0},
        {"queue": ("t", "broker-a", 0)},
        {"queue": MessageQueue("other", "broker-a", 0)},
        {"queue": MessageQueue("t", "broker-a", 0), "selector": lambda queues, _: queues[0]},
        {"selector": 5},
    ],
)
def test_a_send_that_was_refused_is_not_in_flight(wrong: dict[str, Any]) -> None:
    """Else the producer would wait for it at its end, for ever."""

    async def story(name_server: str, producer: Producer) -> None:
        async with asyncio.timeout(20), Producer(name_server=name_server) as mine:
            with pytest.raises(ConfigError, match=rf"{next(iter(wrong))} |the queue"):
                await mine.send(Message("t", b"1"), **wrong)

        def without_asyncio() -> None:
            with cometmq.sync.Producer(name_server=name_server) as blocking:
                with pytest.raises(ConfigError, match=rf"{next(iter(wrong))} |the queue"):
                    blocking.send(Message("t", b"1"), **wrong)
                with pytest.raises(ConfigError, match=rf"{next(iter(wrong))} |the queue"):
                    blocking.send_nowait(Message("t", b"1"), **wrong).result(20)

        await asyncio.to_thread(without_asyncio)
        assert (await producer.send(Message("t", b"1"))).queue_offset == 0

    scenario(story)


def test_batches_of_what_is_no_message() -> None:
    """Anything that gives messages is a batch, one alone too; the rest is told."""

    async def story(name_server: str, producer: Producer) -> None:
        several: list[Any] = [Message("t", b"1"), [Message("t", b"2")], iter([Message("t", b"3")])]
        for messages in several:
            assert len(await producer.send_batch(messages)) == 1
        wrong: Any
        for wrong in ("abc", 5, None, [b"x"], [Message("t", b"1"), "x"]):
            with pytest.raises(CometError, match="Message"):
                await producer.send_batch(wrong)

    scenario(story)


def test_a_consumer_that_is_not_started_says_so() -> None:
    """Each method, before the start and after the end."""

    async def story(name_server: str, producer: Producer) -> None:
        queue = MessageQueue("t", "broker-a", 0)
        consumer = PullConsumer("g", {"t": "*"}, name_server=name_server)
        for words in ("is not started", "is closed; make a new one"):
            for asked in (
                consumer.seek(queue, 0),
                consumer.seek_to_begin(queue),
                consumer.seek_to_end(queue),
                consumer.position(queue),
                consumer.commit(),
                consumer.poll(10),
            ):
                with pytest.raises(ClientClosed, match=words):
                    await asked
            await consumer.shutdown()
        with pytest.raises(ClientClosed, match="make a new one"):
            await consumer.subscribe("t")
        pushing = PushConsumer("g", name_server=name_server)
        await pushing.shutdown()
        with pytest.raises(ClientClosed, match="make a new one"):
            await pushing.subscribe("t", "*", print)

    scenario(story)
