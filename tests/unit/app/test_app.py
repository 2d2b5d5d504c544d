"""The App against the real broker: values, results, hooks, middlewares and statistics."""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.unit.app.stage import scenario
from tests.unit.client.waiting import until

from cometmq import (
    App,
    Message,
    Producer,
    PullConsumer,
    ReceivedMessage,
    RetryLater,
)
from cometmq.app import HandlerStats
from cometmq.errors import ClientClosed, ConfigError


@dataclass
class Order:
    """A value of the tests."""

    number: int
    customer: str = "nobody"


def test_async_and_plain_handlers_get_values() -> None:
    """One App serves both; a value travels as JSON with its content type."""

    async def story(app: App, producer: Producer) -> None:
        values: list[Any] = []
        threads: set[bool] = set()

        @app.consumer("t", consume_from="first")
        async def take(order: Order, message: ReceivedMessage) -> None:
            values.append((order, message.properties["content-type"], message.keys))

        @app.consumer("t", group="threads", consume_from="first")
        def take_plain(order: Order) -> None:
            threads.add(threading.current_thread() is threading.main_thread())
            values.append(order)

        async with app:
            await app.send("t", Order(7, "ann"), keys="order-7")
            await until(lambda: len(values) == 2)
        assert (Order(7, "ann"), "application/json", ("order-7",)) in values
        assert Order(7, "ann") in values
        assert threads == {False}

    scenario(story)


def test_a_bad_body_is_a_dead_letter_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """With the reason as its property, without 16 tries, counted and logged."""

    async def story(app: App, producer: Producer) -> None:
        numbers: list[int] = []

        @app.consumer("t", consume_from="first")
        async def take(order: Order) -> None:
            numbers.append(order.number)

        async with app:
            await producer.send(Message("t", b'{"number": "seven"}', properties={"trace": "x"}))
            await app.send("t", Order(8))
            await until(lambda: app.stats()[0].messages == 2)
        stats = app.stats()[0]
        assert numbers == [8]
        assert (stats.schema_errors, stats.dead_letters, stats.failures) == (1, 1, 0)
        name_server = producer.core.options.name_servers.addresses
        async with PullConsumer(
            "reader", {"%DLQ%g": "*"}, name_server=name_server, consume_from="first"
        ) as reader:
            (dead,) = await reader.poll(10_000)
        assert dead.body == b'{"number": "seven"}'
        assert dead.properties["error"] == (
            "SchemaError: a body of 19 bytes is no Order: ValidationError: "
            "Expected `int`, got `str` - at `$.number`"
        )
        assert dead.properties["trace"] == "x"
        assert (dead.properties["RETRY_TOPIC"], dead.reconsume_times) == ("t", 1)

    with caplog.at_level(logging.WARNING, "cometmq"):
        scenario(story)
    assert "Expected `int`, got `str`" in caplog.text


def test_an_ordered_handler_buries_a_bad_body_with_its_reason() -> None:
    """The later messages of its message group continue."""

    async def story(app: App, producer: Producer) -> None:
        numbers: list[int] = []

        @app.consumer("t", order="group", consume_from="first")
        async def take(order: Order) -> None:
            numbers.append(order.number)

        for body in (b'{"number": 1}', b"{", b'{"number": 2}'):
            await producer.send(Message("t", body, message_group="a"))
        async with app:
            await until(lambda: numbers == [1, 2])
        name_server = producer.core.options.name_servers.addresses
        async with PullConsumer(
            "reader", {"%DLQ%g": "*"}, name_server=name_server, consume_from="first"
        ) as reader:
            (dead,) = await reader.poll(10_000)
        assert dead.body == b"{"
        assert dead.properties["error"].startswith("SchemaError: a body of 1 bytes is no Order")

    scenario(story)


@pytest.mark.parametrize("is_plain", [False, True])
def test_what_a_handler_returns_is_sent(is_plain: bool, caplog: pytest.LogCaptureFixture) -> None:
    """By a producer below the consumer; None sends nothing and the message counts as done."""

    async def story(app: App, producer: Producer) -> None:
        bills: list[tuple[dict[str, int], str | None]] = []

        if is_plain:

            @app.consumer("t", consume_from="first")
            @app.producer("bills", tags="new")
            def bill(order: Order) -> dict[str, int] | None:
                return {"bill": order.number} if order.number else None
        else:

            @app.consumer("t", consume_from="first")
            @app.producer("bills", tags="new")
            async def bill(order: Order) -> dict[str, int] | None:
                return {"bill": order.number} if order.number else None

        @app.consumer("bills", group="books", tags="new", consume_from="first")
        async def book(value: dict[str, int], message: ReceivedMessage) -> None:
            bills.append((value, message.tags))

        async with app:
            await app.send("t", Order(0))
            await app.send("t", Order(3))
            await until(lambda: bills and app.stats()[0].messages == 2)
        assert bills == [({"bill": 3}, "new")]
        assert [one.failures for one in app.stats()] == [0, 0]

    scenario(story)
    assert "has no meaning" not in caplog.text


