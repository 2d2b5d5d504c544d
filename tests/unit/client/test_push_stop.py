"""The push consumer against the real broker: its end, and handlers that do not end."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from tests.unit.client.push_stage import committed, numbered, scenario, send
from tests.unit.client.waiting import until

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message, MessageQueue


def test_shutdown_repeats_nothing_and_loses_nothing() -> None:
    """Stopped in the middle: what was handled is not seen again, the rest is."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: Counter[bytes] = Counter()
        enough = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            await asyncio.sleep(0.001)
            seen[message.body] += 1
            if len(seen) == 100:
                enough.set()

        def consumer() -> PushConsumer:
            return PushConsumer(
                "g", {"t": "*"}, handle, name_server=name_server, consume_from="first"
            )

        await send(producer, *numbered(500))
        async with consumer():
            await enough.wait()
        between = len(seen)
        assert 100 <= between < 500
        assert await committed(name_server, "g") == between
        async with consumer():
            await until(lambda: len(seen) == 500)
        assert set(seen.values()) == {1}

    scenario(story)


def test_a_hanging_handler_does_not_hold_up_shutdown() -> None:
    """Its message is given back, so what was handled behind it is not repeated."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: Counter[bytes] = Counter()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"2" and not message.reconsume_times:
                await asyncio.Event().wait()
            seen[message.body] += 1

        queue = MessageQueue("t", "broker-a", 0)
        for body in numbered(6):
            await producer.send(Message("t", body), queue=queue)
        async with PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            drain_timeout_ms=200,
        ):
            await until(lambda: len(seen) == 5)
        assert await committed(name_server, "g") == 6
        assert set(seen) == set(numbered(6)) - {b"2"}

    scenario(story)


def test_a_hanging_thread_does_not_hold_up_shutdown() -> None:
    """The same for plain functions, which nobody can cancel."""

    async def story(name_server: str, producer: Producer) -> None:
        release = threading.Event()
        seen: list[bytes] = []

        running = threading.Event()

        def handle(message: ReceivedMessage) -> None:
            if message.body == b"1":
                running.set()
                release.wait(20)
            seen.append(message.body)

        await send(producer, b"1")
        async with PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            drain_timeout_ms=1_500,
            concurrency=2,
        ):
            await until(running.is_set)
        assert await committed(name_server, "g") == 1
        release.set()

    scenario(story)


async def expire(consumer: PushConsumer, is_done: Callable[[], bool]) -> None:
    """Look for handlers beyond their time until the one that runs is."""
    async with asyncio.timeout(15):
        while not is_done():
            await consumer.expire_now()
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", ["single", "list", "stubborn"])
def test_handlers_that_run_too_long_are_given_up(kind: str) -> None:
    """After the consume timeout the message goes to retry and the worker is free again."""

    async def story(name_server: str, producer: Producer) -> None:
        running = asyncio.Event()
        cancelled: list[bytes] = []
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"slow":
                running.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(message.body)
                    if kind != "stubborn":
                        raise
            else:
                seen.append(message.body)

        async def handle_list(messages: list[ReceivedMessage]) -> None:
            for message in messages:
                await handle(message)

        await send(producer, b"slow")
        async with PushConsumer(
            "g",
            {"t": "*"},
            handle_list if kind == "list" else handle,
            name_server=name_server,
            consume_from="first",
            concurrency=1,
            consume_timeout_ms=1,
        ) as consumer:
            await running.wait()
            await expire(consumer, lambda: cancelled == [b"slow"])
            await send(producer, b"next")
            await until(lambda: seen == [b"next"])
        assert await committed(name_server, "g") == 2

    scenario(story)


def test_threads_that_run_too_long_are_given_up() -> None:
    """A thread cannot be stopped; its message goes to retry and its late result is ignored."""

    async def story(name_server: str, producer: Producer) -> None:
        release = threading.Event()
        seen: list[tuple[bytes, int]] = []

        running = threading.Event()

        def handle(message: ReceivedMessage) -> None:
            if not message.reconsume_times:
                running.set()
                release.wait(20)
            seen.append((message.body, message.reconsume_times))

        await send(producer, b"slow")
        async with PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            consume_timeout_ms=1,
        ) as consumer:
            await until(running.is_set)
            await expire(
                consumer,
                lambda: not any(a.process_queue.count for a in consumer.assignments.values()),
            )
            release.set()
        assert seen == [(b"slow", 0)]
        assert await committed(name_server, "g") == 1

    scenario(story)
