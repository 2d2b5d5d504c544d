"""An outbox in real databases: kills at each step, relays that share a table, NOTIFY, Django."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.patterns.conftest import Databases
from tests.patterns.servers import need
from tests.unit.client.waiting import until

import cometmq.sync
from cometmq import Message, ReceivedMessage
from cometmq.patterns.idempotent import SqlClaims, idempotent
from cometmq.patterns.outbox import Outbox, Relay
from cometmq.patterns.outbox.table import OUTBOX, RELAYS, SHARDS
from cometmq.testing.cluster import threaded_cluster

pytestmark = pytest.mark.full

WORKER = Path(__file__).with_name("relay_worker.py")
STEPS = ["before send", "after send", "before commit of the delete", "after delete"]


class Collector:
    """A transport that keeps what it gets."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def send(self, message: Message) -> None:
        await asyncio.sleep(0.001)
        self.bodies.append(message.body)


@asynccontextmanager
async def an_outbox(url: str) -> AsyncIterator[Outbox]:
    """An outbox over an asyncio engine, or over a plain one for PyMySQL."""
    is_plain = "pymysql" in url  # aiomysql 0.3 cannot send bytes with PyMySQL 1.2
    engine: Any = create_engine(url) if is_plain else create_async_engine(url)
    outbox = Outbox(engine)
    await asyncio.to_thread(outbox.create) if is_plain else await outbox.create()
    await outbox.database.wait(
        lambda connection: connection.execute(text("delete from cometmq_outbox"))
    )
    yield outbox
    engine.dispose() if is_plain else await engine.dispose()


async def add(outbox: Outbox, messages: Sequence[Message]) -> None:
    """Add messages in a transaction."""
    engine = outbox.database.engine
    if isinstance(engine, AsyncEngine):
        async with AsyncSession(engine) as session:
            for message in messages:
                outbox.add(session, message)
            await session.commit()
        return

    def write() -> None:
        with Session(engine) as session:
            for message in messages:
                outbox.add(session, message)
            session.commit()

    await asyncio.to_thread(write)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
@pytest.mark.parametrize("step", STEPS)
def test_kills(databases: Databases, name: str, step: str) -> None:
    """The relay dies at each step; the order's message arrives, and its effect exists once."""
    engine = create_engine(databases.url(name))
    outbox = Outbox(engine)
    outbox.create()
    SqlClaims(engine).create()
    with engine.begin() as connection:
        connection.execute(text("delete from cometmq_outbox"))
        connection.execute(text("create table if not exists orders (name varchar(80))"))
        connection.execute(text("create table if not exists shipped (name varchar(80))"))
        connection.execute(text("delete from orders"))
        connection.execute(text("delete from shipped"))
    with Session(engine) as session:
        session.execute(text("insert into orders values (:name)"), {"name": "lost"})
        outbox.add(session, Message("shipping", b"lost"))
        session.rollback()
        session.execute(text("insert into orders values (:name)"), {"name": step})
        outbox.add(session, Message("shipping", step.encode()))
        session.commit()

    def ship(message: ReceivedMessage) -> None:
        with engine.begin() as connection:
            name = message.body.decode()
            connection.execute(text("insert into shipped values (:name)"), {"name": name})

    with threaded_cluster() as cluster:
        options: Any = {"name_server": cluster.name_server_address}
        with cometmq.sync.Producer("pg", **options) as producer:
            producer.create_topic("shipping", queue_count=1)
        base = [sys.executable, str(WORKER), cluster.name_server_address, databases.async_url(name)]
        dead = subprocess.run(
            [*base, step], stdout=subprocess.PIPE, text=True, timeout=60, check=False
        )
        assert f"hit {step}" in dead.stdout
        with Session(engine) as session:
            outbox.add(session, Message("shipping", b"last"))
            session.commit()
        group = f"ship-{name}-{STEPS.index(step)}"
        once = idempotent(SqlClaims(engine), group=group)(ship)
        worker = subprocess.Popen([*base, "-"], stdout=subprocess.DEVNULL)
        with (
            worker,
            cometmq.sync.PushConsumer(
                group, {"shipping": "*"}, once, consume_from="first", **options
            ),
        ):
            asyncio.run(until(lambda: "last" in _shipped(engine), 60))
            asyncio.run(until(lambda: not outbox.status().waiting, 60))
            worker.kill()
        assert Counter(_shipped(engine)) == {step: 1, "last": 1}
    engine.dispose()


