"""The simulator finds bugs: each of those planted by hand turns it red, and only they do.

This repeats the plans of `found_by.txt`.  `make planted` looks for every plant from seed 0 on, with
every kind of message and fault, and writes these plans.
"""

import shlex

import pytest
from tests.planted.plants import PLANTS, Plant
from tests.planted.search import found_by

from cometmq.testing.simulate import Report, run_plan
from cometmq.testing.simulate.__main__ import plan_from

# A simulation that fails ends where it is, with tasks that had not begun.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
PLANS = found_by()
RECORDED = [plant for plant in PLANTS if plant.name in PLANS]


def run(plant: Plant) -> Report:
    return run_plan(plan_from(shlex.split(PLANS[plant.name])))


@pytest.mark.parametrize("plant", RECORDED, ids=str)
def test_the_simulator_finds_it(plant: Plant) -> None:
    """The plan that found it once finds it still."""
    with plant.planted():
        report = run(plant)
    assert report.failure is not None, report.plan.command()
    assert report.observations > 0


@pytest.mark.parametrize("plant", RECORDED, ids=str)
def test_it_is_the_plant_that_is_found(plant: Plant) -> None:
    """The same plan without the bug keeps every promise."""
    report = run(plant)
    assert report.failure is None, report.plan.command()


def test_no_plan_is_left_of_a_plant_that_has_gone() -> None:
    """And most plants have one."""
    assert list(PLANS) == [plant.name for plant in RECORDED]
    assert len(RECORDED) >= 10


def test_a_plant_is_taken_out_again() -> None:
    """Every name holds afterwards what it held before."""
    for plant in PLANTS:
        before = [vars(holder)[name] for holder, name, _ in plant.changes]
        with plant.planted():
            during = [vars(holder)[name] for holder, name, _ in plant.changes]
        after = [vars(holder)[name] for holder, name, _ in plant.changes]
        assert after == before
        assert all(one is not other for one, other in zip(before, during, strict=True))
