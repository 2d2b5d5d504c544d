"""Handlers that do what nobody expects: no worker ends with them, and no message is lost."""

import asyncio
import functools
import logging
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from tests.unit.client.push_stage import committed, numbered, scenario, send
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import DeadLetter, RetryLater, outcome_of, reason_of
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import ConfigError

# On the main thread's loop SystemExit and KeyboardInterrupt end the program.
ENDINGS = [
    *[("thread", exit_) for exit_ in (SystemExit, KeyboardInterrupt, asyncio.CancelledError)],
    *[(kind, asyncio.CancelledError) for kind in ("coroutine", "list", "lambda")],
    *[(kind, GeneratorExit) for kind in ("thread", "lambda")],
]


async def _generates(message: ReceivedMessage) -> AsyncIterator[int]:
    yield 1


def _generates_too(message: ReceivedMessage) -> Iterator[int]:
    yield 1


class _Generates:
    async def __call__(self, message: ReceivedMessage) -> AsyncIterator[int]:
        yield 1


def _needs_two(message: ReceivedMessage, context: object) -> None: ...


@pytest.mark.parametrize("kind", [PushConsumer, cometmq.sync.PushConsumer])
@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (5, "is int; it must be a function"),
        ("on_order", "is str; it must be a function"),
        (_generates, "contains a yield"),
        (_generates_too, "contains a yield"),
        (_Generates(), "contains a yield"),
        (functools.partial(_generates), "contains a yield"),
        (lambda: None, "cannot be called with a message alone"),
        (_needs_two, "missing a required argument: 'context'"),
    ],
)
def test_what_cannot_handle_a_message_is_refused(kind: Any, handler: Any, words: str) -> None:
    """Before a message comes, since its messages would count as done, or fail one by one."""
    with pytest.raises(ConfigError, match=words):
        kind("g", {"t": "*"}, handler, name_server="127.0.0.1:1")
    consumer = kind("g", name_server="127.0.0.1:1")
    with pytest.raises(ConfigError, match=words):
        asked = consumer.subscribe("t", "*", handler)
        if asyncio.iscoroutine(asked):
            asyncio.run(asked)


@pytest.mark.parametrize("handler", [print, [].append, functools.partial(_needs_two, context=1)])
def test_what_can_handle_a_message_is_taken(handler: Callable[[Any], Any]) -> None:
    """Functions written in C cannot be looked at, and are callable all the same."""
    consumer = PushConsumer("g", {"t": "*"}, handler, name_server="127.0.0.1:1")
    assert set(consumer.subscriptions) == {"t"}


