"""What questions about consumption cost: why, the lag of many groups, lanes, a cluster for a test.

    python -m bench.consumption fill --store DIR --messages 10000000
    python -m bench.consumption why --store DIR
    python -m bench.consumption lag --groups 1000
    python -m bench.consumption lanes --messages 50000 --rounds 7
    python -m bench.consumption cluster --rounds 30

`fill` appends messages with unique ids to one topic, 16 queues in turn; `why` asks about random
ones of them, with a member of the group online, and counts the time of the whole call with its
searches by key.  `lag` gives each group a member, a topic and messages that wait, and explains the
lag of all of them.  `lanes` consumes a priority topic's backlog with lanes and without in turn:
processor time of broker and consumer in one process.  `cluster` is the time until the fixture
`cometmq_cluster` has its cluster, and until it is gone again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from statistics import median
from typing import Any

from cometmq import Message, Producer, PushConsumer
from cometmq.client.admin.admin import Admin
from cometmq.codec.properties import encode_properties
from cometmq.model import MessageQueue, SubscriptionData
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import TopicConfig
from cometmq.net.channel import Channel, ChannelPool
from cometmq.store.base.results import PutItem
from cometmq.testing.cluster import EmbeddedCluster, embedded_cluster, threaded_cluster
from cometmq.wire.body.client import ConsumerData, ConsumerRunningInfo, HeartbeatData
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

TOPIC, GROUP, QUEUES = "Asked", "askers", 16
APPEND = 100
LARGE: dict[str, Any] = {
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "scrubBytesPerSecond": 0,
}
HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])


def unique_id(number: int) -> str:
    """The id of the n-th message, as clients make them: 32 hexadecimal digits."""
    return f"7F0000010001000000000000{number:08X}"


async def fill(path: str, count: int) -> None:
    """Append messages that are found by their ids."""
    async with embedded_cluster(LARGE, store_path=path) as cluster:
        state = cluster.standalone.broker.state
        state.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES), state.env.clock.now_ms())
        body = b"x" * 100
        for first in range(0, count, APPEND):
            items = []
            for number in range(first, min(count, first + APPEND)):
                key = unique_id(number)
                raw = encode_properties({"UNIQ_KEY": key})
                keys = (key, None, None)
                items.append(PutItem(TOPIC, number % QUEUES, body, raw, 0, 0, 0, 0, keys))
            state.store.append(items, born_host=HOST, store_ms=state.env.clock.now_ms())
            if first % 10_000 == 0:
                await asyncio.sleep(0)
    print(f"{count:,} messages in {path}")


async def why(path: str, count: int, rounds: int) -> None:
    """Ask where random messages are."""
    async with embedded_cluster(LARGE, store_path=path) as cluster:
        address = cluster.name_server_address

        async def handle(message: Any) -> None:
            await asyncio.sleep(3600)

        chance, took_ms, states = random.Random(1), [], set()
        async with (
            PushConsumer(
                GROUP,
                {TOPIC: "*"},
                handle,
                name_server=address,
                consume_from="first",
                drain_timeout_ms=0,
            ),
            Admin(name_server=address) as admin,
        ):
            await asyncio.sleep(2)
            for _ in range(rounds):
                began_s = time.perf_counter()
                answer = await admin.why(unique_id(chance.randrange(count)), GROUP, TOPIC)
                took_ms.append((time.perf_counter() - began_s) * 1000)
                states.add(answer.state)
    took_ms.sort()
    print(
        f"why, {count:,} messages: median {median(took_ms):.1f} ms, slowest {took_ms[-1]:.1f} ms"
        f" of {rounds}; {', '.join(sorted(states))}"
    )


async def lag(groups: int, rounds: int) -> None:
    """Explain the lag of many groups, each with a member, four queues and a slow handler."""
    async with embedded_cluster(LARGE) as cluster:
        pools = await _members(cluster, groups)
        async with Admin(name_server=cluster.name_server_address, timeout_ms=30_000) as admin:
            took_s: list[float] = []
            kinds: Counter[str] = Counter()
            for _ in range(rounds):
                began_s = time.perf_counter()
                explained = await admin.explain_lags()
                took_s.append(time.perf_counter() - began_s)
                kinds = Counter(cause.kind for _, found in explained.values() for cause in found)
        print(
            f"lag of {groups} groups with explanation: median {median(took_s):.2f} s, slowest"
            f" {max(took_s):.2f} s of {rounds}; {dict(kinds)}"
        )
        for pool in pools:
            await pool.close()


async def _members(cluster: EmbeddedCluster, groups: int) -> list[ChannelPool]:
    """Connections that are members of fifty groups each, and answer as Java's clients do."""
    state = cluster.standalone.broker.state
    async with Producer("fill", name_server=cluster.name_server_address) as producer:
        for number in range(10):
            await producer.create_topic(f"Lag{number}", queue_count=4)
            for count in range(40):
                await producer.send(Message(f"Lag{number}", b"%d" % count))
    stack = "\n".join(
        f"    at java.base/java.lang.Thread.frame{n}(Thread.java:{n})" for n in range(12)
    )
    stacks = "\n\n".join(f"ConsumeMessageThread_{n} TIMED_WAITING\n{stack}" for n in range(20))
    pools: list[ChannelPool] = []
    for first in range(0, groups, 50):
        names = {f"group-{n:04}": f"Lag{n % 10}" for n in range(first, min(groups, first + 50))}

        def answer(
            channel: Channel, command: RemotingCommand, names: dict[str, str] = names
        ) -> RemotingCommand | None:
            if command.code != RequestCode.GET_CONSUMER_RUNNING_INFO:
                return None
            topic = names[command.ext_fields["consumerGroup"]]
            now_ms = state.env.clock.now_ms()
            info = ConsumerRunningInfo(
                {"PROP_THREADPOOL_CORE_SIZE": "20", "PROP_CONSUMEORDERLY": "false"},
                (SubscriptionData(topic),),
                {
                    MessageQueue(topic, "broker-a", queue_id): {
                        "cachedMsgCount": 8,
                        "cachedMsgMinOffset": 1,
                        "cachedMsgMaxOffset": 8,
                        "lastConsumeTimestamp": now_ms,
                        "lastPullTimestamp": now_ms,
                    }
                    for queue_id in range(4)
                },
                jstack=stacks,
            )
            return command.answer(0, None, {}, info.encode())

        pool = ChannelPool(state.env, answer)
        pools.append(pool)
        heartbeat = HeartbeatData(
            f"client-{first}",
            consumers=tuple(
                ConsumerData(
                    name,
                    subscriptions=(SubscriptionData(topic), SubscriptionData(f"%RETRY%{name}")),
                )
                for name, topic in names.items()
            ),
        )
        channel = await pool.get(cluster.broker_address)
        request = RemotingCommand.request(RequestCode.HEART_BEAT, {}, heartbeat.encode())
        await channel.request(request, 30_000)
        for name, topic in names.items():
            for queue_id in range(4):
                state.offsets.commit(name, topic, queue_id, ConsumerOffset(1), 0)
    return pools


