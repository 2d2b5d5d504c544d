"""The asyncio producer against a scripted broker: retries, batches, faults, life."""

import asyncio
import gc
import socket
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker

import cometmq.sync
from cometmq.client.producer.producer import Producer
from cometmq.errors import (
    BrokerBusy,
    ClientClosed,
    ClientError,
    ConfigError,
    ConnectFailed,
    LocalProtocolError,
    MessageRefused,
    NoPermission,
    NoRoute,
    RequestTimeout,
    SendFailed,
)
from cometmq.model import BrokerData, Message, MessageQueue, QueueData, SendStatus
from cometmq.net.server import ServerConnection
from cometmq.wire.command.command import RemotingCommand

Story = Callable[[FakeBroker, Producer], Awaitable[None]]


def scenario(
    story: Story, *, topics: dict[str, int] | None = None, **options: object
) -> FakeBroker:
    """Run a story with a fake broker and a started producer."""

    async def run() -> FakeBroker:
        broker = FakeBroker({"t": 4} if topics is None else topics)
        await broker.start()
        try:
            producer = Producer("pg", name_server=broker.name_server, **options)  # type: ignore[arg-type]
            async with producer:
                await story(broker, producer)
        finally:
            await broker.stop()
        return broker

    return asyncio.run(run())


