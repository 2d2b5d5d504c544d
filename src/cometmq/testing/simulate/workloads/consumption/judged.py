"""Priorities and `why`: what a message waits for, and what a broker says about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError, QueryNotFound
from cometmq.model import Message
from cometmq.model.properties import PRIORITY
from cometmq.testing.simulate.workloads.base import Workload

if TYPE_CHECKING:
    from cometmq.client.admin.admin import Admin

__all__ = ["PriorityWorkload", "WhyWorkload"]

HIGH_BATCH: Final = 6
STARTS_MAX: Final = 1_500
"""At a share of a half a low message waits for two starts; the rest is for connections and stores
that are slow."""


class PriorityWorkload(Workload):
    """Messages of a low priority are handled while those of a high one never end."""

    name: ClassVar[str] = "priority"
    topic: ClassVar[str] = "Priority"

    def start(self) -> None:
        cluster = self.cluster
        cluster.watch(self.topic, self.never_twice)
        self.group = cluster.watch_group("priority-readers")
        self._low: set[bytes] = set()
        self._starts_past_low = 0
        first, second = cluster.clients
        cluster.role("priority send", first, self._send)
        cluster.role("priority one", second, lambda: self.consume(self._member()))

    async def _send(self) -> None:
        """Make the topic; then send low messages, and high ones until the low ones are handled."""
        node = self.cluster.clients[0]
        async with self.admin(node) as admin:
            await admin.create_topic(self.topic, queue_count=3, attributes="+message.type=PRIORITY")
        async with self.producer(node) as producer:
            while not (self.is_sent and self._are_low_handled()):
                try:
                    await self._step(producer)
                except CometError as error:
                    self.cluster.world.record("refused", f"priority {type(error).__name__}")
                await asyncio.sleep(0.1)

    def _are_low_handled(self) -> bool:
        return self._low & self.acknowledged.keys() <= self.group.bodies

    async def _step(self, producer: Producer) -> None:
        if not self.is_sent:
            body = self.new_body()
            self._low.add(body)
            await self.send_one(producer, Message(self.topic, body, properties={PRIORITY: "0"}))
        for _ in range(HIGH_BATCH):
            message = Message(self.topic, self.new_body(), properties={PRIORITY: "2"})
            await self.send_one(producer, message)

    def _member(self) -> PushConsumer:
        node = self.cluster.clients[1]
        member = self.consumer(node, 1, self.topic, self._handle, self.group)
        member._low_share, member._concurrency = 0.5, 1
        return member

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(0.05)
        waits = self.cluster.is_peace and not self._are_low_handled()
        self._starts_past_low = self._starts_past_low + 1 if waits else 0
        if message.body in self._low:
            self._starts_past_low = 0
        elif self._starts_past_low > STARTS_MAX:
            self.cluster.fail(f"priority: {STARTS_MAX} messages went past one of a low priority")

    @property
    def is_sent(self) -> bool:
        return len(self._low & self.acknowledged.keys()) >= self.steps

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.group.bodies
        return f"{min(missing)[:30]!r} was never handled" if missing else None

    def check(self) -> None:
        self.check_positions()


class WhyWorkload(Workload):
    """What `why` says of a message is what became of it."""

    name: ClassVar[str] = "why"
    topic: ClassVar[str] = "Why"

    def start(self) -> None:
        cluster = self.cluster
        cluster.watch(self.topic, self.never_twice)
        self.group = cluster.watch_group("why-readers", lambda s: s.properties["TAGS"] == "A")
        self._ids: dict[bytes, tuple[str, str]] = {}
        """By acknowledged body: the id of its place in the log, and its tag."""
        self._explained: set[bytes] = set()
        first, second = cluster.clients
        cluster.role("why send", first, lambda: self.send_all(first, self._step))
        cluster.role("why one", second, lambda: self.consume(self._member(1)))
        cluster.role("why two", first, lambda: self.come_and_go(lambda: self._member(0)))
        cluster.role("why ask", first, self._ask)

    async def _step(self, producer: Producer) -> None:
        tag = self.chance.choice("AB")
        message = Message(self.topic, self.new_body(), tags=tag)
        sent = await self.send_one(producer, message)
        if sent is not None:
            self._ids[message.body] = sent.offset_message_id, tag

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        return self.consumer(node, number, self.topic, self._handle, self.group, "A")

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.05))

    async def _ask(self) -> None:
        """In the calm, ask about each message until the answer is what became of it."""
        node = self.cluster.clients[0]
        while not (self.cluster.is_peace and self.is_sent and not self._missing()):  # noqa: ASYNC110
            await asyncio.sleep(0.3)
        async with self.admin(node) as admin:
            for body, (message_id, tag) in self._ids.items():
                if body in self.acknowledged and body not in self._explained:
                    await self._ask_about(admin, body, message_id, tag)

    async def _ask_about(self, admin: Admin, body: bytes, message_id: str, tag: str) -> None:
        wanted = {"A": ("acknowledged",), "B": ("filtered",)}[tag]
        state = ""
        for _ in range(60):  # members commit every five seconds; a name server may be away
            try:
                answer = await admin.why(message_id, "why-readers", self.topic)
            except QueryNotFound:
                self._explained.add(body)  # its log file has gone
                return
            except CometError as error:
                self.cluster.world.record("refused", f"why {type(error).__name__}")
            else:
                state = answer.state
                if state in wanted:
                    self._explained.add(body)
                    return
            await asyncio.sleep(1)
        self.cluster.fail(
            f"why: {body[:30]!r} with tag {tag} is {wanted[0]}, and the broker says {state!r}"
        )

    def _missing(self) -> set[bytes]:
        wanted = {body for body, (_, tag) in self._ids.items() if tag == "A"}
        return (wanted & self.acknowledged.keys()) - self.group.bodies

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self._missing()
        if missing:
            return f"{min(missing)[:30]!r} was never handled"
        untold = (self._ids.keys() & self.acknowledged.keys()) - self._explained
        return f"nobody has asked about {min(untold)[:30]!r}" if untold else None

    def check(self) -> None:
        self.check_positions()
