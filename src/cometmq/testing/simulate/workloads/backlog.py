"""Batches that accumulate until a member joins and pulls them in bulk."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["BacklogWorkload"]

TOPIC: Final = "Backlog"
BATCH: Final = 40
"""Messages of a batch; a client pulls in bulk when 64 or more wait in a queue."""


class BacklogWorkload(Workload):
    """Every acknowledged message is at its offset, stored once and handled."""

    name: ClassVar[str] = "backlog"

    def start(self) -> None:
        cluster = self.cluster
        cluster.watch(TOPIC, self.never_twice)
        self.group = cluster.watch_group("backlog-readers")
        first, second = cluster.clients
        cluster.role("backlog send", first, lambda: self.send_all(first, self._step))
        cluster.role("backlog read", second, self._read)

    async def _step(self, producer: Producer) -> None:
        batch = [
            Message(TOPIC, b"%d of %d" % (number, self.tries), message_group="one queue")
            for number in range(BATCH)
        ]
        self.tries += 1
        for message in batch:
            self.note_sent(message.body)
        for message, sent in zip(batch, await producer.send_batch(batch), strict=True):
            self.note(message.body, sent)

    async def _read(self) -> None:
        while not self.is_sent:  # noqa: ASYNC110 - the sender does not call back
            await asyncio.sleep(self.chance.uniform(0.2, 1))
        while not self.cluster.is_peace:
            async with self._member():
                await asyncio.sleep(self.chance.uniform(0.5, 2))
        await self.consume(self._member())

    def _member(self) -> PushConsumer:
        node = self.cluster.clients[1]
        return self.consumer(node, 0, TOPIC, self._handle, self.group)

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.05))

    @property
    def is_sent(self) -> bool:
        """Batches for a third of the steps."""
        return self.acknowledged_count >= BATCH * max(1, self.steps // 3)

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.group.bodies
        return f"{min(missing)[:30]!r} was never handled" if missing else None
