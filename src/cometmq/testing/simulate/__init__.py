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

from importlib.util import find_spec
from typing import Final

from cometmq.testing.simulate.broker_part import CheckFailed
from cometmq.testing.simulate.faults import FAULTS
from cometmq.testing.simulate.plan import FaultAt, Plan
from cometmq.testing.simulate.run import Report, run_plan
from cometmq.testing.simulate.shrink import shrink
from cometmq.testing.simulate.workloads import WORKLOADS, Workload

__all__ = [
    "CONSUMPTION",
    "FAULTS",
    "PATTERNS",
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

PATTERNS: Final = ("flows", "ledger", "mails", "numbered", "orders")
"""The kinds around a broker.  Every fifth seed draws from them, the other seeds from the others."""
CONSUMPTION: Final = ("fresh", "priority", "released", "rescue", "why")
"""The kinds about who gets what.  Seeds that end with 7 draw from them, other seeds do not, so that
recorded seeds keep their meaning."""
_OFTEN: Final = {"ledger": 0.4, "numbered": 0.4}
"""Kinds that are added to a plan with this chance: what they look for shows in few runs."""
_SQL: Final = frozenset({"flows", "ledger", "orders"})


def plan_of(seed: int) -> Plan:
    """Draw a plan from a seed: kinds of message, every kind of fault, settings.

    Kinds with a SQL database are drawn where SQLAlchemy is installed (extra ``patterns``).
    """
    faults = tuple(FAULTS)
    if seed % 10 == 7:
        return Plan.of(seed, CONSUMPTION, faults, kinds_min=1, kinds_max=2)
    if seed % 5 != 4:
        others = (*PATTERNS, *CONSUMPTION)
        return Plan.of(seed, [name for name in WORKLOADS if name not in others], faults)
    has_sql = find_spec("sqlalchemy") is not None
    kinds = [name for name in PATTERNS if has_sql or name not in _SQL]
    return Plan.of(seed, kinds, faults, kinds_min=1, kinds_max=2, often=_OFTEN)
