"""Calls to consumers on behalf of an operator, with scripted consumers and with our own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, eventually, running

from cometmq.broker import Broker
from cometmq.client import Producer, PullConsumer, PushConsumer, ReceivedMessage
from cometmq.codec.ids import encode_host, offset_message_id
from cometmq.codec.stored_message import decode_messages
from cometmq.model import Message, MessageQueue
from cometmq.model.group import SubscriptionData
from cometmq.model.offsets import ConsumerOffset
from cometmq.testing.cluster import embedded_cluster
from cometmq.wire.body.client import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ResetOffsetBody,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand, encode_command

CONSUMER = ConsumerData("g", subscriptions=(SubscriptionData("t"), SubscriptionData("%RETRY%g")))
Story = Callable[[Broker, Client, Client], Awaitable[None]]


def with_consumer(path: Path, story: Story, language: str = "JAVA", **settings: Any) -> None:
    """Run a story with an operator's connection and that of the consumer c1 of group g."""

    async def main() -> None:
        async with running(path, **settings) as broker:
            operator = await Client(broker.env, broker.address).open()
            consumer = await Client(broker.env, broker.address).open()
            await operator.send(b"first")
            await consumer.heartbeat(CONSUMER)
            online = broker.state.consumers.get("g")
            assert online is not None
            (member,) = online.members.values()
            member.language = language
            await story(broker, operator, consumer)
            await operator.close()
            await consumer.close()

    asyncio.run(main())


def pushed(client: Client, code: int) -> list[RemotingCommand]:
    return [command for command in client.pushed if command.code == code]


def running_info(operator: Client, **ext: str) -> Awaitable[RemotingCommand]:
    asked = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false", **ext}
    return operator.call(Code.GET_CONSUMER_RUNNING_INFO, asked)


def directly(operator: Client, message_id: str, **ext: str) -> Awaitable[RemotingCommand]:
    asked = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id, "topic": "t", **ext}
    return operator.call(Code.CONSUME_MESSAGE_DIRECTLY, asked)


def reset(operator: Client, **ext: str) -> Awaitable[RemotingCommand]:
    asked = {"topic": "t", "group": "g", "timestamp": "0", "isForce": "true", **ext}
    return operator.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, asked)


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue("t", "broker-a", queue_id)


# -- 307 and 309 ------------------------------------------------------------------------------


def test_running_info_is_relayed_as_it_comes(tmp_path: Path) -> None:
    """The consumer gets the operator's fields; code, remark, fields and body come back."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        consumer.answers[Code.GET_CONSUMER_RUNNING_INFO] = RemotingCommand.response(
            7, "as told", {"extra": "1"}, b'{"mqTable":{{"queueId":0}:{}}}'
        )
        answer = await running_info(operator, jstackEnable="true")
        assert (answer.code, answer.remark) == (7, "as told")
        assert answer.ext_fields == {"extra": "1"}
        assert answer.body == b'{"mqTable":{{"queueId":0}:{}}}'
        (call,) = pushed(consumer, Code.GET_CONSUMER_RUNNING_INFO)
        assert call.ext_fields == {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"}
        assert not call.is_oneway

    with_consumer(tmp_path, story)


@pytest.mark.parametrize("ext", [{"clientId": "gone"}, {"consumerGroup": "h"}])
def test_nobody_of_that_name_is_online(ext: dict[str, str], tmp_path: Path) -> None:
    """1 in Java's words, which tools show; nobody is called."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        group, client_id = ext.get("consumerGroup", "g"), ext.get("clientId", "c1")
        message_id = offset_message_id(encode_host(broker.address), 0)
        for answer in (
            await running_info(operator, **ext),
            await directly(operator, message_id, **ext),
        ):
            remark = f"The Consumer <{group}> <{client_id}> not online"
            assert (answer.code, answer.remark) == (1, remark)
        assert pushed(consumer, 307) == pushed(consumer, 309) == []

    with_consumer(tmp_path, story)


