"""Fencing tokens: a member that has lost a queue without noticing commits nothing for it any more.

Each queue of a group has an epoch in a table.  A member that gets the queue raises the epoch and
remembers it; a handler begins with the epoch that its member remembers, and its transaction reads
the row with a shared lock, and fails where another member has raised it.  Raising waits for the
transactions under way, so a new owner begins after the last commit of the old one.

A consumer in order begins a handler only while it holds the queue's lock, so the begin of a handler
proves that the queue is the member's.  Therefore a handler may raise the epoch, where the listener
could not, or where a stale member has raised it; it fails then and comes again, because its own
proof is older than the epoch.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, select, update
from sqlalchemy.exc import SQLAlchemyError

from cometmq import MessageQueue, ReceivedMessage, RetryLater
from cometmq.patterns.base.sql import AnyEngine, Database, insert_new, key_type, short_key

__all__ = ["Fence", "StaleMember", "fences_table"]

log = logging.getLogger("cometmq.patterns")

AGAIN_MS: Final = 100
"""When a message comes again whose handler has raised the epoch."""


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
        group: the consumer group, whose consumers have ``order="queue"`` or ``order="group"``.

    Raises:
        ConfigTypeError: it is not an engine of SQLAlchemy.
    """

    def __init__(self, engine: AnyEngine, group: str) -> None:
        self._database = Database(engine)
        self.is_async = self._database.is_async
        self._group = group
        self._epochs: dict[str, int] = {}
        self._lost: set[str] = set()

    def create(self) -> Any:
        """Create the table where it is missing; a coroutine with an asyncio engine."""
        return self._database.run(lambda connection: FENCES.create(connection, checkfirst=True))

    def rebalanced(self, added: Sequence[MessageQueue], removed: Sequence[MessageQueue]) -> Any:
        """Raise the epoch of each added queue; pass it as ``rebalance_listener=``.

        Where the database fails, the first handler of the queue raises it.
        """
        for queue in removed:
            self._epochs.pop(_name(queue), None)
            self._lost.add(_name(queue))
        names = sorted(_name(queue) for queue in added)
        self._lost.difference_update(names)
        if self.is_async or _is_on_loop():
            return self._take_if_possible(names)
        with _passing_over_errors(names):
            self.take(names)
        return None

    async def _take_if_possible(self, names: Sequence[str]) -> None:
        with _passing_over_errors(names):
            await self.take_async(names)

    def enter(self, messages: Iterable[ReceivedMessage]) -> dict[str, int]:
        """The epochs with which a handler of these messages begins, by the names of their queues.

        A queue whose epoch this member has not raised yet is left out: see `take`.

        Raises:
            StaleMember: a queue was taken from this member.
        """
        names = {_name(message.message_queue) for message in messages}
        lost = names & self._lost
        if lost:
            raise StaleMember(reason=f"another member has {sorted(lost)[0]}")
        return {name: self._epochs[name] for name in names if name in self._epochs}

    def missing(self, messages: Iterable[ReceivedMessage], epochs: Mapping[str, int]) -> list[str]:
        """The queues of these messages without an epoch."""
        return sorted({_name(message.message_queue) for message in messages} - epochs.keys())

    def take(self, names: Sequence[str]) -> None:
        """Raise the epoch of queues, over a plain engine."""
        if names:
            self._remember(self._database.run(partial(self._raise_all, names)))

    async def take_async(self, names: Sequence[str]) -> None:
        """Raise the epoch of queues; a plain engine does it in a thread."""
        if names:
            self._remember(await self._database.wait(partial(self._raise_all, names)))

    def _raise_all(self, names: Sequence[str], connection: Connection) -> dict[str, int]:
        return {name: self._raise(connection, name) for name in names}

    def _remember(self, raised: Mapping[str, int]) -> None:
        # Two raises may end in the other order than they were made.
        for name, epoch in raised.items():
            self._epochs[name] = max(epoch, self._epochs.get(name, 0))

    def _raise(self, connection: Connection, name: str) -> int:
        row = (FENCES.c.group_name == self._group) & (FENCES.c.queue_name == name)
        connection.execute(
            insert_new(FENCES, connection.dialect.name),
            [{"group_name": self._group, "queue_name": name, "epoch": 0}],
        )
        connection.execute(update(FENCES).where(row).values(epoch=FENCES.c.epoch + 1))
        return int(connection.execute(select(FENCES.c.epoch).where(row)).scalar_one())

    def check(self, connection: Connection, epochs: Mapping[str, int]) -> None:
        """Fail a transaction whose member has lost a queue.

        Args:
            connection: of the transaction.
            epochs: those with which its handler began.

        Raises:
            StaleMember: another member has raised an epoch.
        """
        for name, epoch in sorted(epochs.items()):
            row = (FENCES.c.group_name == self._group) & (FENCES.c.queue_name == name)
            query = select(FENCES.c.epoch).where(row).with_for_update(read=True)
            if connection.scalar(query) != epoch:
                if self._epochs.get(name) == epoch:
                    # A handler that begins later has a newer proof, and raises the epoch.
                    del self._epochs[name]
                raise StaleMember(reason=f"another member has {name}", delay_ms=AGAIN_MS)


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _passing_over_errors(names: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        log.warning("the epochs of %s are not raised, their first handlers do: %s", names, error)


def _name(queue: MessageQueue) -> str:
    return short_key(f"{queue.topic}@{queue.broker_name}:{queue.queue_id}")
