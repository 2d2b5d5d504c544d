"""Timed messages that are recalled or rescheduled while faults happen.

A message whose recall failed or got no answer may come or not.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from cometmq.client.producer.producer import Producer
from cometmq.model import Message, SendResult
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.delayed import DelayedWorkload

__all__ = ["RecalledWorkload"]

SOON_MS, LATE_MS = 1_500, 7_000
KINDS: Final = ("stays", "recalled", "recalled", "moved", "moved")


class RecalledWorkload(DelayedWorkload):
    """A recalled message never comes; of a rescheduled message the old or the new one comes."""

    name: ClassVar[str] = "recalled"
    calm_steps: ClassVar[int] = 0
    topic: ClassVar[str] = "Recalled"

    def start(self) -> None:
        self._in_doubt: set[bytes] = set()
        """Bodies with a recall or reschedule request: they need not come."""
        self._recalled: set[bytes] = set()
        self._pairs: list[tuple[bytes, bytes]] = []
        """Old and new body of each reschedule: one of them comes."""
        super().start()

    async def _step(self, producer: Producer) -> None:
        body, sent = await self._send(producer)
        if sent is None:
            return
        kind = self.chance.choice(KINDS)
        await asyncio.sleep(self.chance.choice([0.0, 0.3, 2.0]))
        if kind == "recalled":
            self._in_doubt.add(body)
            await producer.recall(self.topic, sent.recall_handle)
            self._record_recall(body)
        elif kind == "moved":
            await self._move(producer, body, sent)

    async def _send(self, producer: Producer) -> tuple[bytes, SendResult | None]:
        message = self._message()
        return message.body, await self.send_one(producer, message)

    def _message(self) -> Message:
        body = self.new_body()
        due_ms = self.cluster.world.clock.now_ms() + self.chance.randrange(SOON_MS, LATE_MS)
        self._note_due(body, due_ms=due_ms)
        return Message(self.topic, body, deliver_time_ms=due_ms)

    async def _move(self, producer: Producer, old: bytes, sent: SendResult) -> None:
        """Reschedule a message: before the answer either may come, after it the new one must."""
        message = self._message()
        new = message.body
        self._in_doubt |= {old, new}
        self._pairs.append((old, new))
        moved = await producer.reschedule(sent.recall_handle, message)
        self._record_recall(old)
        self._in_doubt.discard(new)
        self.note(new, moved)

    def _record_recall(self, body: bytes) -> None:
        self.cluster.world.record("taken back", body=body)
        if body in self._arrived:
            self.cluster.fail(f"{self.name}: {body[:30]!r} was recalled and had come before")
        self._recalled.add(body)

    def _arrives(self, seen: Seen) -> None:
        super()._arrives(seen)
        if seen.body in self._recalled:
            self.cluster.fail(f"{self.name}: {seen.body[:30]!r} came though it was recalled")

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self._arrived.keys() - self._in_doubt
        if missing:
            return f"{min(missing)[:30]!r} was never delivered"
        for old, new in self._pairs:
            if not self._arrived.keys() & {old, new}:
                return f"neither {old[:30]!r} nor its successor {new[:30]!r} came"
        return None
