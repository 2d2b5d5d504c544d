"""Masters with slaves on virtual time: what the barrier promised is there after any faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.sim.slaves import SlaveStage, acknowledged_is_kept

from cometmq.broker.base.barrier import SendBarrier
from cometmq.broker.replication.links import SlaveLink
from cometmq.testing.simulation import World, simulate

Scenario = Callable[[SlaveStage, random.Random], Awaitable[None]]
SEEDS = range(2)
MORE_SEEDS = range(100, 160)


def run(scenario: Scenario, seed: int) -> SlaveStage:
    """Run a scenario with settings that its seed chooses."""
    chance = random.Random(f"{seed}/settings")
    settings = {
        "flush": chance.choice(["ASYNC_FLUSH", "SYNC_FLUSH"]),
        "role": "SYNC_MASTER",
        "in_sync": 2,
    }
    slave_count = chance.choice([1, 2])

    async def main(world: World) -> SlaveStage:
        stage = SlaveStage(world, slave_count, settings)
        await stage.start()
        await scenario(stage, random.Random(f"{seed}/faults"))
        return stage

    return simulate(seed, main).value


async def all_return(stage: SlaveStage, chance: random.Random) -> None:
    """Any member fails and comes back; at rest nothing is lost, and the logs are the same."""
    producing = asyncio.create_task(stage.produce(12))
    await asyncio.sleep(1)
    await stage.trouble(chance, 4, spares_master=False)
    await producing
    await stage.rest()
    for number in range(stage.slave_count + 1):
        acknowledged_is_kept(stage, number, "")


async def master_is_lost(stage: SlaveStage, chance: random.Random) -> None:
    """The master's machine burns among other faults; the slave with most takes over and has all
    that was acknowledged by a slave."""
    producing = asyncio.create_task(stage.produce(8))
    await asyncio.sleep(1)
    await stage.trouble(chance, 2, spares_master=True)
    await asyncio.sleep(chance.uniform(0, 1))
    stage.node(0).crash()
    stage.faults.append("master lost")
    await producing
    slaves = range(1, stage.slave_count + 1)
    heir = max(slaves, key=lambda number: stage.store(number).max_physical_offset)
    for number in slaves:
        stage.node(number).crash(power_cut=False)
    await stage.boot(heir, is_master=True)
    acknowledged_is_kept(stage, heir, "replicas=2")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", [all_return, master_is_lost])
def test_promises_hold_after_any_faults(scenario: Scenario, seed: int) -> None:
    """The ledger is checked at the barrier that each answer has named."""
    stage = run(scenario, seed)
    assert len(stage.ledger) > 20
    assert len(stage.faults) >= 3


@pytest.mark.parametrize("seed", MORE_SEEDS)
@pytest.mark.parametrize("scenario", [all_return, master_is_lost])
def test_promises_hold_over_more_seeds(scenario: Scenario, seed: int) -> None:
    """As above."""
    assert run(scenario, seed).ledger


# -- planted bugs ---------------------------------------------------------------------------------


def acknowledged_before_a_slave_has_it(patch: pytest.MonkeyPatch) -> None:
    """Sends are answered when they are stored, whatever slaves say."""

    def at_once(self: Any, end_offset: int, settle: Callable[[bool], None]) -> None:
        settle(True)

    patch.setattr(SendBarrier, "_when_copied", at_once)


def confirms_more_than_it_wrote(patch: pytest.MonkeyPatch) -> None:
    """A slave acknowledges what it has received, and has not written the last part of it."""
    report = SlaveLink.report

    def ahead(self: SlaveLink, end: int, now_ms: int, interval_ms: int) -> bytes:
        return report(self, max(end, self.expected), now_ms, interval_ms)

    patch.setattr(SlaveLink, "report", ahead)


@pytest.mark.parametrize("bug", [acknowledged_before_a_slave_has_it, confirms_more_than_it_wrote])
def test_planted_bugs_are_found(bug: Callable[[pytest.MonkeyPatch], None]) -> None:
    """One of some seeds turns red."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        assert any(is_red(seed) for seed in range(20))


def is_red(seed: int) -> bool:
    """Whether a seed finds something lost."""
    try:
        run(master_is_lost, seed)
    except AssertionError:
        return True
    return False
