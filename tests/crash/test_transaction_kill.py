"""A real broker process that ends itself by SIGKILL at a named step of a transaction.

The same steps as on virtual time (`tests/sim/test_transactions.py`), with a real disk, real sockets
and the ordinary client: no acknowledged half message or commit is lost, nothing is delivered twice,
and each half message is settled once: delivered, forgotten or given up.
"""

import asyncio
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
from tests.crash.stepping import Life, read_queue
from tests.raw_client import RawClient

import cometmq
from cometmq.client.transaction.values import TransactionOutcome
from cometmq.errors import CometError
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

TOPIC = "Orders"
QUEUE_COUNT = 2
WAIT_S = 100
STEPS = {
    "half.put": 7,
    "commit.put": 3,
    "op.before": 2,
    "op.put": 2,
    "check.put_back": 3,
    "check.pushed": 2,
    "offset.half": 2,
    "offset.op": 1,
    "": 0,
    "discard.put": 2,
}
"""Steps of the service, and at which of its times the broker ends there.

In the life without one ("") everything that is decided is settled, so that only what nobody decides
is given up in the next."""
KINDS = ("done", "undone", "died after it", "died before it", "undecided")


class ShopLife(Life):
    """One life of the broker, which ends itself at a step once that is armed, or not ("")."""

    def __init__(self, store: Path, flush: str, step: str, hit: int, check_max: int) -> None:
        self.is_last = check_max == 1
        settings: dict[str, object] = {
            "flushDiskType": flush,
            "defaultTopicQueueNums": QUEUE_COUNT,
            "cleanFileForciblyEnable": "false",
            "flushConsumerOffsetInterval": 200,
            "transactionTimeOut": 200,
            "transactionCheckInterval": 200,
            "transactionCheckMax": check_max,
            "transactionOpBatchInterval": 100,
            "transactionOpMsgMaxSize": 20,
        }
        self.end = step, hit
        super().__init__(store, "transactions", settings)


class Shop:
    """Local transactions and what became of them; it outlives the brokers."""

    def __init__(self) -> None:
        self.database: dict[str, bool | None] = {}
        """Body to what its local transaction did; None for undecided."""
        self.due: set[str] = set()
        """Bodies whose half message was acknowledged and whose local transaction was done."""
        self.undecided: set[str] = set()
        self.confirmed: set[str] = set()
        """Bodies whose commit was acknowledged."""
        self.checked = 0
        self._numbers = count()

    async def check(self, message: cometmq.ReceivedMessage) -> bool | None:
        """What the database says; one that is not there never was."""
        self.checked += 1
        return self.database.get(message.body.decode(), False)

    async def transact(self, producer: cometmq.TransactionProducer) -> None:
        """One more local transaction, of the next kind."""
        number = next(self._numbers)
        kind, body = KINDS[number % len(KINDS)], f"order-{number}"
        transaction = await producer.begin(cometmq.Message(TOPIC, body.encode(), keys=body))
        is_done = kind in ("done", "died after it")
        self.database[body] = None if kind == "undecided" else is_done
        if is_done:
            self.due.add(body)
        elif kind == "undecided":
            self.undecided.add(body)
        if kind == "done":
            await producer.end(transaction, TransactionOutcome.COMMIT)
            if transaction.is_settled:
                self.confirmed.add(body)
        elif kind == "undone":
            await producer.end(transaction, TransactionOutcome.ROLLBACK)

    async def live(self, life: ShopLife) -> None:
        """Do transactions and answer checks until the broker is killed, or all is settled."""
        producer = cometmq.TransactionProducer(
            "orders",
            check=self.check,
            name_server=life.name_server,
            retries=0,
            timeout_ms=10_000,
        )
        try:
            async with asyncio.timeout(WAIT_S), producer:
                await self._work(life, producer)
        except CometError:
            if not life.is_over:
                raise

    async def _work(self, life: ShopLife, producer: cometmq.TransactionProducer) -> None:
        # One of each kind is done before the broker may die, however slow the machine is.
        wanted, armed_after = (0, 0) if life.is_last else (60, len(KINDS))
        begun = 0
        while not life.is_over:
            try:
                if begun == armed_after and life.end[0] and not life.step:
                    life.arm(*life.end)
                if begun < wanted:
                    await self.transact(producer)
                    begun += 1
                    continue
                if not life.end[0] and await self.is_settled(life):
                    return
            except CometError:
                # It died, or is slow today: a half message nobody knows of is rolled back.
                pass
            await asyncio.sleep(0.05)

    async def is_settled(self, life: ShopLife) -> bool:
        """Whether nothing is open but what nobody decides, and in the last life not even that."""
        self.look(life.address)
        async with cometmq.Admin(name_server=life.name_server) as admin:
            still_open = {one.keys for one in await admin.open_transactions()}
        delivered = bodies_of(life.address).keys()
        given_up = bodies_of(life.address, TRANS_CHECK_MAX_TIME_TOPIC, 1).keys()
        undecided = given_up if life.is_last else still_open
        return self.due == delivered and undecided == self.undecided

    def look(self, address: str) -> None:
        """What must hold at any time."""
        delivered = bodies_of(address)
        given_up = bodies_of(address, TRANS_CHECK_MAX_TIME_TOPIC, 1)
        assert self.confirmed <= delivered.keys(), "an acknowledged commit is lost"
        assert all(many == 1 for many in delivered.values()), f"twice: {delivered}"
        assert all(many == 1 for many in given_up.values()), f"given up twice: {given_up}"
        assert delivered.keys() <= self.due, "delivered though it was never done"
        assert given_up.keys() <= self.undecided, "given up though it was decided"


def bodies_of(address: str, topic: str = TOPIC, queue_count: int = QUEUE_COUNT) -> Counter[str]:
    """What readers see of a topic."""
    bodies: Counter[str] = Counter()
    with RawClient(address, timeout_s=WAIT_S) as client:
        for queue_id in range(queue_count):
            bodies.update(one.body.decode() for one in read_queue(client, topic, queue_id))
    return bodies


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_broker_killed_at_each_step_settles_each_once(tmp_path: Path, flush: str) -> None:
    """One store, one kill after the other, what is open carried from life to life."""
    shop = Shop()
    check_max = 1_000_000
    for step, hit in [*STEPS.items(), ("", 0)]:
        if step == "discard.put":
            check_max = 1
        life = ShopLife(tmp_path / "store", flush, step, hit, check_max)
        try:
            shop.look(life.address)
            asyncio.run(shop.live(life))
            if step:
                life.check_killed()
            else:
                # Nothing comes back with the op messages and offsets written since.
                shop.look(life.address)
        finally:
            life.close()
    assert shop.checked > 5
    assert len(shop.confirmed) > 5
    assert len(shop.undecided) > 2
    assert shop.due > shop.confirmed
