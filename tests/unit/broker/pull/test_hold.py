"""The parking lot of pulls: bounds, sweeps, and faults that stay where they are."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from cometmq.broker.pull import hold as hold_module
from cometmq.broker.pull.hold import HeldPull, PullHold
from cometmq.net.env import SystemClock


class Connection:
    """As much of a connection as a held pull touches."""

    peer = "127.0.0.1:1"

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def pull(
    connection: Connection,
    *,
    queue_id: int = 0,
    offset: int = 5,
    codes: frozenset[int] | None = None,
    wait_ms: int = 60_000,
) -> HeldPull:
    now_ms = SystemClock().now_ms()
    return HeldPull(
        connection,  # type: ignore[arg-type]
        "g",
        "t",
        queue_id,
        offset,
        codes,
        now_ms,
        now_ms + wait_ms,
    )


def story(
    run: Callable[[PullHold, list[HeldPull], list[tuple[str, int, bool]]], object],
    *,
    end: int = 5,
    fail: bool = False,
) -> None:
    """Run a story on a loop with a lot whose queues end at `end`."""

    async def main() -> None:
        ran: list[HeldPull] = []
        watched: list[tuple[str, int, bool]] = []

        def serve(held: HeldPull) -> None:
            ran.append(held)
            if fail and len(ran) == 1:
                raise RuntimeError("a fault of ours")

        lot = PullHold(
            SystemClock(),
            serve,
            lambda topic, queue: end,
            lambda *call: watched.append(call),
            lambda _: True,
        )
        result = run(lot, ran, watched)
        if asyncio.iscoroutine(result):
            await result
        lot.stop()
        assert len(lot) == 0

    asyncio.run(main())


def test_queue_is_watched_while_somebody_waits() -> None:
    """From the first pull to the last, once each."""

    async def run(lot: PullHold, ran: list[HeldPull], watched: list[tuple[str, int, bool]]) -> None:
        connection = Connection()
        lot.add(pull(connection))
        lot.add(pull(connection))
        assert watched == [("t", 0, True)]
        lot.arrived("t", 0, 6, 0)
        assert ran == []
        await asyncio.sleep(0)
        assert len(ran) == 2
        assert watched == [("t", 0, True), ("t", 0, False)]
        lot.arrived("t", 0, 7, 0)
        lot.drop_connection(connection)  # type: ignore[arg-type]
        assert len(lot) == 0

    story(run)


def test_only_later_and_wanted_messages_wake() -> None:
    """An offset at or behind the pull's, or a code it does not want, leaves it waiting."""

    async def run(lot: PullHold, ran: list[HeldPull], watched: list[tuple[str, int, bool]]) -> None:
        lot.add(pull(Connection(), codes=frozenset({7})))
        lot.arrived("t", 0, 5, 7)
        lot.arrived("t", 0, 6, 8)
        lot.arrived("t", 1, 6, 7)
        lot.arrived("u", 0, 6, 7)
        await asyncio.sleep(0)
        assert ran == []
        lot.arrived("t", 0, 6, 7)
        await asyncio.sleep(0)
        assert len(ran) == 1

    story(run)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one connection nor all together may hold pulls without end."""
    monkeypatch.setattr(hold_module, "HELD_PULLS_MAX", 5)
    monkeypatch.setattr(hold_module, "HELD_PULLS_PER_CONNECTION_MAX", 3)

    def run(lot: PullHold, ran: list[HeldPull], watched: list[tuple[str, int, bool]]) -> None:
        greedy, modest = Connection(), Connection()
        for queue_id in range(3):
            assert not lot.is_full(greedy)  # type: ignore[arg-type]
            lot.add(pull(greedy, queue_id=queue_id))
        assert lot.is_full(greedy)  # type: ignore[arg-type]
        for queue_id in range(2):
            assert not lot.is_full(modest)  # type: ignore[arg-type]
            lot.add(pull(modest, queue_id=queue_id))
        assert lot.is_full(modest)  # type: ignore[arg-type]

    story(run)


def test_sweep_runs_what_a_lost_wake_up_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that has grown past a pull is looked at again."""
    monkeypatch.setattr(hold_module, "SWEEP_INTERVAL_MS", 20)

    async def run(lot: PullHold, ran: list[HeldPull], watched: list[tuple[str, int, bool]]) -> None:
        behind, at_end = pull(Connection(), offset=5), pull(Connection(), offset=9)
        lot.add(behind)
        lot.add(at_end)
        async with asyncio.timeout(30):
            while not ran:  # noqa: ASYNC110 - the sweep has no event of its own
                await asyncio.sleep(0.005)
        assert ran == [behind]
        assert len(lot) == 1

    story(run, end=9)


def test_earlier_deadline_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull with a short hold, held after one with a long hold."""

    async def run(lot: PullHold, ran: list[HeldPull], watched: list[tuple[str, int, bool]]) -> None:
        long, short = pull(Connection()), pull(Connection(), wait_ms=10)
        lot.add(long)
        lot.add(short)
        async with asyncio.timeout(30):
            while not ran:  # noqa: ASYNC110 - the timer is what is tested
                await asyncio.sleep(0.005)
        assert ran == [short]

    story(run)


def test_fault_in_one_pull_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and its connection closed; the rest is served."""

    async def run(lot: PullHold, ran: list[HeldPull], watched: list[tuple[str, int, bool]]) -> None:
        broken, sound = Connection(), Connection()
        lot.add(pull(broken))
        lot.add(pull(sound))
        with caplog.at_level(logging.CRITICAL, "cometmq.broker"):
            lot.arrived("t", 0, 6, 0)
            await asyncio.sleep(0)
        assert len(ran) == 2
        assert (broken.is_closed, sound.is_closed) == (True, False)

    story(run, fail=True)


def test_forgotten_deadlines_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pulls that woke early leave entries; the sweep clears them."""
    monkeypatch.setattr(hold_module, "SWEEP_INTERVAL_MS", 20)

    async def run(lot: PullHold, ran: list[HeldPull], watched: list[tuple[str, int, bool]]) -> None:
        for _ in range(500):
            lot.add(pull(Connection()))
            lot.arrived("t", 0, 6, 0)
        lot.add(pull(Connection(), offset=9))
        async with asyncio.timeout(30):
            while len(lot._deadlines) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert len(ran) == 500

    story(run, end=5)
