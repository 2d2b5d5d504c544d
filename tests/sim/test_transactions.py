"""Transactions on virtual time: crashes at every step of their service, and by a seed.

After every crash each transaction is settled once: delivered if its local transaction was done,
forgotten if it was not, given up if nobody decides.  `SEED=` chooses one seed.
"""

import os

import pytest
from tests.sim.crashing import check_crash_at_step, crash_anywhere
from tests.sim.transacting import KINDS, TransactionCluster, run

from cometmq.testing.simulation import World, simulate

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else [1, 2, 3, 4, 5, 6, 120]
# 120: a late end met another message at the place it named.
COUNT = 25
STEPS = {
    "half.put": 9,
    "commit.put": 3,
    "op.before": 3,
    "op.put": 3,
    "check.put_back": 5,
    "check.pushed": 4,
    "discard.put": 2,
    "offset.half": 2,
    "offset.op": 2,
}
"""Steps of the service, and at which of its times the broker ends there."""
FLUSH = ["SYNC_FLUSH", "ASYNC_FLUSH"]


@pytest.mark.parametrize(("flush", "power_cut"), [("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_settles_each_once(step: str, power_cut: bool, flush: str) -> None:
    """After a crash at any step each transaction is settled once."""

    cluster = check_crash_at_step(
        TransactionCluster,
        lambda cluster: run(cluster, COUNT),
        step,
        STEPS[step],
        seed=11,
        flush=flush,
        power_cut=power_cut,
    )
    assert set(cluster.seen.begun.values()) == set(KINDS)


@pytest.mark.parametrize("flush", FLUSH)
@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_at_any_disk_operation(seed: int, flush: str) -> None:
    """Transactions survive several crashes at any disk operation on a network that splits."""

    cluster = crash_anywhere(
        TransactionCluster,
        lambda cluster, cutter: run(cluster, COUNT, cutter),
        seed=seed,
        flush=flush,
    )
    assert cluster.seen.crashes >= 1
    assert len(cluster.seen.begun) == 2 * COUNT
    assert cluster.seen.checked > 5


def test_the_seed_repeats_itself() -> None:
    """Two runs of one seed do the same, byte for byte."""

    async def main(world: World) -> int:
        cluster = TransactionCluster(world, "ASYNC_FLUSH")
        await run(cluster, 10)
        return cluster.seen.looks

    first, second = simulate(3, main), simulate(3, main)
    assert first.digest == second.digest
