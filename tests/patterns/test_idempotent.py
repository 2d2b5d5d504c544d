"""Claims and transactions in real databases: racing threads, and processes that are killed."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.patterns.conftest import Databases
from tests.unit.patterns.stage import message_of

import cometmq.sync
from cometmq import Message, ReceivedMessage, RetryLater
from cometmq.patterns.idempotent import RedisClaims, SqlClaims, async_step, exactly_once, idempotent
from cometmq.testing.cluster import threaded_cluster

pytestmark = pytest.mark.full

SQL = ["postgresql", "mariadb"]
WORKER = Path(__file__).with_name("worker.py")


@contextmanager
def store_of(databases: Databases, name: str, group: str) -> Iterator[Any]:
    if name == "redis":
        import redis

        with redis.Redis.from_url(databases.redis_url()) as client:
            yield RedisClaims(client, prefix=group)
        return
    engine = create_engine(databases.url(name), pool_size=16)
    SqlClaims(engine).create()
    yield SqlClaims(engine)
    engine.dispose()


@pytest.mark.parametrize("name", [*SQL, "redis"])
def test_racing_calls_handle_each_key_once(databases: Databases, name: str) -> None:
    """Eight threads with overlapping lists of the same keys, some of which fail first."""
    effects: Counter[str] = Counter()
    failed: set[str] = set()
    lock = threading.Lock()

    def handle(messages: list[ReceivedMessage]) -> list[Any]:
        answers: list[Any] = []
        with lock:
            for message in messages:
                key = message.message_id
                if key.endswith("7") and key not in failed:
                    failed.add(key)
                    answers.append(False)
                    continue
                effects[key] += 1
                answers.append(None)
        return answers

    with store_of(databases, name, "race") as store:
        once = idempotent(store, group="race", expire_ms=60_000)(handle)
        race(once)
    assert effects == dict.fromkeys(KEYS, 1)


KEYS = [f"k{number}" for number in range(60)]


def race(once: Callable[[list[ReceivedMessage]], Any]) -> None:
    """Handle all keys in eight threads, each with another beginning."""
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            waiting = KEYS[seed:] + KEYS[:seed]
            while waiting:
                messages = [message_of(key) for key in waiting[:16]]
                answers = once(messages)
                waiting = waiting[16:] + [
                    message.message_id
                    for message, answer in zip(messages, answers, strict=True)
                    if answer is not None
                ]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(7 * seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


@pytest.mark.parametrize("name", SQL)
def test_racing_transactions_commit_each_key_once(databases: Databases, name: str) -> None:
    """Two transactions with one key wait for each other."""
    engine = create_engine(databases.url(name), pool_size=16)
    SqlClaims(engine).create()
    with engine.begin() as connection:
        connection.execute(text("create table raced (name varchar(50))"))

    @exactly_once(sessionmaker(engine), group="raced")
    def handle(message: ReceivedMessage, session: Session) -> None:
        session.execute(text("insert into raced values (:name)"), {"name": message.message_id})

    def work() -> None:
        for number in range(50):
            handle(message_of(f"k{number}"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with engine.begin() as connection:
        names = list(connection.scalars(text("select name from raced")))
    assert Counter(names) == {f"k{number}": 1 for number in range(50)}
    engine.dispose()


async def _async_effects(databases: Databases, name: str) -> list[str]:
    if name == "redis":
        import redis.asyncio

        client = redis.asyncio.Redis.from_url(databases.redis_url())
        store: Any = RedisClaims(client, prefix="async")
    else:
        engine = create_async_engine(databases.async_url(name))
        store = SqlClaims(engine)
        await store.create()
    effects: list[str] = []
    failures = [RuntimeError("on purpose"), None]

    async def handle(message: ReceivedMessage) -> None:
        await async_step("effect", lambda: effects.append(message.message_id))
        error = failures.pop(0)
        if error is not None:
            raise error

    once = idempotent(store, group="async", owner="me", members=lambda: ["me"])(handle)
    await store.claim("async", ["dead"], "t" * 32, "dead", 0, 2**45, None)
    with pytest.raises(RuntimeError):
        await once(message_of("a"))
    assert await once(message_of("a")) is None
    assert await once(message_of("a")) is None
    failures.append(None)
    assert await once(message_of("dead")) is None, "its owner is no member any more"
    await store.claim("async", ["busy"], "u" * 32, "me", 0, 2**45, None)
    assert isinstance(await once(message_of("busy")), RetryLater)
    await (client.aclose() if name == "redis" else engine.dispose())
    return effects


@pytest.mark.parametrize("name", [*SQL, "redis"])
def test_async_stores(databases: Databases, name: str) -> None:
    """Steps, members and busy keys over the asyncio drivers."""
    assert asyncio.run(_async_effects(databases, name)) == ["a", "dead"]


TRANSACTION_STEPS = ["before effect", "after effect", "before commit", "after commit"]
CLAIM_STEPS = {
    "before claim": 1,
    "after claim": 1,
    "before effect": 1,
    "before save_step": 2,
    "after save_step": 1,
    "after effect": 1,
    "before finish": 1,
    "after finish": 1,
}
"""Step -> effects: only a death between the effect and its record repeats it."""
KILLS = [
    *[(name, "transaction", step, 1) for name in SQL for step in TRANSACTION_STEPS],
    *[(name, "claims", step, count) for name in SQL for step, count in CLAIM_STEPS.items()],
    *[("postgresql", "redis", step, count) for step, count in CLAIM_STEPS.items()],
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "kind", "step", "count"), KILLS)
def test_kills(databases: Databases, name: str, kind: str, step: str, count: int) -> None:
    """A process dies at each step; the next one handles the message, and its effect exists once."""
    url = databases.url(name)
    redis_url = databases.redis_url() if kind == "redis" else "-"
    engine = create_engine(url)
    SqlClaims(engine).create()
    with engine.begin() as connection:
        connection.execute(text("create table if not exists effects (kind text, name text)"))
    body = f"{kind} {step}"
    with threaded_cluster() as cluster:
        with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:
            producer.create_topic("t", queue_count=1)
            producer.send(Message("t", body.encode()))
        base = [sys.executable, str(WORKER), cluster.name_server_address, url, redis_url, kind]
        dead = subprocess.run(
            [*base, step], stdout=subprocess.PIPE, text=True, timeout=60, check=False
        )
        assert f"hit {step}" in dead.stdout
        with subprocess.Popen([*base, "-"], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == f"handled {body}\n"
            worker.kill()
    with engine.begin() as connection:
        query = text("select count(*) from effects where name = :name")
        assert connection.scalar(query, {"name": body}) == count
        connection.execute(text("delete from effects"))
    engine.dispose()