def refusing(code: int, times: int = 10**9) -> Callable[..., RemotingCommand | None]:
    """An override that answers ``code`` for the first ``times`` requests."""
    left = [times]

    def override(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand | None:
        left[0] -= 1
        if left[0] < 0:
            broker: FakeBroker = override.broker  # type: ignore[attr-defined]
            return broker.ordinary(command, connection)
        return command.answer(code, "told to", {})

    return override


def test_a_send_returns_where_the_message_is() -> None:
    """Round robin over the queues, offsets from the broker."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        results = [await producer.send(Message("t", b"%d" % number)) for number in range(8)]
        assert {r.message_queue.queue_id for r in results} == {0, 1, 2, 3}
        assert sorted(r.queue_offset or 0 for r in results) == [0] * 4 + [1] * 4
        assert len({r.message_id for r in results}) == 8

    broker = scenario(story)
    assert broker.codes().count(105) == 1
    assert broker.heartbeats[0].producer_groups == ("CLIENT_INNER_PRODUCER", "pg")
    assert broker.codes().count(35) == 2


def test_concurrent_first_sends_share_one_look_up() -> None:
    """A hundred sends to a new topic ask the name server once."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await asyncio.gather(*[producer.send(Message("t", b"x")) for _ in range(100)])

    assert scenario(story).codes().count(105) == 1


def test_a_message_group_of_one_send_does_not_group_the_next() -> None:
    """No kind of send changes the caller's message: sent again, it is not grouped."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        message = Message("t", b"x", tags="new", keys=("k",), properties={"a": "b"})
        before = replace(message)
        grouped = [await producer.send(message, message_group="g") for _ in range(4)]
        assert len({result.message_queue for result in grouped}) == 1
        await producer.send_nowait(message, message_group="g")
        await producer.send_oneway(message, message_group="g")
        assert message == before
        free = [await producer.send(message) for _ in range(4)]
        assert {result.message_queue.queue_id for result in free} == {0, 1, 2, 3}
        await producer.send_batch([message, message])
        assert message == before

    scenario(story)


def test_a_message_group_for_what_is_no_message_is_refused_in_words() -> None:
    """The copy that carries the group is made of messages only."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        with pytest.raises(LocalProtocolError, match="is no Message"):
            await producer.send(b"x", message_group="g")  # type: ignore[arg-type]

    scenario(story)


def test_unknown_topics_go_through_the_template() -> None:
    """17, then TBW102's route with four queues; the second send knows the new topic."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        queues = await producer.fetch_publish_queues("fresh")
        assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
        await producer.send(Message("fresh", b"1"))
        await producer.send(Message("fresh", b"2"))

    broker = scenario(story, topics={"TBW102": 8})
    asked = [c.ext_fields["topic"] for c in broker.seen if c.code == 105]
    assert asked == ["fresh", "TBW102", "fresh", "TBW102", "fresh"]


def test_no_route_says_what_to_do() -> None:
    """Neither topic nor template: the text names topic, name server and the next step."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        with pytest.raises(NoRoute, match=r"nowhere.*cometmq topic create nowhere"):
            await producer.send(Message("nowhere", b"x"))

    scenario(story, topics={})


def test_topics_without_writable_queue_are_refused() -> None:
    """The text says why: permission or master."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        with pytest.raises(NoRoute, match="write permission"):
            await producer.send(Message("t", b"x"))

    scenario(story, topics={"t": 0})


def test_busy_is_retried_and_others_are_not() -> None:
    """2 is worth another try, 13 and a plain refusal are not."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        busy = refusing(2, times=1)
        busy.broker = broker  # type: ignore[attr-defined]
        broker.override[310] = busy
        assert (await producer.send(Message("t", b"x"))).status is SendStatus.SEND_OK
        broker.override[310] = refusing(13)
        before = broker.codes().count(310)
        with pytest.raises(MessageRefused, match="told to"):
            await producer.send(Message("t", b"x"))
        assert broker.codes().count(310) == before + 1

    assert scenario(story).codes().count(310) == 3


def test_when_all_tries_fail_the_error_lists_them() -> None:
    """It names every cause and keeps the last as its own; causes of two types give SendFailed."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        broker.override[310] = refusing(16)
        with pytest.raises(
            NoPermission, match="3 tries to send to t failed for the same reason: told"
        ):
            await producer.send(Message("t", b"x"))
        codes = iter([1, 16, 16])
        broker.override[310] = lambda command, _: command.answer(next(codes), "told to")
        with pytest.raises(SendFailed, match="3 tries to send to t failed: SYSTEM_ERROR") as caught:
            await producer.send(Message("t", b"x"))
        assert isinstance(caught.value.__cause__, NoPermission)

    assert scenario(story).codes().count(310) == 6


@pytest.mark.parametrize("retries", [0, 2, None])
@pytest.mark.parametrize("face", ["asyncio", "synchronous"])
@pytest.mark.parametrize("way", ["plain", "group", "batch", "oneway", "nowait"])
def test_a_wrong_name_server_is_a_failed_connection(
    retries: int | None, face: str, way: str
) -> None:
    """A send to a wrong name server gave ConnectFailed by default.

    With timeout_ms=500 the synchronous face gave SendFailed ("7 tries").
    """
    message = Message("t", b"x", message_group="g" if way == "group" else None)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        options: dict[str, Any] = {
            "name_server": f"127.0.0.1:{closed.getsockname()[1]}",
            "retries": retries,
            "timeout_ms": 500,
        }

        async def use() -> None:
            async with Producer("pg", **options) as producer:
                if way == "batch":
                    await producer.send_batch([message])
                elif way == "oneway":
                    await producer.send_oneway(message)
                elif way == "nowait":
                    await producer.send_nowait(message)
                else:
                    await producer.send(message)

        def use_in_this_thread() -> None:
            with cometmq.sync.Producer("pg", **options) as producer:
                if way == "batch":
                    producer.send_batch([message])
                elif way == "oneway":
                    producer.send_oneway(message)
                elif way == "nowait":
                    producer.send_nowait(message).result()
                else:
                    producer.send(message)

        with pytest.raises(ConnectFailed, match="no name server answered"):
            if face == "asyncio":
                asyncio.run(use())
            else:
                use_in_this_thread()


@pytest.mark.parametrize("group", [None, "g"])
def test_a_synchronous_send_to_a_silent_name_server_takes_no_longer_than_asked(
    group: str | None,
) -> None:
    """A look-up ends with the send's time, and not with the 3 s of a request of its own."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # connections are made, and nobody reads from them
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            cometmq.sync.Producer("pg", name_server=address, timeout_ms=200) as producer,
            pytest.raises(RequestTimeout, match=r"within the \d+ ms that were left"),
        ):
            producer.send(Message("t", b"x", message_group=group))


