"""A participant of try-confirm-cancel, whose calls may come twice, late or in no order.

A row per call of a transaction keeps the participant right.  It is written in the transaction that
has the participant's own effects:

| Comes | Row before | What `TccBranch` answers |
|---|---|---|
| try | none | True: reserve |
| try | any | False: a repetition, or it was cancelled before the try arrived (a suspended try) |
| confirm | tried | True: make it final |
| confirm | confirmed | False: a repetition |
| cancel | tried | True: give the reservation back |
| cancel | none | False: nothing to give back (an empty cancel), and no later try may begin |
| cancel | cancelled | False: a repetition |
"""

from typing import Any, Final

from sqlalchemy import Column, Connection, MetaData, String, Table, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from cometmq.errors import CometError
from cometmq.patterns.base.sql import AnyEngine, Database, insert_new, key_type, short_key

__all__ = ["TccBranch", "TccOrderError", "tcc_table"]

TRIED: Final = "tried"
CONFIRMED: Final = "confirmed"
CANCELLED: Final = "cancelled"


class TccOrderError(CometError):
    """A coordinator has confirmed what was cancelled or never tried, or cancelled a confirm."""


def tcc_table(metadata: MetaData) -> Table:
    """The table of a participant, for the program's own migrations."""
    return Table(
        "cometmq_tcc",
        metadata,
        Column("branch", key_type(), primary_key=True),
        Column("transaction_id", key_type(), primary_key=True),
        Column("state", String(16), nullable=False),
    )


TCC: Final = tcc_table(MetaData())


class TccBranch:
    """The calls of one participant; each method runs in the session's transaction.

    With an `AsyncSession` each returns a coroutine.

    Args:
        name: of the participant, such as ``stock``.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def create(self, engine: AnyEngine) -> Any:
        """Create the table where it is missing; a coroutine with an asyncio engine.

        Raises:
            ConfigTypeError: it is not an engine.
        """
        return Database(engine).run(lambda connection: TCC.create(connection, checkfirst=True))

    def begin_try(self, session: Session | AsyncSession, transaction_id: str) -> Any:
        """Whether to reserve now."""
        return self._run(session, transaction_id, self._try)

    def begin_confirm(self, session: Session | AsyncSession, transaction_id: str) -> Any:
        """Whether to make the reservation final now.

        Raises:
            TccOrderError: it was cancelled, or never tried.
        """
        return self._run(session, transaction_id, self._confirm)

    def begin_cancel(self, session: Session | AsyncSession, transaction_id: str) -> Any:
        """Whether to give the reservation back now.

        Raises:
            TccOrderError: it was confirmed.
        """
        return self._run(session, transaction_id, self._cancel)

    def _run(self, session: Session | AsyncSession, transaction_id: str, decide: Any) -> Any:
        key = short_key(transaction_id)
        if isinstance(session, AsyncSession):
            return session.run_sync(lambda plain: decide(plain.connection(), key))
        return decide(session.connection(), key)

    def _insert(self, connection: Connection, key: str, state: str) -> bool:
        row = {"branch": self.name, "transaction_id": key, "state": state}
        # SQLAlchemy tells the number of inserted rows only on request.
        inserting = insert_new(TCC, connection.dialect.name).execution_options(
            preserve_rowcount=True
        )
        return connection.execute(inserting, row).rowcount == 1

    def _move(self, connection: Connection, key: str, state: str) -> bool:
        """Move a tried row to its end; False if it is there already.

        Raises:
            TccOrderError: it has another state, or there is none.
        """
        row = (TCC.c.branch == self.name) & (TCC.c.transaction_id == key)
        moving = update(TCC).where(row, TCC.c.state == TRIED).values(state=state)
        if connection.execute(moving).rowcount:
            return True
        current = connection.scalar(TCC.select().with_only_columns(TCC.c.state).where(row))
        if current == state:
            return False
        raise TccOrderError(
            f"transaction {key} cannot be {state} by {self.name}: it is {current or 'not tried'}"
        )

    def _try(self, connection: Connection, key: str) -> bool:
        return self._insert(connection, key, TRIED)

    def _confirm(self, connection: Connection, key: str) -> bool:
        return self._move(connection, key, CONFIRMED)

    def _cancel(self, connection: Connection, key: str) -> bool:
        if self._insert(connection, key, CANCELLED):
            return False
        return self._move(connection, key, CANCELLED)