def test_a_silent_consumer_is_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """207: C++ clients answer few of the broker's calls. Other requests go on meanwhile."""
    monkeypatch.setattr("cometmq.broker.clients.calls.CALL_TIMEOUT_MS", 100)

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        consumer.answers[Code.GET_CONSUMER_RUNNING_INFO] = None
        waiting = asyncio.ensure_future(running_info(operator))
        assert (await operator.send(b"meanwhile")).code == 0
        assert not waiting.done()
        answer = await waiting
        assert answer.code == 207
        assert "consumer <g> <c1> Timeout" in (answer.remark or "")

    with_consumer(tmp_path, story)


def test_a_consumer_that_leaves_before_it_answers(tmp_path: Path) -> None:
    """1 at once, without waiting for the timeout."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        consumer.answers[Code.GET_CONSUMER_RUNNING_INFO] = None
        waiting = asyncio.ensure_future(running_info(operator))
        await eventually(lambda: bool(pushed(consumer, 307)))
        consumer.channel.abort()
        answer = await waiting
        assert answer.code == 1
        assert answer.remark == "invoke consumer <g> <c1> Exception: it has disconnected"

    with_consumer(tmp_path, story)


def test_an_operator_that_leaves_before_the_answer(tmp_path: Path) -> None:
    """The late answer of the consumer finds nobody, and nothing breaks."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        other = await Client(broker.env, broker.address).open()
        consumer.answers[Code.GET_CONSUMER_RUNNING_INFO] = None
        waiting = asyncio.ensure_future(running_info(other))
        await eventually(lambda: bool(pushed(consumer, 307)))
        other.channel.abort()
        await asyncio.wait([waiting])
        assert waiting.exception() is not None
        (call,) = pushed(consumer, 307)
        late = RemotingCommand.response(0)
        late.opaque = call.opaque
        consumer.channel.write(encode_command(late))
        assert (await operator.send(b"after")).code == 0

    with_consumer(tmp_path, story)


def test_a_message_is_handed_over_directly(tmp_path: Path) -> None:
    """The stored record goes out whole, with what the broker knows of topic and group."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        result = b'{"autoCommit":true,"consumeResult":"CR_LATER","order":false,"spentTimeMills":3}'
        consumer.answers[Code.CONSUME_MESSAGE_DIRECTLY] = RemotingCommand.response(
            0, None, {}, result
        )
        message_id = offset_message_id(encode_host(broker.address), 0)
        answer = await directly(operator, message_id)
        assert (answer.code, answer.body) == (0, result)
        (call,) = pushed(consumer, Code.CONSUME_MESSAGE_DIRECTLY)
        assert call.ext_fields == {
            "consumerGroup": "g",
            "clientId": "c1",
            "msgId": message_id,
            "topic": "t",
            "brokerName": "broker-a",
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        (message,) = decode_messages(call.body)
        assert (message.topic, bytes(message.body)) == ("t", b"first")

    with_consumer(tmp_path, story)


@pytest.mark.parametrize(
    ("message_id", "words"),
    [("X", "msgId"), ("7F0000010000A0330000000000FFFFFF", "can not find message by the offset")],
)
def test_no_such_message(message_id: str, words: str, tmp_path: Path) -> None:
    """1 with the cause, and the consumer hears nothing."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        answer = await directly(operator, message_id)
        assert answer.code == 1
        assert words in (answer.remark or "")
        assert pushed(consumer, 309) == []

    with_consumer(tmp_path, story)


# -- 223 --------------------------------------------------------------------------------------


