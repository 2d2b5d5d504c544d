"""Consumers against a scripted broker: what becomes of messages that are given back."""

import asyncio

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.scripted import Q0, Reader, scenario
from tests.unit.client.waiting import until

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import RetryLater
from cometmq.codec.properties import decode_properties
from cometmq.wire.header.headers import SendMessageHeader


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
    monkeypatch.setattr("cometmq.client.consumer.returned_messages.PAUSE_S", 0.01)

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
