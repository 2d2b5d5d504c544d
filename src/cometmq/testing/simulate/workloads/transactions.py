"""Transactions whose producers commit, roll back, crash before either, or never decide.

The checks compare what readers see with the local transactions, not with the broker's state.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from typing import ClassVar, Final

from cometmq.client.message.message import ReceivedMessage
from cometmq.client.transaction.producer import TransactionProducer
from cometmq.client.transaction.values import Said, Transaction, TransactionOutcome
from cometmq.errors import CometError
from cometmq.model import Message
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.testing.simulate.broker_part import Seen
from cometmq.testing.simulate.workloads.base import Workload

__all__ = ["TransactionsWorkload"]

TOPIC: Final = "Orders"
KINDS: Final = ("done", "undone", "died after it", "died before it", "undecided")
"""What happens to a local transaction."""
_DONE: Final = ("done", "died after it")
TOGETHER: Final = (1, 1, 6)
"""Choices of how many transactions a producer runs at once, so that their ends come together."""
KINDS_TOGETHER: Final = (*KINDS, *("done",) * 5)
"""Mostly commits, since adjacent commits are stored in one step."""


class TransactionsWorkload(Workload):
    """Each half message is settled once, as its local transaction ended."""

    name: ClassVar[str] = "transactions"

    def start(self) -> None:
        cluster = self.cluster
        self._database: dict[bytes, bool | None] = {}
        """Body to the result of its local transaction; None while undecided."""
        self._running: set[bytes] = set()
        self._begun: dict[bytes, str] = {}
        self._delivered: Counter[bytes] = Counter()
        self._given_up: Counter[bytes] = Counter()
        cluster.watch(TOPIC, self._arrives)
        cluster.watch(TRANS_CHECK_MAX_TIME_TOPIC, self._discarded)
        for number, node in enumerate(cluster.clients):
            cluster.role(f"transactions {number}", node, functools.partial(self._produce, number))

    @property
    def acknowledged_count(self) -> int:
        return len(self._begun)

    def _arrives(self, seen: Seen) -> None:
        self._delivered[seen.body] += 1
        if self._delivered[seen.body] > 1:
            self.cluster.fail(f"transactions: {seen.body[:30]!r} was delivered twice")
        if not self._database.get(seen.body):
            self.cluster.fail(f"transactions: {seen.body[:30]!r} was delivered without a commit")
        if seen.body in self._given_up:
            self.cluster.fail(f"transactions: {seen.body[:30]!r} was given up and delivered")

    def _discarded(self, seen: Seen) -> None:
        self._given_up[seen.body] += 1
        if self._given_up[seen.body] > 1 or seen.body in self._delivered:
            self.cluster.fail(f"transactions: {seen.body[:30]!r} was given up though settled")

    async def _produce(self, number: int) -> None:
        node = self.cluster.clients[number]

        async def check(message: ReceivedMessage) -> Said:
            body = bytes(message.body)
            # A running transaction is undecided; an unknown one never happened.
            return None if body in self._running else self._database.get(body, False)

        async with TransactionProducer(
            "orders",
            check=check,
            name_server=self.cluster.name_server_address,
            instance_name=f"orders{number}",
            client_ip=node.address,
            retries=0,
            timeout_ms=1_000,
            env=node.environment(),
        ) as producer:
            while not self.is_sent:
                begun = await self._transact(producer)
                await asyncio.sleep(self.chance.uniform(0, 0.4 if begun else 0.8))
            # Stay to answer checks; register again as the heartbeat would do every 30 s.
            while not self.cluster.ended.is_set():
                await asyncio.sleep(1)
                try:
                    await producer._register()
                except CometError:
                    continue

    async def _transact(self, producer: TransactionProducer) -> bool:
        """Run some transactions that end together; return whether one was begun."""
        many = self.chance.choice(TOGETHER)
        kinds = [self.chance.choice(KINDS if many == 1 else KINDS_TOGETHER) for _ in range(many)]
        begun = await asyncio.gather(*[self._begin(producer, kind) for kind in kinds])
        ready = [opened for opened in begun if opened is not None]
        if not ready:
            return False
        await asyncio.sleep(self.chance.uniform(0, 0.5))
        for body, kind, _ in ready:
            self._database[body] = None if kind == "undecided" else kind in _DONE
            self._running.discard(body)
            self._begun[body] = kind
            self.cluster.world.record("local transaction", kind, body=body)
        await asyncio.gather(
            *[producer.end(transaction, _outcome(kind)) for _, kind, transaction in ready]
        )
        return True

    async def _begin(
        self, producer: TransactionProducer, kind: str
    ) -> tuple[bytes, str, Transaction] | None:
        body = self.new_body()
        self._running.add(body)
        try:
            transaction = await producer.begin(Message(TOPIC, body))
        except CometError as error:
            self._running.discard(body)
            self.cluster.world.record("refused", f"transaction {type(error).__name__}")
            return None
        return body, kind, transaction

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        for part in self.cluster.brokers:
            if part.broker is None or part.broker.transactions.halves:
                return f"{part.name} has open transactions"
        due = {body for body, kind in self._begun.items() if kind in _DONE}
        # The broker gives up a transaction whose producer it could not ask for too long.
        missing = due - self._delivered.keys() - self._given_up.keys()
        return f"{min(missing)[:30]!r} was committed and is missing" if missing else None

    def check(self) -> None:
        """Nothing to do: `_arrives` and `_discarded` check each message."""


def _outcome(kind: str) -> TransactionOutcome:
    if kind == "done":
        return TransactionOutcome.COMMIT
    return TransactionOutcome.ROLLBACK if kind == "undone" else TransactionOutcome.UNKNOWN
