"""Exact timers on virtual time: crashes at every step, and by a seed.

After every crash each timed message arrives once, not before its time, and none arrives that was
taken back.  `SEED=` chooses one seed.
"""

import asyncio
import os
import random

import pytest
from tests.sim.crashing import cut_at_random
from tests.sim.timing import TimerCluster, run

from cometmq.testing.network import NetworkFaults
from cometmq.testing.simulation import World, simulate

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, 2, 3, 4]
COUNT = 40
STEPS = {
    "timer.placed": 25,
    "timer.before_put": 5,
    "timer.put": 9,
    "timer.before_log": 6,
    "timer.log_synced": 5,
    "timer.wheel_synced": 4,
    "timer.check_written": 7,
}
"""Steps of the timers, and at which of its times the broker ends there."""
FLUSH = ["SYNC_FLUSH", "ASYNC_FLUSH"]


@pytest.mark.parametrize(("flush", "power_cut"), [("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_loses_and_repeats_nothing(
    step: str, power_cut: bool, flush: str
) -> None:
    """Before and after the broker comes back."""

    async def main(world: World) -> TimerCluster:
        cluster = TimerCluster(world, flush)
        cluster.crash_point, cluster.crash_hit = step, STEPS[step]
        cluster.is_power_cut = power_cut
        await run(cluster, COUNT)
        return cluster

    cluster = simulate(7, main).value
    assert cluster.seen.hits[step] >= STEPS[step], "the step was not reached"
    assert cluster.seen.crashes == 1
    assert cluster.seen.recalled
    assert cluster.seen.looks > 10


@pytest.mark.parametrize("flush", FLUSH)
@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_at_any_disk_operation(seed: int, flush: str) -> None:
    """Several crashes in one run, wherever the seed puts them, on a network that splits."""

    async def main(world: World) -> TimerCluster:
        cluster = TimerCluster(world, flush)
        chance = random.Random(f"{seed}/crashes")
        cluster.is_power_cut = chance.random() < 0.5
        cutter = asyncio.ensure_future(cut_at_random(cluster, chance))
        await run(cluster, COUNT, cutter)
        return cluster

    faults = NetworkFaults(split_chance=0.3, delay_ms_max=5)
    cluster = simulate(seed, main, faults=faults).value
    assert cluster.seen.crashes >= 1
    assert len(cluster.seen.due) >= COUNT
