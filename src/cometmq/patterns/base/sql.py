"""SQL that several dialects speak, over SQLAlchemy's plain and asyncio engines.

SQLAlchemy runs a plain function on an asyncio connection (``run_sync``), so each statement is
written once.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Insert,
    String,
    Table,
    any_,
    bindparam,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.types import TypeEngine

from cometmq.errors import ConfigTypeError

__all__ = [
    "KEY_LENGTH_MAX",
    "AnyEngine",
    "Database",
    "insert_keys",
    "insert_new",
    "is_deadlock",
    "is_one_of",
    "key_type",
    "short_key",
]

T = TypeVar("T")
AnyEngine: TypeAlias = Engine | AsyncEngine
KEY_LENGTH_MAX: Final = 255
DEADLOCK_TRIES: Final = 5
_MYSQL: Final = ("mysql", "mariadb")
_MYSQL_DEADLOCK: Final = 1213
_DEADLOCK_STATES: Final = ("40001", "40P01")
"""SQLSTATE of serialization failures and deadlocks."""


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


def insert_keys(
    connection: Connection, column: Column[str], keys: Sequence[str], values: Mapping[str, Any]
) -> set[str] | None:
    """Insert a row for each key that the table does not have, with one statement.

    PostgreSQL gets the keys as one array, so that the statement is the same for any number of keys
    and is prepared once.

    Args:
        column: of the keys.
        keys: in the order in which rows are locked.
        values: the other columns, alike in all rows.

    Returns:
        The keys that are inserted; None where the database does not say.
    """
    table, dialect = column.table, connection.dialect.name
    assert isinstance(table, Table)
    if dialect == "postgresql":
        statement = _insert_array(table, column.name)
        return set(connection.scalars(statement, {"all_keys": list(keys), **values}))
    rows = [{**values, column.name: key} for key in keys]
    inserting = insert_new(table, dialect)
    if dialect in _MYSQL:  # its drivers write many rows into one statement by themselves
        connection.execute(inserting, rows)
        return None
    # With RETURNING SQLAlchemy writes many rows into one statement.
    return set(connection.scalars(inserting.returning(column), rows))


@cache
def _insert_array(table: Table, key: str) -> Any:
    """PostgreSQL's insert of an array of keys."""
    others = [column for column in table.columns if column.name != key]
    keys = func.unnest(bindparam("all_keys", type_=postgresql.ARRAY(String)))
    row = select(keys, *[bindparam(column.name, type_=column.type) for column in others])
    names = [key, *[column.name for column in others]]
    inserting = postgresql.insert(table).from_select(names, row, include_defaults=False)
    return inserting.on_conflict_do_nothing().returning(table.c[key])


def is_one_of(column: Column[str], keys: Sequence[str], dialect: str) -> Any:
    """The condition that a column has one of these values, the same text for any number of them."""
    if dialect == "postgresql":
        return column == any_(literal(list(keys), postgresql.ARRAY(String)))
    return column.in_(keys)


def is_deadlock(error: DBAPIError) -> bool:
    """Whether a database has rolled the transaction back so that another one can end."""
    state = getattr(error.orig, "sqlstate", None)
    number = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return state in _DEADLOCK_STATES or number == _MYSQL_DEADLOCK


class Database:
    """Runs functions in transactions of an engine; again where that ends by a deadlock.

    InnoDB finds deadlocks between inserts of a key that was deleted a moment ago, in whatever order
    transactions lock their rows.

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
        for tries_left in range(DEADLOCK_TRIES - 1, -1, -1):
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                if not (tries_left and is_deadlock(error)):
                    raise
        raise AssertionError("the last try returns or raises")

    async def wait(self, work: Callable[[Connection], T]) -> T:
        """Run a function in a transaction from an event loop; a plain engine runs in a thread."""
        if isinstance(self.engine, AsyncEngine):
            return await self._run_async(self.engine, work)
        result: T = await asyncio.to_thread(self.run, work)
        return result

    @staticmethod
    async def _run_async(engine: AsyncEngine, work: Callable[[Connection], T]) -> T:
        for tries_left in range(DEADLOCK_TRIES - 1, -1, -1):
            try:
                async with engine.begin() as connection:
                    return await connection.run_sync(work)
            except DBAPIError as error:
                if not (tries_left and is_deadlock(error)):
                    raise
        raise AssertionError("the last try returns or raises")
