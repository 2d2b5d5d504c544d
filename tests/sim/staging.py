"""A cluster on virtual time with drivers of staged batches, and their invariant.

The driver works like Spark's: it stages a batch and publishes it. When anything fails, it
stages the whole batch anew and publishes that.  Ordinary messages go to the same queues.

The check of the invariant runs between two turns of the broker's loop and sees all queues at one
moment: readers see all messages of a batch or none, and none twice.  Messages with a time come
later: each once, none before its time nor before the others of its batch.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.sim.crashing import QUEUE_COUNT, CrashingCluster, Happened, read_visible

from cometmq.broker.broker import Broker
from cometmq.client.extensions.staging.batches import Staging
from cometmq.client.extensions.staging.calls import PublishState
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.testing.simulation import World

TOPIC = "Staged"
TRIES_MAX = 200
ROWS = 24
"""Messages of a batch."""
BLOCK_BYTES = 600
"""Small, so that a batch is many blocks and slices."""


@dataclass
class Seen(Happened):
    """What happened to the broker, the batches and the messages."""

    published: dict[tuple[str, int], PublishState] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    sent: set[bytes] = field(default_factory=set)


def batch_of(body: bytes) -> tuple[str, int] | None:
    """Return sink and batch of a body, None for an ordinary message."""
    kind, *names = body.split(b"/")
    return (names[0].decode(), int(names[1])) if kind == b"batch" else None


class StagedCluster(CrashingCluster):
    """A cluster with drivers of sinks and the invariant of their batches."""

    settings: ClassVar[dict[str, Any]] = {"clean_file_forcibly_enable": False}

    def __init__(self, world: World, flush: str, *, capacity_bytes: int = 1 << 40) -> None:
        super().__init__(world, flush, capacity_bytes=capacity_bytes)
        self.seen: Seen = Seen()
        self.body_bytes = 60
        self.timed_rows: range = range(0)
        """Rows of each batch that have a time."""
        self.due_ms: dict[bytes, int] = {}
        """The least time a row was staged with."""

    def tell_steps(self, broker: Broker) -> None:
        """Make the publisher call `at` at its named steps."""
        broker.staging.publisher.at = self.at

    def reached(self) -> None:
        """Check the invariant at each step."""
        self.look()

    def look(self) -> None:
        """Check the invariant."""
        if self.broker is None or not self.node.is_alive:
            return
        store = self.broker.state.store
        rows: Counter[tuple[str, int]] = Counter()
        everything: Counter[bytes] = Counter()
        for queue_id in range(QUEUE_COUNT):
            bodies = read_visible(store, TOPIC, queue_id)
            everything.update(bodies)
            rows.update(
                batch
                for body in bodies
                if body not in self.due_ms and (batch := batch_of(body)) is not None
            )
        twice = [body for body, count in everything.items() if count > 1]
        assert not twice, f"messages are there twice: {twice[:3]}"
        at_once = ROWS - len(self.timed_rows)
        for batch, count in rows.items():
            assert count == at_once, f"readers see {count} of {at_once} messages of batch {batch}"
        now_ms = self.broker.env.clock.now_ms()
        for body in everything.keys() & self.due_ms.keys():
            assert self.due_ms[body] <= now_ms, f"{body!r} is early"
            assert batch_of(body) in rows, f"{body!r} is there before its batch"
        for batch in self.seen.published:
            assert batch in rows, f"batch {batch} was published and is gone"
        # While a batch is published readers wait for what others send to its queues as well.
        is_held = self.broker.staging.publisher.is_busy
        if not is_held and (self.flush == "SYNC_FLUSH" or not self.is_power_cut):
            assert self.seen.sent <= everything.keys(), "an acknowledged message is gone"
        self.seen.looks += 1

    @staticmethod
    async def until_done(operator: asyncio.Future[None], work: asyncio.Future[Any]) -> None:
        """Wait for the work; a broken invariant ends it at once."""
        await asyncio.wait([operator, work], return_when=asyncio.FIRST_COMPLETED)
        if operator.done():
            operator.result()
        await work

    async def drive(self, sink: str, batches: int) -> None:
        """Publish batches 0, 1, 2 and so on, and repeat each until it is published."""
        node = self.client
        async with Staging(
            self.name_server_address,
            sink,
            timeout_ms=3_000,
            publish_timeout_ms=20_000,
            block_bytes=BLOCK_BYTES,
            env=node.environment(),
        ) as staging:
            for batch_id in range(batches):
                attempt = 0
                while not await self._try(staging, batch_id, attempt):
                    attempt += 1
                    assert attempt < TRIES_MAX, self.seen.failures[-1]
                    await asyncio.sleep(0.3)

    async def _try(self, staging: Staging, batch_id: int, attempt: int) -> bool:
        try:
            parts = []
            for part in range(2):
                writer = staging.part(batch_id, str(part))
                for row in range(part, ROWS, 2):
                    body = f"batch/{staging.sink}/{batch_id}/{row}".encode()
                    body = body.ljust(self.body_bytes, b".")
                    group = f"group-{row % 5}" if row % 3 else None
                    due_ms = None
                    if row in self.timed_rows:
                        due_ms = self.client.environment().clock.now_ms() + 40 * (row + 1)
                        self.due_ms[body] = min(due_ms, self.due_ms.get(body, due_ms))
                    await writer.add(
                        TOPIC,
                        body,
                        tags=f"t{row % 2}",
                        message_group=group,
                        deliver_time_ms=due_ms,
                    )
                parts.append(await writer.finish())
            result = await staging.publish(batch_id, parts)
        except CometError as error:
            self.seen.failures.append(f"{staging.sink}/{batch_id}/{attempt}: {error}")
            self.world.record("failed", self.seen.failures[-1])
            return False
        assert result.rows == ROWS
        self.seen.published[staging.sink, batch_id] = result.status
        self.world.record("published", f"{staging.sink} {batch_id} {result.status}")
        self.look()
        return True

    async def send(self, count: int) -> None:
        """Send ordinary messages to the same queues."""
        node = self.client
        async with Producer(
            "ordinary",
            name_server=self.name_server_address,
            instance_name="ordinary",
            client_ip=node.address,
            retries=0,
            env=node.environment(),
        ) as producer:
            for number in range(count):
                body = f"ordinary/{number}".encode().ljust(60, b".")
                try:
                    sent = await producer.send(Message(TOPIC, body))
                except CometError:
                    await asyncio.sleep(0.2)
                    continue
                if int(sent.status) == 0:
                    self.seen.sent.add(body)
                await asyncio.sleep(self.world.chance.uniform(0, 0.004))
