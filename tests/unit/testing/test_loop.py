"""The virtual loop: time jumps, deadlocks are named, a dead node's code never runs again."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from cometmq.testing.loop import Lifetime, SimDeadlock, SimLivelock, SimLoop, context_of

T = TypeVar("T")


def run(main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> tuple[T, float]:
    """Run a coroutine function on a fresh virtual loop and give (result, virtual seconds)."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(main(loop)), loop.time()
    finally:
        loop.close()


def test_a_day_passes_at_once() -> None:
    """Sleeping moves the clock exactly onto the timer."""

    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(86_400)
        await asyncio.sleep(0.1)
        return loop.time()

    value, now = run(main)
    assert value == now == 86_400.1


def test_timers_fire_in_the_order_of_their_time() -> None:
    """Also when they were set in another order."""

    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        loop.call_later(3, seen.append, "c")
        loop.call_later(1, seen.append, "a")
        loop.call_later(2, seen.append, "b")
        await asyncio.sleep(5)
        return seen

    assert run(main) == (["a", "b", "c"], 5.0)


def test_timeouts_and_executors_work() -> None:
    """asyncio's own tools run unmodified; an executor is a later turn of the loop."""

    async def main(loop: SimLoop) -> tuple[bool, int]:
        try:
            async with asyncio.timeout(7):
                await asyncio.Event().wait()
        except TimeoutError:
            timed_out = True
        return timed_out, await asyncio.to_thread(lambda: 42)

    assert run(main) == ((True, 42), 7.0)


def test_waiting_for_nothing_is_a_deadlock() -> None:
    """A lost wake-up ends the simulation with a sentence instead of hanging it."""

    async def main(loop: SimLoop) -> None:
        await asyncio.Event().wait()

    loop = SimLoop()
    with pytest.raises(SimDeadlock, match="no timer is set"):
        loop.run_until_complete(main(loop))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def test_a_loop_without_delay_is_a_livelock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry without a delay would keep virtual time still for ever."""
    monkeypatch.setattr("cometmq.testing.loop.TURNS_PER_INSTANT_MAX", 100)

    loop = SimLoop()

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(SimLivelock, match="retry without a delay"):
        loop.run_forever()
    loop.close()


def test_a_dead_lifetime_runs_nothing() -> None:
    """Its timers do not fire, its tasks take no step and its `finally` blocks stay silent."""
    seen: list[str] = []

    async def worker() -> None:
        try:
            while True:
                seen.append("step")
                await asyncio.sleep(1)
        finally:
            seen.append("clean-up")

    async def main(loop: SimLoop) -> list[str]:
        life = Lifetime("broker", 1)
        task = loop.create_task(worker(), context=context_of(life))
        loop.call_later(2.5, seen.append, "timer of the world")
        loop.call_later(2.5, seen.append, "timer of the node", context=context_of(life))
        await asyncio.sleep(1.5)
        life.end()
        await asyncio.sleep(10)
        before_burial = list(seen)
        life.bury()
        assert not task.done()
        return before_burial

    assert run(main)[0] == ["step", "step", "timer of the world"]
    assert seen[-1] == "clean-up"


def test_a_buried_coroutine_is_closed_through_every_await_of_its_ends() -> None:
    """Else the rest of it would run when its memory is given back, in whatever runs then."""
    seen: list[str] = []

    async def worker() -> None:
        try:
            try:
                await asyncio.sleep(10)
            finally:
                seen.append("inner")
                await asyncio.sleep(1)
        finally:
            seen.append("outer")
            await asyncio.sleep(1)

    async def main(loop: SimLoop) -> None:
        life = Lifetime("broker", 1)
        coroutine = worker()
        task = loop.create_task(coroutine, context=context_of(life))
        await asyncio.sleep(1)
        life.end()
        life.bury()
        assert seen == ["inner", "outer"]
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
        assert not task.done()

    run(main)
