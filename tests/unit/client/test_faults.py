"""Consumers against a scripted broker: every way to fall silent, and what brokers ask."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.waiting import until

from cometmq.client import group_consumer
from cometmq.client.handlers import RetryLater
from cometmq.client.message import ReceivedMessage
from cometmq.client.push_consumer import PushConsumer
from cometmq.codec.properties import decode_properties
from cometmq.errors import CometError
from cometmq.model import MessageQueue
from cometmq.net.server import ServerConnection
from cometmq.wire.bodies import ConsumerRunningInfo, ResetOffsetBody
from cometmq.wire.command import RemotingCommand, encode_command
from cometmq.wire.headers import SendMessageHeader

Q0 = MessageQueue("t", "broker-a", 0)


class Reader:
    """A handler that keeps what it saw and fails where it is told to."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.fail: Callable[[ReceivedMessage], Any] = lambda message: None

    async def handle(self, message: ReceivedMessage) -> Any:
        self.seen.append(message.body)
        return self.fail(message)


Story = Callable[[FakeBroker, PushConsumer, Reader], Awaitable[None]]


def scenario(story: Story, *, queue_count: int = 1, **options: Any) -> FakeBroker:
    """Run a story with a fake broker and a push consumer of one topic."""

    async def run() -> FakeBroker:
        broker = FakeBroker({"t": queue_count})
        await broker.start()
        reader = Reader()
        try:
            async with PushConsumer(
                "g",
                {"t": "*"},
                reader.handle,
                name_server=broker.name_server,
                consume_from="first",
                **options,
            ) as consumer:
                await story(broker, consumer, reader)
        finally:
            await broker.stop()
        return broker

    return asyncio.run(run())


# -- falling silent ---------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 16, 24, 25, 27, 215])
def test_a_refused_pull_is_tried_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the broker says, the loop goes on; not being known brings a heartbeat."""
    monkeypatch.setattr("cometmq.client.pull_loop.PAUSE_ERROR_S", 0.01)

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        left = 3

        def refuse(
            command: RemotingCommand, connection: ServerConnection
        ) -> RemotingCommand | None:
            nonlocal left
            left -= 1
            if left < 0:
                return broker.ordinary(command, connection)
            return command.answer(code, "told to", {})

        before = len(broker.heartbeats)
        broker.override[11] = refuse
        broker.store("t", 0, b"wakes the held pull", b"")
        await until(lambda: left < 0)
        broker.store("t", 0, b"after", b"")
        await until(lambda: b"after" in reader.seen)
        assert (len(broker.heartbeats) > before) == (code in (24, 25, 27))

    scenario(story)


def test_a_cut_connection_is_made_again_with_a_heartbeat_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker knows clients by connection: the first word on the new one is who we are."""
    monkeypatch.setattr("cometmq.client.pull_loop.PAUSE_ERROR_S", 0.01)

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        await until(lambda: broker.held)
        broker.held.clear()
        mark = len(broker.seen)
        for connection in list(broker.server.connections):
            connection.abort("the test says so")
        await until(lambda: broker.held)
        codes = broker.codes()[mark:]
        assert codes.index(34) < codes.index(11)
        broker.store("t", 0, b"after", b"")
        await until(lambda: reader.seen == [b"after"])

    scenario(story)


def test_a_restarted_broker_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Down and up on the same port: the consumer goes on without a word from anybody."""
    monkeypatch.setattr("cometmq.client.pull_loop.PAUSE_ERROR_S", 0.01)

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        await until(lambda: broker.held)
        broker.held.clear()
        await broker.stop()
        await asyncio.sleep(0.05)
        await broker.start()
        await until(lambda: broker.held)
        broker.store("t", 0, b"after", b"")
        await until(lambda: reader.seen)
        assert reader.seen == [b"after"]

    scenario(story)


def test_a_broker_that_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back under another address: asked for when the old one fails, not half a minute later."""
    monkeypatch.setattr("cometmq.client.pull_loop.PAUSE_ERROR_S", 0.01)

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        await until(lambda: broker.held)
        broker.held.clear()
        old = broker.address
        await broker.stop()
        broker.port = 0
        await broker.start()
        assert broker.address != old
        broker.store("t", 0, b"after", b"")
        await until(lambda: reader.seen)
        assert reader.seen == [b"after"]

    scenario(story)