@pytest.mark.parametrize("is_plain", [False, True])
def test_request_and_reply(is_plain: bool) -> None:
    """The handler's result is the reply, of the type that the requester asks for."""

    async def story(app: App, producer: Producer) -> None:
        if is_plain:

            @app.consumer("t", reply=True, consume_from="first")
            def price(order: Order) -> Order:
                return Order(order.number * 2, "priced")
        else:

            @app.consumer("t", reply=True, consume_from="first")
            async def price(order: Order) -> Order:
                return Order(order.number * 2, "priced")

        async with app:
            answer = await app.request("t", Order(4), returns=Order, timeout_ms=20_000)
            assert answer == Order(8, "priced")
            # One who did not ask gets no reply, and his message does not come again.
            await app.send("t", Order(5))
            await until(lambda: app.stats()[0].messages == 2)
        assert app.stats()[0].failures == 0

    scenario(story)


def test_a_failed_message_comes_again_after_the_handlers_delay() -> None:
    """``retry_delay_level`` stands for an exception's back-off."""

    async def story(app: App, producer: Producer) -> None:
        tries: list[int] = []

        @app.consumer("t", retry_delay_level=1, consume_from="first")
        async def take(order: Order, message: ReceivedMessage) -> None:
            tries.append(message.reconsume_times)
            if not message.reconsume_times:
                raise RuntimeError("on purpose")

        async with app:
            await app.send("t", Order(1))
            await until(lambda: app.stats()[0].messages == 2)
        stats = app.stats()[0]
        assert tries == [0, 1]
        assert (stats.failures, stats.retries, stats.in_work, stats.lag) == (1, 1, 0, 0)
        assert 0 < stats.latency_p50_ms <= stats.latency_p99_ms <= stats.latency_max_ms

    scenario(story)


@pytest.mark.parametrize("is_plain", [False, True])
def test_batches(is_plain: bool) -> None:
    """A list of values per call; a bad body fails alone, and verdicts go to their messages."""

    async def story(app: App, producer: Producer) -> None:
        numbers: list[int] = []

        def judge(orders: list[Order], messages: list[ReceivedMessage]) -> list[Any]:
            assert len(orders) == len(messages)
            numbers.extend(order.number for order in orders)
            return [RetryLater(9) if order.number == 2 else None for order in orders]

        async def judge_async(orders: list[Order], messages: list[ReceivedMessage]) -> list[Any]:
            return judge(orders, messages)

        app.consumer("t", batch=8, consume_from="first")(judge if is_plain else judge_async)
        bodies = [b'{"number": %d}' % number for number in range(6)]
        await producer.send_batch([Message("t", body) for body in [*bodies, b"?"]])
        async with app:
            await until(lambda: app.stats()[0].messages == 7)
        stats = app.stats()[0]
        assert sorted(numbers) == [0, 1, 2, 3, 4, 5]
        assert (stats.failures, stats.dead_letters, stats.schema_errors) == (1, 1, 1)

    scenario(story)


def test_hooks_and_middlewares_run_in_their_order() -> None:
    """Hooks may send; a middleware sees each message, and plain handlers see its context."""
    steps: list[str] = []

    async def story(app: App, producer: Producer) -> None:
        done = asyncio.Event()

        @app.on_startup
        async def open_pool() -> None:
            await app.send("t", Order(1))
            steps.append("open")

        @app.on_startup
        def warm_up() -> None:
            app.send_from_thread("t", Order(2))
            steps.append("warm")

        @app.on_shutdown
        async def close_pool() -> None:
            await app.send("t", Order(3))
            steps.append("close")

        @app.middleware
        async def outer(message: Any, call_next: Callable[[Any], Any]) -> Any:
            steps.append("outer")
            result = await call_next(message)
            steps.append("after")
            return result

        @app.middleware
        async def inner(message: Any, call_next: Callable[[Any], Any]) -> Any:
            steps.append("inner")
            return await call_next(message)

        @app.consumer("t", consume_from="first", concurrency=1)
        def take(order: Order) -> None:
            steps.append(f"order {order.number}")
            app.send_from_thread("other", order)

        async with app:
            await until(lambda: app.stats()[0].messages == 2)
            done.set()

    scenario(story)
    assert steps[:2] == ["open", "warm"]
    assert steps[-1] == "close"
    assert sorted(step for step in steps if step.startswith("order")) == ["order 1", "order 2"]
    begin = steps.index("outer")
    assert steps[begin : begin + 2] == ["outer", "inner"]
    assert steps.count("after") == 2


