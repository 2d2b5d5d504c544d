"""Flows in SQLite: forward, backward, confirmed, late, stuck, and crashed at every call."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from tests.unit.client.waiting import until
from tests.unit.patterns.stage import HandClock, async_engine, plain_engine

from cometmq.errors import ConfigError
from cometmq.patterns.saga import (
    Refused,
    Saga,
    SagaCall,
    SagaRow,
    Sagas,
    SagaState,
    SagaStep,
    TccBranch,
)
from cometmq.patterns.saga.tcc import TccOrderError


class Crash(BaseException):
    """The runner's process ends here."""


class Services:
    """Three services with effects by key; a call may fail, and the runner may crash around it."""

    def __init__(self) -> None:
        self.effects: set[str] = set()
        self.calls: list[str] = []
        self.errors: dict[str, list[Exception]] = {}
        self.crash_at = -1
        self._moments = 0

    def moment(self) -> None:
        """A moment at which the runner may crash: before or after an effect."""
        self._moments += 1
        if self._moments == self.crash_at:
            raise Crash

    def act(self, name: str) -> Callable[[SagaCall], Awaitable[str]]:
        async def call(call: SagaCall) -> str:
            self.moment()
            self.calls.append(name)
            if self.errors.get(name):
                raise self.errors[name].pop(0)
            if name.startswith("undo "):
                self.effects.discard(name.removeprefix("undo "))
            else:
                self.effects.add(name)
            self.moment()
            return f"{name} of {call.data}"

        return call

    def step(self, name: str, *, confirm: bool = False, pivot: bool = False) -> SagaStep:
        return SagaStep(
            name,
            self.act(name),
            self.act(f"undo {name}"),
            self.act(f"confirm {name}") if confirm else None,
            is_pivot=pivot,
        )


def story(
    path: Path,
    services: Services,
    tell: Callable[[Sagas, HandClock], Awaitable[None]],
    *steps: SagaStep,
    **options: Any,
) -> None:
    """Start a flow ``f`` of these steps, and run a test's story."""

    async def run() -> None:
        engine = async_engine(path)
        clock = HandClock()
        stuck: list[SagaRow] = []
        saga = Saga("order", steps or [services.step(name) for name in "abc"], **options)
        sagas = Sagas(engine, [saga], clock=clock, lease_ms=5_000, on_stuck=stuck.append)
        await sagas.create()
        async with AsyncSession(engine) as session:
            sagas.add(session, "order", "f", 7)
            await session.commit()
        await tell(sagas, clock)
        await engine.dispose()

    asyncio.run(run())


async def finish(sagas: Sagas, clock: HandClock) -> SagaRow:
    """Run until the flow has ended."""
    for _ in range(60):
        while await sagas.run_once():
            pass
        row = await sagas.find("f")
        if row.state in (SagaState.DONE, SagaState.COMPENSATED):
            return row  # type: ignore[no-any-return]
        clock.now += 5_000
    raise AssertionError(f"the flow does not end: {row}")


def test_every_step_is_called_with_the_results_before_it(tmp_path: Path) -> None:
    """A rollback starts nothing; an unknown name is refused."""
    services = Services()

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        row = await finish(sagas, clock)
        assert row.state is SagaState.DONE
        assert row.results == {"a": "a of 7", "b": "b of 7", "c": "c of 7"}
        engine = sagas._database.engine
        assert isinstance(engine, AsyncEngine)
        async with AsyncSession(engine) as session:
            sagas.add(session, "order", "lost")
            await session.rollback()
        assert await sagas.find("lost") is None
        with pytest.raises(ConfigError, match="no saga is named 'other'"):
            sagas.add(session, "other", "x")

    story(tmp_path, services, tell)
    assert services.calls == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (Refused("out of stock"), ["a", "b", "undo a"]),
        (RuntimeError("no answer"), ["a", "b", "b", "undo b", "undo a"]),
    ],
)
def test_backward(tmp_path: Path, error: Exception, calls: list[str]) -> None:
    """A refused step has no effect; one that failed may have one, so it is taken back too."""
    services = Services()
    services.errors["b"] = [error] * 2

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        row = await finish(sagas, clock)
        assert row.state is SagaState.COMPENSATED
        assert row.error.endswith(str(error))

    story(tmp_path, services, tell, tries_max=2)
    assert services.calls == calls
    assert services.effects == set()


def test_forward_after_the_pivot(tmp_path: Path) -> None:
    """What follows the point of no return is tried until it succeeds; the fifth failure alarms."""
    services = Services()
    services.errors["c"] = [Refused("no"), *[RuntimeError("down")] * 6]
    stuck: list[int] = []

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        sagas._on_stuck = lambda row: stuck.append(row.step)
        assert (await finish(sagas, clock)).state is SagaState.DONE

    steps = [services.step("a"), services.step("b", pivot=True), services.step("c")]
    story(tmp_path, services, tell, *steps, tries_max=100)
    assert services.effects == {"a", "b", "c"}
    assert stuck == [2]


def test_a_deadline_takes_the_flow_back(tmp_path: Path) -> None:
    """Also the step that nobody may have called."""
    services = Services()
    services.errors["b"] = [RuntimeError("slow")] * 9

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        row = await finish(sagas, clock)
        assert row.state is SagaState.COMPENSATED
        assert row.error == "TimeoutError: the time is over"

    story(tmp_path, services, tell, tries_max=100, deadline_ms=12_000)
    assert services.effects == set()