def test_status_gathers_what_every_member_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table per client id; silent, failing and unreadable members are left out."""
    monkeypatch.setattr("cometmq.broker.clients.calls.STATUS_TIMEOUT_MS", 100)

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        others = [await Client(broker.env, broker.address).open() for _ in range(3)]
        for number, other in enumerate(others, 2):
            await other.heartbeat(CONSUMER, client_id=f"c{number}")
        tables = [{queue(0): 3}, {queue(1): 4}]
        for client, table in zip([consumer, others[0]], tables, strict=True):
            client.answers[221] = RemotingCommand.response(
                0, None, {}, ConsumerStatusBody(table).encode()
            )
        others[1].answers[221] = None
        others[2].answers[221] = RemotingCommand.response(0, None, {}, b"{no json")
        answer = await operator.call(223, {"topic": "t", "group": "g"})
        status = ConsumerStatusBody.decode(answer.body)
        assert status.consumer_table == {"c1": tables[0], "c2": tables[1]}
        assert pushed(consumer, 221)[0].ext_fields == {"topic": "t", "group": "g"}
        one = await operator.call(223, {"topic": "t", "group": "g", "clientAddr": "c2"})
        assert ConsumerStatusBody.decode(one.body).consumer_table == {"c2": tables[1]}
        none = await operator.call(223, {"topic": "t", "group": "g", "clientAddr": "c9"})
        assert ConsumerStatusBody.decode(none.body).consumer_table == {}
        nobody = await operator.call(223, {"topic": "t", "group": "h"})
        assert nobody.code == 1
        assert "[h]" in (nobody.remark or "")
        for other in others:
            await other.close()

    with_consumer(tmp_path, story)


# -- 222, as 5.x serves it --------------------------------------------------------------------


def test_a_reset_is_told_with_the_next_pull(tmp_path: Path) -> None:
    """It holds against commits until then; nobody is called, nobody needs to be online."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        for _ in range(4):
            await operator.send()
        commit = {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "5"}
        assert (await consumer.call(15, commit)).code == 0
        answer = await reset(operator, queueId="0", offset="2")
        assert ResetOffsetBody.decode(answer.body).offsets == {queue(0): 2}
        assert pushed(consumer, 220) == []
        assert (await consumer.call(15, commit)).remark == "Offset has been previously reset"
        told = await consumer.pull(queueOffset="5")
        assert (told.code, told.ext_fields["nextBeginOffset"]) == (21, "2")
        assert len(await consumer.messages(queueOffset="2")) == 3

    with_consumer(tmp_path, story)


@pytest.mark.parametrize(("timestamp", "first"), [("-1", 1), ("0", 0), ("99999999999999", 1)])
def test_all_queues_by_time(timestamp: str, first: int, tmp_path: Path) -> None:
    """Every queue to read, by time of storage; -1 is the end."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        answer = await reset(operator, timestamp=timestamp, queueId="-1", offset="-1")
        offsets = ResetOffsetBody.decode(answer.body).offsets
        assert offsets == {queue(0): first, queue(1): 0, queue(2): 0, queue(3): 0}
        assert broker.state.offsets.query("g", "t", 0) == first
        # An offset counts only together with a queue, however many there are.
        await operator.send(b"x", b="one", d="1")
        answer = await reset(operator, topic="one", queueId="-1", offset="7")
        one = MessageQueue("one", "broker-a", 0)
        assert ResetOffsetBody.decode(answer.body).offsets == {one: 0}

    with_consumer(tmp_path, story)


@pytest.mark.parametrize(
    ("ext", "code", "words"),
    [
        ({"topic": "nowhere"}, 17, "nowhere"),
        ({"group": "nobody"}, 26, "nobody"),
        ({"queueId": "0", "offset": "3"}, 1, "Target offset 3 not in consume queue range [0-1]"),
        ({"queueId": "0", "offset": "-2"}, 1, "Target offset -2"),
        ({"queueId": "4"}, 1, "queueId 4"),
        ({"timestamp": "yesterday"}, 1, "timestamp"),
    ],
)
def test_a_reset_that_cannot_be(ext: dict[str, str], code: int, words: str, tmp_path: Path) -> None:
    """What is wrong, in the answer, and no offset has moved."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        answer = await reset(operator, **ext)
        assert answer.code == code
        assert words in (answer.remark or "")
        assert broker.state.offsets.query("g", "t", 0) is None

    with_consumer(tmp_path, story)