def test_an_app_starts_again() -> None:
    """Its clients are new ones, as for a server that reloads."""

    async def story(app: App, producer: Producer) -> None:
        numbers: list[int] = []

        @app.consumer("t", consume_from="first")
        async def take(order: Order) -> None:
            numbers.append(order.number)

        for number in range(2):
            async with app:
                await app.send("t", Order(number))
                await until(lambda: len(numbers) == number + 1)  # noqa: B023
            with pytest.raises(ClientClosed, match="does not run"):
                await app.send("t", Order(9))
        assert numbers == [0, 1]

    scenario(story)


def test_a_start_that_fails_closes_what_was_open() -> None:
    """The hooks of the end run too, and the App may start again."""

    async def story(app: App, producer: Producer) -> None:
        steps: list[str] = []

        @app.on_shutdown
        async def close_pool() -> None:
            steps.append("close")

        @app.on_startup
        async def fail() -> None:
            steps.append("fail")
            if len(steps) == 1:
                raise RuntimeError("no database")

        with pytest.raises(RuntimeError, match="no database"):
            await app.start()
        assert steps == ["fail", "close"]
        async with app:
            await app.send("t", Order(1))

    scenario(story)


def test_statistics_are_reported() -> None:
    """The callback gets them while the App runs; its own fault ends nothing."""

    async def story(app: App, producer: Producer) -> None:
        reports: list[list[HandlerStats]] = []

        async def report(stats: list[HandlerStats]) -> None:
            reports.append(stats)
            if len(reports) == 1:
                raise RuntimeError("the first report fails")

        told = App("g", name_server=app._name_server, on_stats=report, stats_interval_ms=1)

        @told.consumer("t", consume_from="first")
        async def take(body: bytes) -> None:
            pass

        async with told:
            await told.send("t", b"one")
            await until(lambda: reports and reports[-1][0].messages == 1)
        assert (reports[-1][0].group, reports[-1][0].topic) == ("g", "t")
        assert "take" in reports[-1][0].name

    scenario(story)


def test_handlers_of_a_group_share_a_consumer() -> None:
    """Two topics of one group: each message reaches the handler of its topic, retries too."""

    async def story(app: App, producer: Producer) -> None:
        seen: list[str] = []

        @app.consumer("t", consume_from="first", max_reconsume_times=3)
        async def take(body: str, message: ReceivedMessage) -> None:
            seen.append(f"t {body}")
            if not message.reconsume_times:
                raise RetryLater(1)

        @app.consumer("u", consume_from="first", max_reconsume_times=3)
        async def take_other(body: str) -> None:
            seen.append(f"u {body}")

        async with app:
            assert list(app._consumers) == ["g"]
            await app.send("t", "one")
            await app.send("u", "two")
            await until(lambda: len(seen) == 3)
        assert sorted(seen) == ["t one", "t one", "u two"]

    scenario(story)


class Point(msgspec.Struct):
    """A value of a refused handler."""

    x: int


def refused(**options: Any) -> str:
    """The error's text for a handler of a topic with these options."""
    app = App("g")
    with pytest.raises(ConfigError) as error:

        @app.consumer("t", **options)
        async def take(order: Order) -> None:
            pass

    return str(error.value)


def test_wrong_registrations_are_refused_where_they_stand() -> None:
    """Before the start, each with its remedy."""
    assert "order is 'any'" in refused(order="any")
    assert "tags and sql" in refused(tags="a", sql="a > 1")
    assert "annotate order as a list" in refused(batch=3)
    with pytest.raises(ConfigError, match="has no group; pass group="):
        App().consumer("t")
    app = App("g")

    @app.consumer("t")
    async def first(order: Order) -> None:
        pass

    with pytest.raises(ConfigError, match="two handlers for t"):
        app.consumer("t")(first)
    with pytest.raises(ConfigError, match="have different options"):
        app.consumer("u", concurrency=2)(first)
    with pytest.raises(ConfigError, match="takes the value, the ReceivedMessage, or both"):

        @app.consumer("v")
        async def third(a: int, b: int, c: int) -> None:
            pass

    with pytest.raises(ConfigError, match="two parameters of one kind"):

        @app.consumer("v")
        async def both(a: Point, b: Point) -> None:
            pass

    with pytest.raises(ConfigError, match="cannot be resolved"):

        @app.consumer("v")
        async def unresolved(a: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
            pass

    with pytest.raises(ConfigError, match="must be an async function"):

        @app.middleware  # type: ignore[arg-type]
        def plain(message: Any, call_next: Any) -> None:
            pass
