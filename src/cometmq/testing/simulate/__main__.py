"""``python -m cometmq.testing.simulate``: run seeds, print totals, replay and shrink failures."""

# ruff: noqa: T201 - a command's report goes to standard output
from __future__ import annotations

import argparse
import gc
import itertools
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from cometmq.errors import ConfigError
from cometmq.testing.simulate import FAULTS, WORKLOADS, FaultAt, Plan, Report, plan_of, timeline
from cometmq.testing.simulate.hooks import DISK_STEPS, SERVICE_STEPS
from cometmq.testing.simulate.plan import COMMAND, FLUSHES
from cometmq.testing.simulate.run import run_plan
from cometmq.testing.simulate.settings import check_settings
from cometmq.testing.simulate.shrink import shrink
from cometmq.testing.simulate.timeline_page import write_page

__all__ = ["main", "plan_from"]


@dataclass(slots=True)
class Totals:
    """Sums over seeds."""

    seeds: int = 0
    counted: int = 0
    virtual_s: float = 0.0
    observations: int = 0
    expired_files: int = 0
    failed: list[Report] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)

    def add(self, report: Report) -> None:
        """Add a seed; `counted` leaves out seeds without faults or acknowledged messages."""
        self.seeds += 1
        self.counted += report.counts
        self.virtual_s += report.virtual_s
        self.observations += report.observations
        self.expired_files += report.expired_files
        self.faults += report.faults
        self.acknowledged += report.acknowledged
        self.hits += report.hits
        self.crashes += report.crashes
        if report.failure is not None:
            self.failed.append(report)

    def lines(self, *, all_hooks: bool) -> Iterator[str]:
        """Yield the lines of the printed totals."""
        yield (
            f"{self.seeds} seeds, {self.counted} count, {len(self.failed)} failed, "
            f"{self.virtual_s / 3600:.1f} h of virtual time, {self.observations} observations, "
            f"{self.expired_files} log files expired"
        )
        yield f"{self.faults.total()} faults injected: {_listed(self.faults)}"
        yield f"{self.acknowledged.total()} acknowledged: {_listed(self.acknowledged)}"
        yield (
            f"{self.hits.total()} times at one of {len(self.hits)} named steps, "
            f"{self.crashes.total()} brokers crashed there"
        )
        missed = sorted((SERVICE_STEPS | DISK_STEPS) - self.hits.keys())
        if missed:
            yield f"never reached: {', '.join(missed)}"
        if all_hooks:
            for name, count in sorted(self.hits.items()):
                yield f"  {name:<32} {count:>9} times, {self.crashes[name]:>5} crashes"


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Simulate whole clusters from seeds and check every promise."
    )
    parser.add_argument("--seeds", help="a range: from..to, the end left out; 0..50 by default")
    parser.add_argument(
        "--from", type=int, dest="begin", help="with --minutes: from this seed on, without an end"
    )
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    parser.add_argument("--seed", type=int, help="this seed alone, with its trace's hash")
    parser.add_argument("--flush", choices=FLUSHES, help="with --seed: instead of what it draws")
    parser.add_argument("--brokers", type=int, help="with --seed: as many brokers")
    parser.add_argument("--name-servers", type=int, help="with --seed: as many name servers")
    parser.add_argument("--lives", type=int, help="with --seed: so much shorter lives of locks")
    parser.add_argument("--settings", help="with --seed: name=value, joined by commas")
    parser.add_argument("--steps", type=int, help="with --seed: as many messages of each kind")
    parser.add_argument("--workloads", help="with --seed: kinds of message, joined by commas")
    parser.add_argument("--faults", help="with --seed: kind@milliseconds, joined by commas")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    parser.add_argument("--hooks", action="store_true", help="print how often each step was hit")
    parser.add_argument(
        "--pages", type=Path, help="write the time line of each failure as a page into this folder"
    )
    parser.add_argument("--no-shrink", action="store_true", help="leave failing plans as they are")
    parser.add_argument("--verbose", action="store_true", help="show what servers and clients log")
    return parser


