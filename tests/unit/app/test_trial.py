"""Trials: handlers without a broker, as a program's own unit tests call them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq import App, DeadLetter, ReceivedMessage, SchemaError
from cometmq.app import Avro
from cometmq.errors import ClientClosed, ConfigError, LocalProtocolError, RequestTimeout


@dataclass
class Order:
    """A value of the tests."""

    number: int


def test_values_pass_through_the_wire_format() -> None:
    """The handler gets an equal value, the message's fields, and its tries."""

    async def run() -> None:
        app = App("g")

        @app.consumer("t", tags="a || b")
        async def take(order: Order, message: ReceivedMessage) -> Any:
            await app.send("done", order.number, keys=message.keys)
            return (order, message.tags, message.message_group, message.reconsume_times)

        @app.consumer("t", group="plain")
        def take_plain(order: Order) -> Any:
            app.send_from_thread("plain", order)
            return order.number

        async with app.trial() as trial:
            result = await trial.deliver(
                "t",
                Order(7),
                group="g",
                reconsume_times=2,
                tags="b",
                keys="k",
                message_group="m",
            )
            assert result == (Order(7), "b", "m", 2)
            assert (trial.sent[0].topic, trial.sent[0].body) == ("done", b"7")
            assert tuple(trial.sent[0].keys) == ("k",)
            assert await trial.deliver("t", Order(8), group="plain") == 8
            assert trial.sent[1].body == b'{"number":8}'
            with pytest.raises(ConfigError, match="say which by group=, one of g, plain"):
                await trial.deliver("t", Order(7))
            with pytest.raises(ConfigError, match="consumes the tags a, b of t"):
                await trial.deliver("t", Order(7), group="g")
            with pytest.raises(ConfigError, match="no handler consumes u"):
                await trial.deliver("u", Order(7))
        with pytest.raises(ClientClosed):
            await app.send("done", 1)

    asyncio.run(run())


def test_errors_reach_the_test() -> None:
    """A schema error, a verdict and an exception of the handler; a bad message of a send."""

    async def run() -> None:
        app = App("g")

        @app.consumer("t")
        async def take(order: Order) -> None:
            if order.number == 1:
                raise DeadLetter("no such customer")
            if order.number == 2:
                await app.send("", order)
            raise KeyError(order.number)

        async with app.trial() as trial:
            with pytest.raises(SchemaError, match="no Order"):
                await trial.deliver("t", b"?")
            with pytest.raises(DeadLetter, match="no such customer"):
                await trial.deliver("t", Order(1))
            with pytest.raises(LocalProtocolError):
                await trial.deliver("t", Order(2))
            with pytest.raises(KeyError):
                await trial.deliver("t", Order(3))

    asyncio.run(run())


def test_batches_hooks_middlewares_and_requests() -> None:
    """As in a running App; a request is answered from `replies`."""

    async def run() -> None:
        app = App("g", serializer=Avro({"type": "long"}))
        steps: list[str] = []

        @app.on_startup
        def open_pool() -> None:
            steps.append("open")

        @app.on_shutdown
        async def close_pool() -> None:
            steps.append("close")

        @app.middleware
        async def count(message: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
            steps.append(f"{len(message)} messages")
            return await call_next(message)

        @app.consumer("t", batch=10)
        def take(values: list[int]) -> Any:
            return values

        async with app.trial() as trial:
            assert await trial.deliver("t", [1, 2], serializer=Avro({"type": "long"})) == [1, 2]
            with pytest.raises(ConfigError, match="deliver a list of values"):
                await trial.deliver("t", 1)
            with pytest.raises(RequestTimeout, match="put it into replies"):
                await app.request("price", 1)
            trial.replies["price"] = b"\x0e"
            assert await app.request("price", 1, returns=int) == 7
            assert [message.topic for message in trial.sent] == ["price", "price"]
        assert steps == ["open", "2 messages", "close"]

    asyncio.run(run())
