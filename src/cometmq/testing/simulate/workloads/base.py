"""What every kind of message in the simulator is made of: roles that send and consume, promises.

Job: the common part of a workload: its chance, what was acknowledged where, sending until enough
is acknowledged, and consuming until the end.  Must not: know faults.

A workload keeps its state outside the machines, so a role that begins again after a crash of its
machine goes on where it was.  A body is sent once: a send that failed leaves its message in doubt,
and the next try is another message.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.core.consume.order import SUSPEND_MS
from cometmq.core.filter.subscription import Sql92
from cometmq.errors import CometError
from cometmq.model import Message, SendResult, SendStatus
from cometmq.testing.simulate.broker_part import Place

if TYPE_CHECKING:
    from cometmq.testing.simulate.broker_part import Group, Seen
    from cometmq.testing.simulate.cluster import Cluster
    from cometmq.testing.simulation import Node

__all__ = ["Place", "Workload", "place_of"]


def place_of(message: ReceivedMessage) -> Place:
    """Where a consumer got a message."""
    queue = message.message_queue
    return queue.broker_name, queue.topic, queue.queue_id, message.queue_offset


class Workload:
    """One kind of message; a subclass begins its roles in `start` and says when it is at rest."""

    name: ClassVar[str]
    settings: ClassVar[dict[str, object]] = {}
    """What brokers are to be set to for this kind; it holds for all kinds of a plan."""

    def __init__(self, cluster: Cluster, steps: int) -> None:
        self.cluster = cluster
        self.steps = steps
        self.chance = random.Random(f"{cluster.plan.seed}/{self.name}")
        self.acknowledged: dict[bytes, Place] = {}
        self.tries = 0
        self._in_topic: Counter[bytes] = Counter()

    # -- what a subclass says ----------------------------------------------------------------

    def start(self) -> None:
        """Begin the roles, watch topics and groups."""
        raise AssertionError("a kind of message says this itself")

    def unsettled(self) -> str | None:
        """Why it is not at rest yet, None when it is."""
        raise AssertionError("a kind of message says this itself")

    def check(self) -> None:
        """At rest: every promise of this kind; CheckFailed where one is broken."""
        self.check_places()

    @property
    def acknowledged_count(self) -> int:
        """How much the brokers have acknowledged."""
        return len(self.acknowledged)

    @property
    def is_sent(self) -> bool:
        """Whether enough was acknowledged."""
        return self.acknowledged_count >= self.steps

    # -- sending -------------------------------------------------------------------------------

    def producer(self, node: Node, number: int = 0) -> Producer:
        """A producer of this kind; a failed send is not repeated."""
        return Producer(
            f"{self.name}-producers",
            name_server=self.cluster.name_server_address,
            instance_name=f"{self.name}-producer{number}",
            client_ip=node.address,
            retries=0,
            timeout_ms=1_500,
            env=node.environment(),
        )

    def new_body(self) -> bytes:
        """A body nobody sent before."""
        self.tries += 1
        return b"%s/%d/" % (self.name.encode(), self.tries) + b"." * self.chance.choice(
            [0, 30, 300, 3000]
        )

    async def send_all(self, node: Node, step: Callable[[Producer], Awaitable[None]]) -> None:
        """Take steps until enough is acknowledged; what fails is passed over."""
        async with self.producer(node) as producer:
            while not self.is_sent:
                try:
                    await step(producer)
                except CometError as error:
                    self.cluster.world.record("refused", f"{self.name} {type(error).__name__}")
                    await asyncio.sleep(self.chance.uniform(0.1, 0.6))
                await asyncio.sleep(self.chance.uniform(0, 0.9))

    async def send_one(self, producer: Producer, message: Message) -> SendResult | None:
        """Send and note the acknowledgement; None where it is stored and not safe yet."""
        sent = await producer.send(message)
        return self.note(message.body, sent)

    def note(self, body: bytes, sent: SendResult) -> SendResult | None:
        """Write down an acknowledgement."""
        if sent.status is not SendStatus.SEND_OK:
            return None
        queue = sent.message_queue
        place = (queue.broker_name, queue.topic, queue.queue_id, sent.queue_offset)
        self.acknowledged[body] = place
        self.cluster.world.record("acknowledged", f"{body[:20]!r} {place}")
        return sent

    # -- consuming -------------------------------------------------------------------------------

    def consumer(
        self,
        node: Node,
        number: int,
        topic: str,
        handle: Callable[[ReceivedMessage], Awaitable[object]],
        group: Group,
        expression: str | Sql92 = "*",
        tries_max: int | None = None,
        order: Literal["none", "queue", "group"] = "none",
        park_after: int | None = None,
        suspend_ms: int = SUSPEND_MS,
    ) -> PushConsumer:
        """A member of a watched group, whose handler's end is what its offsets may tell."""

        async def handler(message: ReceivedMessage) -> None:
            self.cluster.holders.look()
            await handle(message)
            body = bytes(message.body)
            self.cluster.world.record("handled", f"{group.name} {body[:20]!r}")
            group.decided.add(place_of(message))
            group.bodies.add(body)

        member = PushConsumer(
            group.name,
            {topic: expression},
            handler,
            name_server=self.cluster.name_server_address,
            instance_name=f"{group.name}-{number}",
            client_ip=node.address,
            consume_from="first",
            max_reconsume_times=tries_max,
            order=order,
            park_after=park_after,
            suspend_ms=suspend_ms,
            env=node.environment(),
        )
        if order != "none":
            self.cluster.holders.add(member, node)
        return member

    async def consume(self, consumer: PushConsumer) -> None:
        """Run a member until the simulation ends."""
        async with consumer:
            await self.cluster.ended.wait()

    async def come_and_go(self, make: Callable[[], PushConsumer]) -> None:
        """A member that joins and leaves until the faults are over, then stays away."""
        while not self.cluster.is_peace:
            await asyncio.sleep(self.chance.uniform(0.5, 2))
            async with make():
                await asyncio.sleep(self.chance.uniform(0.5, 3))

    # -- promises ------------------------------------------------------------------------------

    def never_twice(self, seen: Seen) -> None:
        """For `Cluster.watch`: each body is stored once."""
        self._in_topic[seen.body] += 1
        if self._in_topic[seen.body] > 1:
            self.cluster.fail(
                f"{self.name}: {seen.body[:30]!r} is in its topic twice: {seen.place}"
            )

    def check_places(self) -> None:
        """What was acknowledged lies where the acknowledgement said."""
        for body, place in self.acknowledged.items():
            seen = self.cluster.at(place)
            if seen is None or seen.body != body:
                there = None if seen is None else seen.body[:30]
                self.cluster.fail(
                    f"{self.name}: {body[:30]!r} was acknowledged at {place}, where {there!r} lies"
                )