def test_a_lost_answer_is_noticed_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker forgets our pull while it has messages: restarted, with the numbers logged."""
    monkeypatch.setattr(group_consumer, "WATCH_PATIENCE_MS", 0)

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        await until(lambda: broker.held)
        broker.held.clear()  # from here on nobody answers the pull
        broker.store("t", 0, b"unseen", b"")
        await consumer.watch()
        await consumer.watch()
        await until(lambda: reader.seen == [b"unseen"])

    with caplog.at_level(logging.ERROR, "cometmq.client"):
        scenario(story)
    assert "stood still and is restarted" in caplog.text
    assert "pull offset 0, broker's end 1 (lag 1)" in caplog.text


def test_handlers_that_do_not_finish_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Alive, pulling, and stuck in user code: the log says how many and for how long."""
    monkeypatch.setattr(group_consumer, "WATCH_PATIENCE_MS", 0)
    gate = asyncio.Event()

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        async def stuck(message: ReceivedMessage) -> None:
            await gate.wait()

        await consumer.subscribe("t", handler=stuck)
        broker.store("t", 0, b"x", b"")
        await until(lambda: any(a.process_queue.count for a in consumer.assignments.values()))
        await consumer.watch()
        await consumer.watch()
        gate.set()

    with caplog.at_level(logging.WARNING, "cometmq.client"):
        scenario(story)
    assert "handlers of group g do not finish" in caplog.text
    assert "1 messages held" in caplog.text


def test_an_offset_the_broker_does_not_have_is_corrected() -> None:
    """21: go on from where the broker says, without waiting for a rebalance."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        consumer.reset_offsets("t", {Q0: 50})
        await until(lambda: consumer.assignments[Q0].process_queue.pull_offset == 0)
        broker.store("t", 0, b"x", b"")
        await until(lambda: reader.seen)
        assert reader.seen == [b"x"]

    scenario(story)


def test_a_damaged_answer_costs_only_what_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    """Readable messages are delivered; the rest is named and passed over."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        await until(lambda: broker.held)
        held, broker.held = broker.held, []
        for number in range(3):
            broker.store("t", 0, b"m%d" % number, b"")
        records = broker.queues["t", 0]
        records[1] = records[1][:4] + b"\0\0\0\0" + records[1][8:]
        for command, connection in held:
            if command.ext_fields["topic"] == "t":
                answer = broker.ordinary(command, connection)
                assert answer is not None
                connection.send(encode_command(answer))
        await until(lambda: len(reader.seen) == 2)
        assert reader.seen == [b"m0", b"m2"]

    with caplog.at_level(logging.ERROR, "cometmq.client"):
        scenario(story)
    assert "damaged" in caplog.text


def test_what_damage_hides_is_asked_for_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    """A record of unknown length hides those behind it; only it is passed over in the end."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        await until(lambda: broker.held)
        held, broker.held = broker.held, []
        for number in range(4):
            broker.store("t", 0, b"m%d" % number, b"")
        records = broker.queues["t", 0]
        records[1] = b"\x7f" + records[1][1:]
        for command, connection in held:
            if command.ext_fields["topic"] == "t":
                answer = broker.ordinary(command, connection)
                assert answer is not None
                connection.send(encode_command(answer))
        await until(lambda: len(reader.seen) == 3)
        assert reader.seen == [b"m0", b"m2", b"m3"]
        broker.store("t", 0, b"m4", b"")
        await until(lambda: len(reader.seen) == 4)

    with caplog.at_level(logging.WARNING, "cometmq.client"):
        scenario(story)
    assert "offsets 1 to 3 are asked for again, one by one" in caplog.text
    assert "0 messages read, passed over" in caplog.text


def test_an_unheld_answer_does_not_spin() -> None:
    """A broker without long polling answers 19 at once: a few pulls, not thousands."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        def unheld(
            command: RemotingCommand, connection: ServerConnection
        ) -> RemotingCommand | None:
            ext = {
                "suggestWhichBrokerId": "0",
                "minOffset": "0",
                "maxOffset": "0",
                "nextBeginOffset": "0",
            }
            return command.answer(19, "nothing", ext)

        broker.override[11] = unheld
        consumer.assignments[Q0].loop.restart()
        mark = broker.codes().count(11)
        await asyncio.sleep(0.5)
        assert 1 <= broker.codes().count(11) - mark <= 20

    scenario(story)


