"""The simulator finds bugs: each of those planted by hand turns it red, and only they do.

A plant that stays green means that some promise is not looked at any more.
"""

from dataclasses import replace

import pytest
from tests.planted.plants import PLANTS, Plant

from cometmq.testing.simulate import plan_of, run_plan

SEEDS_MAX = 100
# A simulation that fails ends where it is, with tasks that had not begun.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")


@pytest.mark.parametrize("plant", PLANTS, ids=str)
def test_the_simulator_finds_it(plant: Plant) -> None:
    """Within some dozens of seeds; the same plan without the bug keeps every promise."""
    for seed in range(SEEDS_MAX):
        plan = plan_of(seed)
        plan = replace(plan, workloads=plant.kinds or plan.workloads)
        with plant.planted():
            report = run_plan(plan)
        if report.failure is not None:
            break
    else:
        raise AssertionError(f"{plant}: not found by {SEEDS_MAX} seeds")
    assert report.observations > 0
    sound = run_plan(plan)
    assert sound.failure is None, f"fails without the plant as well: {plan.command()}"


def test_there_are_ten_of_them() -> None:
    """In the log, its flush, queues, index, timers, transactions, staged batches and offsets."""
    assert len({plant.name for plant in PLANTS}) >= 10


def test_a_plant_is_taken_out_again() -> None:
    """Every name holds afterwards what it held before."""
    for plant in PLANTS:
        before = [vars(holder)[name] for holder, name, _ in plant.changes]
        with plant.planted():
            during = [vars(holder)[name] for holder, name, _ in plant.changes]
        after = [vars(holder)[name] for holder, name, _ in plant.changes]
        assert after == before
        assert all(one is not other for one, other in zip(before, during, strict=True))
