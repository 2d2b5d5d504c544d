"""The base of every kind of message: roles that send and consume, and the promises they check.

A run has two parts.  While there are faults, messages may come late and more than once.  Then comes
the calm: some kinds send again (`calm_steps`), and each of these messages is delivered once and
in time.

A workload keeps its state outside the machines, so a role that restarts after a crash of its
machine continues where it was.  Each body is sent once: a failed send leaves its message in doubt,
and the next try sends another message.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from cometmq.client.admin.admin import Admin
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.codec.ids import decode_offset_message_id
from cometmq.core.consume.order import SUSPEND_MS
from cometmq.core.filter.subscription import Sql92
from cometmq.errors import CometError
from cometmq.model import Message, SendResult, SendStatus
from cometmq.model.names import PARK_PREFIX
from cometmq.testing.simulate.broker_part import Position, place_of

if TYPE_CHECKING:
    from cometmq.client.consumer.group.group_consumer import RebalanceListener
    from cometmq.testing.simulate.broker_part import Group, Seen
    from cometmq.testing.simulate.cluster import Cluster
    from cometmq.testing.simulation import Node

__all__ = ["DELIVERY_LATE_MS", "Position", "Workload", "position_of"]

DELIVERY_LATE_MS: Final = 1_500
"""A message reaches a free handler so soon after it was acknowledged, as no fault delays it."""


def position_of(message: ReceivedMessage) -> Position:
    """Return the position of a message that a consumer received."""
    queue = message.message_queue
    return queue.broker_name, queue.topic, queue.queue_id, message.queue_offset


class Workload:
    """One kind of message; a subclass defines its roles, when it is at rest, and its promises."""

    name: ClassVar[str]
    settings: ClassVar[dict[str, object]] = {}
    """Broker settings that this kind needs; they apply to all kinds of a plan."""
    calm_steps: ClassVar[int] = 0
    """Steps in the calm; the kind uses `consumer` or `note_begun`, and delivers each message."""

    def __init__(self, cluster: Cluster, steps: int) -> None:
        self.cluster = cluster
        self.steps = steps
        self.chance = random.Random(f"{cluster.plan.seed}/{self.name}")
        self.acknowledged: dict[bytes, Position] = {}
        self.tries = 0
        self._stored: dict[bytes, tuple[str, int]] = {}
        """By acknowledged body: its broker, and its physical offset there."""
        self._begun_losses: dict[bytes, int] = {}
        """By body: how many losses there were before it was sent."""
        self._lost_count = 0
        cluster.on_loss.append(self._lose)
        self._in_topic: Counter[bytes] = Counter()
        self.is_calm = False
        self._calm_acknowledged_ms: dict[bytes, int] = {}
        self._handlers_began: dict[tuple[str, bytes, int], list[int]] = {}
        """By group, body and number of the try: when handlers began, in ms."""
        self._calm_groups: dict[str, Callable[[Seen], bool]] = {}

    # -- for subclasses ----------------------------------------------------------------------

    def start(self) -> None:
        """Start the roles; watch topics and groups."""
        raise AssertionError("a subclass implements start")

    def unsettled(self) -> str | None:
        """Return why this kind is not at rest yet, None when it is."""
        raise AssertionError("a subclass implements unsettled")

    def check(self) -> None:
        """Check every promise of this kind at rest; report a broken one with `Cluster.fail`."""
        self.check_positions()

    @property
    def acknowledged_count(self) -> int:
        """How many messages or operations the brokers have acknowledged."""
        return len(self.acknowledged) + self._lost_count

    @property
    def is_sent(self) -> bool:
        """Whether the brokers have acknowledged enough."""
        return self.acknowledged_count >= self.steps

    # -- sending -------------------------------------------------------------------------------

    def producer(self, node: Node, number: int = 0) -> Producer:
        """Make a producer that does not repeat a failed send."""
        return Producer(
            f"{self.name}-producers",
            name_server=self.cluster.name_server_address,
            instance_name=f"{self.name}-producer{number}",
            client_ip=node.address,
            retries=0,
            timeout_ms=1_500,
            env=node.environment(),
        )

    def admin(self, node: Node) -> Admin:
        """Make an admin client on a machine."""
        return Admin(
            name_server=self.cluster.name_server_address,
            timeout_ms=1_500,
            env=node.environment(),
        )

    def new_body(self, end: bytes = b"") -> bytes:
        """Return a body that nobody has sent before."""
        self.tries += 1
        filler = b"." * self.chance.choice([0, 30, 300, 3000])
        body = b"%s/%d/" % (self.name.encode(), self.tries) + filler + end
        self.note_sent(body)
        self.cluster.world.record("made", body=body)
        return body

    def note_sent(self, body: bytes) -> None:
        """Note that a body is about to be sent."""
        self.cluster.sent.setdefault(body, {})
        self._begun_losses[body] = self.cluster.loss_counts.total()

    async def send_all(self, node: Node, step: Callable[[Producer], Awaitable[None]]) -> None:
        """Take steps until enough is acknowledged; skip steps that fail."""
        async with self.producer(node) as producer:
            while not self.is_sent:
                try:
                    await step(producer)
                except CometError as error:
                    self.cluster.world.record("refused", f"{self.name} {type(error).__name__}")
                    await asyncio.sleep(self.chance.uniform(0.1, 0.6))
                await asyncio.sleep(self.chance.uniform(0, 0.9))

    async def send_one(
        self, producer: Producer, message: Message, *, keeps_properties: bool = True
    ) -> SendResult | None:
        """Send and record the acknowledgement; None if the message is stored but not yet safe.

        Args:
            keeps_properties: whether readers must see the message's properties.
        """
        if keeps_properties:
            expected = self.cluster.sent.setdefault(message.body, {})
            expected.update(message.properties)
            if message.tags is not None:
                expected["TAGS"] = message.tags
        sent = await producer.send(message)
        return self.note(message.body, sent)

    def note(self, body: bytes, sent: SendResult) -> SendResult | None:
        """Record an acknowledgement; None if the message is stored but not yet safe."""
        if sent.status is not SendStatus.SEND_OK:
            return None
        if self._begun_losses.get(body) != self.cluster.loss_counts.total():
            # The power may have been cut between the answer and its arrival.
            return None
        queue = sent.message_queue
        physical_offset = decode_offset_message_id(sent.offset_message_id)[1]
        self._stored[body] = (queue.broker_name, physical_offset)
        queue_offset = -1 if sent.queue_offset is None else sent.queue_offset
        position = (queue.broker_name, queue.topic, queue.queue_id, queue_offset)
        self.acknowledged[body] = position
        if self.is_calm:
            self._calm_acknowledged_ms[body] = self.now_ms()
        self.cluster.world.record("acknowledged", place_of(position), body=body)
        return sent

    def _lose(self, broker_name: str, end: int, lost: list[Seen]) -> None:
        """After a power cut with ASYNC_FLUSH, forget what was stored behind the log's end."""
        for body, (name, physical_offset) in self._stored.items():
            if name == broker_name and physical_offset >= end and body in self.acknowledged:
                del self.acknowledged[body]
                self._lost_count += 1
        for seen in lost:
            self.lost(seen)

    def lost(self, seen: Seen) -> None:
        """Forget that readers saw a message, of this kind or another; a power cut took it."""
        if self._in_topic[seen.body]:
            self._in_topic[seen.body] -= 1

    def now_ms(self) -> int:
        """Return the time of the world, which no clock of a machine changes."""
        return self.cluster.world.clock.now_ms()

    # -- the calm --------------------------------------------------------------------------------

    def begin_calm(self) -> None:
        """Send again, now that there are no faults; `check_calm` says what came of it."""
        if self.calm_steps:
            self.is_calm = True
            node = self.cluster.clients[0]
            self.cluster.role(f"{self.name} calm", node, lambda: self._send_calmly(node))

    async def _send_calmly(self, node: Node) -> None:
        async with self.producer(node, 90) as producer:
            for _ in range(self.calm_steps):
                try:
                    await self.calm_step(producer)
                except CometError as error:
                    self.cluster.fail(f"{self.name}: refused without any fault: {error}")
                    return
                # The next message may come just as the pull of the last one is answered.
                await asyncio.sleep(self.chance.choice([0.0, 0.001, 0.002, 0.004, 0.3, 1.0]))

    async def calm_step(self, producer: Producer) -> None:
        """Take one step of the calm."""
        raise AssertionError("a subclass with calm_steps implements calm_step")

    def note_begun(self, group: str, body: bytes, times: int = 0) -> None:
        """Note that a handler begins, for kinds with consumers of their own."""
        self._handlers_began.setdefault((group, body, times), []).append(self.now_ms())

    def calm_group(self, name: str, wants: Callable[[Seen], bool] = lambda seen: True) -> None:
        """Have `check_calm` look at this group."""
        self._calm_groups[name] = wants

    def check_calm(self) -> None:
        """Check that each message of the calm was delivered once to each group, and in time."""
        for body, acknowledged_ms in self._calm_acknowledged_ms.items():
            seen = self.cluster.at(self.acknowledged[body])
            for group, wants in self._calm_groups.items():
                if seen is not None and not wants(seen):
                    continue
                begun_ms = self._handlers_began.get((group, body, 0), [])
                if len(begun_ms) != 1:
                    self.cluster.fail(
                        f"{self.name}: {group} handled {body[:30]!r} {len(begun_ms)} times "
                        "without any fault"
                    )
                elif begun_ms[0] - acknowledged_ms > DELIVERY_LATE_MS:
                    self.cluster.fail(
                        f"{self.name}: {group} got {body[:30]!r} "
                        f"{begun_ms[0] - acknowledged_ms} ms after it was acknowledged"
                    )

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
        rebalance_listener: RebalanceListener | None = None,
    ) -> PushConsumer:
        """Make a member of a watched group; it may commit only messages whose handler has ended."""

        async def handler(message: ReceivedMessage) -> None:
            self.cluster.holders.check()
            position = position_of(message)
            spoilt = self.cluster.broker(position[0]).rot.spoilt.get(position)
            if spoilt is not None:
                group.decided.add(position)
                group.bodies.add(spoilt.body)
                return
            body = bytes(message.body)
            self.note_begun(group.name, body, message.reconsume_times)
            tries = f", try {message.reconsume_times}" if message.reconsume_times else ""
            self.cluster.world.record("handler begins", f"{group.name}{tries}", body=body)
            self._check_assigned(member, message)
            if slow_s and not self.cluster.is_peace:
                await asyncio.sleep(self.chance.uniform(0, slow_s))
            try:
                await handle(message)
            except Exception as error:
                self.cluster.world.record("handler fails", type(error).__name__, body=body)
                raise
            self.cluster.world.record("handled", group.name, body=body)
            group.decided.add(position_of(message))
            group.bodies.add(body)

        # A slow member has messages at hand when it loses their queue.
        slow_s = self.chance.choice([0.0, 0.0, 0.3])
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
            concurrency=self.chance.choice([1, 1, 2, 20]),
            suspend_ms=suspend_ms,
            rebalance_listener=rebalance_listener,
            env=node.environment(),
        )
        if order != "none":
            self.cluster.holders.add(member, node)
        return member

    def _check_assigned(self, member: PushConsumer, message: ReceivedMessage) -> None:
        """Check that a handler begins only for a queue that its member has.

        A member that consumes in order has a queue until the last run that it began has ended: a
        run that waits for a worker when the queue is given up still begins, under the queue's lock.
        """
        if message.message_queue.topic.startswith(PARK_PREFIX):
            return  # the parking log of a queue that another member may have now
        if not any(
            assignment.queue == message.message_queue and not assignment.process_queue.dropped
            for assignment in member._in_hand()
        ):
            self.cluster.fail(
                f"{self.name}: {member.client_id} handles {bytes(message.body)[:30]!r} of "
                f"{message.message_queue}, which it no longer has"
            )

    async def consume(self, consumer: PushConsumer) -> None:
        """Run a member until the clients must stop."""
        async with consumer:
            await self.cluster.ended.wait()

    async def come_and_go(self, make: Callable[[], PushConsumer]) -> None:
        """Let a member join and leave until the faults are over."""
        while not self.cluster.is_peace:
            await asyncio.sleep(self.chance.uniform(0.5, 2))
            async with make():
                await asyncio.sleep(self.chance.uniform(0.5, 3))

    # -- promises ------------------------------------------------------------------------------

    def never_twice(self, seen: Seen) -> None:
        """Callback of `Cluster.watch`: check that each body is stored once."""
        self._in_topic[seen.body] += 1
        if self._in_topic[seen.body] > 1:
            self.cluster.fail(
                f"{self.name}: {seen.body[:30]!r} is in its topic twice: {seen.position}"
            )

    def check_positions(self) -> None:
        """Check that acknowledged messages are where the acknowledgement said."""
        for body, position in self.acknowledged.items():
            seen = self.cluster.at(position)
            if seen is None or seen.body != body:
                actual = None if seen is None else seen.body[:30]
                self.cluster.fail(
                    f"{self.name}: {body[:30]!r} was acknowledged at {position}, which has "
                    f"{actual!r}"
                )