def test_start_survives_a_broker_that_cannot_tell_offsets() -> None:
    """An error is no offset: the queue is taken when the broker can say, not from a guess."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        broker.offsets["g", "t", 0] = 1
        broker.override[14] = lambda command, connection: command.answer(1, "not now", {})
        broker.store("t", 0, b"before", b"")
        await until(lambda: reader.seen == [b"before"])
        other = Reader()
        async with PushConsumer(
            "h", {"t": "*"}, other.handle, name_server=broker.name_server, consume_from="first"
        ) as second:
            assert second.assignment() == []
            del broker.override[14]
            second.rebalance_soon()
            await until(lambda: other.seen == [b"before"])

    scenario(story)


@pytest.mark.parametrize(
    ("consume_from", "asked", "expected"),
    [
        ("first", 31, [b"0", b"1", b"2", b"3"]),
        ("last", 30, [b"3"]),
        (1_700_000_000_000, 29, [b"2", b"3"]),
        ("timestamp", 29, [b"2", b"3"]),
    ],
)
def test_where_a_new_group_begins(consume_from: Any, asked: int, expected: list[bytes]) -> None:
    """store.md 9.2, for a broker that has no offset of the group (22)."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        for number in range(3):
            broker.store("t", 0, b"%d" % number, b"")
        broker.override[29] = lambda command, connection: command.answer(0, None, {"offset": "2"})
        reader = Reader()
        async with PushConsumer(
            "g",
            {"t": "*"},
            reader.handle,
            name_server=broker.name_server,
            consume_from=consume_from,
        ):
            broker.store("t", 0, b"3", b"")
            await until(lambda: b"3" in reader.seen)
        assert reader.seen == expected
        assert asked in broker.codes()
        await broker.stop()

    asyncio.run(run())


def test_the_heartbeat_is_javas() -> None:
    """Byte for byte what the captured Java 5.4.0 push consumer sends, names and times aside."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        versions = {topic: one.sub_version for topic, one in consumer.subscriptions.items()}
        (body,) = {command.body for command in broker.seen if command.code == 34}
        assert body.decode() == (
            f'{{"clientID":"{consumer.client_id}","consumerDataSet":[{{"consumeFromWhere":'
            '"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"g",'
            '"messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,'
            '"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":'
            f'{versions["%RETRY%g"]},"tagsSet":[],"topic":"%RETRY%g"}},{{"classFilterMode":false,'
            '"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":'
            f'{versions["t"]},"tagsSet":[],"topic":"t"}}],"unitMode":false}}],'
            '"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],'
            '"withoutSub":false}'
        )

    scenario(story)


# -- giving back ------------------------------------------------------------------------------


def test_a_message_nobody_takes_back_is_resent() -> None:
    """36 fails: a copy goes to the retry topic with the level the broker would have chosen."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        broker.override[36] = lambda command, connection: command.answer(1, "no", {})
        reader.fail = lambda message: message.message_queue.topic != "t"
        broker.store("t", 0, b"x", b"TAGS\x01a\x02UNIQ_KEY\x01ID\x02")
        await until(lambda: 310 in broker.codes())
        await until(lambda: consumer.assignments[Q0].process_queue.count == 0)

    broker = scenario(story)
    (sent,) = [command for command in broker.seen if command.code == 310]
    header = SendMessageHeader.from_command(sent)
    assert (header.topic, header.reconsume_times) == ("%RETRY%g", 1)
    # The broker takes the group's retryMaxTimes, as the consumer asked for nothing.
    assert header.max_reconsume_times is None
    assert decode_properties(header.properties or "") == {
        "TAGS": "a",
        "UNIQ_KEY": "ID",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": "ID",
        "DELAY": "3",
    }
    assert sent.body == b"x"


