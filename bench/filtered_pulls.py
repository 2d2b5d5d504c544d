"""What a subscription that matches 1 % of a topic costs the broker, with and without bitmaps.

    chrt -f 10 taskset -c 0 .venv/bin/python bench/filtered_pulls.py [--messages N] [--rounds N]

A broker in this process, its store on a temporary directory; pulls are handed to its processor, so
that neither sockets nor a client are in the figures.  Each is the processor time of reading the
whole topic once, by message of the topic, best round.  Messages have 256 bytes and eight
properties.  "all" is an ordinary consumer; "every record" evaluates the filter on each record,
which is what a broker does without the extension.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from typing import Any, cast

from cometmq.broker import Broker, load_config
from cometmq.codec.properties import encode_properties
from cometmq.model.group import SubscriptionData
from cometmq.net.env import system_environment
from cometmq.net.server import ServerConnection
from cometmq.store.disk import RealDisk
from cometmq.wire.command import RemotingCommand
from cometmq.wire.headers import PullMessageHeader

TOPIC = "T"
FILTER = "class = '7' AND amount > 100"


class Nobody:
    """The connection of these pulls: nothing is sent to it."""

    is_closed = False
    peer = "bench"

    def send(self, frame: object) -> None:
        """Drop it."""


def fill(broker: Broker, count: int) -> None:
    """Messages of a hundred classes in turn."""
    store = broker.state.store
    body = bytes(256)
    for number in range(count):
        raw = encode_properties(
            {
                "UNIQ_KEY": f"7F000001006930946E0969A1{number:08X}",
                "KEYS": f"order-{number}",
                "TAGS": "paid",
                "WAIT": "true",
                "CLUSTER": "DefaultCluster",
                "amount": "120",
                "region": "eu-west",
                "class": str(number % 100),
            }
        )
        now_ms = broker.env.clock.now_ms()
        store.put(TOPIC, 0, body, raw, store_ms=now_ms, born_host=b"\x7f\0\0\1\0\0\0\1")


async def saved(broker: Broker) -> None:
    """Wait until all units are in their files."""
    queue = broker.state.store._queues.find(TOPIC, 0)
    assert queue is not None
    while queue.written < queue.max:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


async def read(broker: Broker, ext: dict[str, str]) -> float:
    """Pull the topic from end to end; processor seconds."""
    pull = broker._pull
    assert pull is not None
    nobody = cast("ServerConnection", Nobody())
    store = broker.state.store
    end = store.max_queue_offset(TOPIC, 0)
    offset = 0
    start = time.process_time()
    while offset < end:
        header = PullMessageHeader.from_ext({**ext, "queueOffset": str(offset)})
        request = RemotingCommand.request(11, {})
        frame = pull.pull_with(request, header, nobody, broker.env.clock.now_ms())
        if frame is None:
            await asyncio.sleep(0.01)
            continue
        offset = following(frame)
    return time.process_time() - start


def following(frame: Any) -> int:
    """The next offset that an answer says."""
    head = frame if isinstance(frame, bytes) else bytes(frame[0])
    place = head.index(b'"nextBeginOffset":"') + len(b'"nextBeginOffset":"')
    return int(head[place : head.index(b'"', place)])


async def measure(count: int, rounds: int, *, has_bitmaps: bool, root: str) -> dict[str, float]:
    """Nanoseconds of processor time for each message of the topic."""
    config = load_config(
        overrides={
            "listenPort": 0,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "storePathRootDir": root,
            "enableConsumeQueueExt": has_bitmaps,
            "enableCalcFilterBitMap": has_bitmaps,
        },
        environment={},
    ).config
    broker = Broker(config, system_environment(), RealDisk())
    await broker.start()
    found: dict[str, float] = {}
    try:
        now_ms = broker.env.clock.now_ms()
        broker.state.ensure_topic(TOPIC, 1, now_ms)
        broker.filters.subscribed(
            "g", [SubscriptionData(TOPIC, FILTER, sub_version=1, expression_type="SQL92")], now_ms
        )
        await asyncio.sleep(0.01)
        start = time.process_time()
        fill(broker, count)
        await saved(broker)
        found["put and written"] = (time.process_time() - start) / count * 1e9
        base = {
            "consumerGroup": "g",
            "topic": TOPIC,
            "queueId": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
        }
        asked = {
            "all": {"subscription": "*", "expressionType": "TAG"},
            "1 % by SQL92": {"subscription": FILTER, "expressionType": "SQL92"},
        }
        for name, ext in asked.items():
            best = float("inf")
            for _ in range(rounds):
                best = min(best, await read(broker, {**base, **ext}))
            found[name] = best / count * 1e9
    finally:
        await broker.stop()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    figures: dict[bool, dict[str, float]] = {}
    for has_bitmaps in (False, True):
        with tempfile.TemporaryDirectory() as root:
            figures[has_bitmaps] = asyncio.run(
                measure(given.messages, given.rounds, has_bitmaps=has_bitmaps, root=root)
            )
    every, hinted = figures[False]["1 % by SQL92"], figures[True]["1 % by SQL92"]
    everything = figures[False]["all"]
    print(f"{given.messages:,} messages, load {os.getloadavg()[0]:.1f}; ns for each of them")
    print(f"{everything:10,.0f}  all of them, unfiltered")
    print(f"{every:10,.0f}  1 % by SQL92, every record evaluated")
    print(f"{hinted:10,.0f}  1 % by SQL92, with bitmaps")
    print(f"{hinted / every:10.3f}  of evaluating every record")
    print(f"{hinted / everything:10.3f}  of sending all of them")
    for has_bitmaps in (False, True):
        cost = figures[has_bitmaps]["put and written"]
        print(f"{cost:10,.0f}  to store one{', its bitmap included' if has_bitmaps else ''}")


if __name__ == "__main__":
    main()
