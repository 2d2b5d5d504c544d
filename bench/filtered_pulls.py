"""Measures the broker's cost of a subscription that matches 1 % of a topic, or all of it.

    chrt -f 10 taskset -c 0 .venv/bin/python -m bench.filtered_pulls [--messages N] [--rounds N]

A broker in this process, its store on a temporary directory; pulls are handed to its processor, so
that neither sockets nor a client are in the figures.  Each is the processor time of reading the
whole topic once, by message of the topic, best round.  Messages have 256 bytes and eight
properties.  "Bulk" are the requests of our own consumers, for up to 512 messages; threads work on
them, whose time is counted too.  1 % is chosen by a text and by a number, both of which records
are searched for, and by the text with bitmaps; the filter that all match has each one evaluated.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from typing import Any, cast

from cometmq.broker import Broker, load_config
from cometmq.broker.extensions.bulk_pull import BulkPullProcessor
from cometmq.codec.properties import encode_properties
from cometmq.model.group import SubscriptionData
from cometmq.net.env import system_environment
from cometmq.net.server import ServerConnection
from cometmq.store.base.disk import RealDisk
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import PullMessageHeader

TOPIC = "T"
FILTER = "class = '7' AND amount > 100"
NUMBERS = "class = 7 AND amount > 100"
EVERY = "region = 'eu-west' AND amount > 100"
BULK_COUNT = 512


class Nobody:
    """The connection of these pulls; it stores the last answer."""

    is_closed = False
    peer = "bench"
    unsent_bytes = 0
    when_drained = None

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.frame: Any = None

    def send(self, frame: object) -> None:
        """Store the answer."""
        self.frame = frame
        self.answered.set()


def fill(broker: Broker, count: int) -> None:
    """Store messages of a hundred classes in turn."""
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
    while queue.written < queue.max:  # noqa: ASYNC110 - the store has no event for this
        await asyncio.sleep(0.05)


async def read(broker: Broker, ext: dict[str, str], *, in_bulk: bool = False) -> float:
    """Pull the whole topic; return the processor seconds."""
    pull = broker.services.pull
    reader = Nobody()
    nobody = cast("ServerConnection", reader)
    bulk = BulkPullProcessor(broker.state, pull)
    store = broker.state.store
    end = store.max_queue_offset(TOPIC, 0)
    offset = 0
    start = time.process_time()
    while offset < end:
        own = {**ext, "queueOffset": str(offset)}
        reader.answered.clear()
        now_ms = broker.env.clock.now_ms()
        frame: Any
        if in_bulk:
            own |= {"maxMsgNums": str(BULK_COUNT), "maxMsgBytes": str(1 << 20)}
            frame = bulk.pull(RemotingCommand.request(31001, own), nobody, now_ms)
        else:
            header = PullMessageHeader.from_ext(own)
            frame = pull.pull_with(RemotingCommand.request(11, {}), header, nobody, now_ms)
        if frame is None:
            await reader.answered.wait()
            frame = reader.frame
        offset = following(frame)
    used = time.process_time() - start
    bulk.stop()
    return used


def following(frame: Any) -> int:
    """The next offset in an answer."""
    head = bytes(frame[0] if isinstance(frame, list) else frame[:1024])
    place = head.index(b'"nextBeginOffset":"') + len(b'"nextBeginOffset":"')
    return int(head[place : head.index(b'"', place)])


async def measure(count: int, rounds: int, *, has_bitmaps: bool, root: str) -> dict[str, float]:
    """The nanoseconds of processor time per message of the topic."""
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
            "all of them": {"subscription": "*", "expressionType": "TAG"},
            "1 % by a text": {"subscription": FILTER, "expressionType": "SQL92"},
            "1 % by a number": {"subscription": NUMBERS, "expressionType": "SQL92"},
            "all match": {"subscription": EVERY, "expressionType": "SQL92"},
        }
        best: dict[str, float] = {}
        for _ in range(rounds):
            for name, ext in asked.items():
                for in_bulk in (False, True):
                    used = await read(broker, {**base, **ext}, in_bulk=in_bulk)
                    row = f"{name}, in bulk" if in_bulk else name
                    best[row] = min(used, best.get(row, used))
        found |= {row: used / count * 1e9 for row, used in best.items()}
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
    print(f"{given.messages:,} messages, load {os.getloadavg()[0]:.1f}; ns for each of them")
    for name, cost in figures[False].items():
        print(f"{cost:10,.0f}  {name}")
    for name in ("1 % by a text", "1 % by a text, in bulk"):
        print(f"{figures[True][name]:10,.0f}  {name}, with bitmaps")
    every = figures[False]["all match"]
    for has_bitmaps in (False, True):
        what = "with bitmaps" if has_bitmaps else "by a text"
        print(f"{figures[has_bitmaps]['1 % by a text'] / every:10.3f}  of evaluating all, {what}")
    for has_bitmaps in (False, True):
        cost = figures[has_bitmaps]["put and written"]
        print(f"{cost:10,.0f}  to store one{', its bitmap included' if has_bitmaps else ''}")


if __name__ == "__main__":
    main()