def test_a_message_nobody_takes_at_all_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither 36 nor the copy: the offset stays until somebody takes it."""
    monkeypatch.setattr("cometmq.client.send_back.PAUSE_S", 0.01)

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        for code in (36, 310):
            broker.override[code] = lambda command, connection: command.answer(1, "no", {})
        reader.fail = lambda message: RetryLater(5)
        broker.store("t", 0, b"x", b"")
        await until(lambda: broker.codes().count(36) >= 3)
        assert consumer.assignments[Q0].process_queue.commit_offset == 0
        del broker.override[36]
        await until(lambda: consumer.assignments[Q0].process_queue.commit_offset == 1)
        assert [header.delay_level for header in broker.back] == [5]

    scenario(story)


def test_a_retried_message_without_its_handler_is_given_back() -> None:
    """Its topic's handler is on another member; it must neither stall nor go to a wrong one."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        reader = Reader()
        consumer = PushConsumer("g", name_server=broker.name_server, consume_from="first")
        await consumer.subscribe("t", handler=reader.handle)
        async with consumer:
            broker.store("%RETRY%g", 0, b"x", b"RETRY_TOPIC\x01elsewhere\x02")
            await until(lambda: broker.back)
            broker.store("t", 0, b"mine", b"")
            await until(lambda: reader.seen)
        assert reader.seen == [b"mine"]
        assert [header.origin_topic for header in broker.back] == ["elsewhere"]
        await broker.stop()

    asyncio.run(run())


# -- what brokers ask -------------------------------------------------------------------------


def test_notice_of_new_members_rebalances_at_once() -> None:
    """40: within a moment, not after twenty seconds; other groups' notices are ignored."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        me = consumer.client_id or ""
        await asyncio.sleep(0.1)  # the rebalance that the new retry topic causes
        before = broker.codes().count(38)
        broker.push(me, RemotingCommand.request(40, {"consumerGroup": "other"}))
        await asyncio.sleep(0.05)
        assert broker.codes().count(38) == before
        broker.members["g"].add("10.0.0.0@first")
        broker.push(me, RemotingCommand.request(40, {"consumerGroup": "g"}))
        await until(lambda: consumer.assignment() == [])

    scenario(story)


def test_offsets_are_reset_by_the_broker() -> None:
    """220: what is held is dropped, pulling goes on from the new offset, which is committed."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        for number in range(4):
            broker.store("t", 0, b"%d" % number, b"")
        await until(lambda: len(reader.seen) == 4)
        ext = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true"}
        body = ResetOffsetBody({Q0: 2, MessageQueue("t", "elsewhere", 1): 9}).encode()
        broker.push(consumer.client_id or "", RemotingCommand.request(220, ext, body))
        await until(lambda: len(reader.seen) == 6)
        assert reader.seen[4:] == [b"2", b"3"]
        await consumer.commit_changed()
        await until(lambda: broker.offsets.get(("g", "t", 0)) == 4)

    scenario(story)


async def ask(
    broker: FakeBroker, consumer: PushConsumer, command: RemotingCommand
) -> RemotingCommand:
    answered: asyncio.Future[RemotingCommand | None] = asyncio.get_running_loop().create_future()
    broker.peers[consumer.client_id or ""].call(command, 5_000, answered.set_result)
    answer = await answered
    assert answer is not None
    return answer


