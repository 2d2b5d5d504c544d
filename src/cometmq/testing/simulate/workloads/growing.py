"""A topic that grows and shrinks while message groups are sent to it and consumed.

Only acknowledged sends count, and only the order within a message group.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import ClassVar, Final

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.extensions.growing_admin import GrowthStatus
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.testing.simulate.broker_part import QUEUE_COUNT
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["GrowingWorkload"]

TOPIC: Final = "Growing"
READERS: Final = "growing-readers"
GROUPS: Final = 5
QUEUES_MAX: Final = 6
GROWTHS_MAX: Final = 4
BURST: Final = 3
"""Messages of a step, on average."""


class GrowingWorkload(Workload):
    """Each message group is handled in send order, whatever queue it has moved to."""

    name: ClassVar[str] = "growing"

    def start(self) -> None:
        cluster = self.cluster
        self._numbers: defaultdict[str, int] = defaultdict(int)
        self._sent_as: dict[bytes, tuple[str, int]] = {}
        """Body to its message group and its number there."""
        self._handled: defaultdict[str, list[bytes]] = defaultdict(list)
        """Bodies in the order in which their handlers ended for the first time."""
        self._judged: set[bytes] = set()
        """Bodies whose order is checked.  Before its first growth a topic follows the route, which
        loses a broker that is down."""
        self._is_growing = False
        self._growths = 0
        self._queue_count = QUEUE_COUNT
        cluster.watch(TOPIC, self.never_twice, queue_count=QUEUES_MAX)
        self.readers = cluster.watch_group(READERS)
        first, second = cluster.clients
        cluster.role("growing send", first, lambda: self.send_all(first, self._step))
        cluster.role("growing one", second, lambda: self.consume(self._member(1)))
        cluster.role("growing two", first, lambda: self.come_and_go(lambda: self._member(0)))
        cluster.role("growing operator", second, self._operate)

    @property
    def is_sent(self) -> bool:
        return self.acknowledged_count >= self.steps * BURST

    # -- messages ------------------------------------------------------------------------------

    async def _step(self, producer: Producer) -> None:
        """Send some messages of one group, each before the previous one is acknowledged."""
        group = f"group-{self.chance.randrange(GROUPS)}"
        sends = []
        for _ in range(self.chance.randint(1, 2 * BURST - 1)):
            body = self.new_body()
            self._numbers[group] += 1
            self._sent_as[body] = group, self._numbers[group]
            if self._growths or self.cluster.plan.brokers == 1:
                self._judged.add(body)
            sends.append(self.send_one(producer, Message(TOPIC, body, message_group=group)))
        for sent in await asyncio.gather(*sends, return_exceptions=True):
            if isinstance(sent, BaseException):
                raise sent

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        return self.consumer(node, number, TOPIC, self._handle, self.readers, order="group")

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.4))
        body = bytes(message.body)
        if body not in self.readers.bodies:
            self._handled[self._sent_as[body][0]].append(body)

    # -- the operator --------------------------------------------------------------------------

    async def _operate(self) -> None:
        """Grow and shrink while there are faults; then complete every growth."""
        node = self.cluster.clients[1]
        servers = self.cluster.name_server_address
        async with Admin(name_server=servers, timeout_ms=1_500, env=node.environment()) as admin:
            while self._is_growing or not self.is_sent:
                await asyncio.sleep(self.chance.uniform(0.3, 2))
                try:
                    await self._change(admin)
                except CometError as error:
                    self.cluster.world.record("refused", f"growth {type(error).__name__}: {error}")

    async def _change(self, admin: Admin) -> None:
        if not self.readers.bodies:
            return
        status = await admin.topic_growth(TOPIC)
        self.cluster.world.record("growth", status)
        self._is_growing = not status.is_complete
        if status.new:
            self._queue_count = max(_counts(status.new).values())
        if self._is_growing:
            if status.phase == "prepared":
                await self._ask_again(admin, status)
            elif self.cluster.is_peace or self.chance.random() < 0.3:
                await admin.close_topic_growth(TOPIC)
        elif self._growths < GROWTHS_MAX:
            await self._grow(admin)

    async def _grow(self, admin: Admin) -> None:
        others = set(range(1, QUEUES_MAX + 1)) - {self._queue_count}
        wanted = self.chance.choice(sorted(others))
        await self._ask(admin, wanted, is_more=wanted > self._queue_count)

    async def _ask_again(self, admin: Admin, status: GrowthStatus) -> None:
        """Repeat a change that was only begun, which may be older than the last request.

        A broker that was down since may be the only one that has it.
        """
        before, after = _counts(status.old), _counts(status.new)
        wanted = max(after.values())
        # Name the same brokers: others may have received the topic meanwhile.
        is_more = wanted > max(before.values()) or len(after) > len(before)
        await self._ask(admin, wanted, is_more=is_more, broker_names=sorted(after))

    async def _ask(
        self, admin: Admin, wanted: int, *, is_more: bool, broker_names: list[str] | None = None
    ) -> None:
        self._is_growing = True
        if is_more:
            await admin.grow_topic(TOPIC, wanted, broker_names=broker_names)
        else:
            await admin.shrink_topic(TOPIC, wanted)
        self._growths += 1

    # -- promises ------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        if self._is_growing:
            return "a growth has not ended"
        missing = self.acknowledged.keys() - self.readers.bodies
        return f"{min(missing)[:30]!r} was never handled" if missing else None

    def check(self) -> None:
        self.check_positions()
        for group, bodies in self._handled.items():
            last, before = 0, b""
            for body in bodies:
                if body not in self.acknowledged.keys() & self._judged:
                    continue
                number = self._sent_as[body][1]
                if number < last:
                    self.cluster.fail(
                        f"growing: {body[:30]!r} of {group}, at {self.acknowledged[body]}, was "
                        f"handled after {before[:30]!r}, at {self.acknowledged[before]}"
                    )
                last, before = number, body


def _counts(layout: str) -> dict[str, int]:
    """Parse a layout of the growth status into queue counts by broker."""
    pairs = (entry.rpartition(":") for entry in layout.split(";"))
    return {name: int(count) for name, _, count in pairs}