# -- 222, as 4.x serves it --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "body"),
    [
        ("JAVA", b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:0,{'),
        ("GO", b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:0,{'),
        ("CPP", b'{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"t"},'),
        ("PYTHON", b'{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":'),
    ],
)
def test_consumers_are_told_in_their_own_form(language: str, body: bytes, tmp_path: Path) -> None:
    """One-way 220; the form of the offsets is chosen by the reader's language (trap T21)."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        for queue_id in range(4):
            broker.state.offsets.commit("g", "t", queue_id, ConsumerOffset(1 - queue_id % 2), 0)
        answer = await reset(operator)
        assert ResetOffsetBody.decode(answer.body).offsets == {queue(n): 0 for n in range(4)}
        await eventually(lambda: bool(pushed(consumer, 220)))
        (push,) = pushed(consumer, 220)
        assert push.is_oneway
        assert push.ext_fields == {
            "topic": "t",
            "group": "g",
            "timestamp": "0",
            "isForce": "false",
            "queueId": "-1",
        }
        assert push.body.startswith(body)
        # The stored offset is the consumers' to commit.
        assert broker.state.offsets.query("g", "t", 0) == 1

    with_consumer(tmp_path, story, language, useServerSideResetOffset="false")


def test_without_force_nobody_is_sent_forward(tmp_path: Path) -> None:
    """The smaller of where the group is and where it is told to go."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        for queue_id in range(4):
            broker.state.offsets.commit("g", "t", queue_id, ConsumerOffset(0), 0)
        answer = await reset(operator, timestamp="-1", isForce="false")
        assert set(ResetOffsetBody.decode(answer.body).offsets.values()) == {0}
        answer = await reset(operator, timestamp="-1")
        assert ResetOffsetBody.decode(answer.body).offsets[queue(0)] == 1

    with_consumer(tmp_path, story, useServerSideResetOffset="false")


def test_the_old_way_needs_offsets_and_consumers(tmp_path: Path) -> None:
    """1 for a group without offsets, 206 for one without members."""

    async def story(broker: Broker, operator: Client, consumer: Client) -> None:
        assert (await reset(operator)).code == 1
        for queue_id in range(4):
            broker.state.offsets.commit("h", "t", queue_id, ConsumerOffset(0), 0)
        answer = await reset(operator, group="h")
        assert answer.code == 206
        assert "Group: h Topic: t Timestamp: 0" in (answer.remark or "")

    with_consumer(tmp_path, story, useServerSideResetOffset="false")


# -- our own consumer at the other end --------------------------------------------------------


@asynccontextmanager
async def consuming(
    seen: list[bytes], **settings: Any
) -> AsyncIterator[tuple[Broker, Client, PushConsumer, Producer]]:
    """A broker, an operator's connection, a push consumer of topic t, and a producer."""

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("not this one")

    async with embedded_cluster(settings) as cluster:
        address = cluster.name_server_address
        broker = cluster.standalone.broker
        operator = await Client(broker.env, broker.address).open()
        async with Producer("pg", name_server=address) as producer:
            await producer.create_topic("t", queue_count=1)
            async with PushConsumer(
                "g", {"t": "*"}, handle, name_server=address, consume_from="first"
            ) as consumer:
                yield broker, operator, consumer, producer
        await operator.close()


def test_our_consumer_answers_the_operator() -> None:
    """State, offsets, and a message run again through its handler."""

    async def main() -> None:
        seen: list[bytes] = []
        async with consuming(seen) as (_, operator, consumer, producer):
            sent = await producer.send(Message("t", b"x"))
            await eventually(lambda: seen == [b"x"])
            client_id = consumer.client_id or ""
            answer = await running_info(operator, clientId=client_id, jstackEnable="true")
            info = ConsumerRunningInfo.decode(answer.body)
            assert answer.code == 0
            assert info.queue_table[queue(0)]["commitOffset"] == 1
            assert "Thread" in (info.jstack or "")
            answer = await operator.call(223, {"topic": "t", "group": "g"})
            table = ConsumerStatusBody.decode(answer.body).consumer_table
            assert table == {client_id: {queue(0): 1}}
            assert sent.offset_message_id is not None
            answer = await directly(operator, sent.offset_message_id, clientId=client_id)
            assert ConsumeDirectlyResult.decode(answer.body).result == "CR_SUCCESS"
            assert seen == [b"x", b"x"]
            bad = await producer.send(Message("t", b"bad"))
            answer = await directly(operator, bad.offset_message_id or "", clientId=client_id)
            failed = ConsumeDirectlyResult.decode(answer.body)
            assert failed.result == "CR_THROW_EXCEPTION"
            assert "not this one" in (failed.remark or "")

    asyncio.run(main())


@pytest.mark.parametrize("is_old", [False, True])
def test_our_consumer_follows_a_reset(is_old: bool) -> None:
    """Both ways lead back to the first message."""

    async def main() -> None:
        seen: list[bytes] = []
        setting = {"useServerSideResetOffset": str(not is_old).lower()}
        async with consuming(seen, **setting) as (broker, operator, consumer, producer):
            await producer.send(Message("t", b"1"))
            await producer.send(Message("t", b"2"))
            await eventually(lambda: seen == [b"1", b"2"])
            await consumer.commit_changed()
            await eventually(lambda: broker.state.offsets.query("g", "t", 0) == 2)
            await eventually(lambda: held(broker) >= 1)
            assert (await reset(operator)).code == 0
            await eventually(lambda: len(seen) >= 4)
            assert seen[2:] == [b"1", b"2"]
            await producer.send(Message("t", b"3"))
            await eventually(lambda: len(seen) >= 5)
            await consumer.commit_changed()
            await eventually(lambda: broker.state.offsets.query("g", "t", 0) == 3)
            assert seen[4:] == [b"3"]

    asyncio.run(main())


@pytest.mark.parametrize("is_old", [False, True])
def test_our_pull_consumer_follows_a_reset(is_old: bool) -> None:
    """While its pull is held, and also when an earlier pull of its is held beside that one."""

    async def main() -> None:
        settings = {"useServerSideResetOffset": str(not is_old).lower()}
        async with embedded_cluster(settings) as cluster:
            address = cluster.name_server_address
            broker = cluster.standalone.broker
            operator = await Client(broker.env, broker.address).open()
            async with (
                Producer("pg", name_server=address) as producer,
                PullConsumer("g", name_server=address, consume_from="first") as consumer,
            ):
                await producer.create_topic("t", queue_count=1)
                await consumer.subscribe("t")
                await producer.send(Message("t", b"1"))
                await producer.send(Message("t", b"2"))
                first = [message.body for message in await polled(consumer, 2)]
                await consumer.commit()
                await eventually(lambda: held(broker) >= 1)
                await consumer.seek(queue(0), 2)
                await eventually(lambda: held(broker) >= 2)
                assert (await reset(operator)).code == 0
                again = [message.body for message in await polled(consumer, 2)]
                assert (first, again) == ([b"1", b"2"], [b"1", b"2"])
                assert await consumer.position(queue(0)) == 2
            assert broker.state.offsets.query("g", "t", 0) == 2
            await operator.close()

    asyncio.run(main())


def test_a_reset_forward_drops_what_is_held() -> None:
    """Messages that wait for their handler are passed over, as the operator wants."""

    async def main() -> None:
        seen: list[bytes] = []
        gate = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            await gate.wait()

        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            broker = cluster.standalone.broker
            operator = await Client(broker.env, broker.address).open()
            async with Producer("pg", name_server=address) as producer:
                await producer.create_topic("t", queue_count=1)
                for number in range(6):
                    await producer.send(Message("t", b"%d" % number))
                async with PushConsumer(
                    "g",
                    {"t": "*"},
                    handle,
                    name_server=address,
                    consume_from="first",
                    concurrency=1,
                ):
                    await eventually(lambda: seen == [b"0"] and held(broker) >= 1)
                    assert (await reset(operator, queueId="0", offset="5")).code == 0
                    await eventually(lambda: not broker.state.offsets.has_reset("g", "t", 0))
                    gate.set()
                    await eventually(lambda: len(seen) >= 2)
                assert seen == [b"0", b"5"]
                assert broker.state.offsets.query("g", "t", 0) == 6
            await operator.close()

    asyncio.run(main())


def held(broker: Broker) -> int:
    """How many pulls of topic t are held."""
    return len(broker.services.pull.hold._by_queue.get(("t", 0), ()))


async def polled(consumer: PullConsumer, count: int) -> list[ReceivedMessage]:
    """As many messages, or what came before a held pull would have ended by itself."""
    messages: list[ReceivedMessage] = []
    for _ in range(10):
        messages += await consumer.poll(timeout_ms=1_000)
        if len(messages) >= count:
            break
    return messages
