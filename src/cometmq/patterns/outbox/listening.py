"""PostgreSQL's LISTEN, over its asyncio drivers; other databases are polled."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncEngine

from cometmq.patterns.base.sql import AnyEngine
from cometmq.patterns.outbox.outbox import CHANNEL

__all__ = ["listen"]

log = logging.getLogger("cometmq.patterns")

PAUSE_S: Final = 5.0
ALIVE_S: Final = 60.0
"""How often a connection that hears nothing is asked whether it lives."""


def listen(engine: AnyEngine, wake: asyncio.Event) -> Coroutine[Any, Any, None] | None:
    """A coroutine that sets the event at each notification; None where there are none."""
    if not isinstance(engine, AsyncEngine) or engine.dialect.name != "postgresql":
        return None
    if engine.dialect.driver not in ("asyncpg", "psycopg"):
        return None
    return _listen_forever(engine, wake)


async def _listen_forever(engine: AsyncEngine, wake: asyncio.Event) -> None:
    while True:
        try:
            await _listen(engine, wake)
        except Exception as error:
            log.info("LISTEN is interrupted, so the outbox is polled: %s", error)
        await asyncio.sleep(PAUSE_S)


async def _listen(engine: AsyncEngine, wake: asyncio.Event) -> None:
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        wake.set()  # what was committed before
        try:
            if engine.dialect.driver == "asyncpg":
                await driver.add_listener(CHANNEL, lambda *_: wake.set())
                while True:
                    await asyncio.sleep(ALIVE_S)
                    await driver.execute("select 1")
            await driver.set_autocommit(True)
            await driver.execute(f"listen {CHANNEL}")
            async for _ in driver.notifies():
                wake.set()
        finally:
            # A pool must not pass on a connection that listens.
            await connection.invalidate()
