"""Exact timers on virtual time: crashes at every step, and by a seed.

After every crash each timed message arrives once, not before its time, and none arrives that was
taken back.  `SEED=` chooses one seed.
"""

import os

import pytest
from tests.sim.crashing import check_crash_at_step, crash_anywhere
from tests.sim.timing import TimerCluster, run

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
    """A crash at any step loses and repeats no timed message."""

    cluster = check_crash_at_step(
        TimerCluster,
        lambda cluster: run(cluster, COUNT),
        step,
        STEPS[step],
        seed=7,
        flush=flush,
        power_cut=power_cut,
    )
    assert cluster.seen.recalled


@pytest.mark.parametrize("flush", FLUSH)
@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_at_any_disk_operation(seed: int, flush: str) -> None:
    """Timed messages survive several crashes at any disk operation on a network that splits."""

    cluster = crash_anywhere(
        TimerCluster, lambda cluster, cutter: run(cluster, COUNT, cutter), seed=seed, flush=flush
    )
    assert cluster.seen.crashes >= 1
    assert len(cluster.seen.due) >= COUNT
