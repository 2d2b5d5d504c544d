"""Nodes crash at chosen points and come back on what their disk kept."""

import asyncio
from functools import partial

import pytest

from cometmq.testing.simulation import Node, NodeGone, SimulationFault, World, simulate


async def journal(node: Node, log: list[str]) -> None:
    """Append a byte and sync it, every ten milliseconds."""
    disk = node.disk
    disk.makedirs("/d")
    file = disk.open_random("/d/journal", 0, create=True)
    disk.sync_dir("/d")
    disk.sync_dir("/")
    position = file.size()
    while True:
        file.write(position, b"x")
        file.sync()
        position += 1
        log.append(f"{node.lifetime.number}:{position}")
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_crashes_in_the_middle_of_a_sync_and_returns(seed: int) -> None:
    """What was synced before is there; the crashed life does nothing afterwards."""

    async def main(world: World) -> tuple[list[str], int]:
        node = world.node("n")
        log: list[str] = []
        node.crash_at("sync", 5)
        with pytest.raises(NodeGone):
            await node.run(lambda: journal(node, log))
        assert not node.is_alive
        await asyncio.sleep(1)
        survived = len(node.disk.read_bytes("/d/journal"))
        node.restart()
        task = node.spawn(lambda: journal(node, log))
        await asyncio.sleep(0.035)
        assert not task.done()
        return log, survived

    log, survived = simulate(seed, main).value
    assert log[:4] == ["1:1", "1:2", "1:3", "1:4"]
    assert survived in (4, 5)
    assert log[4:] == [f"2:{survived + number}" for number in (1, 2, 3, 4)]


def test_a_crashed_nodes_connections_are_reset_and_its_ports_free() -> None:
    """The client hears of it; a new life may listen again."""

    async def main(world: World) -> list[str]:
        server, client = world.node("server"), world.node("client")
        events: list[str] = []

        class Protocol(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                events.append(type(exc).__name__)

        async def listen() -> None:
            await server.environment().network.listen("0.0.0.0", 1, asyncio.Protocol)

        async def connect() -> None:
            await client.environment().network.connect(server.address, 1, Protocol)

        await server.run(listen)
        await client.run(connect)
        server.crash(power_cut=False)
        await asyncio.sleep(1)
        server.restart()
        await server.run(listen)
        await client.run(connect)
        return events

    assert simulate(1, main).value == ["ConnectionResetError"]


def test_a_failure_nobody_awaits_fails_the_simulation() -> None:
    """An exception in a timer is not lost in a log."""

    async def main(world: World) -> None:
        world.loop.call_later(1, lambda: 1 // 0)
        await asyncio.sleep(2)

    with pytest.raises(SimulationFault, match="ZeroDivisionError"):
        simulate(1, main)


def test_workers_finish_in_an_order_drawn_from_the_seed() -> None:
    """And in the same order for the same seed."""

    async def main(world: World) -> list[int]:
        node = world.node("n")
        done: list[int] = []

        def finish(result: int | BaseException) -> None:
            assert isinstance(result, int)
            done.append(result)

        async def work() -> None:
            for number in range(10):
                node.environment().workers.submit(partial(int, number), finish)
            await asyncio.sleep(1)

        await node.run(work)
        return done

    orders = [simulate(seed, main).value for seed in (1, 1, 2, 3)]
    assert orders[0] == orders[1]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_what_comes_after_the_begin_of_work_is_not_part_of_it() -> None:
    """Work and the arrival of its result are two turns, and the program goes on in between."""

    async def main(world: World) -> int:
        node = world.node("n")
        written, behind = [0], 0

        async def work() -> None:
            nonlocal behind
            for _ in range(50):
                arrived = asyncio.get_running_loop().create_future()
                node.environment().workers.submit(lambda: written[0], arrived.set_result)
                while not arrived.done():
                    written[0] += 1
                    await asyncio.sleep(0.0001)
                behind += arrived.result() < written[0]

        await node.run(work)
        return behind

    assert simulate(1, main).value > 25


def test_a_dead_life_does_nothing_to_the_disk_of_the_next() -> None:
    """Also where its code catches everything, and goes on."""

    async def main(world: World) -> list[str]:
        node = world.node("n")
        node.disk.makedirs("/d")

        async def work() -> None:
            try:
                node.disk.write_atomic("/d/file", b"1")
            except BaseException:
                node.disk.remove("/d/kept")
                raise

        node.disk.write_atomic("/d/kept", b"1")
        node.crash_at("write_atomic", power_cut=False)
        with pytest.raises(NodeGone):
            await node.run(work)
        return node.disk.listdir("/d")

    assert simulate(1, main).value == ["kept"]


def test_a_paused_node_does_everything_later_in_order() -> None:
    """Timers and messages wait, a cancelled timer does not run, and the clock goes on."""

    async def main(world: World) -> list[str]:
        node = world.node("n")
        events: list[str] = []
        loop = world.loop

        async def work() -> None:
            late = loop.call_later(0.3, events.append, "cancelled")
            loop.call_later(0.2, late.cancel)
            loop.call_later(0.4, events.append, "timer")
            for number in range(3):
                await asyncio.sleep(0.25)
                events.append(f"{number} at {loop.time():.2f}")

        task = node.spawn(work)
        await asyncio.sleep(0.1)
        await node.pause(1.0)
        await task
        return events

    assert simulate(1, main).value == ["timer", "0 at 1.10", "1 at 1.35", "2 at 1.60"]


def test_a_crash_ends_a_pause() -> None:
    """Nothing of the paused life runs afterwards."""

    async def main(world: World) -> list[str]:
        node = world.node("n")
        events: list[str] = []

        async def work() -> None:
            await asyncio.sleep(0.2)
            events.append("ran")

        running = node.spawn(work)
        await asyncio.sleep(0.1)
        pause = asyncio.ensure_future(node.pause(1.0))
        await asyncio.sleep(0.5)
        node.crash()
        node.restart()
        await pause
        await asyncio.sleep(1)
        assert not running.done()
        return events

    assert simulate(1, main).value == []


def test_a_clock_may_jump_and_drift() -> None:
    """The wall clock of one node alone; its monotonic clock is not moved."""

    async def main(world: World) -> tuple[int, int, float]:
        clock = world.node("n").clock
        begin_ms = clock.now_ms()
        clock.drift = 0.1
        await asyncio.sleep(10)
        drifted_ms = clock.now_ms() - begin_ms
        clock.drift = 0.0
        clock.skew_ms -= 500
        await asyncio.sleep(1)
        return drifted_ms, clock.now_ms() - begin_ms, clock.monotonic()

    assert simulate(1, main).value == (11_000, 11_500, 11.0)
