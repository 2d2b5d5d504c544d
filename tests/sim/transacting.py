"""A cluster on virtual time with producers of transactions, and their invariant.

Two producers of one group write to their own "database" in each local transaction and report
the outcome, die before they report it, or never decide; both answer checks from that database.

The check of the invariant runs between two turns of the broker's loop: readers see what the
database says was done, each message once.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.sim.crashing import QUEUE_COUNT, CrashingCluster, Happened, read_visible

from cometmq.broker.broker import Broker
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.client.transaction.values import Said, TransactionOutcome
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.testing.simulation import World

TOPIC = "Orders"
KINDS = ("done", "undone", "died after it", "died before it", "undecided")
"""What happens to a local transaction."""


@dataclass
class Seen(Happened):
    """What happened to the broker and to transactions."""

    begun: dict[str, str] = field(default_factory=dict)
    """Body of each stored half message, with its kind."""
    refused: int = 0
    checked: int = 0


class TransactionCluster(CrashingCluster):
    """A cluster with producers, their database and the invariant of both."""

    # An impatient broker.
    settings: ClassVar[dict[str, Any]] = {
        "flush_consumer_offset_interval": 300,
        "transaction_time_out": 300,
        "transaction_check_interval": 500,
        "transaction_check_max": 4,
        "transaction_op_batch_interval": 200,
        "transaction_op_msg_max_size": 40,
    }

    def __init__(self, world: World, flush: str) -> None:
        super().__init__(world, flush)
        self.seen: Seen = Seen()
        self.database: dict[str, bool | None] = {}
        """Message id to what its local transaction did; None for undecided."""
        self.running: set[str] = set()

    def tell_steps(self, broker: Broker) -> None:
        """Make the transaction service call `at` at its named steps."""
        broker.transactions.at = self.at

    def delivered(self) -> Counter[bytes]:
        """Count each visible body."""
        assert self.broker is not None
        store = self.broker.state.store
        return Counter(
            body for queue_id in range(QUEUE_COUNT) for body in read_visible(store, TOPIC, queue_id)
        )

    def given_up(self) -> Counter[bytes]:
        """Return the bodies of transactions that no producer decided."""
        assert self.broker is not None
        return Counter(read_visible(self.broker.state.store, TRANS_CHECK_MAX_TIME_TOPIC, 0))

    def due(self) -> set[bytes]:
        """Return the bodies with an acknowledged half message and a finished local transaction."""
        done = ("done", "died after it")
        return {body.encode() for body, kind in self.seen.begun.items() if kind in done}

    def look(self) -> None:
        """Check the invariant."""
        if self.broker is None or not self.node.is_alive:
            return
        delivered = self.delivered()
        assert all(count == 1 for count in delivered.values()), f"twice: {delivered}"
        assert all(count == 1 for count in self.given_up().values()), "given up twice"
        done = {f"order {number}".encode() for number, did in self.database.items() if did}
        assert delivered.keys() <= done, "delivered though it was never done"
        assert not delivered.keys() & self.given_up().keys(), "delivered and given up"
        self.seen.looks += 1

    def is_settled(self) -> bool:
        """Return whether no transaction is open and everything that is due has arrived."""
        if self.broker is None or not self.node.is_alive or self.broker.transactions.halves:
            return False
        # What was acknowledged may be gone after a power cut without synchronous flush.
        may_lose = self.is_power_cut and self.flush != "SYNC_FLUSH" and self.seen.crashes
        return bool(may_lose) or self.due() <= self.delivered().keys()

    async def settle(self, operator: asyncio.Future[None]) -> None:
        """Wait until every transaction is decided; a broken invariant ends the wait."""
        for _ in range(20_000):
            if operator.done():
                operator.result()
            if self.is_settled():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never settled: {self.due() - self.delivered().keys()}")

    async def produce(self, number: int, count: int, ended: asyncio.Event) -> None:
        """Run local transactions, then stay to answer checks."""
        node = self.client

        async def check(message: ReceivedMessage) -> Said:
            self.seen.checked += 1
            # One that still runs elsewhere is as good as undecided; one unknown never was.
            name = _name(message)
            return None if name in self.running else self.database.get(name, False)

        producer = TransactionProducer(
            "orders",
            check=check,
            name_server=self.name_server_address,
            instance_name=f"producer{number}",
            client_ip=node.address,
            retries=0,
            timeout_ms=1000,
            env=node.environment(),
        )
        while True:
            try:
                await producer.start()
                break
            except CometError:
                await asyncio.sleep(0.3)
        begun = tries = 0
        while begun < count:
            is_begun = await self._transact(producer, f"{number}/{tries}")
            tries += 1
            begun += is_begun
            await asyncio.sleep(self.world.chance.uniform(0, 0.2 if is_begun else 0.8))
        # Register again soon after a crash, as the heartbeat would after half a minute.
        while not ended.is_set():
            await asyncio.sleep(1)
            try:
                await producer._register()
            except CometError:
                continue
        await producer.shutdown()

    async def _transact(self, producer: TransactionProducer, name: str) -> bool:
        kind = self.world.chance.choice(KINDS)
        self.running.add(name)
        try:
            transaction = await producer.begin(Message(TOPIC, f"order {name}".encode(), keys=name))
        except CometError as error:
            self.running.discard(name)
            self.seen.refused += 1
            self.world.record("refused", f"{name} {type(error).__name__}")
            return False
        await asyncio.sleep(self.world.chance.uniform(0, 0.5))
        self.database[name] = None if kind == "undecided" else kind in ("done", "died after it")
        self.running.discard(name)
        self.seen.begun[f"order {name}"] = kind
        self.world.record("begun", f"{name} {kind}")
        await producer.end(transaction, _outcome(kind))
        return True


def _outcome(kind: str) -> TransactionOutcome:
    if kind == "done":
        return TransactionOutcome.COMMIT
    return TransactionOutcome.ROLLBACK if kind == "undone" else TransactionOutcome.UNKNOWN


def _name(message: ReceivedMessage) -> str:
    (name,) = message.keys
    return name


async def run(cluster: TransactionCluster, count: int, cutter: Any = None) -> None:
    """Run two producers at once, then wait until everything is settled."""
    await cluster.start()
    operator = asyncio.ensure_future(cluster.operate())
    ended = asyncio.Event()
    work = [
        cluster.client.spawn(lambda number=number: cluster.produce(number, count, ended))
        for number in range(2)
    ]
    while len(cluster.seen.begun) < 2 * count:
        if operator.done():
            operator.result()
        await asyncio.sleep(0.1)
    if cutter is not None:
        cutter.cancel()
    cluster.node.disk.forget_triggers()
    await cluster.settle(operator)
    # The pace at which op messages and offsets are written; nothing may come back.
    await asyncio.sleep(5)
    cluster.look()
    assert cluster.is_settled()
    ended.set()
    await asyncio.gather(*work)
    operator.cancel()
