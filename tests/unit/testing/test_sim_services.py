"""A database and a Redis for simulations: their faults, and what is left after each."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session

from cometmq.errors import ConfigError
from cometmq.testing.sim_database import SimDatabase
from cometmq.testing.sim_redis import SimRedis
from cometmq.testing.simulation import NodeGone, Outcome, World, simulate

ADD = text("insert into numbers values (:number)")
Main = Callable[[World], Coroutine[Any, Any, Any]]


def twice(main: Main) -> Outcome[Any]:
    """Run a scenario two times; a seed gives the same trace and the same value."""
    first, second = simulate(3, main), simulate(3, main)
    assert (first.digest, first.value) == (second.digest, second.value)
    return first


def rows(database: SimDatabase) -> list[int]:
    return sorted(number for (number,) in database.read("select number from numbers"))


def test_transactions_break_before_and_after_their_commit() -> None:
    """What was committed stays, whatever its program was told; the rest is rolled back."""

    async def main(world: World) -> tuple[Counter[str], list[int], list[int]]:
        database = SimDatabase(world)
        database.write("create table numbers (number int)")
        told: Counter[str] = Counter()
        expected: list[int] = []

        def note(number: int, error: OperationalError | None) -> None:
            told["committed" if error is None else str(error.orig)] += 1
            if error is None or "after a commit" in str(error):
                expected.append(number)

        async def add(number: int) -> None:
            try:
                async with async_sessionmaker(database.engine)() as session:
                    await session.execute(ADD, {"number": number})
                    await asyncio.sleep(0.001)
                    await session.commit()
            except OperationalError as error:
                note(number, error)
            else:
                note(number, None)

        def add_plainly(number: int) -> None:
            try:
                with Session(database.plain) as session, session.begin():
                    session.execute(ADD, {"number": number})
            except OperationalError as error:
                note(number, error)
            else:
                note(number, None)

        await asyncio.gather(*map(add, range(80)))
        for number in range(80, 160):
            add_plainly(number)
        return told, sorted(expected), rows(database)

    told, expected, found = twice(main).value
    assert found == expected
    moments = ("before a transaction", "before a commit", "after a commit")
    assert set(told) == {"committed", *[f"the connection broke {moment}" for moment in moments]}


def test_a_transaction_ends_with_its_machine() -> None:
    """Others wait for it, plain ones fail; a crash rolls it back."""

    async def main(world: World) -> list[int]:
        database = SimDatabase(world, is_calm=lambda: True)
        database.write("create table numbers (number int)")
        node = world.node("shop")

        async def hold() -> None:
            async with database.engine.begin() as connection:
                await connection.execute(ADD, {"number": 1})
                await asyncio.sleep(1_000)

        holding = asyncio.ensure_future(node.run(hold))
        await asyncio.sleep(1)
        with pytest.raises(OperationalError, match="is locked"), database.plain.begin():
            raise AssertionError("nobody may come here")
        with pytest.raises(OperationalError, match="is locked"):
            async with database.engine.begin():
                raise AssertionError("nobody may come here")
        node.crash()
        with pytest.raises(NodeGone):
            await holding
        async with database.engine.begin() as connection:
            await connection.execute(ADD, {"number": 2})
        return rows(database)

    assert twice(main).value == [2]


def test_keys_and_hashes_of_redis() -> None:
    """Values, conditions, times and scripts, as the clients of ``redis`` answer them."""

    async def main(world: World) -> None:
        redis = SimRedis(world, is_calm=lambda: True)
        client = redis.client()
        assert await client.set("a", "1", nx=True, px=5_000) is True
        assert await client.set("a", 2, nx=True) is None
        assert await client.set("b", 2, xx=True) is None
        assert await client.get("a") == b"1"
        assert 4_000 < await client.pttl("a") <= 5_000
        await asyncio.sleep(6)
        assert await client.get("a") is None
        assert await client.pttl("a") == -2
        assert (await client.incr("n"), await client.incr("n", 4)) == (1, 5)
        assert await client.pttl("n") == -1
        assert await client.expire("n", 60) is True
        assert await client.exists("n", "a", "b") == 1
        pipeline = client.pipeline()
        pipeline.hset("h", "x", 1).hset("h", "x", b"2").hget("h", "x").hgetall("h")
        assert await pipeline.execute() == [1, 0, b"2", {b"x": b"2"}]
        assert await client.hdel("h", "x", "y") == 1
        assert await client.hgetall("h") == {}
        assert await client.delete("n", "h", "none") == 1
        with pytest.raises(
            AttributeError, match="the simulated Redis has no zadd; there are delet"
        ):
            client.zadd("z", {"a": 1})
        with pytest.raises(ConfigError, match="runs no Lua; put a function for 'return 1'"):
            await client.eval("return 1", 0)
        redis.scripts["return 1"] = lambda keys, names, arguments: [keys.ping(), names, arguments]
        assert await client.eval("return 1", 1, "k", 7) == [True, ["k"], [b"7"]]
        await client.aclose()
        plain = redis.plain_client()
        assert plain.set("p", "1") is True
        assert plain.pipeline().get("p").execute() == [b"1"]
        plain.close()

    twice(main)


def test_calls_to_redis_break_between_their_commands() -> None:
    """A pipeline that is no transaction may be done in part; the caller hears only the break."""

    async def main(world: World) -> tuple[Counter[int], Counter[int]]:
        redis = SimRedis(world)
        done: Counter[int] = Counter()
        done_at_once: Counter[int] = Counter()
        for number in range(200):
            for counts, is_transaction in ((done, False), (done_at_once, True)):
                pipeline = redis.client().pipeline(transaction=is_transaction)
                names = [f"{is_transaction}{number}{part}" for part in "abc"]
                for name in names:
                    pipeline.set(name, "1")
                try:
                    await pipeline.execute()
                except redis.error:
                    counts[redis.keys.exists(*names)] += 1
        return done, done_at_once

    done, done_at_once = twice(main).value
    assert set(done) == {0, 1, 2, 3}
    assert set(done_at_once) == {0, 3}


def test_a_failover_forgets_the_last_writes() -> None:
    """What was written before them stays, with its value and its time."""

    async def main(world: World) -> None:
        redis = SimRedis(world, is_calm=lambda: True)
        keys = redis.keys
        keys.set("old", "1", px=60_000)
        keys.hset("hash", "x", "1")
        await asyncio.sleep(1)
        keys.set("old", "2")
        keys.hset("hash", "y", "2")
        keys.delete("hash")
        keys.set("new", "1")
        assert redis.fail_over(500) == {"old", "hash", "new"}
        assert (keys.get("old"), keys.hgetall("hash"), keys.get("new")) == (
            b"1",
            {b"x": b"1"},
            None,
        )
        assert keys.pttl("old") == 59_000
        assert redis.fail_over(10_000) == {"old", "hash"}
        assert keys.exists("old", "hash") == 0

    twice(main)
