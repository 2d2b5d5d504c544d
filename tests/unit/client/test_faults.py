"""Consumers against a scripted broker: every way to fall silent."""

import asyncio
import logging
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker
from tests.unit.client.scripted import Q0, Reader, scenario
from tests.unit.client.waiting import until

from cometmq.client.consumer.group import group_consumer
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.pull_loop import UNHELD_S
from cometmq.net.server import ServerConnection
from cometmq.wire.command.command import RemotingCommand, encode_command


@pytest.mark.parametrize("code", [1, 2, 16, 24, 25, 27, 215])
def test_a_refused_pull_is_tried_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the broker says, the loop goes on; not being known brings a heartbeat."""
    monkeypatch.setattr("cometmq.client.queue.pull_loop.PAUSE_ERROR_S", 0.01)

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
    monkeypatch.setattr("cometmq.client.queue.pull_loop.PAUSE_ERROR_S", 0.01)

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
    monkeypatch.setattr("cometmq.client.queue.pull_loop.PAUSE_ERROR_S", 0.01)

    async def story(broker: FakeBroker, consumer: PushConsumer, reader: Reader) -> None:
        await until(lambda: broker.held)
        broker.held.clear()
        await broker.stop()
        await broker.start()
        await until(lambda: broker.held)
        broker.store("t", 0, b"after", b"")
        await until(lambda: reader.seen)
        assert reader.seen == [b"after"]

    scenario(story)


def test_a_broker_that_moved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back under another address: asked for when the old one fails, not half a minute later."""
    monkeypatch.setattr("cometmq.client.queue.pull_loop.PAUSE_ERROR_S", 0.01)

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
        consumer.apply_offset_reset("t", {Q0: 50})
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
            pulled_s.append(asyncio.get_running_loop().time())
            ext = {
                "suggestWhichBrokerId": "0",
                "minOffset": "0",
                "maxOffset": "0",
                "nextBeginOffset": "0",
            }
            return command.answer(19, "nothing", ext)

        pulled_s: list[float] = []
        broker.override[11] = unheld
        consumer.assignments[Q0].loop.restart()
        await until(lambda: len(pulled_s) > 6)
        # An answer that a busy machine delays for as long counts as held; the others have a pause.
        assert pulled_s[6] - pulled_s[0] >= 6 * UNHELD_S

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
    """docs/internals/delivery.md#where-a-group-starts, for a broker that has no offset of the group
    (22)."""

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
