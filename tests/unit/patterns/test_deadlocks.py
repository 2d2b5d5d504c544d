"""A transaction that a database ends by a deadlock is run again, a few times."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from tests.unit.patterns.stage import async_engine, plain_engine

from cometmq.patterns.base.sql import DEADLOCK_TRIES, Database


class PostgresError(Exception):
    sqlstate = "40P01"


DEADLOCKS = [Exception(1213, "Deadlock found when trying to get lock"), PostgresError("deadlock")]


class Work:
    """Fails so many times, then returns."""

    def __init__(self, error: Exception, count: int) -> None:
        self.error = error
        self.left = count
        self.calls = 0

    def __call__(self, connection: Connection) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise OperationalError("insert", {}, self.error)
        return "done"


def run(kind: str, path: Path, work: Any) -> Any:
    if kind == "plain":
        with plain_engine(path) as engine:
            return Database(engine).run(work)

    async def wait() -> Any:
        engine = async_engine(path)
        try:
            return await Database(engine).wait(work)
        finally:
            await engine.dispose()

    return asyncio.run(wait())


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
@pytest.mark.parametrize("error", DEADLOCKS, ids=["mysql", "postgresql"])
def test_a_deadlock_is_tried_again(tmp_path: Path, kind: str, error: Exception) -> None:
    """Up to five times; then its error is the caller's."""
    work = Work(error, DEADLOCK_TRIES - 1)
    assert run(kind, tmp_path, work) == "done"
    assert work.calls == DEADLOCK_TRIES
    work = Work(error, DEADLOCK_TRIES)
    with pytest.raises(OperationalError):
        run(kind, tmp_path, work)
    assert work.calls == DEADLOCK_TRIES


@pytest.mark.parametrize("kind", ["plain", "asyncio"])
def test_other_errors_are_the_callers(tmp_path: Path, kind: str) -> None:
    """A broken connection leaves it open what was done."""
    work = Work(Exception(2013, "Lost connection"), 1)
    with pytest.raises(OperationalError):
        run(kind, tmp_path, work)
    assert work.calls == 1
