"""What the patterns around a broker cost: claims of keys, and rows of an outbox.

    .venv/bin/python -m bench.patterns [--seconds 1] [--rounds 9] [--batch 100] [--only claims]

It starts PostgreSQL, MariaDB and Redis (`make peers`; drivers from requirements/patterns.txt) in
folders of its own, with their default durability: a commit waits for the disk.  Claims: a plain
handler without work, called with lists of new messages by one thread; then every message comes a
second time.  Outbox: rows are added, then one relay sends them to a broker process; a row counts
when the broker has answered and the row is deleted.

Printed are medians of the rounds, with their 95 % intervals.

Asked: 5,000 messages/s on PostgreSQL and 10,000 on Redis with batches, 5,000 rows/s of one relay.
"""

import argparse
import asyncio
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.patterns.conftest import Databases
from tests.unit.patterns.stage import message_of

import cometmq
from bench.base.measure import interval_of_median
from bench.base.processes import start_broker
from cometmq import Message, ReceivedMessage
from cometmq.patterns.idempotent import RedisClaims, SqlClaims, exactly_once, idempotent
from cometmq.patterns.outbox import Outbox, Relay
from cometmq.patterns.outbox.table import OUTBOX, values_of

STORES = ("postgresql", "mariadb", "redis")
Handle = Callable[[list[ReceivedMessage]], Any]


def rate(handle: Handle, seconds: float, batch_count: int) -> tuple[float, float]:
    """Messages a second that are new, and that are known."""
    messages = [message_of(f"{uuid.uuid4().hex}{number}") for number in range(40_000)]
    batches = [messages[at : at + batch_count] for at in range(0, len(messages), batch_count)]
    rates = []
    count_max = len(batches)
    for _ in ("new", "known"):
        begin = time.perf_counter()
        count = 0
        while count < count_max and time.perf_counter() - begin < seconds:
            answers = handle(batches[count])
            assert answers == [None] * len(batches[count])
            count += 1
        rates.append(count * batch_count / (time.perf_counter() - begin))
        count_max = count
    return rates[0], rates[1]


def nothing(messages: list[ReceivedMessage]) -> None:
    """A handler without work."""


def shown(values: list[float]) -> str:
    """A median with its interval."""
    interval = interval_of_median(values)
    bounds = "" if interval is None else f" ({interval[0]:,.0f} to {interval[1]:,.0f})"
    return f"{median(values):,.0f}{bounds}"


def rates(title: str, handle: Handle, given: argparse.Namespace) -> None:
    """Measure a handler and print its rates."""
    rounds = [rate(handle, given.seconds, given.batch) for _ in range(given.rounds)]
    new, known = [shown(list(column)) for column in zip(*rounds, strict=True)]
    print(f"{title}: {new} new and {known} known messages/s", flush=True)


def statements(engine: Engine, handle: Callable[[], Any]) -> list[str]:
    """The statements that a call runs."""
    seen: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        seen.append(" ".join(statement.split()))

    event.listen(engine, "before_cursor_execute", note)
    handle()
    event.remove(engine, "before_cursor_execute", note)
    return seen


def claims(databases: Databases, given: argparse.Namespace) -> None:
    """Measure `idempotent` and `exactly_once`."""
    for name in given.on:
        if name == "redis":
            import redis

            with redis.Redis.from_url(databases.redis_url()) as client:
                once = idempotent(RedisClaims(client), group="bench")(nothing)
                rates("redis, claims", once, given)
            continue
        engine = create_engine(databases.url(name))
        store = SqlClaims(engine)
        store.create()
        once = idempotent(store, group="bench")(nothing)
        rates(f"{name}, claims", once, given)

        def handle(messages: list[ReceivedMessage], session: Session) -> None:
            """A handler without work."""

        whole = exactly_once(sessionmaker(engine), group="whole")(handle)
        rates(f"{name}, exactly_once", whole, given)
        if given.verbose:
            messages = [message_of(f"v{number}") for number in range(3)]
            for statement in statements(engine, lambda: once(messages)):  # noqa: B023 - used at once
                print("   ", statement)
        engine.dispose()


def outboxes(databases: Databases, name_server: str, given: argparse.Namespace) -> None:
    """Measure one relay over each database."""
    for name in given.on:
        if name == "redis":
            continue
        url = databases.async_url("postgresql") if name == "postgresql" else databases.url(name)
        for groups in (0, 500):
            rounds = [
                asyncio.run(relay_rate(url, name_server, given.rows, groups))
                for _ in range(given.rounds)
            ]
            kind = f"{groups} message groups" if groups else "no order"
            print(f"{name}, one relay, {kind}: {shown(rounds)} rows/s", flush=True)


async def relay_rate(url: str, name_server: str, row_count: int, groups: int) -> float:
    """Rows a second of one relay."""
    is_plain = "+asyncpg" not in url
    engine: Any = create_engine(url) if is_plain else create_async_engine(url)
    outbox = Outbox(engine)
    await asyncio.to_thread(outbox.create) if is_plain else await outbox.create()
    messages = [
        Message("Bench", b"x" * 200, message_group=f"g{n % groups}" if groups else None)
        for n in range(row_count)
    ]
    rows = [values_of(message, outbox.clock()) for message in messages]
    assert len({zlib.crc32(row["uid"].encode()) for row in rows}) > row_count // 2
    await outbox.database.wait(lambda connection: connection.execute(OUTBOX.insert(), rows))
    async with cometmq.Producer("relay", name_server=name_server) as producer:
        await producer.send(Message("Bench", b"first"))
        relay = Relay(outbox, producer)
        begin = time.perf_counter()
        while relay.sent_count < row_count:
            await relay.run_once()
        rows_s = row_count / (time.perf_counter() - begin)
        await relay.stop()
    engine.dispose() if is_plain else await engine.dispose()
    return rows_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--on", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--only", choices=("claims", "outbox"))
    parser.add_argument("--verbose", action="store_true", help="print the statements of a call")
    given = parser.parse_args()
    with ExitStack() as stack:
        try:
            databases = Databases(stack)
            if given.only != "outbox":
                claims(databases, given)
            if given.only != "claims":
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-patterns-"))
                server = stack.enter_context(start_broker(Path(folder) / "store"))
                outboxes(databases, server.name_server, given)
        except pytest.skip.Exception as missing:
            raise SystemExit(str(missing)) from None


if __name__ == "__main__":
    main()
