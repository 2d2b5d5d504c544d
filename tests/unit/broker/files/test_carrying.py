"""Without timers, what is still to be delivered keeps its log files, whoever is to deliver it."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.unit.broker.harness import Client, eventually, running, scenario

from cometmq.broker import Broker
from cometmq.broker.files.carrying import CarriedGoods
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.carried import Carried

LEVELS = {"messageDelayLevel": "1s 1h", "timerWheelEnable": False}


async def fill(client: Client, count: int = 15) -> None:
    """More than one log file of the harness' size."""
    for _ in range(count):
        await client.send(bytes(100_000))


def drops(store: MessageStore) -> bool:
    """Let all files go that nobody needs; whether there were any."""
    before = store.min_physical_offset
    store._retention.drop_files(100)
    return store.min_physical_offset > before


def test_a_delayed_message_keeps_its_log_file_until_it_is_delivered(tmp_path: Path) -> None:
    """Its file and all later ones stay; afterwards they go."""

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        await client.send(b"later", i="DELAY\x012\x02", e="1")
        await fill(client)
        store = broker.state.store
        begin = store.max_physical_offset
        await eventually(lambda: drops(store))
        kept = store.min_physical_offset
        assert 0 < kept <= begin // 2
        assert await client.messages(queueId="1") == []
        broker.state.delay.delays_ms = (1_000, 1)
        schedule = broker.services.schedule
        assert schedule is not None
        (cursor,) = [level for level in schedule._levels.values() if level.next_offset == 0][-1:]
        cursor.due_ms = 0
        schedule._tick()
        await eventually(lambda: store.max_queue_offset("t", 1) == 1)
        # Until its delivery is flushed, a power cut could take it.
        await eventually(lambda: store.flushed_offset == store.max_physical_offset)
        store._retention.drop_files(100)
        assert store.min_physical_offset > kept

    scenario(tmp_path, story, **LEVELS)


def test_the_loop_does_not_wait_for_the_oldest_delayed_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its unit is not in memory everything is held until a worker has looked at it."""
    monkeypatch.setattr("cometmq.store.base.disk._RWF_NOWAIT", 0)

    async def story(broker: Broker, client: Client) -> None:
        await fill(client)
        await client.send(b"later", i="DELAY\x012\x02", e="1")
        await fill(client)
        store = broker.state.store
        queue = store._queues.find("SCHEDULE_TOPIC_XXXX", 1)
        assert queue is not None
        await eventually(lambda: queue.written == 1)
        assert not drops(store)
        assert store.min_physical_offset == 0
        await eventually(lambda: drops(store))
        (unit,) = store.units("SCHEDULE_TOPIC_XXXX", 1, 0, 1)
        assert 0 < store.min_physical_offset <= unit.physical_offset
        assert not drops(store)

    scenario(tmp_path, story, **LEVELS)


def test_what_a_java_broker_left_is_said_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is said of what is not there; the log is held from the oldest on."""

    async def first(broker: Broker, client: Client) -> None:
        goods = broker.carried
        assert goods == CarriedGoods(Carried())
        store = broker.state.store
        store.put(TIMER_TOPIC, 0, b"timed", b"", store_ms=1)
        await fill(client)

    scenario(tmp_path, first, timerWheelEnable=False)

    async def second() -> None:
        async with running(tmp_path, timerWheelEnable=False) as broker:
            goods = broker.carried
            assert goods is not None
            assert goods.timers.count == 1
            broker.state.store._retention.drop_files(100)
            assert broker.state.store.min_physical_offset == 0

    with caplog.at_level(logging.WARNING):
        asyncio.run(second())
    said = [record.getMessage() for record in caplog.records]
    (line,) = [text for text in said if text.startswith("carrying")]
    assert line.startswith("carrying 1 timer message: this broker")
    (line,) = [text for text in said if "is kept" in text]
    assert "timer messages for a Java broker need it from physical offset" in line
