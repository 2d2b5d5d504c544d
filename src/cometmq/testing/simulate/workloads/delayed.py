"""Messages with a delay level: never early, never lost.

A message may come twice: the broker writes its progress after delivery, so a crash may repeat it,
as in RocketMQ.
"""

from __future__ import annotations

from typing import ClassVar, Final

from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulate.broker_part import DELAY_LEVELS, Seen
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["DelayedWorkload"]

DELAYS_MS: Final = tuple(int(level[:-1]) * 1000 for level in DELAY_LEVELS.split())


class DelayedWorkload(Workload):
    """No message is visible before its delay has passed."""

    name: ClassVar[str] = "delayed"
    topic: ClassVar[str] = "Delayed"

    def start(self) -> None:
        cluster = self.cluster
        self._due_ms: dict[bytes, int] = {}
        self._arrived: set[bytes] = set()
        cluster.watch(self.topic, self._arrives)
        first, _ = cluster.clients
        cluster.role(f"{self.name} send", first, lambda: self.send_all(first, self._step))

    async def _step(self, producer: Producer) -> None:
        body = self.new_body()
        level = self.chance.randrange(len(DELAYS_MS)) + 1
        self._due_ms[body] = self.cluster.world.clock.now_ms() + DELAYS_MS[level - 1]
        await self.send_one(producer, Message(self.topic, body, delay_level=level))

    def _arrives(self, seen: Seen) -> None:
        self._arrived.add(seen.body)
        due_ms = self._due_ms[seen.body]
        early_ms = due_ms - min(seen.seen_ms, seen.store_ms)
        if early_ms > 0:
            self.cluster.fail(f"{self.name}: {seen.body[:30]!r} came {early_ms} ms early")

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self._arrived
        return f"{min(missing)[:30]!r} was never delivered" if missing else None

    def check(self) -> None:
        """Nothing to do: arrivals are checked, and acknowledged positions are in another topic."""
