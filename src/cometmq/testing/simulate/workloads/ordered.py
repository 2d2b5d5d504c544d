"""Ordered consumption by queue and by message group, across hand-overs between members.

Only acknowledged messages count; nothing is promised about the position of others.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import ClassVar, Final, Literal

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulate.workloads.base import Position, Workload, position_of

__all__ = ["GlobalOrderedWorkload", "GroupOrderedWorkload", "OrderedWorkload"]

GROUPS: Final = 4
SHARE_LATE_S: Final = 2.0
"""Within so many seconds a member that joins has its share of the queues, without any fault."""


class OrderedWorkload(Workload):
    """Handlers see each queue in order, whichever member holds it."""

    name: ClassVar[str] = "ordered"
    calm_steps: ClassVar[int] = 6
    topic: ClassVar[str] = "Ordered"
    order: ClassVar[Literal["queue", "group"]] = "queue"
    is_shared: ClassVar[bool] = True
    """Whether the topic has queues for two members."""

    def start(self) -> None:
        cluster = self.cluster
        self._passed: defaultdict[object, int] = defaultdict(lambda: -1)
        self._calm_member: PushConsumer | None = None
        cluster.watch(self.topic, self.never_twice)
        self.readers = cluster.watch_group(f"{self.name}-readers", is_alone=True, has_locks=True)
        self.calm_group(f"{self.name}-readers")
        first, second = cluster.clients
        cluster.role(f"{self.name} send", first, lambda: self.send_all(first, self._step))
        cluster.role(f"{self.name} one", second, lambda: self.consume(self._member(1)))
        cluster.role(f"{self.name} two", first, lambda: self.come_and_go(lambda: self._member(0)))

    async def _step(self, producer: Producer) -> None:
        group = f"group-{self.chance.randrange(GROUPS)}"
        await self.send_one(producer, Message(self.topic, self.new_body(), message_group=group))

    async def calm_step(self, producer: Producer) -> None:
        """Send as before; a second member takes its queues over and gives them back meanwhile."""
        if self._calm_member is None:
            self._calm_member = self._member(0)
            await self._calm_member.start()
            await asyncio.sleep(SHARE_LATE_S)
            shares = [queue.topic == self.topic for queue in self._calm_member.assignments]
            if self.is_shared and not any(shares):
                self.cluster.fail(
                    f"{self.name}: a member that joined has no queue after {SHARE_LATE_S} s"
                )
        elif len(self._calm_acknowledged_ms) == self.calm_steps // 2:
            await self._begin_to_leave()
            await self._calm_member.shutdown()
            for part in self.cluster.brokers:
                part.members_changed(self.readers.name)
        await self._step(producer)

    async def _begin_to_leave(self) -> None:
        """A member of an ordered queue may leave at any moment, and nothing comes twice."""

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        return self.consumer(node, number, self.topic, self._handle, self.readers, order=self.order)

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        self._check_order(position_of(message), message.properties.get("__SHARDINGKEY"))

    def _check_order(self, position: Position, group: str | None) -> None:
        """Check at the end of a handler that every earlier message of its order was handled."""
        strand = position[:3] if self.order == "queue" else (*position[:3], group)
        queue_offset, part = position[3], self.cluster.broker(position[0])
        earlier = [
            seen
            for seen in part.seen.get((position[1], position[2]), [])
            if self._passed[strand] < seen.position[3] < queue_offset
            and seen.position not in part.rot.spoilt
            and (self.order == "queue" or seen.properties.get("__SHARDINGKEY") == group)
        ]
        if earlier:
            self.cluster.fail(
                f"{self.name}: {position} was handled before {earlier[0].body[:30]!r} "
                f"at {earlier[0].position[3]}"
            )
        self._passed[strand] = max(self._passed[strand], queue_offset)

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.readers.bodies
        return f"{min(missing)[:30]!r} was never handled" if missing else None


class GroupOrderedWorkload(OrderedWorkload):
    """The same where only messages of one group wait for each other."""

    name: ClassVar[str] = "group-ordered"
    topic: ClassVar[str] = "GroupOrdered"
    order: ClassVar[Literal["queue", "group"]] = "group"

    async def _begin_to_leave(self) -> None:
        """Wait for all handlers: a group behind one that waits its turn would come twice."""
        while not self._calm_acknowledged_ms.keys() <= self.readers.bodies:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class GlobalOrderedWorkload(OrderedWorkload):
    """The order of a whole topic with one queue."""

    name: ClassVar[str] = "global-order"
    topic: ClassVar[str] = "OneQueue"
    is_shared: ClassVar[bool] = False

    def start(self) -> None:
        self._is_made = False
        super().start()

    async def _step(self, producer: Producer) -> None:
        if not self._is_made:
            await self._make_topic()
        await self.send_one(producer, Message(self.topic, self.new_body()))

    async def _make_topic(self) -> None:
        node, broker = self.cluster.clients[0], self.cluster.brokers[0].name
        servers = self.cluster.name_server_address
        async with Admin(name_server=servers, timeout_ms=1_500, env=node.environment()) as admin:
            await admin.create_topic(self.topic, queue_count=1, order=True, broker_name=broker)
        self._is_made = True