async def lanes(count: int, rounds: int) -> None:
    """Consume a backlog of a priority topic with lanes and without, in turn."""
    ratios: list[float] = []
    async with embedded_cluster(LARGE) as cluster:
        address = cluster.name_server_address
        async with Producer("fill", name_server=address) as producer:
            await producer.create_topic("Jobs", queue_count=3)
            for first in range(0, count, 100):
                await producer.send_batch(
                    [Message("Jobs", b"x" * 100) for _ in range(first, first + 100)]
                )
        for number in range(rounds):
            plain = await _consume(address, f"plain-{number}", count, None)
            laned = await _consume(address, f"lanes-{number}", count, 0.1)
            ratios.append(laned / plain)
            print(f"plain {plain / count * 1e6:.2f} us, lanes {laned / count * 1e6:.2f} us")
    ratios.sort()
    print(
        f"lanes cost {median(ratios):.3f} times a plain pull ({ratios[0]:.3f} to {ratios[-1]:.3f})"
    )


async def _consume(address: str, group: str, count: int, share: float | None) -> float:
    done, seen, began = asyncio.Event(), 0, 0.0

    async def handle(message: Any) -> None:
        nonlocal seen, began
        if not seen:
            began = time.process_time()
        seen += bool(message.body)
        if seen >= count:
            done.set()

    async with PushConsumer(
        group,
        {"Jobs": "*"},
        handle,
        name_server=address,
        consume_from="first",
        low_priority_share=share,
    ):
        await done.wait()
        return time.process_time() - began


def cluster(rounds: int) -> None:
    """Start and stop the cluster of a test."""
    ready_ms, whole_ms = [], []
    for _ in range(rounds):
        began_s = time.perf_counter()
        with threaded_cluster():
            ready_ms.append((time.perf_counter() - began_s) * 1000)
        whole_ms.append((time.perf_counter() - began_s) * 1000)
    print(
        f"a cluster for a test: ready in {median(ready_ms):.1f} ms (slowest {max(ready_ms):.1f}),"
        f" gone after {median(whole_ms):.1f} ms, of {rounds}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["fill", "why", "lag", "lanes", "cluster"])
    parser.add_argument("--store", default="consumption-store")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    if options.what == "cluster":
        cluster(options.rounds)
        return
    work: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
        "fill": lambda: fill(options.store, options.messages),
        "why": lambda: why(options.store, options.messages, options.rounds),
        "lag": lambda: lag(options.groups, options.rounds),
        "lanes": lambda: lanes(min(options.messages, 200_000), options.rounds),
    }
    asyncio.run(work[options.what]())


if __name__ == "__main__":
    main()
