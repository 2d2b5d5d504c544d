"""Requests and their replies, with requesters and repliers that crash at any time.

A request may end without a reply if its requester or its replier crashed.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, ClassVar, Final

from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.testing.simulate.workloads.base import Workload

if TYPE_CHECKING:
    from cometmq.testing.simulation import Node

__all__ = ["AskedWorkload"]

TOPIC: Final = "Asked"
TIMEOUT_MS: Final = 2_000
AT_ONCE: Final = 4
"""Open requests of one asker at a time, so that replies could be mixed up."""


class AskedWorkload(Workload):
    """A request ends in time with its own reply or an error; without faults with its reply."""

    name: ClassVar[str] = "asked"

    def start(self) -> None:
        cluster = self.cluster
        self._answered: set[bytes] = set()
        cluster.watch(TOPIC, self.never_twice)
        self.group = cluster.watch_group("answerers")
        for number, node in enumerate(cluster.clients):
            cluster.role(f"asked {number}", node, functools.partial(self._ask, number))
            cluster.role(f"answer {number}", node, functools.partial(self._answer, number))

    @property
    def acknowledged_count(self) -> int:
        return len(self._answered)

    # -- asking ----------------------------------------------------------------------------------

    async def _ask(self, number: int) -> None:
        node = self.cluster.clients[number]
        async with self.producer(node, number) as producer:
            while not self.is_sent:
                count = self.chance.randint(1, AT_ONCE)
                await asyncio.gather(*(self._request(node, producer) for _ in range(count)))
                await asyncio.sleep(self.chance.uniform(0, 0.9))

    async def _request(self, node: Node, producer: Producer) -> None:
        body = self.new_body()
        loop = self.cluster.world.loop
        begun_s, is_known = loop.time(), TOPIC in producer.core.topics
        paused_s = node.paused_s
        try:
            reply = await producer.request(Message(TOPIC, body), timeout_ms=TIMEOUT_MS)
        except CometError as error:
            self.cluster.world.record("refused", type(error).__name__, body=body)
        else:
            self.cluster.world.record("answered", body=body)
            if bytes(reply.body) != b"reply to " + body:
                self.cluster.fail(f"asked: {body[:30]!r} got {bytes(reply.body)[:40]!r}")
            self._answered.add(body)
        # No program is in time on a machine that stood still.
        late_s = loop.time() - begun_s - TIMEOUT_MS / 1000 - (node.paused_s - paused_s)
        # Until it knows the topic, a producer asks name servers and greets brokers first.
        if is_known and late_s > 0.001:
            self.cluster.fail(f"asked: {body[:30]!r} ended {late_s:.3f} s after its time")

    # -- answering -------------------------------------------------------------------------------

    async def _answer(self, number: int) -> None:
        node = self.cluster.clients[number]
        async with self.producer(node, 10 + number) as producer:

            async def handle(message: ReceivedMessage) -> None:
                await asyncio.sleep(self.chance.uniform(0, 0.3))
                try:
                    await producer.reply(message, b"reply to " + bytes(message.body))
                except CometError as error:
                    # The asker may have crashed; nobody waits for a second try.
                    self.cluster.world.record("no reply", type(error).__name__)

            await self.consume(self.consumer(node, number, TOPIC, handle, self.group))

    # -- promises --------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        return None if self.is_sent else f"only {len(self._answered)} requests were answered"