def test_a_fixed_queue_is_kept_in_all_tries() -> None:
    """queue=, selector= and message_group= keep their queue while its broker is busy."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await producer.send(Message("t", b"x"))
        fixed = MessageQueue("t", "broker-a", 1)
        for options, queue_id in (
            ({"queue": fixed}, 1),
            ({"selector": lambda queues, message: queues[2]}, 2),
            ({"message_group": "TagA"}, 3),
        ):
            busy = refusing(2, times=2)
            busy.broker = broker  # type: ignore[attr-defined]
            broker.override[310] = busy
            result = await producer.send(Message("t", b"x"), **options)  # type: ignore[arg-type]
            assert result.message_queue.queue_id == queue_id
            broker.override[310] = refusing(2)
            with pytest.raises(BrokerBusy):
                await producer.send(Message("t", b"x"), timeout_ms=15, **options)  # type: ignore[arg-type]

    assert scenario(story).codes().count(310) == 1 + 3 * (3 + 1)


def test_message_groups_and_selectors_choose_the_queue() -> None:
    """One group, one queue, also on the very first send; a wrong selector fails its own send."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        group = Message("t", b"x", message_group="TagA")
        first = await producer.send(group)
        again = await producer.send(Message("t", b"y"), message_group="TagA")
        assert first.message_queue == again.message_queue == MessageQueue("t", "broker-a", 3)
        chosen = await producer.send(Message("t", b"z"), selector=lambda queues, _: queues[2])
        assert chosen.message_queue.queue_id == 2
        with pytest.raises(ConfigError, match="not among the 4 queues"):
            await producer.send(
                Message("t", b"z"), selector=lambda *_: MessageQueue("t", "elsewhere", 0)
            )
        with pytest.raises(ZeroDivisionError):
            await producer.send(Message("t", b"z"), selector=lambda *_: 1 // 0)  # type: ignore[arg-type,return-value]

    scenario(story)


def test_another_broker_takes_over() -> None:
    """A broker that refuses or is gone is left for the other one within the same send."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        other = FakeBroker({}, name="broker-b")
        await other.start()
        broker.extra_brokers.append(BrokerData("c", "broker-b", {0: other.address}))
        broker.extra_queues["t"] = [QueueData("broker-b", 4, 4, 6)]
        results = [await producer.send(Message("t", b"x")) for _ in range(8)]
        assert {r.message_queue.broker_name for r in results} == {"broker-a", "broker-b"}
        broker.override[310] = refusing(14)
        after = [await producer.send(Message("t", b"x")) for _ in range(8)]
        assert {r.message_queue.broker_name for r in after} == {"broker-b"}
        del broker.override[310]
        await other.stop()
        later = [await producer.send(Message("t", b"x")) for _ in range(8)]
        assert {r.message_queue.broker_name for r in later} == {"broker-a"}

    scenario(story)


def test_silence_is_a_timeout() -> None:
    """No answer within the timeout: RequestTimeout, and the producer goes on."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        broker.override[310] = lambda command, connection: None
        with pytest.raises(RequestTimeout):
            await producer.send(Message("t", b"x"), timeout_ms=200)
        del broker.override[310]
        assert (await producer.send(Message("t", b"x"))).status is SendStatus.SEND_OK

    scenario(story)


def test_a_lost_connection_is_made_again() -> None:
    """The broker cuts the connection in the middle of a send; the next try gets through."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await producer.send(Message("t", b"x"))

        def cut(command: RemotingCommand, connection: ServerConnection) -> None:
            del broker.override[310]
            connection.abort("the test says so")

        broker.override[310] = cut
        assert (await producer.send(Message("t", b"y"))).status is SendStatus.SEND_OK
        assert len(broker.heartbeats) == 2

    scenario(story)


def test_a_broker_that_moved_is_found() -> None:
    """Back under another address: the next try of the same send gets there."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await producer.send(Message("t", b"x"))
        await broker.stop()
        broker.port = 0
        await broker.start()
        assert (await producer.send(Message("t", b"y"))).status is SendStatus.SEND_OK

    scenario(story)


def test_nobody_listens() -> None:
    """A dead name server is named, with what to check."""

    async def run() -> None:
        broker = FakeBroker({})
        await broker.start()
        address = broker.name_server
        await broker.stop()
        async with Producer("pg", name_server=address, timeout_ms=200) as producer:
            with pytest.raises(ConnectFailed, match=f"{address}.*check the addresses"):
                await producer.send(Message("t", b"x"))

    asyncio.run(run())


def test_a_failed_send_is_forgotten() -> None:
    """The error that its caller has dropped is freed, and with it the message and its future."""
    errors: list[weakref.ref[BaseException]] = []

    async def run() -> None:
        async with Producer("pg", name_server="127.0.0.1:1", timeout_ms=500) as producer:
            for _ in range(3):
                with pytest.raises(ConnectFailed) as caught:
                    await producer.send(Message("t", b"x"))
                errors.append(weakref.ref(caught.value))

    asyncio.run(run())
    gc.collect()
    assert [error() for error in errors] == [None, None, None]


def test_the_second_name_server_answers() -> None:
    """A client with two name servers survives the loss of one."""

    async def run() -> None:
        dead, alive = FakeBroker({}), FakeBroker({"t": 1})
        await dead.start()
        await alive.start()
        both = f"{dead.name_server};{alive.name_server}"
        await dead.stop()
        async with Producer("pg", name_server=both) as producer:
            assert (await producer.send(Message("t", b"x"))).queue_offset == 0
        await alive.stop()

    asyncio.run(run())


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_without_flush_is_a_status(code: int) -> None:
    """The message may well be there, so it is a value; another try is asked for explicitly."""

    def stored(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
        ext = {"msgId": "A", "queueId": "0", "queueOffset": "0"}
        return command.answer(code, "flush", ext)

    async def story(broker: FakeBroker, producer: Producer) -> None:
        broker.override[310] = stored
        assert (await producer.send(Message("t", b"x"))).status is SendStatus(code)

    assert scenario(story).codes().count(310) == 1
    assert scenario(story, retry_when_not_ok=True).codes().count(310) == 3


def test_oneway_asks_for_no_answer() -> None:
    """Flag 2, and the message arrives all the same; a message group's answer says where it is."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await producer.send_oneway(Message("t", b"x"))
        await producer.send_oneway(Message("t", b"z"), message_group="g")
        await producer.send(Message("t", b"y"))
        await producer.flush()

    broker = scenario(story)
    assert sorted(c.flag for c in broker.seen if c.code == 310) == [0, 0, 2]


def test_batches_are_split_by_size() -> None:
    """Requests stay under the limit; results keep the order of the messages."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        messages = [Message("t", b"%03d" % number * 100) for number in range(10)]
        results = await producer.send_batch(messages)
        assert len({r.message_id for r in results}) == 10
        for message, result in zip(messages, results, strict=True):
            queue = result.message_queue
            stored = broker.queues["t", queue.queue_id][result.queue_offset or 0]
            assert message.body in stored
        queue = MessageQueue("t", "broker-a", 2)
        fixed = await producer.send_batch(messages[:2], queue=queue)
        assert {r.message_queue for r in fixed} == {queue}
        grouped = [Message("t", b"x", message_group="TagA") for _ in range(2)]
        assert {r.message_queue.queue_id for r in await producer.send_batch(grouped)} == {3}
        with pytest.raises(LocalProtocolError, match="empty batch"):
            await producer.send_batch([])

    broker = scenario(story, max_message_bytes=1200)
    bodies = [len(c.body) for c in broker.seen if c.code == 320]
    assert len(bodies) == 6
    assert max(bodies) <= 1200


def test_lingering_sends_share_requests_and_have_own_results() -> None:
    """Each send gets its own offset and id; few requests carry them."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        sends = [producer.send_nowait(Message("t", b"m%d" % number)) for number in range(100)]
        results = await asyncio.gather(*sends)
        assert len({r.message_id for r in results}) == 100
        assert len({r.offset_message_id for r in results}) == 100
        for number, result in enumerate(results):
            stored = broker.queues["t", result.message_queue.queue_id][result.queue_offset or 0]
            assert b"m%d" % number in stored

    broker = scenario(story, linger_ms=5)
    assert broker.codes().count(320) == 1
    assert broker.codes().count(310) == 0


def test_lingering_by_size_and_what_travels_alone() -> None:
    """Full batches leave early; delayed and large messages do not join one."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        sends = [producer.send_nowait(Message("t", b"x" * 500)) for _ in range(10)]
        sends.append(producer.send_nowait(Message("t", b"later", delay_level=2)))
        sends.append(producer.send_nowait(Message("t", b"timed", deliver_time_ms=1)))
        sends.append(producer.send_nowait(Message("t", b"z" * 5000)))
        sends.append(
            producer.send_nowait(Message("t", b"q"), queue=MessageQueue("t", "broker-a", 1))
        )
        await producer.flush()
        assert all(send.done() and send.exception() is None for send in sends)

    broker = scenario(story, linger_ms=60_000, batch_bytes_max=2000)
    assert broker.codes().count(320) == 4
    assert broker.codes().count(310) == 4


def test_lingering_groups_keep_their_queue() -> None:
    """Messages of one group share a batch to the group's queue, in order."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await producer.send(Message("t", b"warm", message_group="TagA"))
        sends = [
            producer.send_nowait(Message("t", b"%d" % number, message_group="TagA"))
            for number in range(5)
        ]
        results = await asyncio.gather(*sends)
        assert [r.queue_offset for r in results] == [1, 2, 3, 4, 5]
        assert {r.message_queue.queue_id for r in results} == {3}

    assert scenario(story, linger_ms=2).codes().count(320) == 1


def test_a_failed_batch_fails_each_of_its_sends() -> None:
    """Every future gets the error, none hangs."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        broker.override[320] = refusing(13)
        sends = [producer.send_nowait(Message("t", b"x")) for _ in range(3)]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [MessageRefused] * 3

    scenario(story, linger_ms=1)


def test_flush_waits_for_what_is_in_flight() -> None:
    """After flush every future is settled."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        sends = [producer.send_nowait(Message("t", b"x")) for _ in range(50)]
        await producer.flush()
        assert all(send.done() for send in sends)
        await producer.flush()

    scenario(story)


def test_a_cancelled_send_leaves_nothing_behind() -> None:
    """Cancelling the waiter neither breaks the connection nor flush."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await producer.send(Message("t", b"x"))
        held: list[tuple[RemotingCommand, ServerConnection]] = []
        broker.override[310] = lambda command, connection: held.append((command, connection))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.send(Message("t", b"y")), 0.05)
        del broker.override[310]
        ((command, connection),) = held
        late = broker.ordinary(command, connection)
        assert late is not None
        late.opaque = command.opaque
        from cometmq.wire.command.command import encode_command

        connection.send(encode_command(late))
        await producer.flush()
        assert (await producer.send(Message("t", b"z"))).status is SendStatus.SEND_OK

    scenario(story)


def test_life_cycle_is_checked() -> None:
    """Not started, closed, wrong settings: each says what to do."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        producer = Producer("pg", name_server=broker.name_server)
        assert producer.client_id is None
        with pytest.raises(ClientClosed, match="not started"):
            await producer.send(Message("t", b"x"))
        await producer.start()
        await producer.start()
        assert (await producer.send(Message("t", b"x"))).queue_offset == 0
        await producer.shutdown()
        await producer.shutdown()
        with pytest.raises(ClientClosed, match="closed; make a new one"):
            await producer.send(Message("t", b"x"))
        with pytest.raises(ClientClosed):
            await producer.start()
        await broker.stop()

    asyncio.run(run())
    for options, fault in (
        ({"group": "bad group"}, "illegal characters"),
        ({"timeout_ms": 0}, "timeout_ms is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"linger_ms": -1}, "linger_ms is -1"),
    ):
        with pytest.raises(ConfigError, match=fault):
            Producer(**options)  # type: ignore[arg-type]


def test_shutdown_settles_what_waits_for_a_connection() -> None:
    """A send that waits for its route when the producer closes gets an error, not silence."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        broker.override[105] = lambda command, connection: None
        producer = Producer("pg", name_server=broker.name_server)
        await producer.start()
        send = producer.send_nowait(Message("t", b"x"), timeout_ms=300)
        await asyncio.sleep(0)
        await producer.shutdown()
        assert isinstance(send.exception(), ClientError)
        await broker.stop()

    asyncio.run(run())


def test_brokers_questions_are_answered() -> None:
    """A transaction check is one-way and ignored; anything else gets code 3."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        await producer.send(Message("t", b"x"))
        (connection,) = broker.peers.values()
        answered: asyncio.Future[RemotingCommand | None] = (
            asyncio.get_running_loop().create_future()
        )
        broker.push(producer.client_id or "", RemotingCommand.request(39, {}))
        connection.call(RemotingCommand.request(307, {}), 2_000, answered.set_result)
        answer = await answered
        assert answer is not None
        assert answer.code == 3

    scenario(story)


def test_a_message_that_cannot_be_encoded_leaves_nothing_in_flight() -> None:
    """Half a surrogate pair is refused on every way to send, and the producer still stops."""

    async def story(broker: FakeBroker, producer: Producer) -> None:
        bad = Message("t", b"x", tags="\ud800")
        await producer.send(Message("t", b"first"))
        for send in (
            lambda: producer.send(bad),
            lambda: producer.send(bad, timeout_ms=1_000),
            lambda: producer.send_batch([bad]),
        ):
            with pytest.raises(LocalProtocolError, match="surrogate"):
                await send()
        await asyncio.wait_for(producer.flush(), 30)

    assert scenario(story).codes().count(310) == 1
