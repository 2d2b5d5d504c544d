"""SQL92 subscriptions: matching messages are handled, no others are, and nothing stalls.

The check does not evaluate expressions: the sender computes which messages match.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.core.filter.subscription import Sql92
from cometmq.model import Message
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["BitmapsWorkload", "FilteredWorkload"]

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


def _matches(seen: Seen) -> bool:
    return _is_match(seen.properties)


def _is_match(properties: dict[str, str]) -> bool:
    amount = properties.get("amount")
    return amount is not None and (3 <= int(amount) <= 5 or properties.get("colour") == "red")
