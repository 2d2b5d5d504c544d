"""A SQL database for simulations: SQLAlchemy's engines over SQLite in memory, with faults.

    database = SimDatabase(world, "database")
    handler = exactly_once(async_sessionmaker(database.engine), group="ledger")(post)

Transactions come one after the other.  A transaction of a machine that crashes is rolled back.  A
connection breaks before a transaction, before its commit, which is then rolled back, or after it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only

from cometmq.testing.loop import Lifetime, current_lifetime
from cometmq.testing.markers import override
from cometmq.testing.sim_service import DELAY_S_MAX, FAULT_CHANCE, SimService

if TYPE_CHECKING:
    from cometmq.testing.simulation import World

__all__ = ["SimDatabase"]

LOCK_WAIT_S: Final = 5.0
"""Virtual seconds after which a transaction that waits for another one fails."""
LOCK_POLL_S: Final = 0.002


class SimDatabase(SimService):
    """A SQL database with two engines that fail, and one that does not.

    The arguments are those of `SimService`.
    """

    engine: AsyncEngine
    """For ``async def`` code; a transaction takes virtual time and waits for others."""
    plain: Engine
    """For plain code; a transaction takes no time, and fails where another one is open."""
    quiet: Engine
    """For the scenario itself, to make tables and to read: without delay and without faults."""

    def __init__(
        self,
        world: World,
        name: str = "database",
        *,
        fault_chance: float = FAULT_CHANCE,
        delay_s_max: float = DELAY_S_MAX,
        is_calm: Callable[[], bool] | None = None,
        on_break: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            world,
            name,
            fault_chance=fault_chance,
            delay_s_max=delay_s_max,
            is_calm=is_calm,
            on_break=on_break,
        )
        self.file = sqlite3.connect(":memory:", isolation_level=None)
        self._holder: tuple[_SqlConnection, Lifetime | None] | None = None
        options: dict[str, Any] = {"poolclass": NullPool}
        self.engine = create_async_engine(
            "sqlite+cometmq_async://", creator=lambda: _AsyncConnection(self), **options
        )
        self.plain = create_engine(
            "sqlite+cometmq://", creator=lambda: _SqlConnection(self), **options
        )
        self.quiet = create_engine(
            "sqlite+cometmq://", creator=lambda: _QuietConnection(self), **options
        )

    def write(self, statement: str, **values: Any) -> None:
        """Run a statement at once, without faults."""
        with self.quiet.begin() as connection:
            connection.execute(text(statement), values)

    def read(self, statement: str) -> list[Any]:
        """Read rows at once, without faults."""
        with self.quiet.begin() as connection:
            return list(connection.execute(text(statement)))

    # -- for its connections --------------------------------------------------------------------

    def take(self, connection: _SqlConnection) -> bool:
        """Begin a transaction, unless a living machine has one open."""
        if self._holder is not None:
            life = self._holder[1]
            if life is None or life.alive:
                return False
            self.end("rollback", self._holder[0])
        self._holder = connection, current_lifetime()
        self.file.execute("begin")
        return True

    def end(self, how: str, connection: _SqlConnection) -> bool:
        """Commit or roll back, if the connection has the transaction: whether it had."""
        if self._holder is None or self._holder[0] is not connection:
            return False
        self._holder = None
        self.file.execute(how)
        return True


class _SqlConnection:
    """A connection as SQLAlchemy's dialect of sqlite3 uses it; it begins transactions itself."""

    def __init__(self, database: SimDatabase) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database.file, name)

    def begin(self) -> None:
        self._travel("before a transaction")
        if not self._database.take(self):
            raise sqlite3.OperationalError("database is locked: another transaction is open")

    def commit(self) -> None:
        self._travel("before a commit")
        if self._database.end("commit", self):
            self._travel("after a commit")

    def rollback(self) -> None:
        self._database.end("rollback", self)

    def close(self) -> None:
        self._database.end("rollback", self)

    def _travel(self, when: str) -> None:
        if self._database.breaks(when):
            raise sqlite3.OperationalError(f"the connection broke {when}")


class _QuietConnection(_SqlConnection):
    @override
    def _travel(self, when: str) -> None:
        """Arrive at once."""


class _AsyncCursor(sqlite3.Cursor):
    """A cursor whose rows are at hand, as SQLAlchemy's asyncio results expect it."""

    async def _async_soft_close(self) -> None:
        """Nothing is to be awaited."""


class _AsyncConnection(_SqlConnection):
    """The same in SQLAlchemy's greenlets, where a plain function may wait."""

    def cursor(self) -> sqlite3.Cursor:
        return self._database.file.cursor(_AsyncCursor)

    @override
    def begin(self) -> None:
        self._travel("before a transaction")
        loop = asyncio.get_running_loop()
        end_s = loop.time() + LOCK_WAIT_S
        while not self._database.take(self):
            if loop.time() > end_s:
                raise sqlite3.OperationalError("database is locked: another transaction is open")
            await_only(asyncio.sleep(LOCK_POLL_S))

    @override
    def _travel(self, when: str) -> None:
        # A transaction under way would stop all others.
        if when != "before a commit":
            await_only(asyncio.sleep(self._database.delay_s()))
        super()._travel(when)


class _Dialect(SQLiteDialect_pysqlite):
    driver = "cometmq"
    supports_statement_cache = True

    @override
    def do_begin(self, dbapi_connection: Any) -> None:
        dbapi_connection.begin()


class _AsyncDialect(_Dialect):
    driver = "cometmq_async"
    supports_statement_cache = True
    is_async = True

    @override
    def do_execute(self, *arguments: Any) -> None:
        await_only(_arrive())
        super().do_execute(*arguments)  # type: ignore[no-untyped-call]

    @override
    def do_executemany(self, *arguments: Any) -> None:
        await_only(_arrive())
        super().do_executemany(*arguments)  # type: ignore[no-untyped-call]


async def _arrive() -> None:
    """SQLAlchemy refuses a statement that awaits nothing; this takes no turn of the loop."""


registry.register("sqlite.cometmq", __name__, "_Dialect")
registry.register("sqlite.cometmq_async", __name__, "_AsyncDialect")