def test_try_confirm(tmp_path: Path) -> None:
    """All are confirmed after all were tried; a confirmation that fails comes again."""
    services = Services()
    services.errors["confirm b"] = [RuntimeError("down")]

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        assert (await finish(sagas, clock)).state is SagaState.DONE

    story(tmp_path, services, tell, *[services.step(name, confirm=True) for name in "ab"])
    assert services.calls == ["a", "b", "confirm a", "confirm b", "confirm b"]


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.parametrize("crash_at", range(1, 11))
def test_a_crash_at_every_call(tmp_path: Path, crash_at: int, is_refused: bool) -> None:
    """Another runner goes on with the same step, and the effects are all there or all gone."""
    services = Services()
    services.crash_at = crash_at
    if is_refused:
        services.errors["c"] = [Refused("no")]
    crashes = 0

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        nonlocal crashes
        while True:
            try:
                row = await finish(sagas, clock)
            except Crash:
                crashes += 1
                continue
            break
        wanted = SagaState.COMPENSATED if is_refused else SagaState.DONE
        assert row.state is wanted

    story(tmp_path, services, tell)
    assert services.effects == (set() if is_refused else {"a", "b", "c"})
    moments = 9 if is_refused else 6
    assert crashes == (1 if crash_at <= moments else 0)


def test_a_runner_that_lost_its_lease_writes_nothing(tmp_path: Path) -> None:
    """Another one has repeated the step and gone on."""
    services = Services()

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        (row,) = await sagas._database.wait(lambda c: sagas._lease("old", c))
        assert await sagas.run_once() == 0
        clock.now += 5_001
        assert (await finish(sagas, clock)).state is SagaState.DONE
        await sagas._write(row, "old", {"state": "running", "step": 0})
        assert (await sagas.find("f")).state is SagaState.DONE

    story(tmp_path, services, tell)


def test_plain_programs(tmp_path: Path) -> None:
    """A plain engine, plain steps in threads, and a runner in the background."""
    done: list[str] = []

    def pay(call: SagaCall) -> None:
        done.append(call.key)

    async def run() -> None:
        with plain_engine(tmp_path) as engine:
            sagas = Sagas(engine, [Saga("order", [SagaStep("pay", pay)])], poll_ms=10)
            sagas.create()
            with Session(engine) as session:
                sagas.add(session, "order", "f")
                session.commit()
            async with sagas:
                await until(lambda: sagas.find("f").state is SagaState.DONE)

    asyncio.run(run())
    assert done == ["f:pay:running"]
    with pytest.raises(ConfigError, match="at least one, once each"):
        Saga("order", [])


def test_a_participant_stays_right(tmp_path: Path) -> None:
    """Empty cancel, suspended try, repeated confirm and cancel, each in the user's transaction."""
    stock = TccBranch("stock")
    with plain_engine(tmp_path) as engine:
        stock.create(engine)

        def call(method: Any, name: str) -> bool:
            with Session(engine) as session:
                answer = method(session, name)
                session.commit()
                return bool(answer)

        assert [call(stock.begin_try, "x"), call(stock.begin_try, "x")] == [True, False]
        assert [call(stock.begin_confirm, "x"), call(stock.begin_confirm, "x")] == [True, False]
        assert [call(stock.begin_cancel, "y"), call(stock.begin_try, "y")] == [False, False]
        assert call(stock.begin_try, "z")
        assert [call(stock.begin_cancel, "z"), call(stock.begin_cancel, "z")] == [True, False]
        for method, name in [(stock.begin_confirm, "z"), (stock.begin_cancel, "x")]:
            with pytest.raises(TccOrderError, match=f"transaction {name} cannot be"):
                call(method, name)
        with pytest.raises(TccOrderError, match="it is not tried"):
            call(stock.begin_confirm, "never")
        with Session(engine) as session:
            assert stock.begin_try(session, "rolled back")
            session.rollback()
        assert call(stock.begin_try, "rolled back")


def test_a_participant_with_asyncio(tmp_path: Path) -> None:
    """The same over an `AsyncSession`."""

    async def run() -> list[bool]:
        engine = async_engine(tmp_path)
        branch = TccBranch("stock")
        await branch.create(engine)
        answers = []
        for method in (branch.begin_try, branch.begin_confirm, branch.begin_confirm):
            async with AsyncSession(engine) as session:
                answers.append(await method(session, "x"))
                await session.commit()
        await engine.dispose()
        return answers

    assert asyncio.run(run()) == [True, True, False]


def test_the_status_counts_flows_and_what_is_stuck(tmp_path: Path) -> None:
    """By state, with the time for which a flow has been due."""
    services = Services()
    services.errors["undo a"] = [RuntimeError("down")] * 6
    services.errors["b"] = [Refused("no")]

    async def tell(sagas: Sagas, clock: HandClock) -> None:
        clock.now += 3_000
        status = await sagas.status()
        assert (status.active["running"], status.stuck, status.latest_ms) == (1, 0, 3_000)
        for _ in range(7):
            await sagas.run_once()
            clock.now += 300_000
        status = await sagas.status()
        assert (status.active["compensating"], status.stuck) == (1, 1)
        assert "cometmq_sagas_stuck 1\n" in status.metrics()
        await finish(sagas, clock)
        assert "cometmq_sagas_compensated 1\n" in (await sagas.status()).metrics()

    story(tmp_path, services, tell)