def test_state_is_told() -> None:
    """221 and 307: offsets and running info in Java's spelling."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        broker.store("t", 0, b"x", b"")
        await until(lambda: consumer.assignments[Q0].process_queue.commit_offset == 1)
        status = await ask(
            broker, consumer, RemotingCommand.request(221, {"topic": "t", "group": "g"})
        )
        assert b'{"brokerName":"broker-a","queueId":0,"topic":"t"}:1' in status.body
        ext = {"consumerGroup": "g", "clientId": consumer.client_id or "", "jstackEnable": "true"}
        answer = await ask(broker, consumer, RemotingCommand.request(307, ext))
        info = ConsumerRunningInfo.decode(answer.body)
        assert info.queue_table[Q0]["commitOffset"] == 1
        assert info.queue_table[Q0]["droped"] is False
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "20"
        rates = info.status_table["t"]
        assert rates["consumeOKTPS"] > 0
        assert rates["pullTPS"] == rates["consumeOKTPS"]
        consumer.assignments[Q0].process_queue.handler_s = 0.25
        consumer.assignments[Q0].loop.pull_s = 0.125
        answer = await ask(broker, consumer, RemotingCommand.request(307, ext))
        rates = ConsumerRunningInfo.decode(answer.body).status_table["t"]
        assert (rates["consumeRT"], rates["pullRT"]) == (250.0, 125.0)
        assert "Thread" in (info.jstack or "")
        assert {s.topic for s in info.subscriptions} == {"t", "%RETRY%g"}
        wrong = await ask(
            broker, consumer, RemotingCommand.request(307, ext | {"consumerGroup": "x"})
        )
        assert wrong.code == 1
        assert (await ask(broker, consumer, RemotingCommand.request(9999, {}))).code == 3

    scenario(story)


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (None, b'"consumeResult":"CR_SUCCESS"'),
        (RetryLater(1), b'"consumeResult":"CR_LATER"'),
        (CometError("on purpose"), b'"consumeResult":"CR_THROW_EXCEPTION"'),
        (ValueError("on purpose"), b'"consumeResult":"CR_THROW_EXCEPTION"'),
    ],
)
def test_a_message_is_consumed_on_order(outcome: Any, result: bytes) -> None:
    """309: the handler runs on the given message, and its verdict goes back."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        def judge(message: ReceivedMessage) -> Any:
            if isinstance(outcome, Exception) and not isinstance(outcome, RetryLater):
                raise outcome
            return outcome

        broker.store("u", 0, b"by hand", b"")
        (record,) = broker.queues["u", 0]
        reader.fail = judge
        ext = {
            "consumerGroup": "g",
            "clientId": "c",
            "msgId": "x",
            "brokerName": "broker-a",
        }
        answer = await ask(broker, consumer, RemotingCommand.request(309, ext, record))
        assert result in answer.body
        assert reader.seen == [b"by hand"]
        empty = await ask(broker, consumer, RemotingCommand.request(309, ext))
        wrong = await ask(
            broker, consumer, RemotingCommand.request(309, ext | {"consumerGroup": "x"}, record)
        )
        assert (empty.code, wrong.code) == (1, 1)

    scenario(story)


def test_new_brokers_get_a_heartbeat_at_once() -> None:
    """A route that names a new broker: it hears of us with the refresh, not after 30 s."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        from cometmq.model import BrokerData, QueueData

        other = FakeBroker({}, name="broker-b")
        await other.start()
        try:
            broker.extra_brokers.append(BrokerData("c", "broker-b", {0: other.address}))
            broker.extra_queues["t"] = [QueueData("broker-b", 1, 1, 6)]
            instance = consumer._instance
            assert instance is not None
            await instance.refresh_routes()
            await until(lambda: other.heartbeats)
            await until(lambda: MessageQueue("t", "broker-b", 0) in consumer.assignment())
            other.store("t", 0, b"from b", b"")
            await until(lambda: reader.seen == [b"from b"])
        finally:
            await other.stop()

    scenario(story)


def test_a_failing_listener_or_strategy_does_not_end_the_group(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """User code that raises is logged; the next rebalance runs as ever."""

    class Moody:
        name = "MOODY"
        calls = 0

        def allocate(self, group: str, me: str, queues: Any, clients: Any) -> Any:
            self.calls += 1
            if self.calls == 3:
                raise ZeroDivisionError
            return list(queues)

    strategy = Moody()

    def listen(added: Any, removed: Any) -> None:
        raise RuntimeError("listener's own fault")

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        consumer.rebalance_soon()
        await until(lambda: strategy.calls >= 3)
        consumer.rebalance_soon()
        await until(lambda: strategy.calls >= 5)
        broker.store("t", 0, b"x", b"")
        await until(lambda: reader.seen == [b"x"])

    with caplog.at_level(logging.ERROR, "cometmq.client"):
        scenario(story, strategy=strategy, rebalance_listener=listen)
    assert "rebalance listener of group g failed" in caplog.text
    assert "rebalance of group g failed" in caplog.text
