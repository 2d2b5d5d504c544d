"""Our ordered consumer parks at RocketMQ's broker, which knows nothing of it."""

import threading
import time
from collections.abc import Callable

import pytest
from tests.interop.stage import Stage, letter

import cometmq
import cometmq.sync
from cometmq.client import Admin
from cometmq.client.extensions.parking.admin import ParkedLanes
from cometmq.core.extensions.parking import ParkKind
from cometmq.net.env import SystemClock
from cometmq.net.loop import run

WAIT_S = 60.0


def lanes(stage: Stage, group: str, *, is_retry: bool = False) -> dict[str, int]:
    """How many messages are parked by lane; with an order to consume them again."""

    async def ask() -> dict[str, int]:
        async with Admin(name_server=stage.cluster.name_server) as admin:
            parked = ParkedLanes(admin.queue_reader(), group, SystemClock())
            found = await parked.all()
            for lane in found if is_retry else ():
                await lane.queue.append_order(ParkKind.RETRY, lane.name)
            return {lane.name: len(lane.lane.messages) for lane in found}

    return run(ask())


@pytest.mark.full
def test_a_failed_group_is_parked_and_retried_in_order(stage: Stage) -> None:
    """The parking topic is made, read, committed and written as at our broker."""
    if stage.client != "cometmq":
        pytest.skip("parking is a matter of our consumer")
    topic = stage.topic(queues=1)
    group = stage.unique("G")
    is_mended = threading.Event()
    taken: list[str] = []

    def handle(message: cometmq.ReceivedMessage) -> None:
        if message.message_group == "bad" and not is_mended.is_set():
            raise ValueError("no such account")
        taken.append(message.keys[0])

    letters = [
        letter(topic, b"x", number, keys=f"k{number}", shardingKey="bad" if number % 2 else "good")
        for number in range(8)
    ]
    with cometmq.sync.Producer("p", name_server=stage.cluster.name_server) as producer:
        for one in letters:
            producer.send(
                cometmq.Message(topic, b"x", keys=one["keys"], message_group=one["shardingKey"])
            )

    def member() -> cometmq.sync.PushConsumer:
        return cometmq.sync.PushConsumer(
            group,
            {topic: "*"},
            handle,
            name_server=stage.cluster.name_server,
            consume_from="first",
            order="group",
            suspend_ms=10,
            park_after=2,
        )

    with member():
        wait(lambda: lanes(stage, group) == {f"{topic}/bad": 4})
    # Another member knows what is parked.
    is_mended.set()
    with member():
        assert lanes(stage, group, is_retry=True) == {f"{topic}/bad": 4}
        wait(lambda: lanes(stage, group) == {})
    assert [key for key in taken if int(key[1:]) % 2] == ["k1", "k3", "k5", "k7"]
    assert [key for key in taken if int(key[1:]) % 2 == 0] == ["k0", "k2", "k4", "k6"]


def wait(condition: Callable[[], bool]) -> None:
    """Ask again until it holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.1)
