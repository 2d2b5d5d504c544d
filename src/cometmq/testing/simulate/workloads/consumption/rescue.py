"""Backlogs that a group passes over: the newest first, dropped and replayed, rescued.

Members take few messages at a time, so that a backlog stays at the brokers, and an operator sets
rules, rescues and replays.  Whatever crashes meanwhile: each acknowledged message is handled, and
no store has two copies of one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.codec.stored_message import decode_messages
from cometmq.core.consume.process_queue import FlowLimits
from cometmq.core.retry.dead_letters import REPLAY_OF
from cometmq.errors import CometError
from cometmq.model import Message, SubscriptionGroupConfig
from cometmq.store.base.results import GetResult
from cometmq.testing.simulate.workloads.base import Workload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cometmq.client.admin.admin import Admin

__all__ = ["FreshWorkload", "RescueWorkload"]

BATCH: Final = 12
FEW: Final = FlowLimits(count_max=4)


class FreshWorkload(Workload):
    """The newest messages go first, and the others are handled too."""

    name: ClassVar[str] = "fresh"
    rules: ClassVar[dict[str, Any]] = {"fresh_share": 0.5, "fresh_lag": 4}

    def start(self) -> None:
        cluster = self.cluster
        self.topic = self.name.title()
        self.group_name = f"{self.name}-readers"
        cluster.watch(self.topic, self.never_twice)
        # The group goes past messages that come later, as copies.
        self.group = cluster.watch_group(
            self.group_name, lambda seen: False, may_go_back_to=lambda _: True
        )
        first, second = cluster.clients
        cluster.role(f"{self.name} rules", first, self._set_rules)
        cluster.role(f"{self.name} send", first, lambda: self.send_all(first, self._step))
        cluster.role(f"{self.name} one", second, lambda: self._read(1))
        cluster.role(f"{self.name} two", first, lambda: self.come_and_go(lambda: self._member(0)))

    async def _set_rules(self) -> None:
        """Make the group with its rules at each broker."""
        async with self.admin(self.cluster.clients[0]) as admin:
            await self.persist(lambda: admin.create_group(SubscriptionGroupConfig(self.group_name)))
            for part in self.cluster.brokers:
                await self.persist(partial(self._rule_at, admin, part.name))

    async def _rule_at(self, admin: Admin, broker_name: str) -> None:
        configs = await admin.group_configs(self.group_name)
        if broker_name not in configs:
            raise CometError(f"{broker_name} does not have the group yet")
        await admin.set_backlog_rules(self.group_name, **self.rules)

    async def persist(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask until it succeeds, or the clients must stop."""
        while not self.cluster.ended.is_set():
            try:
                await ask()
            except CometError as error:
                self.cluster.world.record("refused", f"{self.name} {type(error).__name__}")
                await asyncio.sleep(self.chance.uniform(0.1, 0.6))
            else:
                return

    async def _step(self, producer: Producer) -> None:
        """A batch goes to one queue."""
        batch = [Message(self.topic, self.new_body()) for _ in range(BATCH)]
        for message, sent in zip(batch, await producer.send_batch(batch), strict=True):
            self.note(message.body, sent)

    async def _read(self, number: int) -> None:
        while self.acknowledged_count < self.wanted_count // 2:  # noqa: ASYNC110 - nobody calls
            await asyncio.sleep(self.chance.uniform(0.2, 1))
        await self.consume(self._member(number))

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        member = self.consumer(node, number, self.topic, self._handle, self.group)
        member._limits = FEW
        member._settings = replace(member._settings, max_count=2)
        return member

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.1))

    @property
    def wanted_count(self) -> int:
        """How many messages are to be acknowledged."""
        return BATCH * max(2, self.steps // 2)

    @property
    def is_sent(self) -> bool:
        return self.acknowledged_count >= self.wanted_count

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.group.bodies
        missing = {body for body in missing if not self._is_gone(body)}
        return f"{min(missing)[:30]!r} was never handled" if missing else None

    def _is_gone(self, body: bytes) -> bool:
        """Whether retention has removed a message: the group has gone past it."""
        broker_name, topic, queue_id, queue_offset = self.acknowledged[body]
        broker = self.cluster.broker(broker_name).broker
        if broker is None:
            return False
        return queue_offset < broker.state.store.min_queue_offset(topic, queue_id)

    def check(self) -> None:
        self.check_positions()
        for part in self.cluster.brokers:
            assert part.broker is not None
            counts = self._copies(part.broker.state.store)
            twice = [position for position, count in counts.items() if count > 1]
            if twice:
                self.cluster.fail(f"{self.name}: {part.name} has two copies of {min(twice)}")

    def _copies(self, store: Any) -> Counter[str]:
        topic, found = f"%RETRY%{self.group_name}", Counter[str]()
        for queue_id in store.queues(topic):
            offset = store.min_queue_offset(topic, queue_id)
            while offset < store.max_queue_offset(topic, queue_id):
                result = store.get(topic, queue_id, offset, 32, allow_cold=True)
                assert isinstance(result, GetResult)
                for message in decode_messages(b"".join(result.chunks)):
                    if not message.reconsume_times and REPLAY_OF in message.properties:
                        found[message.properties[REPLAY_OF]] += 1
                offset = max(offset + 1, result.next_queue_offset)
        return found


class RescueWorkload(FreshWorkload):
    """What waits beyond a number is dropped; an operator rescues, and replays what was dropped."""

    name: ClassVar[str] = "rescue"
    rules: ClassVar[dict[str, Any]] = {"drop_lag": 6}

    def start(self) -> None:
        super().start()
        self._replayed = asyncio.Event()
        self.cluster.role("rescue operator", self.cluster.clients[0], self._operate)

    async def _operate(self) -> None:
        """Rescue once while there are faults; in the calm, replay what was dropped."""
        async with self.admin(self.cluster.clients[0]) as admin:
            await asyncio.sleep(self.chance.uniform(2, 6))
            try:
                await admin.rescue(self.group_name, self.topic, self.chance.choice([1, 3]))
            except CometError as error:
                self.cluster.world.record("refused", f"rescue {type(error).__name__}")
            while not (self.cluster.is_peace and self.is_sent):  # noqa: ASYNC110 - nobody calls
                await asyncio.sleep(0.3)
            await self.persist(lambda: admin.set_backlog_rules(self.group_name))
            while not self.cluster.ended.is_set() and self.unsettled():
                await self.persist(lambda: admin.replay(self.group_name))
                await asyncio.sleep(1)
