"""Pending timers survive another precision, and a stop that is longer than the wheel."""

import asyncio

import pytest
from tests.sim.retaining import LATE_MS, RetentionCluster

from cometmq.testing.simulation import World, simulate

HOUR_S = 3600


class ChangingCluster(RetentionCluster):
    """A cluster whose broker restarts with other settings."""

    async def end_and_wait(self, seconds: float, *, is_killed: bool) -> None:
        """Stop or kill the broker, then wait for a while."""
        broker, self.broker = self.broker, None
        assert broker is not None
        if is_killed:
            self.node.crash(power_cut=False)
        else:
            await self.node.run(broker.stop)
        await asyncio.sleep(seconds)
        if is_killed:
            self.node.restart()

    async def arrived_in_time(self) -> None:
        """Check that each message arrived once and not early, and where possible not late."""
        await self.settle()
        self.look()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
@pytest.mark.parametrize(("before", "after"), [(1000, 100), (100, 1000), (1000, 200)])
def test_another_precision(before: int, after: int, is_killed: bool) -> None:
    """A new precision rebuilds the wheel, and recalls before and after it take effect."""

    async def main(world: World) -> None:
        cluster = ChangingCluster(world, "ASYNC_FLUSH")
        own = cluster.settings
        cluster.settings = {**own, "timer_precision_ms": before}
        await cluster.start()
        await cluster.client.run(cluster.connect)
        await cluster.client.run(lambda: cluster.store_pending(30, 0, 0))
        await asyncio.sleep(2)
        await cluster.end_and_wait(1, is_killed=is_killed)
        cluster.settings = {**own, "timer_precision_ms": after}
        await cluster.start_broker()
        recalled = cluster.handles[b"timed 5"]
        answer = await cluster.client.run(lambda: cluster.recall(recalled))
        assert answer.code == 0
        cluster.seen.recalled.add(b"timed 5")
        # And once more in the same precision.
        await asyncio.sleep(2)
        await cluster.end_and_wait(1, is_killed=is_killed)
        await cluster.start_broker()
        await cluster.arrived_in_time()
        for message in cluster.delivered():
            assert message.store_timestamp_ms <= cluster.seen.due[bytes(message.body)] + LATE_MS

    simulate(21, main)


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_store_that_was_away_for_longer_than_its_wheel(is_killed: bool) -> None:
    """After a stop longer than the wheel's 16.8 hours, each overdue message arrives once."""

    async def main(world: World) -> ChangingCluster:
        cluster = ChangingCluster(world, "ASYNC_FLUSH")
        cluster.settings = {**cluster.settings, "timer_precision_ms": 100}
        await cluster.start()
        await cluster.client.run(cluster.connect)
        await cluster.client.run(lambda: cluster.store_pending(30, 0, 0))
        await asyncio.sleep(2)
        await cluster.end_and_wait(20 * HOUR_S, is_killed=is_killed)
        await cluster.start_broker()
        await asyncio.sleep(5)
        cluster.look()
        # The wheel goes round once more: nothing of before comes with it.
        await cluster.client.run(lambda: cluster.store_pending(20, 0, 0))
        await cluster.end_and_wait(20 * HOUR_S, is_killed=is_killed)
        await cluster.start_broker()
        await asyncio.sleep(5)
        await cluster.arrived_in_time()
        return cluster

    cluster = simulate(22, main).value
    assert len(cluster.seen.due) == 50
    assert cluster.seen.looks >= 4
