"""A group whose offsets an operator resets to a time while the group consumes.

A reset moves a queue forward only where the queue has no message at or after that time.
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
from cometmq.testing.simulate.workloads.base import Position, Workload, position_of

__all__ = ["ResetWorkload"]

TOPIC: Final = "Reset"
GROUP: Final = "reset-readers"
UNSAVED_MS: Final = 6_000
"""Within so many ms a broker saves a reset, and a member commits behind it."""
UNSEEN_MS: Final = 1_600
"""So long after it was asked for, a reset may be done, and the member be behind it, between two
observations."""


@dataclass(slots=True)
class _OffsetReset:
    """A completed reset of one broker: the messages that must be handled again."""

    asked_s: float
    broker_name: str
    broker_life: int
    reader_life: int
    positions: set[Position]
    is_delivered: bool = False
    is_in_doubt: bool = False


class ResetWorkload(Workload):
    """Messages from the reset time on are handled again; offsets go back only to it."""

    name: ClassVar[str] = "reset"

    def start(self) -> None:
        cluster = self.cluster
        self._times_ms: set[int] = set()
        """Times of all resets, also of those without an answer."""
        self._asked: list[tuple[int, int, dict[str, int]]] = []
        """All resets: when they were asked for and their time, in ms, and the brokers' lives."""
        self._resets: list[_OffsetReset] = []
        self._begun_s: dict[Position, float] = {}
        """When the handler last received each message."""
        self._is_last_done = False
        cluster.watch(TOPIC, self.never_twice)
        self.group = cluster.watch_group(
            GROUP, self._is_wanted, is_alone=True, may_go_back_to=self._is_reset_target
        )
        cluster.on_observed.append(self._observe)
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
        self._begun_s[position_of(message)] = self.cluster.world.loop.time()
        await asyncio.sleep(self.chance.uniform(0, 0.2))

    # -- the operator ----------------------------------------------------------------------------

    async def _operate(self) -> None:
        """Reset offsets until the faults are over, and once more."""
        node = self.cluster.clients[0]
        servers = self.cluster.name_server_address
        async with Admin(name_server=servers, timeout_ms=1_500, env=node.environment()) as admin:
            while not self._is_last_done:
                await asyncio.sleep(self.chance.uniform(0.4, 2))
                is_last = self.cluster.is_peace and self.is_sent
                if not (messages := self.cluster.messages(TOPIC)):
                    self._is_last_done = is_last  # a power cut took all
                    continue
                moment_ms = 0
                if self.chance.random() < 0.7:
                    moment_ms = self.chance.choice(messages).store_ms
                try:
                    await self._do_reset(admin, moment_ms)
                except CometError as error:
                    self.cluster.world.record("refused", f"reset {type(error).__name__}")
                else:
                    self._is_last_done = is_last

    async def _do_reset(self, admin: Admin, moment_ms: int) -> None:
        self.cluster.world.record("reset", f"to {moment_ms}")
        self._times_ms.add(moment_ms)
        for reset in self._resets:
            # The new reset may overtake the effect of earlier ones.
            reset.positions = {
                position for position in reset.positions if self._is_from(position, moment_ms)
            }
        reader = self.cluster.clients[1].lifetime.number
        lives = {part.name: part.node.lifetime.number for part in self.cluster.brokers}
        self._asked.append((self.now_ms(), moment_ms, lives))
        resets = [
            _OffsetReset(
                self.cluster.world.loop.time(),
                part.name,
                lives[part.name],
                reader,
                {
                    seen.position
                    for seen in self.cluster.messages(TOPIC)
                    if seen.position[0] == part.name and seen.store_ms >= moment_ms
                },
            )
            for part in self.cluster.brokers
        ]
        moved = await admin.reset_offsets(GROUP, TOPIC, timestamp_ms=moment_ms)
        self.cluster.world.record("reset done", sorted(moved.items()))
        for queue, queue_offset in moved.items():
            self._check_target(queue.broker_name, queue.queue_id, queue_offset, moment_ms)
        queues = {(queue.broker_name, queue.queue_id) for queue in moved}
        for reset in resets:
            reset.positions = {
                position for position in reset.positions if (position[0], position[2]) in queues
            }
        self._resets += resets

    def _check_target(
        self, broker_name: str, queue_id: int, queue_offset: int, moment_ms: int
    ) -> None:
        """Check that the reset skips no existing message of that time or later."""
        part = self.cluster.broker(broker_name)
        first = part.first(TOPIC, queue_id)
        if first is not None:
            for seen in part.seen.get((TOPIC, queue_id), [])[first:queue_offset]:
                if seen.store_ms >= moment_ms:
                    self.cluster.fail(
                        f"reset to {moment_ms} leads to {queue_offset} of {broker_name} "
                        f"{TOPIC}/{queue_id}, behind {seen.position[3]} of {seen.store_ms}"
                    )

    def _is_from(self, position: Position, moment_ms: int) -> bool:
        seen = self.cluster.at(position)
        return seen is not None and seen.store_ms >= moment_ms

    # -- the promises of resets ------------------------------------------------------------------

    def _is_wanted(self, seen: Seen) -> bool:
        """Whether no reset may have skipped the message: a later time skips earlier messages."""
        return all(seen.store_ms >= moment_ms for moment_ms in self._times_ms)

    def _is_reset_target(self, position: Position) -> bool:
        """Whether the position is the first of its queue at or after the time of a reset.

        The member may be behind it before anybody looks.  And a broker may end before it has saved
        a reset that its member knows: then the member commits first behind that position.
        """
        if position[1] != TOPIC:
            return False
        part, queue_offset = self.cluster.broker(position[0]), position[3]
        queue = part.seen.get((TOPIC, position[2]), [])
        before_ms = queue[queue_offset - 1].store_ms if queue_offset else -1
        at_ms = queue[queue_offset].store_ms if queue_offset < len(queue) else 1 << 62
        if any(before_ms < moment_ms <= at_ms for moment_ms in self._times_ms):
            return True
        if any(
            moment_ms <= at_ms and self.now_ms() - asked_ms < UNSEEN_MS
            for asked_ms, moment_ms, _ in self._asked
        ):
            return True
        return self.now_ms() - part.began_ms < UNSAVED_MS and any(
            moment_ms <= at_ms
            and part.began_ms - asked_ms < UNSAVED_MS
            and lives[part.name] < part.node.lifetime.number
            for asked_ms, moment_ms, lives in self._asked
        )

    def _observe(self) -> None:
        """Drop resets that a crash may have lost: brokers keep them in memory until delivered."""
        reader = self.cluster.clients[1].lifetime
        for reset in self._resets:
            part = self.cluster.broker(reset.broker_name)
            is_same_broker = part.is_up and part.node.lifetime.number == reset.broker_life
            if is_same_broker and part.broker is not None and not reset.is_delivered:
                table = part.broker.state.offsets
                reset.is_delivered = not any(
                    table.has_reset(GROUP, TOPIC, queue_id) for _, _, queue_id, _ in reset.positions
                )
            if is_same_broker:
                continue
            is_same_reader = reader.alive and reader.number == reset.reader_life
            if not reset.is_delivered or not is_same_reader:
                reset.is_in_doubt = True
        self._resets = [
            reset for reset in self._resets if not reset.is_in_doubt and self._missing(reset)
        ]

    def _missing(self, reset: _OffsetReset) -> set[Position]:
        part = self.cluster.broker(reset.broker_name)
        return {
            position
            for position in reset.positions
            if self._begun_s.get(position, -1.0) < reset.asked_s
            # Files of messages consumed before the reset may have been deleted.
            and position[3] >= (part.first(TOPIC, position[2]) or 0)
        }

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        if not self._is_last_done:
            return "the last reset has not been done yet"
        for seen in self.cluster.messages(TOPIC):
            if seen.body not in self.group.bodies and self._is_wanted(seen):
                return f"{seen.body[:30]!r} was never handled"
        for reset in self._resets:
            if missing := self._missing(reset):
                return f"{min(missing)} was not handled again after the reset at {reset.asked_s}"
        return None
