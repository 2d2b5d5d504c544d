"""A real broker process that ends itself by SIGKILL at a named step of a transaction.

The same steps as on virtual time (`tests/sim/test_transactions.py`), with a real disk, real sockets
and the ordinary client: no acknowledged half message or commit is lost, nothing is delivered twice,
and each half message is settled once: delivered, forgotten or given up.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

import cometmq
from cometmq.client.transaction import TransactionOutcome
from cometmq.codec.stored_message import decode_messages
from cometmq.errors import CometError
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.testing.raw_client import RawClient

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
BROKER = """
import asyncio, os, signal, sys
from pathlib import Path
from cometmq.broker.config import load_config
from cometmq.standalone import Standalone

store, flush, step, hit, checks = sys.argv[1:]
hits = []

def at(name):
    if name == step:
        hits.append(name)
        if len(hits) == int(hit):
            Path(store, "hit").write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    config = load_config(environment={}, overrides={
        "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
        "listenPort": 0, "storePathRootDir": store, "flushDiskType": flush,
        "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 20 * 500,
        "maxHashSlotNum": 1000, "maxIndexNum": 4000, "defaultTopicQueueNums": 2,
        "cleanFileForciblyEnable": "false", "flushConsumerOffsetInterval": 200,
        "transactionTimeOut": 200, "transactionCheckInterval": 200, "transactionCheckMax": checks,
        "transactionOpBatchInterval": 100, "transactionOpMsgMaxSize": 20,
    }).config
    standalone = Standalone(config, name_server_port=0)
    await standalone.start()
    standalone.broker.transactions.at = at
    print(standalone.name_server_address, standalone.broker_address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Life:
    """One life of the broker, which ends itself at a step, or not ("")."""

    def __init__(self, store: Path, flush: str, step: str, hit: int, check_max: int) -> None:
        self.store = store
        self.step = step
        self.is_last = check_max == 1
        self._process = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(store), flush, step, str(hit), str(check_max)],
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the broker did not start; its stderr says why"
        self.name_server, self.address = line.split()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def check_killed(self) -> None:
        """It has ended itself at its step, and at no other."""
        assert self._process.wait(timeout=WAIT_S) == -signal.SIGKILL
        hit = self.store / "hit"
        assert hit.read_text() == self.step
        hit.unlink()

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


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

    async def live(self, life: Life) -> None:
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

    async def _work(self, life: Life, producer: cometmq.TransactionProducer) -> None:
        begun = 0
        while not life.is_over:
            try:
                if life.step and not life.is_last and begun < 60:
                    await self.transact(producer)
                    begun += 1
                    continue
                if not life.step and await self.is_settled(life):
                    return
            except CometError:
                # It died, or is slow today: a half message nobody knows of is rolled back.
                pass
            await asyncio.sleep(0.05)

    async def is_settled(self, life: Life) -> bool:
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
            offset = 0
            while True:
                answer = client.call(
                    11,
                    {
                        "consumerGroup": "readers",
                        "topic": topic,
                        "queueId": str(queue_id),
                        "queueOffset": str(offset),
                        "maxMsgNums": "32",
                        "sysFlag": "4",
                        "commitOffset": "0",
                        "suspendTimeoutMillis": "0",
                        "subscription": "*",
                        "subVersion": "0",
                        "expressionType": "TAG",
                    },
                )
                if answer.code != 0:
                    assert answer.code in (17, 19), answer.remark
                    break
                for message in decode_messages(answer.body):
                    bodies[message.body.decode()] += 1
                    offset += 1
    return bodies


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_broker_killed_at_each_step_settles_each_once(tmp_path: Path, flush: str) -> None:
    """One store, one kill after the other, what is open carried from life to life."""
    shop = Shop()
    check_max = 1_000_000
    for step, hit in [*STEPS.items(), ("", 0)]:
        if step == "discard.put":
            check_max = 1
        life = Life(tmp_path / "store", flush, step, hit, check_max)
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
