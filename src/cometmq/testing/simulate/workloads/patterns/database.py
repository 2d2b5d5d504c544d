"""A SQL database beside the simulated machines: its transactions take time and fail like a network.

It is SQLite in memory, which no machine's crash touches.  A machine may crash, or lose its
connection, before a transaction or after its commit; then it does not know the outcome.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from cometmq.patterns.base.sql import Database

if TYPE_CHECKING:
    from cometmq.testing.simulate.cluster import Cluster

__all__ = ["SimulatedDatabase"]

T = TypeVar("T")
FAULT_CHANCE: Final = 0.06
DELAY_S_MAX: Final = 0.03


class SimulatedDatabase(Database):
    """Takes the place of a pattern's database; every method is a coroutine."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        engine: Engine = create_engine("sqlite://", poolclass=StaticPool)
        super().__init__(engine)
        self.plain = engine
        self.is_async = True
        self._cluster = cluster
        self._chance = random.Random(f"{cluster.plan.seed}/{name}")

    def write(self, statement: str, **values: Any) -> None:
        """Run a statement at once, from outside the simulation."""
        with self.plain.begin() as connection:
            connection.execute(text(statement), values)

    def read(self, statement: str) -> list[Any]:
        """Read rows at once, from outside the simulation."""
        with self.plain.begin() as connection:
            return list(connection.execute(text(statement)))

    def run(self, work: Callable[[Connection], T]) -> Any:
        return self.wait(work)

    async def wait(self, work: Callable[[Connection], T]) -> T:
        await self._travel("before the transaction")
        with self.plain.begin() as connection:
            result = work(connection)
        await self._travel("after the commit")
        return result

    async def _travel(self, when: str) -> None:
        """Take time, in which the machine may crash; fail now and then while there are faults."""
        await asyncio.sleep(self._chance.uniform(0, DELAY_S_MAX))
        if not self._cluster.is_peace and self._chance.random() < FAULT_CHANCE:
            self._cluster.world.record("database", when)
            raise OperationalError("", {}, ConnectionError(f"the connection broke {when}"))
