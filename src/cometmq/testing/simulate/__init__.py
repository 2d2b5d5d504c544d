"""Whole clusters on virtual time, from seeds: every kind of message, every kind of fault.

Use it as a command or from Python::

    python -m cometmq.testing.simulate --seeds 0..200

    from cometmq.testing.simulate import plan_of, run_plan, shrink

    report = run_plan(plan_of(7))
    assert report.failure is None, report.plan.command()

The real name server, broker and clients run on a virtual clock, a seeded network and seeded disks
(`cometmq.testing.simulation`).  A seed draws a plan: kinds of message (`WORKLOADS`), faults with
their times (`FAULTS`), flush, number of brokers.  After each step and at the end the promises are
checked.  A plan that fails is written as the command that replays it, and shrinks.
"""

from __future__ import annotations

from typing import Final

from cometmq.testing.simulate.broker_part import CheckFailed
from cometmq.testing.simulate.faults import FAULTS
from cometmq.testing.simulate.plan import FaultAt, Plan
from cometmq.testing.simulate.run import Report, run_plan
from cometmq.testing.simulate.shrink import shrink
from cometmq.testing.simulate.workloads import WORKLOADS, Workload

__all__ = [
    "FAULTS",
    "NOT_DRAWN",
    "WORKLOADS",
    "CheckFailed",
    "FaultAt",
    "Plan",
    "Report",
    "Workload",
    "plan_of",
    "run_plan",
    "shrink",
]

NOT_DRAWN: Final = frozenset({"flows", "numbered", "orders"})
"""Kinds that a plan names itself, so that recorded seeds keep their meaning."""


def plan_of(seed: int) -> Plan:
    """Draw a plan from a seed, every fault and every kind of message but those of `NOT_DRAWN`."""
    kinds = tuple(name for name in WORKLOADS if name not in NOT_DRAWN)
    return Plan.of(seed, kinds, tuple(FAULTS))
