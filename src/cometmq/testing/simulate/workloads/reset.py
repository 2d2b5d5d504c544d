"""A group that an operator sends back in time while it consumes.

Must not: order a queue forward on purpose; a time that a queue has nothing after does it anyway.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar, Final

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Place, Workload, place_of

__all__ = ["ResetWorkload"]

TOPIC: Final = "Reset"
GROUP: Final = "reset-readers"


@dataclass(slots=True)
class _Order:
    """An order to a broker that was carried out: what is to be handled again."""

    asked_s: float
    broker_name: str
    broker_life: int
    reader_life: int
    places: set[Place]
    is_taken: bool = False
    is_in_doubt: bool = False


class ResetWorkload(Workload):
    """All from the ordered time on is handled again; offsets go back there and nowhere else."""

    name: ClassVar[str] = "reset"

    def start(self) -> None:
        cluster = self.cluster
        self._times_ms: set[int] = set()
        """Of all orders, also those without an answer."""
        self._orders: list[_Order] = []
        self._begun_s: dict[Place, float] = {}
        """When each message was last given to the handler."""
        self._is_last_ordered = False
        cluster.watch(TOPIC, self.never_twice)
        self.group = cluster.watch_group(GROUP, self._is_wanted, is_alone=True)
        self.group.may_go_back_to = self._is_ordered
        cluster.on_look.append(self._look)
        first, second = cluster.clients
        cluster.role("reset send", first, lambda: self.send_all(first, self._step))
        cluster.role("reset operator", first, self._operate)
        cluster.role("reset read", second, lambda: self.consume(self._member()))

    async def _step(self, producer: Producer) -> None:
        batch = [Message(TOPIC, self.new_body()) for _ in range(self.chance.randint(1, 5))]
        for message, sent in zip(batch, await producer.send_batch(batch), strict=True):
            self.note(message.body, sent)

    def _member(self) -> PushConsumer:
        return self.consumer(self.cluster.clients[1], 0, TOPIC, self._handle, self.group)

    async def _handle(self, message: ReceivedMessage) -> None:
        self._begun_s[place_of(message)] = self.cluster.world.loop.time()
        await asyncio.sleep(self.chance.uniform(0, 0.2))

    # -- the operator ----------------------------------------------------------------------------

    async def _operate(self) -> None:
        """Orders until the faults are over, and one more."""
        node = self.cluster.clients[0]
        servers = self.cluster.name_server_address
        async with Admin(name_server=servers, timeout_ms=1_500, env=node.environment()) as admin:
            while not self._is_last_ordered:
                await asyncio.sleep(self.chance.uniform(0.4, 2))
                is_last = self.cluster.is_peace and self.is_sent
                if not (known := self.cluster.messages(TOPIC)):
                    continue
                moment_ms = 0
                if self.chance.random() < 0.7:
                    moment_ms = self.chance.choice(known).store_ms
                try:
                    await self._order(admin, moment_ms)
                except CometError as error:
                    self.cluster.world.record("refused", f"reset {type(error).__name__}")
                else:
                    self._is_last_ordered = is_last

    async def _order(self, admin: Admin, moment_ms: int) -> None:
        self.cluster.world.record("reset", f"to {moment_ms}")
        self._times_ms.add(moment_ms)
        for order in self._orders:
            # It may come before the group has done what the earlier ones said.
            order.places = {one for one in order.places if self._is_from(one, moment_ms)}
        reader = self.cluster.clients[1].lifetime.number
        lives = {part.name: part.node.lifetime.number for part in self.cluster.brokers}
        orders = [
            _Order(
                self.cluster.world.loop.time(),
                part.name,
                lives[part.name],
                reader,
                {
                    seen.place
                    for seen in self.cluster.messages(TOPIC)
                    if seen.place[0] == part.name and seen.store_ms >= moment_ms
                },
            )
            for part in self.cluster.brokers
        ]
        moved = await admin.reset_offsets(GROUP, TOPIC, timestamp_ms=moment_ms)
        self.cluster.world.record("reset done", sorted(moved.items()))
        for queue, queue_offset in moved.items():
            self._check_target(queue.broker_name, queue.queue_id, queue_offset, moment_ms)
        queues = {(queue.broker_name, queue.queue_id) for queue in moved}
        for order in orders:
            order.places = {place for place in order.places if (place[0], place[2]) in queues}
        self._orders += orders

    def _check_target(
        self, broker_name: str, queue_id: int, queue_offset: int, moment_ms: int
    ) -> None:
        """Nothing of that time or later is left out, but what went with its files."""
        part = self.cluster.broker(broker_name)
        if part.is_up:
            first = part.first(TOPIC, queue_id)
            for seen in part.seen.get((TOPIC, queue_id), [])[first:queue_offset]:
                if seen.store_ms >= moment_ms:
                    self.cluster.fail(
                        f"reset to {moment_ms} leads to {queue_offset} of {broker_name} "
                        f"{TOPIC}/{queue_id}, behind {seen.place[3]} of {seen.store_ms}"
                    )

    def _is_from(self, place: Place, moment_ms: int) -> bool:
        seen = self.cluster.at(place)
        return seen is not None and seen.store_ms >= moment_ms

    # -- what was ordered ------------------------------------------------------------------------

    def _is_wanted(self, seen: Seen) -> bool:
        """Who goes on from a later time passes over what lies before it."""
        return all(seen.store_ms >= moment_ms for moment_ms in self._times_ms)

    def _is_ordered(self, place: Place) -> bool:
        """Whether it is the first of its queue at or after the time of an order, or the end."""
        if place[1] != TOPIC:
            return False
        queue_offset = place[3]
        queue = self.cluster.broker(place[0]).seen.get((TOPIC, place[2]), [])
        before_ms = queue[queue_offset - 1].store_ms if queue_offset else -1
        at_ms = queue[queue_offset].store_ms if queue_offset < len(queue) else 1 << 62
        return any(before_ms < moment_ms <= at_ms for moment_ms in self._times_ms)

    def _look(self) -> None:
        """A life that ends may take an order along: brokers keep it in memory until it is taken."""
        reader = self.cluster.clients[1].lifetime
        for order in self._orders:
            part = self.cluster.broker(order.broker_name)
            is_same_broker = part.is_up and part.node.lifetime.number == order.broker_life
            if is_same_broker and part.broker is not None and not order.is_taken:
                table = part.broker.state.offsets
                order.is_taken = not any(
                    table.has_reset(GROUP, TOPIC, queue_id) for _, _, queue_id, _ in order.places
                )
            if is_same_broker:
                continue
            is_same_reader = reader.alive and reader.number == order.reader_life
            if not order.is_taken or not is_same_reader:
                order.is_in_doubt = True
        self._orders = [one for one in self._orders if not one.is_in_doubt and self._missing(one)]

    def _missing(self, order: _Order) -> set[Place]:
        part = self.cluster.broker(order.broker_name)
        return {
            place
            for place in order.places
            if self._begun_s.get(place, -1.0) < order.asked_s
            # What every group had consumed before the order may have gone with its files.
            and not (part.is_up and place[3] < part.first(TOPIC, place[2]))
        }

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        if not self._is_last_ordered:
            return "the last order was not given yet"
        for seen in self.cluster.messages(TOPIC):
            if seen.body not in self.group.bodies and self._is_wanted(seen):
                return f"{seen.body[:30]!r} was never handled"
        for order in self._orders:
            if missing := self._missing(order):
                return f"{min(missing)} was not handled again after the order at {order.asked_s}"
        return None
