"""Messages whose handler fails: the broker delivers them again, and in the end buries them."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.model.names import dlq_topic, retry_topic
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Workload, position_of

__all__ = ["RetriesWorkload"]

TOPIC: Final = "Retried"
GROUP: Final = "retrying"
TRIES_MAX: Final = 2
"""Deliveries after the first."""


class RetriesWorkload(Workload):
    """A message that fails up to twice is handled; only one that always fails is a dead letter."""

    name: ClassVar[str] = "retries"

    def start(self) -> None:
        cluster = self.cluster
        self._dead: set[bytes] = set()
        cluster.watch(TOPIC, self.never_twice)
        cluster.watch(retry_topic(GROUP))
        cluster.watch(dlq_topic(GROUP), self._buried)
        self.group = cluster.watch_group(GROUP)
        first, second = cluster.clients
        cluster.role("retries send", first, lambda: self.send_all(first, self._step))
        cluster.role("retries one", second, lambda: self.consume(self._member(1)))
        cluster.role("retries two", first, lambda: self.come_and_go(lambda: self._member(0)))

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        return self.consumer(node, number, TOPIC, self._handle, self.group, tries_max=TRIES_MAX)

    async def _step(self, producer: Producer) -> None:
        kind = self.chance.choice(["good", "once", "twice", "never"])
        await self.send_one(producer, Message(TOPIC, self.new_body() + kind.encode()))

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.05))
        fails = {b"good": 0, b"once": 1, b"twice": 2, b"never": 99}
        kind = next(kind for kind in fails if bytes(message.body).endswith(kind))
        if message.reconsume_times < fails[kind]:
            self.group.decided.add(position_of(message))
            raise RetryLater(reason=f"try {message.reconsume_times} of {kind.decode()}")

    def _buried(self, seen: Seen) -> None:
        self._dead.add(seen.body)
        if not seen.body.endswith(b"never"):
            self.cluster.fail(f"retries: {seen.body[-40:]!r} is a dead letter")

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.group.bodies - self._dead
        return f"{min(missing)[:30]!r} was neither handled nor buried" if missing else None

    def check(self) -> None:
        self.check_positions()
        for body in self.group.bodies:
            if body.endswith(b"never"):
                self.cluster.fail(f"retries: {body[:30]!r} was handled")
