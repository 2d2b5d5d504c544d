"""A program's own handlers in a simulation: one call, plain functions, checks, faults, clocks."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from cometmq import Message, ReceivedMessage, RetryLater
from cometmq.patterns.idempotent import exactly_once
from cometmq.patterns.idempotent.sql import CLAIMS
from cometmq.testing.sim_cluster import SeedFailed, SimCluster, run_seed, run_seeds
from cometmq.testing.sim_database import SimDatabase

pytest_plugins = ["pytester"]

RETRIES_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


async def ship_orders(cluster: SimCluster) -> list[str]:
    """A plain handler with a transaction, over brokers that crash and a database that fails."""
    database = SimDatabase(cluster.world)
    CLAIMS.create(database.quiet)
    database.write("create table shipped (name text)")

    @exactly_once(sessionmaker(database.plain), group="ship")
    def ship(message: ReceivedMessage, session: Session) -> None:
        name = message.body.decode()
        session.execute(text("insert into shipped values (:name)"), {"name": name})

    def shipped() -> Counter[str]:
        return Counter(name for (name,) in database.read("select name from shipped"))

    def nothing_is_shipped_twice() -> None:
        assert set(shipped().values()) <= {1}

    cluster.check(nothing_is_shipped_twice)
    names = [f"order {number}" for number in range(8)]
    async with cluster.consumer("ship", {"Orders": "*"}, ship):
        async with cluster.producer("shop", producer_id="shop") as producer:
            disturbing = asyncio.ensure_future(cluster.disturb(6))
            for name in names:
                await producer.send(Message("Orders", name.encode()))
                await asyncio.sleep(0.5)
            await disturbing
        await cluster.until(lambda: shipped().keys() == set(names))
    return sorted(shipped())


def test_a_handler_over_crashes_of_brokers() -> None:
    """Every order once, from each seed; a seed repeats itself."""
    assert run_seeds(ship_orders, range(3)) == [[f"order {n}" for n in range(8)]] * 3
    assert run_seed(ship_orders, 1).digest == run_seed(ship_orders, 1).digest


def test_a_broken_promise_names_its_seed() -> None:
    """A check that fails ends the run, and so does a condition that never holds."""

    async def wrong(cluster: SimCluster) -> None:
        handled: list[bytes] = []

        def at_most_one() -> None:
            assert len(handled) < 2, "two are handled"

        def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)

        cluster.check(at_most_one)
        async with (
            cluster.producer("shop") as producer,
            cluster.consumer("ship", {"Orders": "*"}, handle),
        ):
            for body in (b"1", b"2"):
                await producer.send(Message("Orders", body))
            await asyncio.sleep(60)
            raise ValueError("nobody comes here")

    async def never(cluster: SimCluster) -> None:
        await cluster.until(lambda: False, 30)

    with pytest.raises(SeedFailed, match="seed 4: AssertionError: two are handled"):
        run_seed(wrong, 4)
    with pytest.raises(SeedFailed, match="seed 0: SeedFailed: <lambda> does not hold after 30 s"):
        run_seeds(never, range(2))


def test_sixteen_retries_in_a_moment() -> None:
    """The clocks move over each delay, nearly five hours together."""

    async def main(cluster: SimCluster) -> list[int]:
        tries: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            tries.append(message.reconsume_times)
            raise RetryLater(reason="on purpose")

        async with cluster.producer("shop") as producer:
            await producer.send(Message("Orders", b"1"))
        async with cluster.consumer("ship", {"Orders": "*"}, handle):
            for number, delay_s in enumerate(RETRIES_S):
                await cluster.until(lambda number=number: len(tries) == number + 1)
                await asyncio.sleep(0.5)  # the broker has it back
                cluster.move_clocks(delay_s)
            await cluster.until(lambda: len(tries) == 17)
        assert cluster.world.loop.time() < 120
        return tries

    assert run_seed(main, 1).value == list(range(17))


def test_a_machine_of_the_program_crashes_and_comes_again() -> None:
    """Its work begins anew; what was not acknowledged is delivered again."""

    async def main(cluster: SimCluster) -> list[bytes]:
        handled: list[bytes] = []
        lives: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            if len(lives) == 1:
                cluster.crash("worker")
                await asyncio.sleep(0)  # nothing of this life runs behind it
            handled.append(message.body)

        async def work() -> None:
            lives.append(1)
            async with cluster.consumer("ship", {"Orders": "*"}, handle, machine="worker"):
                await cluster.until(lambda: handled)

        serving = asyncio.ensure_future(cluster.serve("worker", work))
        async with cluster.producer("shop") as producer:
            await producer.send(Message("Orders", b"1"))
        await cluster.until(lambda: not cluster.world.node("worker").is_alive)
        await cluster.restart("worker")
        await serving
        assert len(lives) == 2
        return handled

    assert run_seed(main, 1).value == [b"1"]


def test_the_plugin_runs_marked_tests_on_virtual_time(pytester: Any) -> None:
    """Once for each seed; with other fixtures, and real clusters beside them."""
    pytester.makepyfile(
        """
        import asyncio
        import cometmq
        import pytest

        @pytest.mark.cometmq_simulation(seeds=3, first=5)
        async def test_half_a_minute(sim_cluster, tmp_path):
            async with sim_cluster.producer("shop") as producer:
                await producer.send(cometmq.Message("Orders", b"1"))
            await asyncio.sleep(30)
            with (tmp_path / "seeds").open("a") as file:
                file.write(f"{sim_cluster.world.seed} ")
            if sim_cluster.world.seed == 7:
                assert (tmp_path / "seeds").read_text() == "5 6 7 "

        @pytest.mark.cometmq_simulation()
        async def test_that_fails(sim_cluster):
            await sim_cluster.until(lambda: False, 1)

        def test_session(cometmq_session_cluster):
            assert cometmq_session_cluster.broker_address

        def test_without_a_mark(sim_cluster):
            pass
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "cometmq.pytest_plugin", "-p", "no:randomly", "--strict-markers"
    )
    result.assert_outcomes(passed=2, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*SeedFailed: seed 0: SeedFailed: <lambda> does not hold*"])
    result.stdout.fnmatch_lines(["*sim_cluster belongs to tests with @pytest.mark.cometmq_simul*"])
