"""What a handler can answer besides done and again: stop, an exact time, a reason; and pauses."""

import asyncio
import logging
import threading
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.push_stage import committed, numbered, scenario, send
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import DeadLetter, RetryLater, StopConsuming
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import ConfigError
from cometmq.model import Message, MessageQueue
from cometmq.net.env import system_environment
from cometmq.testing.cluster import threaded_cluster
from cometmq.wire.command.codes import RequestCode, version_of
from cometmq.wire.command.command import RemotingCommand

WAYS = [("none", False), ("none", True), ("queue", True), ("group", False)]


@pytest.mark.parametrize(("order", "is_plain"), WAYS)
def test_a_stop_keeps_the_message_until_resume(
    order: Any, is_plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing after it is handled, nothing is lost, and resume() handles it again."""

    async def story(name_server: str, producer: Producer) -> None:
        tries: Counter[bytes] = Counter()
        alarms: list[tuple[bytes, str]] = []
        is_settled = False

        def judge(message: ReceivedMessage) -> Any:
            tries[message.body] += 1
            if message.body == b"1" and not is_settled:
                raise StopConsuming("the payment's outcome is unknown")
            return None

        async def handle(message: ReceivedMessage) -> Any:
            return judge(message)

        async def alarm(message: ReceivedMessage, reason: str) -> None:
            alarms.append((message.body, reason))

        queue = (await producer.fetch_publish_queues("t"))[0]
        for body in numbered(2):
            await producer.send(Message("t", body), queue=queue)
        async with PushConsumer(
            "g",
            {"t": "*"},
            judge if is_plain else handle,
            name_server=name_server,
            consume_from="first",
            order=order,
            concurrency=1,
            on_stopped=alarm,
        ) as consumer:
            await until(lambda: alarms)
            for body in (b"2", b"3"):
                await producer.send(Message("t", body), queue=queue)
            assert consumer.stop_reason == "the payment's outcome is unknown"
            assert queue in consumer.paused()
            with pytest.raises(ConfigError, match="call resume"):
                consumer.resume([queue])
            assert tries == {b"0": 1, b"1": 1}
            is_settled = True
            consumer.resume()
            assert consumer.paused() == []
            await until(lambda: tries[b"3"])
        assert tries == {b"0": 1, b"1": 2, b"2": 1, b"3": 1}
        assert alarms == [(b"1", "the payment's outcome is unknown")]
        assert await committed(name_server, "g") == 4

    scenario(story)
    critical = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert [record.message.partition(" at message")[0] for record in critical] == [
        "group g stops consuming"
    ]


def test_a_stopped_message_is_not_committed_at_shutdown() -> None:
    """The next member begins with it."""

    async def story(name_server: str, producer: Producer) -> None:
        async def handle(message: ReceivedMessage) -> Any:
            return StopConsuming() if message.body == b"1" else None

        queue = (await producer.fetch_publish_queues("t"))[0]
        for body in numbered(3):
            await producer.send(Message("t", body), queue=queue)
        options: Any = {"name_server": name_server, "consume_from": "first"}
        async with PushConsumer("g", {"t": "*"}, handle, concurrency=1, **options) as consumer:
            await until(lambda: consumer.stop_reason)
        assert await committed(name_server, "g") == 1
        bodies: list[bytes] = []

        async def take(message: ReceivedMessage) -> None:
            bodies.append(message.body)

        async with PushConsumer("g", {"t": "*"}, take, concurrency=1, **options):
            await until(lambda: len(bodies) == 2)
        assert bodies == [b"1", b"2"]

    scenario(story)


@pytest.mark.parametrize(("order", "is_plain"), WAYS)
def test_a_pause_of_one_queue_leaves_the_others(order: Any, is_plain: bool) -> None:
    """Its pulled messages wait, in their order; the others are handled."""

    async def story(name_server: str, producer: Producer) -> None:
        bodies: list[bytes] = []

        def take(message: ReceivedMessage) -> None:
            bodies.append(message.body)

        async def handle(message: ReceivedMessage) -> None:
            bodies.append(message.body)

        queues = await producer.fetch_publish_queues("t")
        async with PushConsumer(
            "g",
            {"t": "*"},
            take if is_plain else handle,
            name_server=name_server,
            consume_from="first",
            order=order,
            concurrency=1,
        ) as consumer:
            await until(lambda: len(consumer.assignment()) == 4)
            consumer.pause([queues[0]])
            assert consumer.paused() == [queues[0]]
            for body in numbered(5):
                await producer.send(Message("t", body), queue=queues[0])
            await producer.send(Message("t", b"other"), queue=queues[1])
            await until(lambda: bodies == [b"other"])
            consumer.resume([queues[0]])
            await until(lambda: len(bodies) == 6)
        assert bodies == [b"other", *numbered(5)]
        assert await committed(name_server, "g") == 6

    scenario(story)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_pause_reaches_messages_that_wait_for_a_handler(is_plain: bool) -> None:
    """Only the handler under way ends; list handlers and retries are paused alike."""

    async def story(name_server: str, producer: Producer) -> None:
        bodies: list[bytes] = []
        gate, opened = threading.Event(), asyncio.Event()

        def take(messages: list[ReceivedMessage]) -> Any:
            bodies.extend(message.body for message in messages)
            gate.wait(15)

        async def handle(messages: list[ReceivedMessage]) -> Any:
            bodies.extend(message.body for message in messages)
            await opened.wait()

        await send(producer, *numbered(8))
        async with PushConsumer(
            "g",
            {"t": "*"},
            take if is_plain else handle,
            name_server=name_server,
            consume_from="first",
            batch_count_max=1,
            concurrency=1,
        ) as consumer:
            await until(lambda: bodies)
            consumer.pause()
            gate.set()
            opened.set()
            # The first handler's outcome is recorded, and every waiting message is set aside.
            queues = consumer.assignments.values()
            await until(lambda: sum(len(queue.set_aside) for queue in queues) == 7)
            assert len(bodies) == 1
            consumer.resume()
            await until(lambda: len(bodies) == 8)
        assert sorted(bodies) == numbered(8)

    scenario(story)


@pytest.mark.parametrize(("order", "is_plain"), [("group", False), ("none", True)])
def test_concurrency_changes_while_handlers_run(order: Any, is_plain: bool) -> None:
    """More handlers start at once; too many end after their message."""

    async def story(name_server: str, producer: Producer) -> None:
        running, most = 0, 0
        gate = threading.Semaphore(0)
        lock = threading.Lock()

        def enter(step: int) -> None:
            nonlocal running, most
            with lock:
                running += step
                most = max(most, running)

        def take(message: ReceivedMessage) -> None:
            enter(1)
            gate.acquire(timeout=15)
            enter(-1)

        async def handle(message: ReceivedMessage) -> None:
            enter(1)
            while not gate.acquire(blocking=False):  # noqa: ASYNC110 - threads share the gate
                await asyncio.sleep(0.001)
            enter(-1)

        for number, body in enumerate(numbered(20)):
            await producer.send(Message("t", body, message_group=f"g{number}"))
        async with PushConsumer(
            "g",
            {"t": "*"},
            take if is_plain else handle,
            name_server=name_server,
            consume_from="first",
            order=order,
            concurrency=1,
        ) as consumer:
            await until(lambda: running == 1)
            consumer.concurrency = 4
            await until(lambda: running == 4)
            consumer.concurrency = 2
            gate.release(4)
            await until(lambda: running == 2)
            most = 0
            gate.release(6)
            await until(lambda: sum(q.process_queue.finished_count for q in _all(consumer)) == 10)
            assert most <= 2
            consumer.concurrency = 3
            await until(lambda: running == 3)
            gate.release(20)
            await until(lambda: sum(q.process_queue.finished_count for q in _all(consumer)) == 20)
            with pytest.raises(ConfigError, match="concurrency is 0"):
                consumer.concurrency = 0

    scenario(story)


def _all(consumer: PushConsumer) -> list[Any]:
    return list(consumer.assignments.values())


@pytest.mark.parametrize("order", ["none", "queue"])
def test_a_message_comes_again_at_an_exact_time(order: Any) -> None:
    """Neither earlier nor at a level; a try too many is a dead letter all the same."""

    async def story(name_server: str, producer: Producer) -> None:
        tries: list[tuple[int, int, int]] = []
        clock = system_environment().clock

        async def handle(message: ReceivedMessage) -> Any:
            now_ms = clock.now_ms()
            due_ms = now_ms + 1_500
            tries.append((message.reconsume_times, now_ms, due_ms))
            if message.reconsume_times % 2:
                raise RetryLater(deliver_time_ms=due_ms)
            return RetryLater(delay_ms=1_500)

        await send(producer, b"exact", keys="k")
        async with (
            PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=name_server,
                consume_from="first",
                max_reconsume_times=2,
                order=order,
            ),
            PullConsumer("undertaker", name_server=name_server, consume_from="first") as reader,
        ):
            await until(lambda: len(tries) == 3)
            await reader.assign([MessageQueue("%DLQ%g", "broker-a", 0)])
            dead: list[ReceivedMessage] = []
            while not dead:
                dead += await reader.poll(5_000)
        assert [times for times, _, _ in tries] == [0, 1, 2]
        for (_, _, due_ms), (_, next_ms, _) in pairwise(tries):
            assert next_ms >= due_ms // 1000 * 1000  # the wheel counts whole seconds
        assert [message.body for message in dead] == [b"exact"]
        assert dead[0].keys == ("k",)

    scenario(story)


def test_brokers_without_timers_get_the_level_that_is_not_earlier() -> None:
    """A broker of 4.9 would ignore the time and deliver the message at once."""

    async def story() -> None:
        broker = FakeBroker({"t": 1})

        def of_old_version(command: RemotingCommand, connection: Any) -> RemotingCommand | None:
            answer = broker.ordinary(command, connection)
            assert answer is not None
            answer.version = version_of(4, 9, 8)
            return answer

        broker.override[RequestCode.HEART_BEAT] = of_old_version
        await broker.start()
        broker.store("t", 0, b"later", b"")

        async def handle(message: ReceivedMessage) -> Any:
            return RetryLater(delay_ms=42_000)

        try:
            async with PushConsumer(
                "g", {"t": "*"}, handle, name_server=broker.name_server, consume_from="first"
            ):
                await until(lambda: broker.back)
        finally:
            await broker.stop()
        assert [header.delay_level for header in broker.back] == [5]

    asyncio.run(story())


def test_what_cannot_be_asked_for() -> None:
    """Two times at once, or no time at all."""
    with pytest.raises(ConfigError, match="give one of them"):
        RetryLater(3, delay_ms=5)
    with pytest.raises(ConfigError, match="give one of them"):
        RetryLater(delay_ms=5, deliver_time_ms=6)
    with pytest.raises(ConfigError, match="delay_ms of RetryLater is 0"):
        RetryLater(delay_ms=0)


def test_the_reason_of_a_dead_letter_travels() -> None:
    """As the property that the commands show; cut and cleaned so that it always fits."""

    async def story(name_server: str, producer: Producer) -> None:
        async def handle(message: ReceivedMessage) -> Any:
            return DeadLetter("no such account\x01\x02" + "x" * 2_000)

        await send(producer, b"bad")
        async with (
            PushConsumer("g", {"t": "*"}, handle, name_server=name_server, consume_from="first"),
            PullConsumer("r", name_server=name_server, consume_from="first") as reader,
        ):
            await reader.assign([MessageQueue("%DLQ%g", "broker-a", 0)])
            dead: list[ReceivedMessage] = []
            while not dead:
                dead += await reader.poll(5_000)
        assert [message.properties["error"] for message in dead] == [
            "no such account  " + "x" * 983
        ]

    scenario(story)
    assert DeadLetter("why", properties={"reason": "because"}).properties == {"reason": "because"}
    assert DeadLetter().properties == {}


def test_the_synchronous_twin_stops_pauses_and_resumes() -> None:
    """From the program's thread, with a plain handler."""
    with threaded_cluster() as cluster:
        options: Any = {"name_server": cluster.name_server_address}
        alarmed, done = threading.Event(), threading.Event()
        tries: list[int] = []

        def handle(message: cometmq.sync.ReceivedMessage) -> None:
            tries.append(message.reconsume_times)
            if len(tries) == 1:
                raise cometmq.sync.StopConsuming("look at this one")
            done.set()

        with cometmq.sync.Producer("pg", **options) as producer:
            producer.create_topic("t", queue_count=1)
            producer.send(Message("t", b"1"))
        with cometmq.sync.PushConsumer(
            "g",
            {"t": "*"},
            handle,
            consume_from="first",
            on_stopped=lambda message, reason: alarmed.set(),
            **options,
        ) as consumer:
            assert alarmed.wait(15)
            assert consumer.stop_reason == "look at this one"
            assert [queue.topic for queue in consumer.paused()] == ["t"]
            consumer.concurrency = 3
            assert consumer.concurrency == 3
            consumer.resume()
            assert done.wait(15)
            consumer.pause()
        assert tries == [0, 0]
