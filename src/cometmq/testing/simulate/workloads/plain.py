"""Plain messages, tagged messages and batches, read by a group with changing members and by tag."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["PlainWorkload"]

TOPIC: Final = "Plain"
TAG_A: Final = "AaAa"
TAGS_ALIKE: Final = ("BBBB", "AaBB")
"""Tags with the hash of `TAG_A`: brokers deliver their messages, and consumers must not."""


class PlainWorkload(Workload):
    """Every acknowledged message is at its offset, stored once, and handled where it matches."""

    name: ClassVar[str] = "plain"
    calm_steps: ClassVar[int] = 8

    def start(self) -> None:
        cluster = self.cluster
        cluster.watch(TOPIC, self.never_twice)
        self.all = cluster.watch_group("plain-all")
        self.tagged = cluster.watch_group("plain-a", _is_a, is_alone=True)
        self.calm_group("plain-all")
        self.calm_group("plain-a", _is_a)
        first, second = cluster.clients
        cluster.role("plain send", first, lambda: self.send_all(first, self._step))
        cluster.role("plain one", first, lambda: self.consume(self._member(0)))
        cluster.role("plain two", second, lambda: self.come_and_go(lambda: self._member(1)))
        cluster.role("plain a", second, lambda: self.consume(self._tag_member()))

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.05))

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        return self.consumer(node, number, TOPIC, self._handle, self.all)

    def _tag_member(self) -> PushConsumer:
        node = self.cluster.clients[1]
        return self.consumer(node, 0, TOPIC, self._handle, self.tagged, f"{TAG_A} || C")

    async def _step(self, producer: Producer) -> None:
        tags = self.chance.choice([TAG_A, *TAGS_ALIKE, "B", None])
        if self.chance.random() < 0.7:
            properties = {"colour": self.chance.choice(["red", "grün", "=|;"]), "empty": " "}
            message = Message(TOPIC, self.new_body(), tags=tags, properties=properties)
            await self.send_one(producer, message)
            return
        batch = [Message(TOPIC, self.new_body(), tags=tags) for _ in range(4)]
        for message, sent in zip(batch, await producer.send_batch(batch), strict=True):
            self.note(message.body, sent)

    async def calm_step(self, producer: Producer) -> None:
        """Send to one queue, so that a message may come while the last one is pulled."""
        queues = await producer.fetch_publish_queues(TOPIC)
        message = Message(TOPIC, self.new_body(), tags=TAG_A)
        self.note(message.body, await producer.send(message, queue=queues[0]))

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.all.bodies
        if missing:
            return f"{len(missing)} acknowledged messages were not handled: {min(missing)[:30]!r}"
        wanted = {seen.body for seen in self.cluster.messages(TOPIC) if _is_a(seen)}
        missing = wanted - self.tagged.bodies
        if missing:
            return f"{len(missing)} messages with tag A were not handled: {min(missing)[:30]!r}"
        return None

    def check(self) -> None:
        self.check_positions()
        # A power cut may take a message that the group handled and no observation saw.
        others = {seen.body for seen in self.cluster.messages(TOPIC) if not _is_a(seen)}
        if self.tagged.bodies & others:
            self.cluster.fail("plain: the group of tag A received another tag")


def _is_a(seen: Seen) -> bool:
    return seen.properties.get("TAGS") == TAG_A
