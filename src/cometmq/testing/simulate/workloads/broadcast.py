"""Broadcasting: every member receives every message and keeps its offsets across its lives.

Members keep their offsets on the disks of their machines; brokers have none of this group.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import ClassVar, Final

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.instance import ClientInstance
from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.client.queue.offsets import LocalOffsets, OffsetStore
from cometmq.core.consume.offset_file import decode_offset_file
from cometmq.model import Message
from cometmq.model.group import MessageModel
from cometmq.testing.simulate.workloads.base import Workload, position_of
from cometmq.testing.simulation import Node

__all__ = ["BroadcastWorkload"]

TOPIC: Final = "Broadcast"
GROUP: Final = "broadcasting"
FOLDER: Final = "/offsets"
Queue = tuple[str, str, int]


class _Member(PushConsumer):
    """A member that keeps its offset file on its machine's simulated disk."""

    node: Node

    def _offset_store(self, instance: ClientInstance, calls: BrokerCalls) -> OffsetStore:
        return LocalOffsets(instance.client_id, self.group, FOLDER, self.node.disk)


class _Lives:
    """What one member received over its lives."""

    def __init__(self) -> None:
        self.handled: dict[Queue, set[int]] = defaultdict(set)
        self.bodies: set[bytes] = set()
        self.saved_at_leave: dict[Queue, int] = {}
        """The offsets in its file when it last left in order: no earlier message may come again."""
        self.path = ""

    def first_unhandled(self, queue: Queue) -> int:
        """Return the first offset that the member has not handled."""
        handled = self.handled[queue]
        return next(number for number in range(len(handled) + 1) if number not in handled)


class BroadcastWorkload(Workload):
    """Three members handle every message, and none that was saved before they left in order."""

    name: ClassVar[str] = "broadcast"
    calm_steps: ClassVar[int] = 5

    def start(self) -> None:
        cluster = self.cluster
        cluster.watch(TOPIC, self.never_twice)
        # Brokers have no offsets of this group, so no log file may be deleted.
        cluster.watch_group(GROUP)
        cluster.on_observed.append(self._observe)
        first, second = cluster.clients
        self._nodes = [first, second, second]
        self._members = [_Lives() for _ in self._nodes]
        for number in range(len(self._nodes)):
            self.calm_group(f"member {number}")
        cluster.role("broadcast send", first, lambda: self.send_all(first, self._step))
        cluster.role("broadcast one", first, lambda: self._stay(0))
        cluster.role("broadcast two", second, lambda: self._stay(1))
        cluster.role("broadcast three", second, self._come_and_stay)

    async def _step(self, producer: Producer) -> None:
        batch = [Message(TOPIC, self.new_body()) for _ in range(self.chance.randint(1, 4))]
        for message, sent in zip(batch, await producer.send_batch(batch), strict=True):
            self.note(message.body, sent)

    async def calm_step(self, producer: Producer) -> None:
        """Send as before."""
        await self._step(producer)

    async def _stay(self, number: int) -> None:
        async with self._member(number):
            await self.cluster.ended.wait()

    async def _come_and_stay(self) -> None:
        while not self.cluster.is_peace:
            member = self._member(2)
            async with member:
                await asyncio.sleep(self.chance.uniform(0.3, 2))
            lives = self._members[2]
            lives.saved_at_leave = self._saved(2)
            await asyncio.sleep(self.chance.uniform(0.1, 1))
        await self._stay(2)

    def _member(self, number: int) -> PushConsumer:
        node, lives = self._nodes[number], self._members[number]

        async def handle(message: ReceivedMessage) -> None:
            broker_name, topic, queue_id, queue_offset = position_of(message)
            queue = (broker_name, topic, queue_id)
            self.note_begun(f"member {number}", bytes(message.body))
            is_back = queue_offset < lives.saved_at_leave.get(queue, 0)
            if is_back and not self._may_have_lost(broker_name):
                self.cluster.fail(
                    f"broadcast: member {number} received {queue} {queue_offset} again, and had "
                    f"saved {lives.saved_at_leave[queue]} when it left"
                )
            await asyncio.sleep(self.chance.uniform(0, 0.2))
            lives.handled[queue].add(queue_offset)
            lives.bodies.add(bytes(message.body))
            self.cluster.world.record("handled", f"member {number}", body=bytes(message.body))

        member = _Member(
            GROUP,
            {TOPIC: "*"},
            handle,
            name_server=self.cluster.name_server_address,
            instance_name=f"{GROUP}-{number}",
            client_ip=node.address,
            consume_from="first",
            message_model=MessageModel.BROADCASTING,
            env=node.environment(),
        )
        member.node = node
        lives.path = f"{FOLDER}/{node.address}@{GROUP}-{number}/{GROUP}/offsets.json"
        return member

    def _may_have_lost(self, broker_name: str) -> bool:
        """Whether the broker has started after a failed sync or a power cut a moment ago.

        It has no offset of this group, so it cannot tell whether a member that comes knows lost
        messages or new ones, and sends it back to where the queue ended at the start.
        """
        broker = self.cluster.broker(broker_name).broker
        return broker is not None and broker.state.offsets.is_after_loss

    def _observe(self) -> None:
        """Check that no saved offset is beyond what its member has handled."""
        for number, lives in enumerate(self._members):
            for queue, saved in self._saved(number).items():
                if saved > lives.first_unhandled(queue):
                    self.cluster.fail(
                        f"broadcast: member {number} saved {saved} of {queue}, and has not "
                        f"handled {lives.first_unhandled(queue)}"
                    )

    def _saved(self, number: int) -> dict[Queue, int]:
        """Return the offsets in a member's file; none while its machine is down."""
        node, path = self._nodes[number], self._members[number].path
        if not node.is_alive or not path or not node.disk.exists(path):
            return {}
        offsets = decode_offset_file(node.disk.read_bytes(path))
        return {
            (queue.broker_name, queue.topic, queue.queue_id): queue_offset
            for queue, queue_offset in offsets.items()
        }

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        wanted = {seen.body for seen in self.cluster.messages(TOPIC)} | self.acknowledged.keys()
        for number, lives in enumerate(self._members):
            if missing := wanted - lives.bodies:
                return f"member {number} never received {min(missing)[:30]!r}"
        return None
