"""Makes a failing plan smaller while it still fails.

Job: try the smaller plans in turn, go on from the first that fails too.  Must not: decide how long
that may take; its caller gives the number of runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from cometmq.testing.simulate.plan import Plan
from cometmq.testing.simulate.run import Report, run_plan

__all__ = ["shrink"]


def shrink(failed: Report, runs_max: int = 60, run: Callable[[Plan], Report] = run_plan) -> Report:
    """The report of the smallest plan found that breaks the same promise."""
    assert failed.failure is not None
    kind = _kind(failed.failure)
    smallest, runs = failed, 0
    while True:
        for plan in smallest.plan.smaller():
            if runs >= runs_max:
                return smallest
            runs += 1
            report = run(plan)
            if report.failure is not None and _kind(report.failure) == kind:
                smallest = report
                break
        else:
            return smallest


def _kind(failure: str) -> str:
    """A failure without what differs between two runs of the same fault."""
    return re.sub(r"b'[^']*'|[0-9]+", "", failure)[:60]
