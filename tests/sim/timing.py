"""A cluster on virtual time with a producer of timed messages, and their invariant.

The producer sends messages with times up to some seconds ahead, half of them further than the
wheel's window of four seconds, so that they are rolled; it recalls every fifth.

The check of the invariant runs between two turns of the broker's loop: no message is visible
before its time, none twice, and none that was recalled.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.sim.crashing import QUEUE_COUNT, CrashingCluster, Happened, read_visible

from cometmq.broker.broker import Broker
from cometmq.client.producer.producer import Producer
from cometmq.codec.stored_message import decode_message
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.testing.simulation import World

TOPIC = "Later"


@dataclass
class Seen(Happened):
    """What happened to the broker and to timed messages."""

    due: dict[bytes, int] = field(default_factory=dict)
    """Bodies of what was acknowledged, with their times."""
    recalled: set[bytes] = field(default_factory=set)
    maybe: set[bytes] = field(default_factory=set)
    """Bodies whose sends or recalls had no answer: they may be there or not, at any time."""
    refused: int = 0


class TimerCluster(CrashingCluster):
    """A cluster with a producer and the invariant of timers."""

    settings: ClassVar[dict[str, Any]] = {
        "timer_roll_window_slot": 4,
        "timer_flush_interval_ms": 300,
        "mapped_file_size_timer_log": 4096,
    }

    def __init__(self, world: World, flush: str) -> None:
        super().__init__(world, flush)
        self.seen: Seen = Seen()
        self.asked: dict[bytes, int] = {}
        """Bodies of all sends, with their times."""

    def tell_steps(self, broker: Broker) -> None:
        """Make the timers call `at` at their named steps."""
        broker.timers.at = self.at

    def delivered(self) -> Counter[bytes]:
        """Count each visible body."""
        assert self.broker is not None
        store = self.broker.state.store
        return Counter(
            body for queue_id in range(QUEUE_COUNT) for body in read_visible(store, TOPIC, queue_id)
        )

    def look(self) -> None:
        """Check the invariant."""
        if self.broker is None or not self.node.is_alive:
            return
        delivered = self.delivered()
        assert all(count == 1 for count in delivered.values()), f"twice: {delivered}"
        taken_back = delivered.keys() & self.seen.recalled
        # A recall that was not durable is none, as a send that was not.
        assert self.may_lose or not taken_back, f"taken back and delivered: {taken_back}"
        store = self.broker.state.store
        for queue_id in range(QUEUE_COUNT):
            for unit in store.units(TOPIC, queue_id, 0, 1000):
                record = store.message_at(unit.physical_offset)
                assert record is not None
                message = decode_message(record)
                due_ms = self.asked[bytes(message.body)]
                assert message.store_timestamp_ms >= due_ms, "delivered too early"
        self.seen.looks += 1

    @property
    def may_lose(self) -> bool:
        """Return whether a power cut without synchronous flush may have lost messages."""
        return self.is_power_cut and self.flush != "SYNC_FLUSH" and self.seen.crashes > 0

    def owed(self) -> set[bytes]:
        """Return the bodies that have to arrive."""
        return set(self.seen.due) - self.seen.recalled - self.seen.maybe

    async def settle(self, operator: asyncio.Future[None]) -> None:
        """Wait until everything has arrived; a broken invariant ends the wait."""
        for _ in range(2_000):
            if operator.done():
                operator.result()
            is_there = self.broker is not None and self.node.is_alive
            if is_there and self.broker is not None and not self.broker.timers.pending_count():
                missing = self.owed() - self.delivered().keys()
                if not missing or self.may_lose:
                    return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never arrived: {self.owed() - self.delivered().keys()}")

    async def produce(self, count: int) -> None:
        """Send timed messages until so many are acknowledged."""
        node = self.client
        producer = Producer(
            "timers",
            name_server=self.name_server_address,
            client_ip=node.address,
            retries=0,
            timeout_ms=1000,
            env=node.environment(),
        )
        clock = node.environment().clock
        await producer.start()
        number = 0
        while len(self.seen.due) < count:
            number += 1
            body = f"m{number}".encode()
            due_ms = clock.now_ms() + self.world.chance.randrange(50, 9_000)
            self.asked[body] = due_ms
            try:
                sent = await producer.send(Message(TOPIC, body, deliver_time_ms=due_ms))
            except CometError:
                self.seen.maybe.add(body)
                self.seen.refused += 1
                await asyncio.sleep(0.2)
                continue
            self.seen.due[body] = due_ms
            if number % 5 == 0 and sent.recall_handle is not None:
                try:
                    await producer.recall(TOPIC, sent.recall_handle)
                    self.seen.recalled.add(body)
                except CometError:
                    self.seen.maybe.add(body)
            await asyncio.sleep(self.world.chance.uniform(0, 0.3))
        await producer.shutdown()


async def run(
    cluster: TimerCluster, count: int, cutter: "asyncio.Future[None] | None" = None
) -> None:
    """Send messages, and wait until all have arrived."""
    await cluster.start()
    operator = asyncio.ensure_future(cluster.operate())
    try:
        await cluster.client.run(lambda: cluster.produce(count))
        if cutter is not None:
            await cutter
            # What was set up for an operation that does not come any more ends nothing later.
            cluster.node.disk.forget_triggers()
        await cluster.settle(operator)
    finally:
        operator.cancel()