@pytest.mark.parametrize(("kind", "exit_"), ENDINGS)
@pytest.mark.parametrize("order", ["none", "queue"])
def test_a_handler_ends_no_worker(
    kind: str, exit_: type[BaseException], order: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises is its message's failure, and the only worker goes on with the next."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []

        def work(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"bad" and seen.count(b"bad") == 1:
                raise exit_()

        async def handle(message: ReceivedMessage) -> None:
            work(message)

        async def handle_list(messages: list[ReceivedMessage]) -> None:
            work(messages[0])

        handlers: dict[str, Any] = {
            "coroutine": handle,
            "thread": work,
            "list": handle_list,
            "lambda": lambda message: handle(message),  # noqa: PLW0108 - a plain function
        }
        for body in (b"bad", b"next"):
            await send(producer, body, message_group="one")
        async with PushConsumer(
            "g",
            {"t": "*"},
            handlers[kind],
            name_server=name_server,
            consume_from="first",
            concurrency=1,
            batch_count_max=1 if kind == "list" else None,
            order=order,
            suspend_ms=10,
        ):
            await until(lambda: b"next" in seen)
        assert seen == ([b"bad", b"next"] if order == "none" else [b"bad", b"bad", b"next"])
        assert await committed(name_server, "g") == 2

    with caplog.at_level(logging.WARNING, "cometmq.client"):
        scenario(story)
    assert "the handler failed on message" in caplog.text


@pytest.mark.parametrize("order", ["none", "queue"])
@pytest.mark.parametrize("takes_lists", [False, True])
def test_the_log_line_of_a_failed_handler_names_message_group_try_and_next_time(
    order: Any, takes_lists: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It named a queue and an offset only; now id, topic, group, try, cause and what comes next."""
    ids: list[str] = []

    async def story(name_server: str, producer: Producer) -> None:
        async def handle(work: Any) -> None:
            for message in work if takes_lists else [work]:
                ids.append(message.message_id)
            if ids.count(ids[0]) == 1:
                raise ConnectionError("the shop is closed")

        await send(producer, b"1", message_group="one")
        async with PushConsumer(
            "g",
            {"t": "*"},
            handle,
            name_server=name_server,
            consume_from="first",
            batch_count_max=2 if takes_lists else None,
            order=order,
            suspend_ms=10,
        ):
            await until(lambda: "the handler failed" in caplog.text)

    with caplog.at_level(logging.WARNING, "cometmq.client"):
        scenario(story)
    (failure,) = [one for one in caplog.records if "the handler failed" in one.message]
    assert failure.levelno == logging.WARNING
    assert failure.exc_info is not None
    follows = {
        "none": "next try in 10s, unless the group or its broker has other delays",
        "queue": "next try in 10 ms, before any later message of its order",
    }
    assert re.sub(r"(?<=@broker-a:)\d", "N", failure.message) == (
        f"group g: the handler failed on message {ids[0]} of topic t (t@broker-a:N at 0) in try 1: "
        f"ConnectionError: the shop is closed; {follows[order]}"
    )


@pytest.mark.parametrize("order", ["none", "queue"])
def test_work_that_nobody_ran_is_not_done(order: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine that a coroutine function returned is a forgotten await."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []

        async def inner(message: ReceivedMessage) -> None:
            raise AssertionError("nobody awaits this")

        async def handle(message: ReceivedMessage) -> Any:
            seen.append(message.body)
            return inner(message)

        await send(producer, b"1")
        consumer = PushConsumer(
            "g", {"t": "*"}, handle, name_server=name_server, consume_from="first", order=order
        )
        async with consumer:
            await until(lambda: seen)
            await until(lambda: "returned a coroutine that nobody has run" in caplog.text)
            if order == "none":
                await until(lambda: any(a.failed_count for a in consumer.assignments.values()))
        # Without an order it was given back, with one it is still the queue's next.
        assert await committed(name_server, "g") == (order == "none")

    scenario(story)


def test_results_without_a_meaning_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that answers in the words of another library is told so."""

    class Status(str):
        """A type nobody has returned before."""

        __slots__ = ()

    with caplog.at_level(logging.WARNING, "cometmq.client"):
        assert outcome_of(Status("RECONSUME_LATER")) is None
        assert outcome_of(Status("CONSUME_SUCCESS")) is None
    assert caplog.text.count("'RECONSUME_LATER' (Status), which has no meaning") == 1
    assert "CONSUME_SUCCESS" not in caplog.text


@pytest.mark.parametrize("level", ["soon", None, 1.5, -2, True, 2**31])
def test_a_level_is_a_number(level: Any) -> None:
    """A broker could not be told of another."""
    with pytest.raises(ConfigError, match=r"the delay level of RetryLater is"):
        RetryLater(level)
    assert [RetryLater(level).delay_level for level in (0, 1, 18)] == [0, 1, 18]


def test_a_verdict_of_a_users_own_class() -> None:
    """One that does not call ``__init__`` of ours means the usual back-off."""

    class Busy(RetryLater):
        def __init__(self) -> None:
            self.text = "busy"

    class Hopeless(DeadLetter):
        def __init__(self) -> None:
            self.text = "hopeless"

    assert outcome_of(Busy()) == 0
    assert outcome_of(Hopeless()) == -1
    assert reason_of(outcome_of(RetryLater(3, "not yet"))) == "not yet"


EXITING = """
import asyncio, sys
import cometmq
from cometmq.testing import embedded_cluster

async def main():
    async with embedded_cluster() as cluster:
        address = cluster.name_server_address

        async def handle(message):
            sys.exit(7)

        async with cometmq.Producer(name_server=address) as producer:
            await producer.send(cometmq.Message("t", b"1"))
        async with cometmq.PushConsumer(
            "g", {"t": "*"}, handle, name_server=address, consume_from="first",
            drain_timeout_ms=600_000,
        ):
            await asyncio.Event().wait()

asyncio.run(main())
"""


def test_exit_in_a_coroutine_handler_ends_the_program() -> None:
    """With its status, and without waiting for the handler that is gone."""
    done = subprocess.run(
        [sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr


def test_exit_on_the_background_loop_is_a_failure() -> None:
    """The loop belongs to all synchronous clients of the process."""

    async def story(name_server: str, producer: Producer) -> None:
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if len(seen) == 1:
                sys.exit("no more")

        def consume() -> None:
            with cometmq.sync.PushConsumer(
                "g",
                {"t": "*"},
                handle,
                name_server=name_server,
                consume_from="first",
                concurrency=1,
            ):
                done.wait(20)

        done = threading.Event()
        running = asyncio.create_task(asyncio.to_thread(consume))
        await send(producer, *numbered(2))
        try:
            await until(lambda: len(seen) == 2)
        finally:
            done.set()
            await running
        assert await committed(name_server, "g") == 2

    scenario(story)
