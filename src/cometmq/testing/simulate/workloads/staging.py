"""Staged batches beside ordinary messages: readers see all of a batch or nothing, and once.

The driver works as Spark's does: it stages a batch and publishes it; after any failure it stages
and publishes the whole batch again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import ClassVar, Final

from cometmq.client.extensions.staging.batches import Staging
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.testing.simulate.workloads.base import Workload
from cometmq.testing.simulation import Node

__all__ = ["StagingWorkload"]

TOPIC: Final = "Staged"
SINK: Final = "sink"
ROWS: Final = 12
"""Messages of a batch."""


class StagingWorkload(Workload):
    """A published batch is complete, also after crashes."""

    name: ClassVar[str] = "staging"

    def start(self) -> None:
        cluster = self.cluster
        self._published: set[int] = set()
        self._rows: Counter[int] = Counter()
        cluster.watch(TOPIC, self.never_twice)
        cluster.on_observed.append(self._observe)
        first, second = cluster.clients
        cluster.role("staging drive", first, lambda: self._drive(first))
        cluster.role("staging send", second, lambda: self.send_all(second, self._step))

    @property
    def acknowledged_count(self) -> int:
        return min(len(self._published) * 4, len(self.acknowledged))

    async def _step(self, producer: Producer) -> None:
        await self.send_one(producer, Message(TOPIC, self.new_body()))

    async def _drive(self, node: Node) -> None:
        async with Staging(
            self.cluster.name_server_address,
            SINK,
            timeout_ms=2_000,
            publish_timeout_ms=10_000,
            block_bytes=600,
            env=node.environment(),
        ) as staging:
            batch_id = 0
            while batch_id * 4 < self.steps:
                if batch_id in self._published or await self._try(staging, batch_id):
                    batch_id += 1
                await asyncio.sleep(self.chance.uniform(0.1, 0.6))

    async def _try(self, staging: Staging, batch_id: int) -> bool:
        try:
            parts = []
            for part in range(2):
                writer = staging.part(batch_id, str(part))
                for row in range(part, ROWS, 2):
                    body = b"batch/%d/%d/" % (batch_id, row) + b"." * 50
                    self.cluster.sent.setdefault(body, {})
                    await writer.add(TOPIC, body, message_group=f"g{row % 5}" if row % 3 else None)
                parts.append(await writer.finish())
            await staging.publish(batch_id, parts)
        except CometError as error:
            self.cluster.world.record("refused", f"batch {batch_id} {type(error).__name__}")
            return False
        self._published.add(batch_id)
        self.cluster.world.record("published", batch_id)
        return True

    def _observe(self) -> None:
        """Check the batches that readers of all brokers see at one moment."""
        if not all(part.is_up for part in self.cluster.brokers):
            return
        rows = Counter(
            int(seen.body.split(b"/")[1])
            for seen in self.cluster.messages(TOPIC)
            if seen.body.startswith(b"batch/")
        )
        # Publication is atomic on each broker, not across brokers.
        is_whole = len(self.cluster.brokers) == 1 or self.cluster.ended.is_set()
        for batch_id, count in rows.items():
            if count != ROWS and is_whole:
                self.cluster.fail(f"staging: readers see {count} of {ROWS} rows of {batch_id}")
        missing = self._published - rows.keys()
        if missing:
            self.cluster.fail(f"staging: batch {min(missing)} was published and is missing")

    def unsettled(self) -> str | None:
        return None if self.is_sent else "not everything is published"
