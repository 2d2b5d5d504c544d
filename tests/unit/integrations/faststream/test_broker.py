"""FastStream's broker over a real cluster: what is published arrives as the options say."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from faststream import AckPolicy, BaseMiddleware, Context
from faststream.exceptions import AckMessage, NackMessage, RejectMessage, SetupError
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from pydantic import BaseModel
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq import PullConsumer, ReceivedMessage, SendStatus
from cometmq.errors import LocalProtocolError, RequestTimeout
from cometmq.integrations.faststream import (
    CometBroker,
    CometMessage,
    CometPublisher,
    CometResponse,
    CometRoute,
    CometRouter,
)
from cometmq.testing.cluster import EmbeddedCluster

WAIT_S = 20


class Order(BaseModel):
    """What the examples send."""

    number: int


def play(
    cluster: EmbeddedCluster,
    story: Callable[[CometBroker], Awaitable[None]],
    **options: Any,
) -> None:
    """Run a story with a broker object; the story starts it when its subscribers are there."""

    async def run() -> None:
        async with (
            asyncio.timeout(WAIT_S),
            CometBroker(cluster.name_server_address, logger=None, **options) as broker,
        ):
            await story(broker)

    asyncio.run(run())


def test_a_handler_gets_a_model_and_its_result_is_published(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """Routers' prefixes, tags, keys, properties and correlation ids go the whole way."""
    admin.create_topic("shop-Orders", queue_count=1)
    admin.create_topic("shop-Bills", queue_count=1)
    bills: asyncio.Queue[tuple[Any, CometMessage]] = asyncio.Queue()
    router = CometRouter("shop-")

    @router.subscriber("Orders", group="billing", consume_from="first")
    @router.publisher("Bills", tag="new")
    async def bill(order: Order, currency: str = Context("message.headers.currency")) -> Any:
        return CometResponse({"number": order.number, "currency": currency}, keys=("k1", "k2"))

    @router.subscriber("Bills", group="printing", tag="old || new", consume_from="first")
    async def show(body: dict[str, Any], message: CometMessage) -> None:
        bills.put_nowait((body, message))

    async def story(broker: CometBroker) -> None:
        broker.include_router(router)
        await broker.start()
        result = await broker.publish(
            Order(number=7), "shop-Orders", headers={"currency": "EUR"}, correlation_id="c-1"
        )
        assert result.status is SendStatus.SEND_OK
        body, message = await bills.get()
        raw = message.raw_message
        assert isinstance(raw, ReceivedMessage)
        assert body == {"number": 7, "currency": "EUR"}
        assert (raw.topic, raw.tags, raw.keys) == ("shop-Bills", "new", ("k1", "k2"))
        assert message.correlation_id == "c-1"

    play(cluster, story)


