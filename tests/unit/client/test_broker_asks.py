"""Consumers against a scripted broker: what they say of themselves, and what brokers ask."""

import asyncio
import logging
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.scripted import Q0, Reader, scenario
from tests.unit.client.waiting import until

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.errors import CometError
from cometmq.model import BrokerData, MessageQueue, QueueData
from cometmq.wire.body.client import ConsumerRunningInfo, ResetOffsetBody
from cometmq.wire.command.command import RemotingCommand


def test_notice_of_new_members_rebalances_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """40: within a moment, not after twenty seconds; other groups' notices are ignored."""

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        me = consumer.client_id or ""
        noticed: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(consumer, "rebalance_soon", lambda: noticed.append("other"))
            broker.push(me, RemotingCommand.request(40, {"consumerGroup": "other"}))
            # The answer to this question says that the notice before it was read.
            await ask(broker, consumer, RemotingCommand.request(9999, {}))
        assert noticed == []
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
