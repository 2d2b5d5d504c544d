"""Fencing tokens: a member that has lost a queue without noticing commits nothing for it any more.

Each queue of a group has an epoch in a table.  A member that gets the queue raises the epoch and
remembers it; a transaction that handles a message of the queue reads the epoch with a shared lock,
and fails where another member has raised it.  Raising waits for the transactions under way, so a
new owner begins after the last commit of the old one.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, select, update

from cometmq import MessageQueue, ReceivedMessage, RetryLater
from cometmq.patterns.base.sql import AnyEngine, Database, insert_new, key_type, short_key

__all__ = ["Fence", "StaleMember", "fences_table"]


class StaleMember(RetryLater):
    """Another member has the message's queue; the transaction is rolled back."""


def fences_table(metadata: MetaData) -> Table:
    """The table of epochs, for the program's own migrations."""
    return Table(
        "cometmq_fences",
        metadata,
        Column("group_name", key_type(), primary_key=True),
        Column("queue_name", key_type(), primary_key=True),
        Column("epoch", BigInteger, nullable=False),
    )


FENCES: Final = fences_table(MetaData())


class Fence:
    """The epochs of one consumer's queues; its `rebalanced` is the consumer's listener.

    Args:
        engine: of the database in which the handler's transactions run.
        group: the consumer group.

    Raises:
        ConfigTypeError: it is not an engine of SQLAlchemy.
    """

    def __init__(self, engine: AnyEngine, group: str) -> None:
        self._database = Database(engine)
        self._group = group
        self._epochs: dict[str, int] = {}
        self._lost: set[str] = set()

    def create(self) -> Any:
        """Create the table where it is missing; a coroutine with an asyncio engine."""
        return self._database.run(lambda connection: FENCES.create(connection, checkfirst=True))

    def rebalanced(self, added: Sequence[MessageQueue], removed: Sequence[MessageQueue]) -> Any:
        """Raise the epoch of each added queue; pass it as ``rebalance_listener=``."""
        for queue in removed:
            self._epochs.pop(_name(queue), None)
            self._lost.add(_name(queue))
        names = sorted(_name(queue) for queue in added)
        self._lost.difference_update(names)
        return self._take(names)

    def missing(self, messages: Iterable[ReceivedMessage]) -> list[str]:
        """The queues of these messages whose epoch is not raised yet.

        Raises:
            StaleMember: a queue belongs to another member.
        """
        names = {_name(message.message_queue) for message in messages}
        lost = names & self._lost
        if lost:
            raise StaleMember(reason=f"another member has {sorted(lost)[0]}")
        return sorted(names - self._epochs.keys())

    def take(self, names: Sequence[str]) -> Any:
        """Raise the epoch of queues whose messages come before their `rebalanced` call."""
        return self._take([name for name in names if name not in self._epochs])

    def _take(self, names: Sequence[str]) -> Any:
        def work(connection: Connection) -> dict[str, int]:
            return {name: self._raise(connection, name) for name in names}

        raised = self._database.run(work) if names else {}
        if inspect.isawaitable(raised):
            return self._remember(raised)
        self._epochs.update(raised)
        return None

    async def _remember(self, raised: Any) -> None:
        self._epochs.update(await raised)

    def _raise(self, connection: Connection, name: str) -> int:
        row = (FENCES.c.group_name == self._group) & (FENCES.c.queue_name == name)
        connection.execute(
            insert_new(FENCES, connection.dialect.name),
            [{"group_name": self._group, "queue_name": name, "epoch": 0}],
        )
        connection.execute(update(FENCES).where(row).values(epoch=FENCES.c.epoch + 1))
        return int(connection.execute(select(FENCES.c.epoch).where(row)).scalar_one())

    def check(self, connection: Connection, messages: Iterable[ReceivedMessage]) -> None:
        """Fail a transaction whose member has lost a queue.

        Raises:
            StaleMember: another member has raised the epoch.
        """
        for name in sorted({_name(message.message_queue) for message in messages}):
            row = (FENCES.c.group_name == self._group) & (FENCES.c.queue_name == name)
            query = select(FENCES.c.epoch).where(row).with_for_update(read=True)
            if connection.scalar(query) != self._epochs.get(name):
                self._epochs.pop(name, None)
                self._lost.add(name)
                raise StaleMember(reason=f"another member has {name}")


def _name(queue: MessageQueue) -> str:
    return short_key(f"{queue.topic}@{queue.broker_name}:{queue.queue_id}")
