"""A ledger: members consume in order, and a fence keeps out a member that has lost its queue.

A handler may be slow before its transaction, and the transaction may begin late, so the member's
lock may end and another member commit in between.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Final, Self

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.markers import override
from cometmq.testing.simulate.workloads.base import Workload

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

    from cometmq.patterns.idempotent import Fence
    from cometmq.testing.simulation import Node

__all__ = ["LedgerWorkload"]

TOPIC: Final = "Ledger"
GROUP: Final = "ledger"
ACCOUNTS: Final = 4
SLOW_S: Final = (0.0, 0.0, 0.0, 0.3, 1.0, 3.0, 8.0)
"""The longest outlives a queue's lock where lives are shorter."""
CREATE: Final = "create table postings (name text, queue text, at int, own int, epoch int)"
POST: Final = "insert into postings select :name, :queue, :at, :own, epoch from cometmq_fences"


class LedgerWorkload(Workload):
    """Each posting is committed once, in its queue's order, by the member that has the queue."""

    name: ClassVar[str] = "ledger"

    def start(self) -> None:
        from cometmq.patterns.idempotent.fence import FENCES
        from cometmq.patterns.idempotent.sql import CLAIMS
        from cometmq.testing.sim_database import SimDatabase

        cluster = self.cluster
        self.database = SimDatabase(cluster.world, self.name, **cluster.service_options("database"))
        CLAIMS.create(self.database.quiet)
        FENCES.create(self.database.quiet)
        self.database.write(CREATE)
        cluster.watch(TOPIC, self.never_twice)
        self.group = cluster.watch_group(GROUP, is_alone=True)
        first, second = cluster.clients
        cluster.role("ledger send", first, lambda: self.send_all(first, self._step))
        for number, node in enumerate(cluster.clients):
            post = functools.partial(self._post, node, number)
            cluster.role(f"ledger post {number}", node, post)
        cluster.role("ledger third", second, lambda: self._come_and_go(second))

    async def _step(self, producer: Producer) -> None:
        account = f"account-{self.chance.randrange(ACCOUNTS)}"
        await self.send_one(producer, Message(TOPIC, self.new_body(), message_group=account))

    # -- members ------------------------------------------------------------------------------

    def _member(self, node: Node, number: int) -> PushConsumer:
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import async_sessionmaker

        from cometmq.patterns.idempotent import exactly_once

        fence, began = self._fence()

        async def post(message: ReceivedMessage, session: AsyncSession) -> None:
            queue = _queue(message)
            values = {"name": bytes(message.body), "queue": queue, "at": message.queue_offset}
            statement = text(f"{POST} where group_name = '{GROUP}' and queue_name = :queue")
            await session.execute(statement, {**values, "own": began[queue]})

        sessions = async_sessionmaker(self.database.engine, class_=self._slow_session())
        once = exactly_once(sessions, group=GROUP, fence=fence, clock=self.now_ms)(post)

        async def handle(message: ReceivedMessage) -> None:
            await self._be_slow()
            await once(message)

        return self.consumer(
            node,
            number,
            TOPIC,
            handle,
            self.group,
            order="queue",
            suspend_ms=200,
            rebalance_listener=fence.rebalanced,
        )

    async def _be_slow(self) -> None:
        """Wait, so that a member may lose its queue before it notices."""
        if not self.cluster.is_peace:
            await asyncio.sleep(self.chance.choice(SLOW_S))

    def _slow_session(self) -> type[AsyncSession]:
        """A session that begins late at times, as where all connections of a pool are in use."""
        from sqlalchemy.ext.asyncio import AsyncSession

        be_slow = self._be_slow

        class SlowSession(AsyncSession):
            @override
            async def __aenter__(self) -> Self:
                await be_slow()
                return await super().__aenter__()

        return SlowSession

    def _fence(self) -> tuple[Fence, dict[str, int]]:
        """A fence, and for each queue the epoch with which the last handler began."""
        from cometmq.patterns.idempotent import Fence

        began: dict[str, int] = {}

        class NotedFence(Fence):
            @override
            def enter(self, messages: Iterable[ReceivedMessage]) -> dict[str, int]:
                epochs = super().enter(messages)
                began.update(epochs)
                return epochs

        return NotedFence(self.database.engine, GROUP), began

    async def _post(self, node: Node, number: int) -> None:
        await self.consume(self._member(node, number))

    async def _come_and_go(self, node: Node) -> None:
        await self.come_and_go(lambda: self._member(node, 2))

    # -- promises ------------------------------------------------------------------------------

    def _posted(self) -> list[bytes]:
        return [name for (name,) in self.database.read("select name from postings")]

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - set(self._posted())
        return f"{min(missing)[:30]!r} is not posted" if missing else None

    @override
    def check(self) -> None:
        self.check_positions()
        twice = [name for name, count in Counter(self._posted()).items() if count > 1]
        if twice:
            self.cluster.fail(f"ledger: {twice[0][:30]!r} is posted twice")
        before: dict[str, int] = {}
        for name, queue, at, own, epoch in self.database.read("select * from postings"):
            if own != epoch:
                self.cluster.fail(
                    f"ledger: {name[:30]!r} of {queue} is committed by a member with epoch {own}, "
                    f"and the queue has epoch {epoch}"
                )
            if at <= before.get(queue, -1):
                self.cluster.fail(f"ledger: {queue} is posted at {before[queue]}, then at {at}")
            before[queue] = at


def _queue(message: ReceivedMessage) -> str:
    queue = message.message_queue
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"
