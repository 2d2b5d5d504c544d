"""Measures a push consumer's cost by its order: none, by queue, by message group.

    chrt -f 10 taskset -c 0 .venv/bin/python -m bench.ordered_consumers [--messages N] [--rounds N]

One process holds a name server, a broker and the consumers, over real sockets: its processor time
from the first message to the last, per message, of the best round.  Every figure includes the
broker's share.  The handlers read the body; messages have 100 bytes and belong to 100 groups in
turn, on 8 queues.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, Literal

from cometmq import Message, Producer, PushConsumer
from cometmq.testing.cluster import embedded_cluster

Order = Literal["none", "queue", "group"]
ORDERS: tuple[Order, ...] = ("none", "queue", "group")
TOPIC = "T"
GROUPS = 100
BATCH = 100


async def fill(producer: Producer, count: int) -> None:
    """Send messages of a hundred groups in turn."""
    await producer.create_topic(TOPIC, queue_count=8)
    body = b"x" * 100
    for first in range(0, count, BATCH):
        await asyncio.gather(
            *[
                producer.send(Message(TOPIC, body, message_group=f"account-{number % GROUPS}"))
                for number in range(first, first + BATCH)
            ]
        )


async def consume(name_server: str, group: str, count: int, kind: str, order: Order) -> float:
    """Consume all messages; return the processor seconds from the first to the last."""
    done = asyncio.Event()
    seen, start = 0, 0.0
    loop = asyncio.get_running_loop()

    def take(more: int) -> None:
        nonlocal seen, start
        if not seen:
            start = time.process_time()
        seen += more
        if seen >= count:
            loop.call_soon_threadsafe(done.set)

    async def one(message: Any) -> None:
        take(bool(message.body))

    async def many(messages: Any) -> None:
        take(sum([bool(message.body) for message in messages]))

    def plain(message: Any) -> None:
        take(bool(message.body))

    handlers: dict[str, Callable[[Any], Any]] = {"async": one, "list": many, "thread": plain}
    options: dict[str, Any] = {"batch_count_max": 32} if kind == "list" else {}
    options["concurrency"] = 1 if kind == "thread" else 20
    async with PushConsumer(
        group,
        {TOPIC: "*"},
        handlers[kind],
        name_server=name_server,
        consume_from="first",
        order=order,
        **options,
    ):
        await done.wait()
        return time.process_time() - start


async def measure(count: int, rounds: int) -> dict[tuple[str, str], float]:
    """The microseconds of processor time per message, by kind of handler and order."""
    best: dict[tuple[str, str], float] = {}
    async with (
        embedded_cluster() as cluster,
        Producer("fill", name_server=cluster.name_server_address) as producer,
    ):
        await fill(producer, count)
        for number in range(rounds):
            for kind in ("async", "list", "thread"):
                for order in ORDERS:
                    used = await consume(
                        cluster.name_server_address, f"{kind}-{order}-{number}", count, kind, order
                    )
                    best[kind, order] = min(used / count * 1e6, best.get((kind, order), 1e9))
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    best = asyncio.run(measure(given.messages, given.rounds))
    print(f"{given.messages:,} messages, load {os.getloadavg()[0]:.1f}; us for each of them")
    for (kind, order), cost in best.items():
        print(f"{cost:8.2f}  {kind} handler, order={order}")


if __name__ == "__main__":
    main()
