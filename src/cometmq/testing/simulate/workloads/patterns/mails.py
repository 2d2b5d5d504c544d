"""Mails: handlers with claims in a Redis that fails, whose first effect is a recorded step.

The Redis fails over, too: a replica takes over that has not got the last writes.  What it forgets
may be handled twice, and nothing else.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, ClassVar, Final

from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.testing.simulate.workloads.patterns.answering import AnsweringWorkload, MailAway

if TYPE_CHECKING:
    from cometmq.testing.simulation import Node

__all__ = ["MailsWorkload"]

TOPIC: Final = "Mails"
GROUP: Final = "mails"
EXPIRE_MS: Final = 4_000
CHARGE: Final = 7
LOST_MS: Final = (50, 300, 1_000)


class MailsWorkload(AnsweringWorkload):
    """A done key is not handled again, none twice at once, and no recorded step is repeated."""

    name: ClassVar[str] = "mails"

    def start(self) -> None:
        from cometmq.testing.sim_redis import SimRedis

        cluster = self.cluster
        self.redis = SimRedis(cluster.world, self.name, **cluster.service_options("redis"))
        self._running_until_s: dict[str, float] = {}
        self._charged: set[str] = set()
        self._done: set[str] = set()
        self._forgotten: set[str] = set()
        """Keys of which a failover has forgotten something."""
        cluster.watch(TOPIC, self.never_twice)
        self.group = self.watch_answers(GROUP)
        for number, node in enumerate(cluster.clients):
            send = functools.partial(self.send_all, node, self._step)
            mail = functools.partial(self._mail, node, number)
            cluster.role(f"mails send {number}", node, send)
            cluster.role(f"mails {number}", node, mail)
        self._failing_over = asyncio.ensure_future(self._fail_over())

    async def _step(self, producer: Producer) -> None:
        await self.send_one(producer, Message(TOPIC, self.new_body()))

    async def _fail_over(self) -> None:
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            await asyncio.sleep(self.chance.uniform(1, 5))
            if not self.cluster.is_peace:
                names = self.redis.fail_over(self.chance.choice(LOST_MS))
                self._forgotten |= {name.rpartition("}:")[2] for name in names}

    # -- a member -----------------------------------------------------------------------------

    async def _mail(self, node: Node, number: int) -> None:
        from cometmq.patterns.idempotent import RedisClaims, idempotent

        alive = node.lifetime
        guarded = idempotent(
            RedisClaims(self.redis.client()),
            group=GROUP,
            owner=node.name,
            expire_ms=EXPIRE_MS,
            clock=self.now_ms,
        )(self._handle)

        async def handle(message: ReceivedMessage) -> None:
            key = message.properties["UNIQ_KEY"]
            handler = key, node.name, node.lifetime.number
            self.handlers[handler] += 1
            try:
                await self.take_answer(self.group, message, guarded(message))
            except MailAway:
                if self.handlers[handler] == 1:
                    self._check_released(*handler[:2])
                raise
            finally:
                self.handlers[handler] -= 1
            if alive.alive:
                self._done.add(key)

        await self.consume(self.consumer(node, number, TOPIC, handle, self.group))

    async def _handle(self, message: ReceivedMessage) -> None:
        """Charge as a step, then mail, which may fail."""
        key = message.properties["UNIQ_KEY"]
        now_s = self.cluster.world.loop.time()
        if key not in self._forgotten:
            if key in self._done:
                self.cluster.fail(f"mails: {key} is handled again after it was done")
            if self._running_until_s.get(key, 0.0) > now_s:
                self.cluster.fail(f"mails: {key} is handled twice at once")
        # The claim is a little older than its handler.
        self._running_until_s[key] = now_s + EXPIRE_MS / 1000 - 0.5
        try:
            await self._charge_and_mail(key)
        except Exception:
            self._running_until_s.pop(key, None)
            raise

    async def _charge_and_mail(self, key: str) -> None:
        from cometmq.patterns.idempotent import async_step

        async def charge() -> int:
            if key in self._charged and key not in self._forgotten:
                self.cluster.fail(f"mails: the recorded step of {key} is repeated")
            return CHARGE

        if await async_step("charge", charge) != CHARGE:
            self.cluster.fail(f"mails: the step of {key} has another value")
        self._charged.add(key)
        await asyncio.sleep(self.chance.uniform(0, 0.3))
        if not self.cluster.is_peace and self.chance.random() < 0.3:
            raise MailAway

    def _check_released(self, key: str, owner: str) -> None:
        """Check that a handler that has failed leaves no claim."""
        value = self.redis.keys.get(f"cometmq:claim:{{{GROUP}}}:{key}") or b""
        if value.startswith(b"p ") and value.split()[2].decode() == owner:
            self.cluster.fail(f"mails: a failed handler of {owner} leaves its claim of {key}")

    # -- promises ------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.group.bodies
        return f"{min(missing)[:30]!r} has no mail" if missing else self.awaited()
