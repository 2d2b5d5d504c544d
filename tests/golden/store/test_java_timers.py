"""Our broker delivers each timed message of a Java broker's store once."""

import asyncio
from pathlib import Path

import pytest
from tests.golden.store.java_stores import unpack
from tests.golden.store.test_java_carried import broker_on, metric

from cometmq.broker import Broker
from cometmq.codec.stored_message import StoredMessage, decode_message
from cometmq.model.names import TIMER_TOPIC
from cometmq.net.env import Environment, SystemClock, system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.store.timer.carried import read_timer_checkpoint
from cometmq.store.timer.log import TimerLog


class LaterClock(SystemClock):
    """The machine's clock, set so that all messages are overdue and the wheel covers them."""

    def __init__(self, now_ms: int) -> None:
        self._ahead_ms = now_ms - super().now_ms()

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


def broker_later(name: str, root: Path, now_ms: int) -> Broker:
    """Start a broker whose clock shows another time."""
    own = system_environment()
    env = Environment(LaterClock(now_ms), own.chance, own.network, own.workers)
    config = broker_on(name, root, timerWheelEnable=True, mappedFileSizeTimerLog=4096).config
    return Broker(config, env, RealDisk())


def timed(broker: Broker) -> list[StoredMessage]:
    """Return every timed message that was delivered."""
    store = broker.state.store
    found: list[StoredMessage] = []
    for topic in store.topics():
        if topic == TIMER_TOPIC:  # what was rolled is there again
            continue
        for queue_id in store.queues(topic):
            first = store.min_queue_offset(topic, queue_id)
            for unit in store.units(topic, queue_id, first, 100_000):
                if unit.physical_offset < store.min_physical_offset:
                    continue  # expired with its log file
                record = store.message_at(unit.physical_offset)
                assert record is not None
                message = decode_message(record)
                if "TIMER_DEQUEUE_MS" in message.properties:
                    found.append(message)
    return found


@pytest.mark.parametrize("name", ["clean", "killed", "expired", "ext", "crc"])
def test_what_a_java_broker_left_is_delivered_once(name: str, tmp_path: Path) -> None:
    """Deliveries equal Java's count of pending messages, and a restart repeats none."""
    root = unpack(name, tmp_path, with_timer=True)
    waiting = metric(root, "timermetrics", "timingCount")

    async def life(arrived: int) -> list[StoredMessage]:
        broker = broker_later(name, root, last_ms + 3 * 86_400_000)
        await broker.start()
        try:
            async with asyncio.timeout(30):
                timers = broker.timers
                while len(timed(broker)) < arrived or timers.pending_count():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            return timed(broker)
        finally:
            await broker.stop()

    async def before() -> int:
        broker = broker_on(name, root)
        await broker.start()
        try:
            return len(timed(broker))
        finally:
            await broker.stop()

    checkpoint = read_timer_checkpoint(RealDisk(), str(root))
    units = TimerLog(RealDisk(), str(root), 4096).reader().arrays(0, 1 << 20)
    last_ms = max(
        [
            checkpoint.read_time_ms,
            *(int((one["write_ms"] + one["delay_ms"]).max()) for one in units),
        ]
    )
    delivered = asyncio.run(before())
    found = asyncio.run(life(delivered + waiting))
    assert len(found) == delivered + waiting
    names = ("UNIQ_KEY", "TAGS", "TIMER_OUT_MS")
    ids = [
        (message.topic, message.body, *(message.properties.get(name) for name in names))
        for message in found
    ]
    assert len(set(ids)) == len(ids)
    assert all(message.properties["REAL_TOPIC"] == message.topic for message in found)
    assert metric(root, "timermetrics", "timingCount") == 0
    assert len(asyncio.run(life(len(found)))) == len(found)
