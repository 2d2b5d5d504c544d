"""Looks for each planted bug from seed 0 on, with every kind of message and fault: `make planted`.

A seed whose plan has not the kind of message that runs the plant's code counts and is not run.

It prints how many seeds each took.  With ``--record`` it shrinks the plan that found a bug and
writes it into ``found_by.txt``, from which the suite repeats it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from tests.planted.plants import PLANTS, Plant

from cometmq.testing.simulate import Plan, Report, plan_of, run_plan, shrink

FOUND_BY = Path(__file__).with_name("found_by.txt")
SEEDS_MAX = 300
SHRINKS_MAX = 3


def found_by() -> dict[str, str]:
    """Map each plant's name to the options of the plan that finds it."""
    if not FOUND_BY.exists():
        return {}
    lines = FOUND_BY.read_text(encoding="utf-8").splitlines()
    pairs = [
        (line.split(": ", 1)[0], line.split(": ", 1)[1])
        for line in lines
        if line and not line.startswith("#")
    ]
    return dict(pairs)


def record(plans: dict[str, str]) -> None:
    """Write the plans in the order of the plants."""
    lines = ["# The plan that finds each planted bug; `make planted ARGS=--record` writes them."]
    lines += [f"{plant}: {plans[plant.name]}" for plant in PLANTS if plant.name in plans]
    FOUND_BY.write_text("\n".join(lines) + "\n", encoding="utf-8")


def search(plant: Plant, first: int, seeds_max: int) -> Report | None:
    """Return the report of the first seed that finds the plant and is sound without it."""
    for seed in range(first, first + seeds_max):
        plan = plan_of(seed)
        if plant.kind and plant.kind not in plan.workloads:
            continue  # its code does not run
        with plant.planted():
            report = run_plan(plan)
        if report.failure is not None:
            sound = run_plan(plan)
            if sound.failure is None:
                return report
            print(f"  seed {seed} fails without the plant: {sound.failure}", flush=True)
    return None


def smallest(plant: Plant, report: Report) -> Plan:
    """Return a smaller plan that finds the plant and is sound without it."""
    assert report.failure is not None
    with plant.planted():
        small = shrink(report, report.failure, SHRINKS_MAX).plan
    return small if run_plan(small).failure is None else report.plan


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for each planted bug.")
    parser.add_argument("--only", default="", help="plants whose name has this text")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="seeds for each plant")
    parser.add_argument("--record", action="store_true", help="write found_by.txt")
    parser.add_argument("--missing", action="store_true", help="only plants without a record")
    parser.add_argument("--reverse", action="store_true", help="the last plants first")
    options = parser.parse_args()
    logging.getLogger("cometmq").propagate = False
    plans = found_by()
    chosen = [plant for plant in PLANTS if options.only in plant.name]
    if options.reverse:
        chosen.reverse()
    missed = []
    for plant in chosen:
        if options.missing and plant.name in found_by():
            continue
        began_s = time.process_time()
        report = search(plant, options.first, options.seeds)
        seconds = time.process_time() - began_s
        if report is None:
            missed.append(plant.name)
            print(f"MISSED by {options.seeds} seeds: {plant} ({seconds:.0f} s)", flush=True)
            continue
        count = report.plan.seed - options.first + 1
        print(f"{count:4d} seeds, {seconds:5.1f} s: {plant}: {report.failure}", flush=True)
        if options.record:
            plans = {**found_by(), plant.name: smallest(plant, report).arguments()}
            record(plans)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found, each within {options.seeds} seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
