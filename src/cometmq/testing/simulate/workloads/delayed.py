"""Messages with a delay level: never early, never lost.

A message may come twice: the broker writes its progress after delivery, so a crash may repeat it,
as in RocketMQ.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final

from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulate.broker_part import DELAY_LEVELS, Seen
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["DelayedWorkload"]

TIMER_LATE_MS: Final = 1_500
"""How long after its time a message may come, as no fault delays it."""
DELAYS_MS: Final = tuple(int(level[:-1]) * 1000 for level in DELAY_LEVELS.split())


class DelayedWorkload(Workload):
    """No message is visible before its delay has passed."""

    name: ClassVar[str] = "delayed"
    calm_steps: ClassVar[int] = 4
    topic: ClassVar[str] = "Delayed"

    def start(self) -> None:
        cluster = self.cluster
        self._due_ms: dict[bytes, dict[str, int]] = {}
        """By body: when it is due by the clock of each broker."""
        self._jump_counts: dict[bytes, int] = {}
        self._arrived: Counter[bytes] = Counter()
        self._calm_late_ms: dict[bytes, int] = {}
        cluster.watch(self.topic, self._arrives)
        first, _ = cluster.clients
        cluster.role(f"{self.name} send", first, lambda: self.send_all(first, self._step))

    async def _step(self, producer: Producer) -> None:
        body = self.new_body()
        level = self.chance.randrange(len(DELAYS_MS)) + 1
        self._note_due(body, delay_ms=DELAYS_MS[level - 1])
        await self.send_one(producer, Message(self.topic, body, delay_level=level))

    def _note_due(self, body: bytes, *, delay_ms: int = 0, due_ms: int | None = None) -> None:
        """Note when a message is due: after a delay by its broker's clock, or at a time."""
        self._due_ms[body] = {
            part.name: part.node.clock.now_ms() + delay_ms if due_ms is None else due_ms
            for part in self.cluster.brokers
        }
        self._jump_counts[body] = self.cluster.injected["clock-jump"]

    def _arrives(self, seen: Seen) -> None:
        self._arrived[seen.body] += 1
        due_ms = self._due_ms[seen.body][seen.position[0]]
        early_ms = due_ms - min(seen.seen_ms, seen.store_ms)
        # A clock that was set back meanwhile makes a delay look short.
        is_clear = self._jump_counts[seen.body] == self.cluster.injected["clock-jump"]
        if early_ms > 0 and is_clear:
            self.cluster.fail(f"{self.name}: {seen.body[:30]!r} came {early_ms} ms early")
        self._calm_late_ms[seen.body] = seen.seen_ms - due_ms

    def lost(self, seen: Seen) -> None:
        """A delivered copy that a power cut took must come again, unless the message went too."""
        if self._arrived[seen.body]:
            self._arrived[seen.body] -= 1

    async def calm_step(self, producer: Producer) -> None:
        """Send as before."""
        await self._step(producer)

    def check_calm(self) -> None:
        """Check that each message came once, and soon after its time."""
        for body in self._calm_acknowledged_ms:
            if self._arrived[body] != 1:
                self.cluster.fail(
                    f"{self.name}: {body[:30]!r} came {self._arrived[body]} times without any fault"
                )
            elif self._calm_late_ms[body] > TIMER_LATE_MS:
                self.cluster.fail(
                    f"{self.name}: {body[:30]!r} came {self._calm_late_ms[body]} ms late"
                )

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - (+self._arrived).keys()
        return f"{min(missing)[:30]!r} was never delivered" if missing else None

    def check(self) -> None:
        """Nothing to do: arrivals are checked, and acknowledged positions are in another topic."""
