"""Message groups of one sender, read in queue order by pull consumers that come and go.

Queues have no order among each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final

from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.producer.producer import Producer
from cometmq.model import Message, MessageQueue
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Workload, position_of
from cometmq.testing.simulation import Node

__all__ = ["QueueOrderWorkload"]

TOPIC: Final = "InOrder"
GROUPS: Final = 3


class QueueOrderWorkload(Workload):
    """Queues store and deliver the acknowledged messages of a message group in send order."""

    name: ClassVar[str] = "queue-order"
    calm_steps: ClassVar[int] = 6

    def start(self) -> None:
        cluster = self.cluster
        cluster.watch(TOPIC, self.never_twice)
        self.readers = cluster.watch_group("in-order")
        self._lives: dict[MessageQueue, int] = {}
        """Of each queue's broker, when it handed out a message last."""
        self._sent_back: dict[MessageQueue, int] = {}
        """Of each queue's broker, the life that has sent its readers back, or the first one."""
        self.calm_group("in-order")
        first, second = cluster.clients
        cluster.role("order send", first, lambda: self.send_all(first, self._step))
        cluster.role("order one", first, lambda: self._read(first, 0))
        cluster.role("order two", second, lambda: self._come_and_go(second, 1))

    async def _step(self, producer: Producer) -> None:
        body = self.new_body()
        group = f"group-{self.chance.randrange(GROUPS)}"
        await self.send_one(producer, Message(TOPIC, body, message_group=group))

    async def calm_step(self, producer: Producer) -> None:
        """Send as before."""
        await self._step(producer)

    def _reader(self, node: Node, number: int, last: dict[MessageQueue, int]) -> PullConsumer:
        def changed(added: Sequence[MessageQueue], removed: Sequence[MessageQueue]) -> None:
            for queue in (*added, *removed):
                last.pop(queue, None)

        return PullConsumer(
            "in-order",
            {TOPIC: "*"},
            name_server=self.cluster.name_server_address,
            instance_name=f"reader{number}",
            client_ip=node.address,
            consume_from="first",
            rebalance_listener=changed,
            env=node.environment(),
        )

    async def _read(self, node: Node, number: int) -> None:
        last: dict[MessageQueue, int] = {}
        async with self._reader(node, number, last) as consumer:
            while not self.cluster.ended.is_set():
                await self._take(consumer, last)

    async def _come_and_go(self, node: Node, number: int) -> None:
        while not self.cluster.is_peace:
            await asyncio.sleep(self.chance.uniform(0.5, 2))
            last: dict[MessageQueue, int] = {}
            async with self._reader(node, number, last) as consumer:
                for _ in range(self.chance.randrange(1, 4)):
                    await self._take(consumer, last)

    async def _take(self, consumer: PullConsumer, last: dict[MessageQueue, int]) -> None:
        for message in await consumer.poll(500):
            queue, queue_offset = message.message_queue, message.queue_offset
            before = last.get(queue)
            life = self.cluster.broker(queue.broker_name).node.lifetime.number
            may_lose = self.cluster.plan.flush == "ASYNC_FLUSH" and life > 1
            if self._lives.get(queue) != life and may_lose:
                # The new life may send groups back to their committed offsets.
                before = None
            self._lives[queue] = life
            is_back = before is not None and queue_offset <= before
            if is_back and may_lose and self._sent_back.get(queue) != life:
                # The reader had messages at hand when the new life sent its group back.
                self._sent_back[queue] = life
                before = None
            if before is not None and queue_offset != before + 1:
                self.cluster.fail(
                    f"queue-order: {queue} was handed out at {before}, then at {queue_offset}"
                )
            last[queue] = queue_offset
            self.note_begun("in-order", bytes(message.body))
            self.readers.decided.add(position_of(message))
            self.readers.bodies.add(bytes(message.body))

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.readers.bodies
        return f"{min(missing)[:30]!r} was never handed out" if missing else None

    def check(self) -> None:
        self.check_positions()
        last: dict[tuple[str, int, str | None], int] = {}
        for seen in self.cluster.messages(TOPIC):
            if seen.body not in self.acknowledged:
                continue
            key = (seen.position[0], seen.position[2], _group(seen))
            number = int(seen.body.split(b"/")[1])
            if number < last.get(key, 0):
                self.cluster.fail(f"queue-order: {number} lies behind {last[key]} in {key}")
            last[key] = number


def _group(seen: Seen) -> str | None:
    return seen.properties.get("__SHARDINGKEY")
