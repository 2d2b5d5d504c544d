"""Runs of several messages in one worker: what is reported of each, whatever ends the run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.unit.client.waiting import until

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.coroutine_dispatcher import RUN_MAX, CoroutineDispatcher
from cometmq.client.handling.handlers import Outcome
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.client.producer.producer import Producer
from cometmq.codec.stored_message import encode_message
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.model import Message, MessageQueue
from cometmq.testing.cluster import embedded_cluster

MODULE = "cometmq.client.handling.coroutine_dispatcher"
QUEUE = MessageQueue("t", "b", 0)
COUNT = 10


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for a moment ends no run."""
    monkeypatch.setattr(f"{MODULE}.RUN_S_MAX", 1e9)


class Run:
    """One run, and what was reported of its messages, by queue offset."""

    def __init__(self) -> None:
        self.process_queue = ProcessQueue(0, 0)
        self.messages = split_messages(
            b"".join([encode_message("t", b"x", queue_offset=one) for one in range(COUNT)]), QUEUE
        )
        self.reported: list[tuple[int, Outcome | str]] = []

    def finished(self, run: Any, message: ReceivedMessage, outcome: Outcome) -> None:
        assert run is self
        self.reported.append((message.queue_offset, outcome))

    def finished_all(self, run: Any, messages: Sequence[ReceivedMessage]) -> None:
        raise AssertionError("single messages are reported one by one")

    def skipped(self, run: Any, messages: Sequence[ReceivedMessage]) -> None:
        assert run is self
        self.reported += [(message.queue_offset, "skipped") for message in messages]


Step = Callable[[Run, int, CoroutineDispatcher], Awaitable[Any]]


def report_of(step: Step) -> list[tuple[int, Outcome | str]]:
    """What is reported of a run whose messages are handled by `step`."""
    run = Run()

    async def story() -> None:
        tasks: list[asyncio.Task[Any]] = []

        async def handler(message: ReceivedMessage) -> Any:
            return await step(run, message.queue_offset, dispatcher)

        dispatcher = CoroutineDispatcher(
            handler, run, 1, None, lambda work, _: tasks.append(asyncio.create_task(work))
        )
        dispatcher.submit_run(run, run.messages)
        await until(lambda: len(run.reported) == COUNT)
        assert await dispatcher.drain(5.0) == []
        assert dispatcher.running_count == 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(story())
    return run.reported


def ended_at(place: int, outcome: Outcome = None) -> list[tuple[int, Outcome | str]]:
    done: list[tuple[int, Outcome | str]] = [(one, None) for one in range(place)]
    return [*done, (place, outcome), *[(one, "skipped") for one in range(place + 1, COUNT)]]


def test_all_messages_of_a_run_are_done_in_order() -> None:
    """A handler that never suspends, and one that always does."""

    async def quick(*_: object) -> None:
        pass

    async def patient(*_: object) -> None:
        await asyncio.sleep(0)

    for step in (quick, patient):
        assert report_of(step) == ended_at(COUNT - 1)


def test_the_first_failure_ends_a_run() -> None:
    """By its answer or by an exception; none behind it has been in the handler."""
    seen: list[int] = []

    async def refuse(_: Run, offset: int, __: object) -> bool:
        seen.append(offset)
        return offset != 4

    async def fail(_: Run, offset: int, __: object) -> None:
        if offset == 4:
            raise ValueError

    assert report_of(refuse) == ended_at(4, 0)
    assert seen == [0, 1, 2, 3, 4]
    assert report_of(fail) == ended_at(4, 0)


def test_a_run_that_takes_too_long_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its strand is looked at again: the lock may have been lost meanwhile."""

    async def step(_: Run, offset: int, __: object) -> None:
        if offset == 6:
            monkeypatch.setattr(f"{MODULE}.RUN_S_MAX", 0.0)

    assert report_of(step) == ended_at(6)


def test_a_queue_that_goes_ends_its_run() -> None:
    """The message in the handler was handled, whatever that is worth; no other begins."""

    async def step(run: Run, offset: int, _: object) -> None:
        run.process_queue.dropped = offset == 3

    assert report_of(step) == ended_at(3)


def test_a_drain_ends_a_run_behind_the_message_in_the_handler() -> None:
    """Those before it were reported before: a handler that hangs holds back its own only."""

    async def step(run: Run, offset: int, dispatcher: CoroutineDispatcher) -> None:
        if offset == 5:
            assert run.reported == [(one, None) for one in range(5)]
            drain = asyncio.create_task(dispatcher.drain(5.0))
            await asyncio.sleep(0)
            assert not drain.done()

    assert report_of(step) == ended_at(5)


def test_others_get_the_loop_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left waits meanwhile where a drain finds it."""
    monkeypatch.setattr(f"{MODULE}.SLICE_S", 0.001)
    turns: list[int] = []

    async def step(_: Run, offset: int, __: object) -> None:
        assert len(turns) == offset
        asyncio.get_running_loop().call_soon(turns.append, offset)
        time.sleep(0.002)  # noqa: ASYNC251 - keeps the loop for longer than it may

    drains: list[asyncio.Task[Any]] = []

    async def stop(run: Run, offset: int, dispatcher: CoroutineDispatcher) -> None:
        await step(run, offset, dispatcher)
        if offset == 5:
            # Begins in the turn that the others get.
            drains.append(asyncio.create_task(dispatcher.drain(5.0)))

    assert report_of(step) == ended_at(COUNT - 1)
    turns.clear()
    assert report_of(stop) == ended_at(5)
    assert drains[0].result() == []


@pytest.mark.parametrize("order", ["queue", "group"])
def test_a_stop_in_the_middle_of_a_run_repeats_nothing(order: Any) -> None:
    """The handler of a quick run hangs when the consumer stops: all before it are committed."""
    count, hangs_at = 4 * RUN_MAX, 3 * RUN_MAX + 5

    async def story(name_server: str, producer: Producer) -> None:
        for number in range(count):
            await producer.send(Message("t", str(number).encode(), message_group="a"))
        seen: list[int] = []
        go_on = asyncio.Event()
        hangs = asyncio.Event()

        async def handler(message: ReceivedMessage) -> None:
            number = int(message.body)
            if number == hangs_at and not hangs.is_set():
                hangs.set()
                await go_on.wait()
            seen.append(number)

        def consumer() -> PushConsumer:
            return PushConsumer(
                "g", {"t": "*"}, handler,
                name_server=name_server, order=order, consume_from="first",
            )  # fmt: skip

        first = consumer()
        await first.start()
        await asyncio.wait_for(hangs.wait(), 30)
        assert seen == list(range(hangs_at))
        stop = asyncio.create_task(first.shutdown())
        await until(lambda: first._ordering is not None and not first._ordering._queues)
        go_on.set()
        await stop
        assert seen == list(range(hangs_at + 1))
        async with PullConsumer("g", name_server=name_server) as reader:
            (queue,) = await reader.fetch_queues("t")
            assert await reader.committed(queue) == hangs_at + 1
        async with consumer():
            await until(lambda: len(seen) == count)
        assert seen == list(range(count))

    async def run() -> None:
        async with (
            embedded_cluster() as cluster,
            Producer("pg", name_server=cluster.name_server_address) as producer,
        ):
            await producer.create_topic("t", queue_count=1)
            await story(cluster.name_server_address, producer)

    asyncio.run(run())
