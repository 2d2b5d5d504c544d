"""Messages that their producer numbers and sends again until it has an answer: each is stored once.

A client machine that crashes begins with a new life of its producer, and with other messages.
"""

from __future__ import annotations

import asyncio
import functools
from typing import ClassVar, Final

from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.testing.markers import override
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Workload
from cometmq.testing.simulation import Node

__all__ = ["NumberedWorkload"]

TOPIC: Final = "Numbered"
TOGETHER: Final = (1, 4, 12)
"""Choices of how many messages are in flight."""


class NumberedWorkload(Workload):
    """A repetition is stored once, whatever happens to broker, connection and file of numbers."""

    name: ClassVar[str] = "numbered"

    def start(self) -> None:
        cluster = self.cluster
        self._batched: set[bytes] = set()
        cluster.watch(TOPIC, self.never_twice)
        for number, node in enumerate(cluster.clients):
            send = functools.partial(self.send_all, node, self._step)
            cluster.role(f"numbered {number}", node, send)

    @override
    def _lose(self, broker_name: str, end: int, lost: list[Seen]) -> None:
        # Where the rest of a torn batch lies is unknown, so all batches may be lost.
        for body in self._batched & self.acknowledged.keys():
            if self._stored[body][0] == broker_name:
                del self.acknowledged[body]
                self._lost_count += 1
                self._batched.discard(body)
        super()._lose(broker_name, end, lost)

    @property
    @override
    def is_sent(self) -> bool:
        # Every fault meets messages whose answers are open.
        return self.cluster.is_peace and self.acknowledged_count >= self.steps

    @override
    def producer(self, node: Node, number: int = 0) -> Producer:
        return Producer(
            "numbered-producers",
            name_server=self.cluster.name_server_address,
            instance_name=f"numbered-{node.name}",
            client_ip=node.address,
            producer_id="numbered",
            timeout_ms=20_000,
            env=node.environment(),
        )

    async def _step(self, producer: Producer) -> None:
        count = self.chance.choice(TOGETHER)
        if count > 1 and self.chance.random() < 0.5:
            batch = [Message(TOPIC, self.new_body()) for _ in range(count)]
            for message, sent in zip(batch, await producer.send_batch(batch), strict=True):
                if self.note(message.body, sent) is not None:
                    self._batched.add(message.body)
            return
        messages = [Message(TOPIC, self.new_body()) for _ in range(count)]
        answers = await asyncio.gather(
            *[producer.send(message) for message in messages], return_exceptions=True
        )
        for message, answer in zip(messages, answers, strict=True):
            if isinstance(answer, CometError):
                self.cluster.world.record("refused", f"numbered {type(answer).__name__}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self.note(message.body, answer)

    def unsettled(self) -> str | None:
        return None if self.is_sent else "not everything is sent"

    @override
    def check(self) -> None:
        """Check positions; the rest of a batch that a crash has torn may lie further back."""
        stored = {seen.body for seen in self.cluster.messages(TOPIC)}
        for body in self._batched:
            self._lost_count += self.acknowledged.pop(body, None) is not None
            if body not in stored:
                self.cluster.fail(f"numbered: {body[:30]!r} was acknowledged and is not stored")
        self.check_positions()
