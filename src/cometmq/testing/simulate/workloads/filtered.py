"""Filters: matching messages are handled, no others are, and nothing stalls.

The check does not evaluate expressions: the sender computes which messages match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.core.filter.subscription import Sql92
from cometmq.model import Message
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["BitmapsWorkload", "FilteredWorkload", "ReleasedWorkload"]

RELEASED: Final = "Released"
RELEASED_MORE: Final = "ReleasedMore"
EXPRESSION: Final = "amount BETWEEN 3 AND 5 OR (colour = 'red' AND amount IS NOT NULL)"


class FilteredWorkload(Workload):
    """A group with changing members handles every acknowledged message that matches."""

    name: ClassVar[str] = "filtered"
    calm_steps: ClassVar[int] = 6
    topic: ClassVar[str] = "Filtered"

    def start(self) -> None:
        cluster = self.cluster
        cluster.watch(self.topic, self.never_twice)
        self.group = cluster.watch_group(f"{self.name}-readers", _matches)
        self.calm_group(f"{self.name}-readers", _matches)
        first, second = cluster.clients
        cluster.role(f"{self.name} send", first, lambda: self.send_all(first, self._step))
        cluster.role(f"{self.name} one", second, lambda: self.consume(self._member(1)))
        cluster.role(f"{self.name} two", first, lambda: self.come_and_go(lambda: self._member(0)))

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        return self.consumer(
            node, number, self.topic, self._handle, self.group, expression=Sql92(EXPRESSION)
        )

    async def _step(self, producer: Producer) -> None:
        properties = {"amount": str(self.chance.randrange(10))}
        if self.chance.random() < 0.3:
            properties["colour"] = self.chance.choice(["red", "green"])
        if self.chance.random() < 0.2:
            del properties["amount"]
        await self.send_one(producer, Message(self.topic, self.new_body(), properties=properties))

    async def calm_step(self, producer: Producer) -> None:
        """Send as before."""
        await self._step(producer)

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.05))
        if not _is_match(dict(message.properties)):
            self.cluster.fail(f"{self.name}: {message.properties} came though it does not match")

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        wanted = {seen.body for seen in self.cluster.messages(self.topic) if _matches(seen)}
        missing = wanted - self.group.bodies
        return f"{min(missing)[:30]!r} matches and was never handled" if missing else None


class BitmapsWorkload(FilteredWorkload):
    """The same with bitmaps beside the consume queues."""

    name: ClassVar[str] = "bitmaps"
    topic: ClassVar[str] = "Bitmaps"
    settings: ClassVar[dict[str, object]] = {
        "enable_calc_filter_bit_map": True,
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext": 4096,
    }


class ReleasedWorkload(Workload):
    """A rolling release: members of one group want different tags and topics.

    A member of the new release wants the tags A and B, and one topic more; it stays.  Members of
    the old release want tag A alone; they come and go or stay, and so does another new member.
    Somebody wants each message all the time, so each is handled, by a member that wants it.
    """

    name: ClassVar[str] = "released"

    def start(self) -> None:
        cluster = self.cluster
        for topic in (RELEASED, RELEASED_MORE):
            cluster.watch(topic, self.never_twice)
        self._is_known = asyncio.Event()
        self.stays = self.chance.random() < 0.5
        """Whether old members stay: the release does not end."""
        self.group = cluster.watch_group("released-readers", may_go_back_to=lambda _: True)
        first, second = cluster.clients
        cluster.role("released send", first, lambda: self.send_all(first, self._step))
        cluster.role("released new", second, lambda: self.consume(self._new(0)))
        cluster.role("released newer", first, lambda: self._when_known(lambda: self._new(1)))
        cluster.role("released old", first, lambda: self._when_known(lambda: self._old(2)))
        cluster.role("released older", second, lambda: self._when_known(lambda: self._old(3)))

    async def _when_known(self, make: Callable[[], PushConsumer]) -> None:
        """Come and go once the member that stays has handled something, so that it is known."""
        await self._is_known.wait()
        if self.stays:
            await self.consume(make())
        await self.come_and_go(make)

    def _new(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number % 2 == 0]
        member = self.consumer(node, number, RELEASED, self._handle, self.group, "A || B")
        member._subscribe(RELEASED_MORE, "*")
        return member

    def _old(self, number: int) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            if message.topic != RELEASED or message.tags != "A":
                self.cluster.fail(f"released: an old member got {message.topic} {message.tags}")
            await self._handle(message)

        return self.consumer(
            self.cluster.clients[number % 2 == 1], number, RELEASED, handle, self.group, "A"
        )

    async def _handle(self, message: ReceivedMessage) -> None:
        self._is_known.set()
        await asyncio.sleep(self.chance.uniform(0, 0.05))

    async def _step(self, producer: Producer) -> None:
        if self.chance.random() < 0.3:
            await self.send_one(producer, Message(RELEASED_MORE, self.new_body()))
        else:
            tags = self.chance.choice("AB")
            await self.send_one(producer, Message(RELEASED, self.new_body(), tags=tags))

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.group.bodies
        return f"{min(missing)[:30]!r} was never handled" if missing else None


def _matches(seen: Seen) -> bool:
    return _is_match(seen.properties)


def _is_match(properties: dict[str, str]) -> bool:
    amount = properties.get("amount")
    return amount is not None and (3 <= int(amount) <= 5 or properties.get("colour") == "red")