def plan_from(arguments: list[str]) -> Plan:
    """Parse the options of a printed command into a plan.

    Raises:
        ConfigError: a kind of message or fault is unknown; the text lists the valid ones.
    """
    return _plan(_parser().parse_args(arguments))


def _plan(options: argparse.Namespace) -> Plan:
    """Draw the plan of --seed and apply the other options."""
    plan = plan_of(options.seed)
    if options.workloads is not None:
        names = tuple(filter(None, options.workloads.split(",")))
        _check_names(names, WORKLOADS, "kind of message")
        # Recorded plans from before these options have one name server, and what is usual.
        plan = replace(plan, workloads=names, name_servers=1, lives=1, settings=())
    if options.settings is not None:
        settings = tuple(filter(None, options.settings.split(",")))
        check_settings(settings)
        plan = replace(plan, settings=settings)
    if options.faults is not None:
        faults = tuple(FaultAt.parse(text) for text in filter(None, options.faults.split(",")))
        _check_names(tuple(fault.kind for fault in faults), FAULTS, "kind of fault")
        plan = replace(plan, faults=faults)
    return replace(
        plan,
        flush=options.flush or plan.flush,
        brokers=options.brokers or plan.brokers,
        name_servers=options.name_servers or plan.name_servers,
        lives=options.lives or plan.lives,
        steps=options.steps or plan.steps,
    )


def _check_names(names: tuple[str, ...], valid: Iterable[str], noun: str) -> None:
    wrong = sorted(set(names) - set(valid))
    if wrong or (not names and noun == "kind of message"):
        raise ConfigError(f"unknown {noun} {', '.join(wrong)!r}: use {', '.join(valid)}")


def _range(text: str) -> range:
    first, dots, end = text.partition("..")
    if not dots or not first.isdigit() or not end.isdigit():
        raise ConfigError(f"--seeds takes from..to, for example 0..200, not {text!r}")
    return range(int(first), int(end))


def _seeds(options: argparse.Namespace) -> Iterable[int]:
    """The seeds of the range, or new ones from a random one on where only minutes are given."""
    if options.seeds is not None:
        return _range(options.seeds)
    if options.minutes is None and options.begin is None:
        return range(50)
    begin = 1_000 * secrets.randbelow(1 << 30) if options.begin is None else options.begin
    print(f"seeds from {begin} on", flush=True)
    return itertools.count(begin)


def _explain(report: Report, failure: str, options: argparse.Namespace) -> None:
    """Print a failure with its shortest plan, its time line, and the command that replays it."""
    print(f"seed {report.plan.seed} FAILED: {failure}", flush=True)
    if not options.no_shrink:
        print(f"  drawn: {report.plan.command()}", flush=True)
        report = shrink(report, failure)
        print("  the shortest plan that breaks the same promise:")
    print("\n".join(timeline.text(report)))
    if options.pages is not None:
        print(f"  page: {write_page(report, options.pages)}")
    print(f"  replay: {report.plan.command()}", flush=True)


def _run_seed(options: argparse.Namespace) -> int:
    report = run_plan(_plan(options))
    if options.trace:
        print("\n".join(report.trace))
    totals = Totals()
    totals.add(report)
    print("\n".join(totals.lines(all_hooks=options.hooks)))
    print(f"trace {report.digest}")
    if report.failure is None:
        return 0
    _explain(report, report.failure, options)
    return 1


def _run_seeds(options: argparse.Namespace) -> int:
    totals = Totals()
    started = time.monotonic()
    for seed in _seeds(options):
        if options.minutes is not None and time.monotonic() - started > options.minutes * 60:
            break
        report = run_plan(plan_of(seed))
        totals.add(report)
        if report.failure is not None:
            _explain(report, report.failure, options)
    print("\n".join(totals.lines(all_hooks=options.hooks)))
    return 1 if totals.failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    logger = logging.getLogger("cometmq")
    is_shown = logger.propagate
    logger.propagate = options.verbose
    # Each run ends with a collection, which need not look at what was imported.
    gc.freeze()
    try:
        return _run_seeds(options) if options.seed is None else _run_seed(options)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        gc.unfreeze()
        logger.propagate = is_shown


if __name__ == "__main__":
    sys.exit(main())