def _shipped(engine: Any) -> list[str]:
    with engine.begin() as connection:
        return list(connection.scalars(text("select name from shipped")))


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_three_relays_share_a_table(databases: Databases, name: str) -> None:
    """While rows are added, one relay leaves and another comes: each row once, in order per key."""

    async def run() -> None:
        url = databases.url(name)
        if name == "postgresql":
            url = databases.async_url(name)
        async with an_outbox(url) as outbox:
            collectors = [Collector() for _ in range(3)]
            relays = [
                Relay(outbox, collector, poll_ms=20, lease_ms=2_000, batch_count=20)
                for collector in collectors
            ]
            await relays[0].start()
            await relays[1].start()
            for number in range(60):
                messages = [
                    Message("t", f"{key}{number}".encode(), message_group=key) for key in "abcdef"
                ]
                await add(outbox, messages)
                if number == 20:
                    await relays[2].start()
                if number == 40:
                    await relays[0].stop()
            await until(lambda: sum(len(one.bodies) for one in collectors) >= 360, 60)
            await relays[1].stop()
            await relays[2].stop()
            bodies = [body for collector in collectors for body in collector.bodies]
            assert len(bodies) == len(set(bodies)) == 360
            for collector in collectors:
                for key in "abcdef":
                    ours = [body.decode() for body in collector.bodies if body[:1] == key.encode()]
                    numbers = [int(body[1:]) for body in ours]
                    assert numbers == sorted(numbers)
            rows = select(func.count()).select_from(OUTBOX)
            assert await outbox.database.wait(lambda connection: connection.scalar(rows)) == 0

    asyncio.run(run())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_commit_elsewhere_notifies(databases: Databases, driver: str) -> None:
    """PostgreSQL wakes a relay that would not poll for hours."""
    url = databases.url("postgresql")
    plain = create_engine(url)

    async def run() -> list[bytes]:
        async with an_outbox(url.replace("+psycopg", f"+{driver}")) as outbox:
            collector = Collector()

            def forget_killed_relays(connection: Connection) -> None:
                connection.execute(SHARDS.update().values(lease_ms=0))
                connection.execute(RELAYS.delete())

            await outbox.database.wait(forget_killed_relays)
            async with Relay(outbox, collector, poll_ms=10**7, lease_ms=10**7):
                elsewhere = Outbox(plain)

                def write() -> None:
                    with Session(plain) as session:
                        elsewhere.add(session, Message("t", b"a"))
                        elsewhere.add(session, Message("t", b"b"))
                        session.commit()

                await asyncio.to_thread(write)
                await until(lambda: len(collector.bodies) == 2)
                await asyncio.to_thread(write)
                await until(lambda: len(collector.bodies) == 4)
            return collector.bodies

    assert sorted(asyncio.run(run())) == [b"a", b"a", b"b", b"b"]
    plain.dispose()


def test_django(tmp_path: Path) -> None:
    """`add` belongs to Django's transaction: a rollback leaves nothing."""
    need("django")
    import django
    from django.conf import settings

    path = tmp_path / "django.db"
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}}
    )
    django.setup()
    from django.db import connections, transaction

    from cometmq.patterns.outbox.django import add

    engine = create_engine(f"sqlite:///{path}")
    outbox = Outbox(engine)
    outbox.create()
    with pytest.raises(RuntimeError, match="on purpose"), transaction.atomic():
        add(Message("t", b"lost"))
        raise RuntimeError("on purpose")
    with transaction.atomic():
        add(Message("t", b"sent", keys=("k",), message_group="g"))
    connections.close_all()
    collector = Collector()

    async def run() -> None:
        await Relay(outbox, collector).run_once()

    asyncio.run(run())
    assert collector.bodies == [b"sent"]
    engine.dispose()
