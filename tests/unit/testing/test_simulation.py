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
