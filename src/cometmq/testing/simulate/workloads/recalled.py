"""Timed messages that are taken back, or moved to another time, while everything goes wrong.

Must not: judge a message whose recall has no answer, or one that was refused; it may come or not.
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
    """What was taken back in time never comes; of a message that is moved one of the two comes."""

    name: ClassVar[str] = "recalled"
    topic: ClassVar[str] = "Recalled"

    def start(self) -> None:
        self._in_doubt: set[bytes] = set()
        """Asked to be taken back: they need not come."""
        self._taken_back: set[bytes] = set()
        self._pairs: list[tuple[bytes, bytes]] = []
        """Old and new of each move: one of them comes."""
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
            self._is_back(body)
        elif kind == "moved":
            await self._move(producer, body, sent)

    async def _send(self, producer: Producer) -> tuple[bytes, SendResult | None]:
        message = self._message()
        return message.body, await self.send_one(producer, message)

    def _message(self) -> Message:
        body = self.new_body()
        due_ms = self.cluster.world.clock.now_ms() + self.chance.randrange(SOON_MS, LATE_MS)
        self._due_ms[body] = due_ms
        return Message(self.topic, body, deliver_time_ms=due_ms)

    async def _move(self, producer: Producer, old: bytes, sent: SendResult) -> None:
        """Until the answer either may come; which of the two must come is known by it."""
        message = self._message()
        new = message.body
        self._in_doubt |= {old, new}
        self._pairs.append((old, new))
        moved = await producer.reschedule(sent.recall_handle, message)
        self._is_back(old)
        self._in_doubt.discard(new)
        self.note(new, moved)

    def _is_back(self, body: bytes) -> None:
        self.cluster.world.record("taken back", repr(body[:20]))
        if body in self._arrived:
            self.cluster.fail(f"{self.name}: {body[:30]!r} was taken back and had come before")
        self._taken_back.add(body)

    def _arrives(self, seen: Seen) -> None:
        super()._arrives(seen)
        if seen.body in self._taken_back:
            self.cluster.fail(f"{self.name}: {seen.body[:30]!r} came though it was taken back")

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self._arrived - self._in_doubt
        if missing:
            return f"{min(missing)[:30]!r} was never delivered"
        for old, new in self._pairs:
            if not self._arrived & {old, new}:
                return f"neither {old[:30]!r} nor {new[:30]!r}, which takes its place, came"
        return None
