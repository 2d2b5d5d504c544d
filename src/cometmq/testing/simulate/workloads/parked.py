"""Message groups that are parked after repeated failures and retried or skipped by an operator.

The workload judges by what handlers saw; it reads the parking log only as an operator does.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import ClassVar, Final

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.extensions.parking.admin import ParkedLane, ParkedLanes
from cometmq.client.handling.handlers import RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.model.names import park_topic
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Position, Workload

__all__ = ["ParkedWorkload"]

TOPIC: Final = "ParkedOrders"
READERS: Final = "parking-readers"
GROUPS: Final = 4
TRIES: Final = 2


class ParkedWorkload(Workload):
    """Each message group is handled completely and in order, also after parking."""

    name: ClassVar[str] = "parked"

    def start(self) -> None:
        cluster = self.cluster
        self._positions: dict[bytes, Position] = {}
        self._mended: set[bytes] = set()
        """Bodies whose handler failed and succeeds from now on."""
        self._given_up: set[bytes] = set()
        """Bodies that an operator skipped or tried to skip."""
        self._passed: defaultdict[object, int] = defaultdict(lambda: -1)
        cluster.watch(TOPIC, self._arrives)
        cluster.watch(park_topic(READERS), self._is_parked, is_sent=False)
        self.readers = cluster.watch_group(READERS, lambda seen: seen.position[1] == TOPIC)
        first, second = cluster.clients
        cluster.role("parked send", first, lambda: self.send_all(first, self._step))
        cluster.role("parked one", second, lambda: self.consume(self._member(1)))
        cluster.role("parked two", first, lambda: self.come_and_go(lambda: self._member(0)))
        cluster.role("parked operator", second, self._operate)

    # -- messages ------------------------------------------------------------------------------

    async def _step(self, producer: Producer) -> None:
        group = f"group-{self.chance.randrange(GROUPS)}"
        body = self.new_body(self.chance.choice([b"good", b"good", b"good", b"bad"]))
        await self.send_one(producer, Message(TOPIC, body, message_group=group))

    def _arrives(self, seen: Seen) -> None:
        self.never_twice(seen)
        self._positions[seen.body] = seen.position

    def _is_parked(self, seen: Seen) -> None:
        """Count a parked message as decided: its copy is in the parking log."""
        if "PARK_OF" in seen.properties:
            self.readers.decided.add(self._positions[seen.body])

    # -- handling ------------------------------------------------------------------------------

    def _member(self, number: int) -> PushConsumer:
        return self.consumer(
            self.cluster.clients[number],
            number,
            TOPIC,
            self._handle,
            self.readers,
            order="group",
            park_after=TRIES,
            suspend_ms=100,
        )

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.1))
        body = bytes(message.body)
        if body.endswith(b"bad") and body not in self._mended:
            raise RetryLater(reason="not mended yet")
        while body not in self._positions:  # noqa: ASYNC110 - observers have no waiters
            # A handler may run before the next observation of its queue.
            await asyncio.sleep(0.05)
        self._check_order(body, message.properties.get("__SHARDINGKEY"))

    def _check_order(self, body: bytes, group: str | None) -> None:
        """Check that every earlier message of the group was handled or skipped."""
        position = self._positions[body]
        lane = (*position[:3], group)
        for seen in self.cluster.broker(position[0]).seen[position[1], position[2]]:
            if (
                self._passed[lane] < seen.position[3] < position[3]
                and seen.properties.get("__SHARDINGKEY") == group
                and seen.body not in self._given_up
            ):
                self.cluster.fail(
                    f"parked: {body[:30]!r} of {group} at {position} was handled before "
                    f"{seen.body[:30]!r} at {seen.position[3]}"
                )
        self._passed[lane] = max(self._passed[lane], position[3])

    # -- the operator --------------------------------------------------------------------------

    async def _operate(self) -> None:
        """Retry parked lanes from time to time, mended or not, or skip their first messages."""
        node = self.cluster.clients[1]
        servers = self.cluster.name_server_address
        async with Admin(name_server=servers, timeout_ms=1_500, env=node.environment()) as admin:
            lanes = ParkedLanes(admin.queue_reader(), READERS, node.environment().clock)
            while not self.cluster.ended.is_set():
                await asyncio.sleep(self.chance.uniform(0.3, 2))
                try:
                    for lane in await lanes.all():
                        await self._order(lanes, lane)
                except CometError as error:
                    self.cluster.world.record("refused", f"operator {type(error).__name__}")

    async def _order(self, lanes: ParkedLanes, lane: ParkedLane) -> None:
        bodies = [self._body_at(parked.position) for parked in lane.lane.messages]
        self.cluster.world.record("parked", f"{lane.name} {bodies}")
        if b"" in bodies:
            return
        choice = self.chance.random()
        if choice < 0.1:
            count = self.chance.choice([1, 1, 2])
            self._given_up.update(bodies[:count])
            await lanes.skip(lane, count)
        elif choice < 0.8:
            self._mended.update(bodies if choice < 0.4 else bodies[:1])
            await lanes.retry(lane)
        elif choice < 0.9 and not self.cluster.is_peace:
            await lanes.retry(lane)

    def _body_at(self, text: str) -> bytes:
        """Return the body at a lane's position: ``topic@broker:queue:offset``."""
        topic, _, queue_position = text.partition("@")
        broker_name, queue_id, queue_offset = queue_position.rsplit(":", 2)
        seen = self.cluster.at((broker_name, topic, int(queue_id), int(queue_offset)))
        # The message may not have been observed yet.
        return b"" if seen is None else seen.body

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.readers.bodies - self._given_up
        return f"{min(missing)[:30]!r} was never handled" if missing else None
