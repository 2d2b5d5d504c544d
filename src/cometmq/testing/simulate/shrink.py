"""Shrinks a failing plan: tries smaller plans and continues from the first that still fails."""

from __future__ import annotations

import re
from collections.abc import Callable

from cometmq.testing.simulate.plan import Plan
from cometmq.testing.simulate.run import Report, run_plan

__all__ = ["shrink"]


def shrink(
    failed: Report, failure: str, runs_max: int = 60, run: Callable[[Plan], Report] = run_plan
) -> Report:
    """Return the report of the smallest plan with the same kind of failure, of `runs_max` runs."""
    kind = _kind(failure)
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
    """Strip from a failure the bodies and numbers that differ between two runs."""
    return re.sub(r"b'[^']*'|[0-9]+", "", failure)[:60]
