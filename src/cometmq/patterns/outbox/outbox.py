"""Adds messages in a session's transaction, and shows and changes what waits."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, delete, event, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, object_session, registry

from cometmq import Message
from cometmq.patterns.base.clock import Clock, now_ms
from cometmq.patterns.base.metrics import gauges
from cometmq.patterns.base.sql import AnyEngine, Database, insert_new, short_key
from cometmq.patterns.outbox.table import (
    DEAD,
    OUTBOX,
    PREPARED,
    RELAYS,
    RETRYING,
    SHARD_COUNT,
    SHARDS,
    WAITING,
    OutboxRow,
    values_of,
)

__all__ = ["CHANNEL", "ROW_COLUMNS", "Outbox", "OutboxStatus"]

CHANNEL: Final = "cometmq_outbox"
"""The channel on which PostgreSQL notifies the relays of a commit."""
_SEEN: Final = "cometmq_outbox"
ROW_COLUMNS: Final = (
    OUTBOX.c.id,
    OUTBOX.c.uid,
    OUTBOX.c.order_key,
    OUTBOX.c.topic,
    OUTBOX.c.body,
    OUTBOX.c.fields,
    OUTBOX.c.state,
    OUTBOX.c.tries,
    OUTBOX.c.created_ms,
    OUTBOX.c.error,
)


class _Entry:
    """A row on its way into the table, as SQLAlchemy's sessions add it."""

    def __init__(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


registry().map_imperatively(_Entry, OUTBOX)


@event.listens_for(_Entry, "after_insert")
def _notify(mapper: Any, connection: Connection, entry: _Entry) -> None:
    """Have PostgreSQL tell the relays when the transaction is committed, once a transaction."""
    session = object_session(entry)
    if connection.dialect.name == "postgresql" and session is not None:
        transaction = connection.get_transaction()
        if session.info.get(CHANNEL) is not transaction:
            session.info[CHANNEL] = transaction
            connection.execute(select(func.pg_notify(CHANNEL, "")))


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """What an outbox has; ages are in milliseconds."""

    waiting: int
    retrying: int
    """Waiting rows that have failed before."""
    dead: int
    oldest_ms: int
    """The age of the oldest waiting row; 0 without one."""
    prepared: int = 0
    """Rows that the program has not decided yet: see `cometmq.patterns.reliable`."""
    prepared_oldest_ms: int = 0
    """The age of the oldest of them; 0 without one."""

    def figures(self) -> dict[str, float]:
        """The figures by the names of their metrics."""
        return {
            "waiting": self.waiting,
            "retrying": self.retrying,
            "dead": self.dead,
            "oldest_seconds": self.oldest_ms / 1000,
            "prepared": self.prepared,
            "prepared_oldest_seconds": self.prepared_oldest_ms / 1000,
        }

    def metrics(self) -> str:
        """The figures in the text format of Prometheus."""
        return gauges("outbox", self.figures())


class Outbox:
    """The messages that transactions of one database have decided on.

    Args:
        engine: SQLAlchemy's engine, plain or asyncio; relays and the methods below use it, `add`
            uses the program's session.
        clock: milliseconds since 1970.

    Raises:
        ConfigTypeError: it is not an engine.
    """

    def __init__(self, engine: AnyEngine, *, clock: Clock = now_ms) -> None:
        self.database = Database(engine)
        self.clock = clock
        self.wakers: list[Callable[[], None]] = []
        """Called after each commit that has added something; a relay adds its own."""

    def create(self) -> Any:
        """Create the tables where they are missing; a coroutine with an asyncio engine."""

        def work(connection: Connection) -> None:
            for table in (OUTBOX, SHARDS, RELAYS):
                table.create(connection, checkfirst=True)
            rows = [{"shard": number, "relay": "", "lease_ms": 0} for number in range(SHARD_COUNT)]
            connection.execute(insert_new(SHARDS, connection.dialect.name), rows)

        return self.database.run(work)

    def add(self, session: Session | AsyncSession, message: Message) -> None:
        """Add a message to the session's transaction; it is sent if that is committed.

        Messages with one ``message_group`` keep their order.
        """
        plain = session.sync_session if isinstance(session, AsyncSession) else session
        plain.add(_Entry(values_of(message, self.clock())))
        if self.wakers and plain.info.get(_SEEN) is not self:
            plain.info[_SEEN] = self
            event.listen(plain, "after_commit", functools.partial(self._committed), once=True)

    def _committed(self, session: Session) -> None:
        session.info.pop(_SEEN, None)
        self.wake()

    def wake(self) -> None:
        """Let the relays of this process begin now; any thread may call it."""
        for waker in self.wakers:
            waker()

    def run_and_wake(self, work: Callable[[Connection], Any]) -> Any:
        """Run a change in a transaction, and let relays begin; a coroutine of an asyncio engine."""

        def notifying(connection: Connection) -> Any:
            result = work(connection)
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_notify(CHANNEL, "")))
            return result

        result = self.database.run(notifying)
        if inspect.isawaitable(result):
            return self._wake_after(result)
        self.wake()
        return result

    async def _wake_after(self, running: Any) -> Any:
        result = await running
        self.wake()
        return result

    def find(self, row_id: int) -> Any:
        """The `OutboxRow` with this id, or None; a coroutine with an asyncio engine."""
        query = select(*ROW_COLUMNS).where(OUTBOX.c.id == row_id)

        def work(connection: Connection) -> OutboxRow | None:
            row = connection.execute(query).one_or_none()
            return None if row is None else OutboxRow(**row._mapping)

        return self.database.run(work)

    def rows_of(self, message_group: str, count_max: int = 100) -> Any:
        """The oldest rows of a group, a list of `OutboxRow`; a coroutine with an asyncio engine."""
        return self._rows(OUTBOX.c.order_key == short_key(message_group), count_max)

    def _rows(self, condition: Any, count_max: int) -> Any:
        query = select(*ROW_COLUMNS).where(condition).order_by(OUTBOX.c.id).limit(count_max)

        def work(connection: Connection) -> list[OutboxRow]:
            return [OutboxRow(**row._mapping) for row in connection.execute(query)]

        return self.database.run(work)

    def status(self) -> Any:
        """The `OutboxStatus`; a coroutine with an asyncio engine."""
        query = (
            select(
                OUTBOX.c.state,
                func.count(),
                func.min(OUTBOX.c.created_ms),
            )
            .where(OUTBOX.c.state.in_((WAITING, RETRYING, DEAD, PREPARED)))
            .group_by(OUTBOX.c.state)
        )

        def work(connection: Connection) -> OutboxStatus:
            now = self.clock()
            found = {row[0]: (row[1], row[2]) for row in connection.execute(query)}
            waiting, retrying, dead, prepared = [
                found.get(state, (0, now)) for state in (WAITING, RETRYING, DEAD, PREPARED)
            ]
            return OutboxStatus(
                waiting[0] + retrying[0],
                retrying[0],
                dead[0],
                max(0, now - min(waiting[1], retrying[1])),
                prepared[0],
                max(0, now - prepared[1]),
            )

        return self.database.run(work)

    def dead_rows(self, count_max: int = 100) -> Any:
        """The oldest dead rows, a list of `OutboxRow`; a coroutine with an asyncio engine."""
        return self._rows(OUTBOX.c.state == DEAD, count_max)

    def undecided_rows(self, count_max: int = 100) -> Any:
        """The oldest prepared rows, a list of `OutboxRow`; a coroutine with an asyncio engine."""
        return self._rows(OUTBOX.c.state == PREPARED, count_max)

    def retry_dead(self, ids: Sequence[int] | None = None) -> Any:
        """Let dead rows (None: all) be sent again: how many; a coroutine with an asyncio engine."""
        statement = (
            update(OUTBOX)
            .where(_dead(ids))
            .values(state=WAITING, tries=0, due_ms=self.clock(), error="")
        )
        return self._change(statement)

    def delete_dead(self, ids: Sequence[int] | None = None) -> Any:
        """Delete dead rows (None: all): how many; a coroutine with an asyncio engine."""
        return self._change(delete(OUTBOX).where(_dead(ids)))

    def _change(self, statement: Any) -> Any:
        return self.database.run(lambda connection: connection.execute(statement).rowcount)


def _dead(ids: Sequence[int] | None) -> Any:
    condition = OUTBOX.c.state == DEAD
    return condition if ids is None else condition & OUTBOX.c.id.in_(ids)
