"""Messages with an exact time: never early, never lost; a crash may repeat a delivery."""

from __future__ import annotations

from typing import ClassVar, Final

from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulate.workloads.delayed import DelayedWorkload

__all__ = ["TimedWorkload"]

SOON_MS: Final = 10
LATE_MS: Final = 9_000
FAR_MS: Final = 30_000
"""Far enough that the message is appended again before its log file goes: that needs 10 s."""


class TimedWorkload(DelayedWorkload):
    """No message is visible before its delivery time."""

    name: ClassVar[str] = "timed"
    topic: ClassVar[str] = "Timed"

    def start(self) -> None:
        super().start()
        faults = self.cluster.plan.faults
        self._is_far = any(fault.kind == "files-go-early" for fault in faults)
        """Whether most messages wait long, so that some do when a log file goes."""

    async def _step(self, producer: Producer) -> None:
        body = self.new_body()
        far_ms = self.chance.choice([LATE_MS, LATE_MS, FAR_MS])
        wait_ms = self.chance.randrange(SOON_MS, far_ms)
        if self._is_far and far_ms == LATE_MS:
            wait_ms = FAR_MS - wait_ms
        due_ms = self.cluster.world.clock.now_ms() + wait_ms
        self._note_due(body, due_ms=due_ms)
        await self.send_one(producer, Message(self.topic, body, deliver_time_ms=due_ms))
