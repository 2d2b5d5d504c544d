"""Delay levels: delivery, the copy that is delivered, restarts, damage."""

import asyncio
from pathlib import Path

from tests.unit.broker.harness import Client, eventually, running, scenario

from cometmq.broker import Broker
from cometmq.core.delay.levels import DelayLevels
from cometmq.model.names import SCHEDULE_TOPIC

LEVELS = {"messageDelayLevel": "1s 2s 1h"}


def quicken(broker: Broker, *delays_ms: int) -> None:
    """Make the levels short enough for a test; the broker reads them at each use."""
    broker.state.delay.delays_ms = delays_ms


async def wait_for(client: Client, count: int, **ext: str) -> list[bytes]:
    messages = await client.messages(**ext)
    while len(messages) < count:
        await asyncio.sleep(0.005)
        messages = await client.messages(**ext)
    return [message.body for message in messages]


def test_delayed_message_arrives_with_everything_it_had(tmp_path: Path) -> None:
    """Property bytes unchanged, DELAY and REAL_* still in them, tag filter working."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"now", e="1")
        quicken(broker, 30, 60, 3_600_000)
        properties = "TAGS\x01TagA\x02UNIQ_KEY\x01AB\x02DELAY\x011\x02"
        answer = await client.send(b"later", i=properties, h="7", g="55", e="1")
        assert answer.ext_fields["queueOffset"] == "0"
        assert len(await client.messages(queueId="1")) == 1
        await wait_for(client, 1, queueId="1", queueOffset="1", subscription="TagA")
        (message,) = await client.messages(queueId="1", queueOffset="1")
        assert (message.topic, message.queue_id) == ("t", 1)
        assert (message.flag, message.born_timestamp_ms) == (7, 55)
        held = broker.state.store.get(SCHEDULE_TOPIC, 0, 0, 1)
        assert hasattr(held, "chunks")
        assert message.raw_properties in bytes(held.chunks[0])
        assert message.properties["DELAY"] == "1"
        assert message.properties["REAL_TOPIC"] == "t"
        assert message.properties["REAL_QID"] == "1"
        await eventually(lambda: broker.services.schedule.offsets() == {1: 1})

    scenario(tmp_path, story, **LEVELS)


def test_too_large_a_level_is_the_largest(tmp_path: Path) -> None:
    """DELAY=99 is stored as the last level, and its property says so."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await client.send(i="DELAY\x0199\x02TIMER_DELAY_MS\x015\x02")
        assert answer.code == 0
        assert broker.state.store.max_queue_offset(SCHEDULE_TOPIC, 2) == 1
        held = broker.state.store.get(SCHEDULE_TOPIC, 2, 0, 1)
        assert hasattr(held, "chunks")
        assert b"DELAY\x013\x02" in bytes(held.chunks[0])
        assert b"TIMER" not in bytes(held.chunks[0])
        assert (await client.send(i="DELAY\x010\x02")).code == 0
        assert len(await client.messages()) == 1

    scenario(tmp_path, story, **LEVELS)


def test_many_messages_are_delivered_in_order(tmp_path: Path) -> None:
    """More than one batch of a level, each level in its own order."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"makes the topic", e="3")
        quicken(broker, 20, 60, 3_600_000)
        for number in range(100):
            await client.send(b"%03d" % number, i=f"DELAY\x01{1 + number % 2}\x02")
        ones = [b"%03d" % number for number in range(0, 100, 2)]
        twos = [b"%03d" % number for number in range(1, 100, 2)]
        bodies: list[bytes] = []
        while len(bodies) < 100:
            bodies += await wait_for(client, 1, queueOffset=str(len(bodies)))
        assert [body for body in bodies if body in ones] == ones
        assert [body for body in bodies if body in twos] == twos

    scenario(tmp_path, story, **LEVELS)


def test_delivery_goes_on_after_a_restart(tmp_path: Path) -> None:
    """What was delivered is not delivered again; what waited is, even if due meanwhile."""

    async def main() -> None:
        async with running(tmp_path, **LEVELS) as broker:
            client = await Client(broker.env, broker.address).open()
            await client.send(b"makes the topic", e="3")
            quicken(broker, 10, 60, 3_600_000)
            await client.send(b"early", i="DELAY\x011\x02")
            assert await wait_for(client, 1) == [b"early"]
            broker.state.delay.delays_ms = DelayLevels("1s 2s 1h").delays_ms
            await client.send(b"late", i="DELAY\x011\x02")
            await client.close()
        async with running(tmp_path, **LEVELS) as broker:
            client = await Client(broker.env, broker.address).open()
            assert await wait_for(client, 2) == [b"early", b"late"]
            await client.close()

    asyncio.run(main())


def test_cursor_outside_its_queue_is_brought_back(tmp_path: Path) -> None:
    """A delayOffset.json that is ahead (or behind deleted files) is corrected."""

    async def main() -> None:
        async with running(tmp_path, **LEVELS) as broker:
            client = await Client(broker.env, broker.address).open()
            await client.send(i="DELAY\x013\x02")
            await client.close()
        path = tmp_path / "config" / "delayOffset.json"
        path.write_text('{"offsetTable":{1:500,3:0}}')
        async with running(tmp_path, **LEVELS) as broker:
            client = await Client(broker.env, broker.address).open()
            quicken(broker, 10, 60, 3_600_000)
            await client.send(b"works", i="DELAY\x011\x02")
            assert await wait_for(client, 1) == [b"works"]
            await eventually(lambda: broker.services.schedule.offsets() == {1: 1})
            await client.close()

    asyncio.run(main())


def test_message_without_a_destination_is_skipped(tmp_path: Path) -> None:
    """A record nobody can deliver must not stop its level."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"makes the topic", e="3")
        quicken(broker, 20, 60, 3_600_000)
        broker.state.store.put(
            SCHEDULE_TOPIC, 0, b"lost", b"A\x01B\x02", store_ms=broker.env.clock.now_ms()
        )
        await client.send(b"good", i="DELAY\x011\x02")
        assert await wait_for(client, 1) == [b"good"]

    scenario(tmp_path, story, **LEVELS)


def test_synchronous_flush_delivers_too(tmp_path: Path) -> None:
    """The loop waits for messages that are not durable yet."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send(b"makes the topic", e="3")
        quicken(broker, 1, 60, 3_600_000)
        await client.send(b"durable", i="DELAY\x011\x02")
        assert await wait_for(client, 1) == [b"durable"]

    scenario(tmp_path, story, flushDiskType="SYNC_FLUSH", **LEVELS)


def test_a_delivery_that_is_not_flushed_changes_no_file(tmp_path: Path) -> None:
    """Otherwise the file of the positions is written, with a sync, again and again until it is."""

    async def story(broker: Broker, client: Client) -> None:
        flusher, schedule = broker.state.store._flusher, broker.services.schedule
        flusher.tick = lambda now_ms: None  # type: ignore[method-assign]
        quicken(broker, 30, 60, 3_600_000)
        await client.send(b"later", i="DELAY\x011\x02")
        await wait_for(client, 1)
        before = schedule.revision
        assert [schedule.offsets(), schedule.offsets()] == [{}, {}]
        assert schedule.revision == before
        flusher.flush_all()
        assert schedule.revision > before
        assert schedule.offsets() == {1: 1}

    scenario(tmp_path, story, **LEVELS)
