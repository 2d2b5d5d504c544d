"""SQL that several dialects speak, over SQLAlchemy's plain and asyncio engines.

SQLAlchemy runs a plain function on an asyncio connection (``run_sync``), so each statement is
written once.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, Insert, String, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.types import TypeEngine

from cometmq.errors import ConfigTypeError

__all__ = [
    "KEY_LENGTH_MAX",
    "AnyEngine",
    "Database",
    "insert_missing",
    "insert_new",
    "key_type",
    "short_key",
]

T = TypeVar("T")
AnyEngine: TypeAlias = Engine | AsyncEngine
KEY_LENGTH_MAX: Final = 255
_MYSQL: Final = ("mysql", "mariadb")


def key_type(length: int = KEY_LENGTH_MAX) -> TypeEngine[str]:
    """A text column that compares byte by byte; MySQL's own collations ignore case."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, *_MYSQL)


def short_key(key: str) -> str:
    """The key itself, or its hash where it is longer than a column."""
    if len(key) <= KEY_LENGTH_MAX:
        return key
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def insert_new(table: Table, dialect: str) -> Insert:
    """An insert that passes over rows whose key exists."""
    if dialect in _MYSQL:
        return table.insert().prefix_with("IGNORE")
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def insert_missing(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert rows, passing over those whose key exists, with few statements.

    With RETURNING SQLAlchemy writes many rows into one statement; drivers of MySQL do so by
    themselves.
    """
    dialect = connection.dialect.name
    statement = insert_new(table, dialect)
    if dialect in _MYSQL:
        connection.execute(statement, rows)
    else:
        connection.execute(statement.returning(*table.primary_key), rows).all()


class Database:
    """Runs functions in transactions of an engine.

    Raises:
        ConfigTypeError: it is not an engine of SQLAlchemy.
    """

    def __init__(self, engine: AnyEngine) -> None:
        if not isinstance(engine, (Engine, AsyncEngine)):
            raise ConfigTypeError(
                f"the engine is {engine!r:.100} ({type(engine).__name__}); give what SQLAlchemy's "
                "create_engine or create_async_engine returns"
            )
        if engine.dialect.name in _MYSQL:
            # What another transaction has inserted meanwhile must be seen.
            engine = engine.execution_options(isolation_level="READ COMMITTED")
        self.engine = engine
        self.is_async = isinstance(engine, AsyncEngine)

    def run(self, work: Callable[[Connection], T]) -> Any:
        """Run a function in a transaction: its result, or a coroutine of an asyncio engine."""
        if isinstance(self.engine, AsyncEngine):
            return self._run_async(self.engine, work)
        with self.engine.begin() as connection:
            return work(connection)

    async def wait(self, work: Callable[[Connection], T]) -> T:
        """Run a function in a transaction from an event loop; a plain engine runs in a thread."""
        if isinstance(self.engine, AsyncEngine):
            return await self._run_async(self.engine, work)
        result: T = await asyncio.to_thread(self.run, work)
        return result

    @staticmethod
    async def _run_async(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
        async with engine.begin() as connection:
            return await connection.run_sync(work)