def test_routes_without_decorators(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """A `CometRoute` takes the decorators' arguments."""
    admin.create_topic("In", queue_count=1)
    admin.create_topic("Out", queue_count=1)
    results: asyncio.Queue[int] = asyncio.Queue()

    async def double(number: int) -> int:
        return 2 * number

    async def collect(number: int) -> None:
        results.put_nowait(number)

    router = CometRouter(
        handlers=(
            CometRoute(
                double,
                "In",
                group="double",
                consume_from="first",
                publishers=[CometPublisher("Out")],
            ),
            CometRoute(collect, "Out", group="collect", consume_from="first"),
        )
    )

    async def story(broker: CometBroker) -> None:
        await broker.start()
        await broker.publish(21, "In")
        assert await results.get() == 42

    play(cluster, story, routers=[router])


@pytest.mark.parametrize(
    "chosen", [{"tag": "red || green"}, {"sql": "TAGS IS NOT NULL AND size > 3"}], ids=str
)
def test_filters(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin, chosen: dict[str, Any]
) -> None:
    """Tags and SQL choose at the broker."""
    topic = f"Filtered-{next(iter(chosen))}"
    admin.create_topic(topic, queue_count=1)
    received: list[str] = []

    async def story(broker: CometBroker) -> None:
        @broker.subscriber(topic, group=topic, consume_from="first", **chosen)
        async def collect(body: str) -> None:
            received.append(body)

        await broker.start()
        for body, tag, size in (("a", "red", 9), ("b", "blue", 1), ("c", "green", 5)):
            await broker.publish(body, topic, tag=tag, headers={"size": str(size)})
        await until(lambda: len(received) == 2)
        assert sorted(received) == ["a", "c"]

    play(cluster, story)


def test_batches(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """A batch is sent as one, arrives as lists, and a batch publisher sends each element."""
    admin.create_topic("Numbers", queue_count=1)
    admin.create_topic("Squares", queue_count=1)
    squares: list[int] = []
    sizes: list[int] = []

    async def story(broker: CometBroker) -> None:
        @broker.subscriber(
            "Numbers", group="square", batch=True, max_records=4, consume_from="first"
        )
        @broker.publisher("Squares", batch=True)
        async def square(numbers: list[int], message: CometMessage) -> list[int]:
            sizes.append(len(numbers))
            assert len(message.batch_headers) == len(numbers)
            return [number * number for number in numbers]

        @broker.subscriber("Squares", group="sum", consume_from="first")
        async def collect(number: int) -> None:
            squares.append(number)

        results = await broker.publish_batch(*range(10), topic="Numbers")
        assert len(results) == 10
        assert len({result.queue_offset for result in results}) == 10
        await broker.start()
        await until(lambda: len(squares) == 10)
        assert sorted(squares) == [number * number for number in range(10)]
        assert max(sizes) <= 4

    play(cluster, story)


def test_request_and_reply(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """A request comes back with the handler's result; without a subscriber it times out."""
    admin.create_topic("Questions", queue_count=1)
    admin.create_topic("Unheard", queue_count=1)

    async def story(broker: CometBroker) -> None:
        @broker.subscriber("Questions", group="answers", consume_from="first")
        async def answer(number: int) -> Any:
            return CometResponse(number + 1, headers={"from": "answers"})

        questions = broker.publisher("Questions")
        await broker.start()
        reply = await broker.request(1, "Questions", timeout=WAIT_S)
        assert await reply.decode() == 2
        assert reply.headers["from"] == "answers"
        assert await (await questions.request(5, timeout=WAIT_S)).decode() == 6
        with pytest.raises(RequestTimeout):
            await broker.request(1, "Unheard", timeout=0.2)

    play(cluster, story)


def test_reply_to_a_topic(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """``reply_to`` names a topic; ``no_reply`` keeps silent."""
    for topic in ("Asked", "Ignored", "Answers"):
        admin.create_topic(topic, queue_count=1)
    answers: asyncio.Queue[str] = asyncio.Queue()

    async def story(broker: CometBroker) -> None:
        @broker.subscriber("Ignored", group="silent", no_reply=True, consume_from="first")
        async def ignore(body: str) -> str:
            return "never"

        @broker.subscriber("Asked", group="polite", consume_from="first")
        async def answer(body: str) -> str:
            return body.upper()

        @broker.subscriber("Answers", group="answered", consume_from="first")
        async def collect(body: str) -> None:
            answers.put_nowait(body)

        await broker.start()
        await broker.publish("hush", "Ignored", reply_to="Answers")
        await broker.publish("hello", "Asked", reply_to="Answers")
        assert await answers.get() == "HELLO"
        assert answers.empty()

    play(cluster, story)


def failing(error: BaseException | None) -> Callable[[CometMessage], Awaitable[None]]:
    """What a handler does on its first call."""

    async def act(message: CometMessage) -> None:
        if error is not None:
            raise error

    return act


async def nack(message: CometMessage) -> None:
    await message.nack(delay_level=1)


async def reject(message: CometMessage) -> None:
    await message.reject("no such customer")


RETRIED = [
    (AckPolicy.NACK_ON_ERROR, failing(ValueError("broken"))),
    (AckPolicy.MANUAL, nack),
    (AckPolicy.MANUAL, failing(None)),
    (AckPolicy.REJECT_ON_ERROR, failing(NackMessage(delay_level=1))),
]
CONSUMED = [
    (AckPolicy.ACK, failing(ValueError("broken"))),
    (AckPolicy.ACK_FIRST, failing(ValueError("broken"))),
    (AckPolicy.NACK_ON_ERROR, failing(AckMessage())),
]
DEAD = [
    (AckPolicy.REJECT_ON_ERROR, failing(ValueError("broken"))),
    (AckPolicy.NACK_ON_ERROR, failing(RejectMessage(reason="why"))),
    (AckPolicy.MANUAL, reject),
]


@pytest.mark.parametrize(
    ("policy", "act", "end"),
    [(*case, "retried") for case in RETRIED]
    + [(*case, "consumed") for case in CONSUMED]
    + [(*case, "dead") for case in DEAD],
)
def test_outcomes(
    cluster: EmbeddedCluster,
    admin: cometmq.sync.Admin,
    policy: AckPolicy,
    act: Callable[[CometMessage], Awaitable[None]],
    end: str,
    request: pytest.FixtureRequest,
) -> None:
    """An acknowledgement consumes, a nack tries again later, a rejection is a dead letter."""
    name = f"Outcome-{request.node.callspec.indices['policy']}"
    admin.create_topic(name, queue_count=1)
    tries: list[tuple[str, int]] = []

    async def story(broker: CometBroker) -> None:
        @broker.subscriber(name, group=name, ack_policy=policy, consume_from="first")
        async def handle(body: str, message: CometMessage) -> None:
            raw = message.raw_message
            assert isinstance(raw, ReceivedMessage)
            tries.append((body, raw.reconsume_times))
            if body == "first" and raw.reconsume_times == 0:
                await act(message)
            elif policy is AckPolicy.MANUAL:
                await message.ack()

        await broker.start()
        await broker.publish("first", name)
        await until(lambda: tries)
        if end == "retried":
            await until(lambda: len(tries) == 2)
        await broker.publish("second", name)
        await until(lambda: tries[-1][0] == "second")

    play(cluster, story)
    again = [("first", 1)] if end == "retried" else []
    assert tries == [("first", 0), *again, ("second", 0)]
    assert dead_letters(cluster, name) == (["first"] if end == "dead" else [])


def dead_letters(cluster: EmbeddedCluster, group: str) -> list[str]:
    """The bodies in a group's dead letters, after its consumer has stopped."""

    async def read() -> list[str]:
        address = cluster.name_server_address
        async with cometmq.Admin(name_server=address) as admin:
            topics = await admin.topic_list(include_system=True)
            topic = f"%DLQ%{group}"
            if topic not in topics:
                return []
            count = sum(
                offsets.max_offset for offsets in (await admin.topic_offsets(topic)).values()
            )
        async with PullConsumer(f"look-{group}", name_server=address) as consumer:
            queues = await consumer.fetch_queues(topic)
            await consumer.assign(queues)
            for queue in queues:
                await consumer.seek_to_begin(queue)
            bodies: list[str] = []
            while len(bodies) < count:
                bodies += [each.body.decode() for each in await consumer.poll()]
            return bodies

    return asyncio.run(read())


def test_an_acknowledgement_after_the_handler_is_an_error(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """It could no longer have an effect."""
    admin.create_topic("Late", queue_count=1)
    late: asyncio.Queue[CometMessage] = asyncio.Queue()

    async def story(broker: CometBroker) -> None:
        @broker.subscriber("Late", group="late", ack_policy=AckPolicy.MANUAL, consume_from="first")
        async def keep(message: CometMessage) -> None:
            late.put_nowait(message)

        await broker.start()
        await broker.publish("x", "Late")
        message = await late.get()
        await asyncio.sleep(0)  # the handler returns in this turn of the loop
        with pytest.raises(Exception, match="ACKED comes after the handler has returned"):
            await message.ack()

    play(cluster, story)


def test_ordered_messages_stay_in_order(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """A message that fails is tried again before the next one of its queue."""
    admin.create_topic("Steps", queue_count=1)
    seen: list[int] = []

    async def story(broker: CometBroker) -> None:
        @broker.subscriber(
            "Steps", group="steps", ordered=True, suspend_ms=10, consume_from="first"
        )
        async def step(number: int) -> None:
            seen.append(number)
            if seen.count(number) == 1 and number == 1:
                raise ValueError("once more")

        for number in range(4):
            await broker.publish(number, "Steps", message_group="g")
        await broker.start()
        await until(lambda: seen[-1:] == [3])
        assert seen == [0, 1, 1, 2, 3]

    play(cluster, story)


def test_broadcast_and_delay(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin, tmp_path: Any
) -> None:
    """Each broadcasting subscriber gets a delayed message, and not before its time."""
    admin.create_topic("News", queue_count=1)
    seen: list[tuple[str, bool]] = []

    async def story(broker: CometBroker) -> None:
        for name in ("left", "right"):

            async def hear(body: str, message: CometMessage, name: str = name) -> None:
                raw = message.raw_message
                assert isinstance(raw, ReceivedMessage)
                seen.append((name, raw.store_timestamp_ms - raw.born_timestamp_ms >= 200))

            subscriber = broker.subscriber(
                "News",
                group=f"news-{name}",
                broadcast=True,
                offset_folder=str(tmp_path / name),
                consume_from="first",
            )
            subscriber(hear)
        await broker.start()
        await broker.publish("x", "News", delay_ms=200)
        await until(lambda: len(seen) == 2)
        assert sorted(seen) == [("left", True), ("right", True)]

    play(cluster, story)


def test_middlewares_see_both_directions(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """A middleware changes what is published and sees what is consumed."""
    admin.create_topic("Watched", queue_count=1)
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    class Stamp(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["stamp"] = "yes"
            return await call_next(cmd)

        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.put_nowait(("before", msg.headers["stamp"]))
            return await call_next(msg)

    async def story(broker: CometBroker) -> None:
        @broker.subscriber("Watched", group="watched", consume_from="first")
        async def handle(body: str) -> None:
            seen.put_nowait(("handler", body))

        await broker.start()
        await broker.publish("x", "Watched")
        assert [await seen.get(), await seen.get()] == [("before", "yes"), ("handler", "x")]

    play(cluster, story, middlewares=[Stamp])


def test_own_parser_and_decoder(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """They get the client's message and FastStream's, and may call the default ones."""
    admin.create_topic("Reversed", queue_count=1)
    seen: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def parse(raw: ReceivedMessage, original: Any) -> Any:
        message = await original(raw)
        message.headers["queue"] = str(raw.queue_id)
        return message

    async def decode(message: Any) -> str:
        return str(message.body.decode()[::-1])

    async def story(broker: CometBroker) -> None:
        @broker.subscriber(
            "Reversed", group="reversed", parser=parse, decoder=decode, consume_from="first"
        )
        async def handle(body: str, message: CometMessage) -> None:
            seen.put_nowait((body, message.headers["queue"]))

        await broker.start()
        await broker.publish("abc", "Reversed")
        assert await seen.get() == ("cba", "0")

    play(cluster, story)


@pytest.mark.parametrize("body", [None, "", "text", b"\x00\xff", {"a": [1]}, [1, 2], 3.5], ids=repr)
def test_bodies_come_back(
    cluster: EmbeddedCluster, admin: cometmq.sync.Admin, body: Any, request: pytest.FixtureRequest
) -> None:
    """What is published is what the handler gets; None and "" are messages too."""
    name = f"Body-{request.node.callspec.indices['body']}"
    admin.create_topic(name, queue_count=1)

    async def story(broker: CometBroker) -> None:
        subscriber = broker.subscriber(name, group=name, consume_from="first")
        await broker.start()
        await broker.publish(body, name)
        message = await subscriber.get_one(timeout=WAIT_S)
        assert message is not None
        assert await message.decode() == body
        assert await subscriber.get_one(timeout=0.05) is None

    play(cluster, story)


def test_iterating_without_a_handler(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """A subscriber without a handler is an asynchronous iterator."""
    admin.create_topic("Iterated", queue_count=1)

    async def story(broker: CometBroker) -> None:
        subscriber = broker.subscriber("Iterated", group="iterated", consume_from="first")
        await broker.start()
        await broker.publish_batch("a", "b", topic="Iterated")
        bodies = []
        async for message in subscriber:
            bodies.append(await message.decode())
            if len(bodies) == 2:
                break
        assert bodies == ["a", "b"]

    play(cluster, story)


def test_mistakes_are_named(cluster: EmbeddedCluster) -> None:
    """The text says what is wrong before a message is lost."""

    async def story(broker: CometBroker) -> None:
        with pytest.raises(SetupError, match="at least one topic"):
            broker.subscriber(group="g")
        with pytest.raises(SetupError, match="tag='a' and sql="):
            broker.subscriber("T", group="g", tag="a", sql="b > 1")
        with pytest.raises(SetupError, match="max_records=3 is for batch=True"):
            broker.subscriber("T", group="g", max_records=3)
        with pytest.raises(TypeError, match="no message"):
            await broker.publish_batch(topic="T")
        with pytest.raises(TypeError, match="batch=True"):
            await broker.publisher("T").publish(1, 2)
        with pytest.raises(LocalProtocolError, match="belong to RocketMQ"):
            await broker.publish("x", "T", headers={"KEYS": "a"})

        @broker.subscriber("T1", group="shared")
        async def first(body: str) -> None: ...

        @broker.subscriber("T2", group="shared")
        async def second(body: str) -> None: ...

        with pytest.raises(SetupError, match=r"group shared differ: T1 .* and T2"):
            await broker.start()

    play(cluster, story)


def test_security_objects() -> None:
    """FastStream's objects become the client's keys and TLS; others are refused."""
    broker = CometBroker("h:1", security=SASLPlaintext("key", "secret", use_ssl=True))
    options = broker.config.broker_config.client_options
    assert (options["access_key"], options["secret_key"], options["tls"]) == ("key", "secret", True)
    plain = CometBroker("h:1", security=BaseSecurity(use_ssl=True))
    assert plain.config.broker_config.client_options["tls"] is True
    with pytest.raises(SetupError, match="SASLScram256"):
        CometBroker("h:1", security=SASLScram256("key", "secret"))
    with pytest.raises(SetupError, match="both name the keys"):
        CometBroker("h:1", access_key="a", secret_key="b", security=BaseSecurity())


def test_ping(cluster: EmbeddedCluster) -> None:
    """True for a cluster that answers, False for a port that nobody serves."""

    async def run() -> None:
        assert await CometBroker(cluster.name_server_address).ping()
        assert not await CometBroker("127.0.0.1:1").ping(timeout=1.0)

    asyncio.run(run())


def test_json_is_plain(cluster: EmbeddedCluster, admin: cometmq.sync.Admin) -> None:
    """Any client reads the body: the content type travels as a property."""
    admin.create_topic("Plain", queue_count=1)

    async def story(broker: CometBroker) -> None:
        await broker.publish(Order(number=1), "Plain")
        async with PullConsumer(
            "plain", {"Plain": "*"}, name_server=cluster.name_server_address, consume_from="first"
        ) as consumer:
            (message,) = await consumer.poll()
        assert json.loads(message.body) == {"number": 1}
        assert message.properties["content-type"] == "application/json"

    play(cluster, story)
