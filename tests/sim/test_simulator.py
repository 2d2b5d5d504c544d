"""The simulator runs whole clusters from seeds, with every message kind, fault and promise.

The tests run some dozens of seeds, and every plan that ever failed.  `make sim` runs more;
a failure prints the command that replays it.
"""

import gc
import logging
import os
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.extensions.bulk_pull import BulkPullProcessor
from cometmq.codec.consume_queue import CQ_UNIT_BYTES
from cometmq.errors import ConfigError
from cometmq.store.queue.unit_journal import UnitJournal
from cometmq.store.read.filtered_reader import FilteredReader
from cometmq.store.read.span import Span
from cometmq.testing.simulate import (
    FAULTS,
    PATTERNS,
    WORKLOADS,
    FaultAt,
    Plan,
    Report,
    plan_of,
    run_plan,
    shrink,
)
from cometmq.testing.simulate.__main__ import main, plan_from
from cometmq.testing.simulate.hooks import SERVICE_STEPS
from cometmq.testing.simulate.plan import LIVES, LOSS_PROOF, POWER_KINDS
from cometmq.testing.simulate.settings import BROKER, SIZES, STORE
from cometmq.testing.simulation import World

# Each of them proves something: see the assertions.
DRAWN = list(range(8000, 8024))
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else DRAWN
GROUP = 6
FAILED_ONCE = [
    line.split("#")[0].strip()
    for line in Path(__file__).with_name("failed_once.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]
REPEATED = (
    "--seed 3 --flush SYNC_FLUSH --brokers 1 --workloads group-ordered,orders,plain,staging"
    ",transactions"
    " --faults slow-disk@1769,full-disk@2512,step-power@2763,broker-kill@3895"
)
LEAVING = (
    "--flush ASYNC_FLUSH --brokers 1 --workloads plain,retries"
    " --faults name-server-away@300,client-kill@1200,client-kill@2400,client-kill@3600"
)
GROUPS = [list(SEEDS[start : start + GROUP]) for start in range(0, len(SEEDS), GROUP)]


@pytest.mark.parametrize("seeds", GROUPS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_every_promise_is_kept(seeds: list[int]) -> None:
    """A seed counts only with faults that hit and messages that were acknowledged."""
    for seed in seeds:
        report = run_plan(plan_of(seed))
        assert report.failure is None, f"{report.failure}\n{report.plan.command()}"
        assert report.counts
        assert report.observations > 100
        assert report.hits.total() > 50
        assert {step for step in report.hits if not step.startswith("disk.")} <= SERVICE_STEPS


@pytest.mark.parametrize("arguments", FAILED_ONCE)
def test_what_failed_once_stays_mended(arguments: str) -> None:
    """Every plan with which the simulator once found a bug keeps all promises."""
    report = run_plan(plan_from(arguments.split()))
    assert report.failure is None, report.failure


def test_a_seed_repeats_itself_in_every_process() -> None:
    """A seed gives the same run in every process, whatever the hash salt."""
    code = (
        "from cometmq.testing.simulate import run_plan\n"
        "from cometmq.testing.simulate.__main__ import plan_from\n"
        f"print(run_plan(plan_from({REPEATED.split()!r})).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for salt in ("1", "2")
    }
    assert digests == {run_plan(plan_from(REPEATED.split())).digest}


def test_a_run_leaves_no_world_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Disks and stores of a run are freed, also when a machine died during sends."""
    worlds: list[weakref.ref[World]] = []
    begin = World.__init__

    def noted(self: World, *arguments: Any) -> None:
        worlds.append(weakref.ref(self))
        begin(self, *arguments)

    monkeypatch.setattr(World, "__init__", noted)
    # What the test runner keeps of the log has tracebacks in it.
    caplog.set_level(logging.CRITICAL + 1, "cometmq")
    for seed in range(3):
        assert run_plan(plan_from([*LEAVING.split(), "--seed", str(seed)])).failure is None
    gc.collect()
    assert [world() for world in worlds] == [None, None, None]


def test_every_kind_is_drawn() -> None:
    """Every fifth seed draws kinds around a broker, those that end with 7 consumption."""
    plans = [plan_of(seed) for seed in range(300)]
    assert {name for plan in plans for name in plan.workloads} == set(WORKLOADS)
    for plan in plans:
        assert set(PATTERNS).isdisjoint(plan.workloads) == (plan.seed % 5 != 4)
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FAULTS)
    lossy = [
        plan
        for plan in plans
        if plan.flush == "ASYNC_FLUSH" and any(fault.kind in POWER_KINDS for fault in plan.faults)
    ]
    assert len(lossy) > 20
    drawn = {setting.partition("=")[0] for plan in plans for setting in plan.settings}
    assert drawn == {*BROKER, *STORE, *SIZES}
    assert {plan.lives for plan in plans} == set(LIVES)
    assert all(LOSS_PROOF.issuperset(plan.workloads) for plan in lossy)


def test_units_go_through_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawn setting lets the unit journal save units, which few queues never need."""
    frames: list[int] = []
    append = UnitJournal.append

    def noted(self: UnitJournal, batch: Any) -> None:
        frames.append(len(batch))
        append(self, batch)

    monkeypatch.setattr(UnitJournal, "append", noted)
    plan = replace(plan_of(8000), workloads=("plain",), settings=("unit_journal_queues_min=0",))
    assert run_plan(plan).failure is None
    assert frames
    frames.clear()
    assert run_plan(replace(plan, settings=())).failure is None
    assert not frames


def test_a_power_cut_may_take_what_is_not_flushed() -> None:
    """With ASYNC_FLUSH it takes acknowledged messages; what is left keeps every promise."""
    lossy = "--seed 27 --flush ASYNC_FLUSH --brokers 1 --workloads plain,delayed --faults "
    report = run_plan(plan_from([*lossy.split(), "slow-power@1500,slow-power@4000"]))
    assert report.failure is None
    losses = [line for line in report.trace if " lost broker-0 " in line]
    assert losses
    assert any(" lost broker-0 0 " not in line for line in losses)


def test_a_backlog_is_fetched_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of the bulk kind is fetched by bulk pulls."""
    spans: list[Span] = []
    answer = BulkPullProcessor._answer

    def noted(self: BulkPullProcessor, job: Any, span: Span) -> Any:
        spans.append(span)
        return answer(self, job, span)

    monkeypatch.setattr(BulkPullProcessor, "_answer", noted)
    report = run_plan(replace(plan_of(8000), workloads=("backlog",), faults=()))
    assert report.failure is None
    assert spans


def test_bitmaps_pass_records_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the bitmap kind, bitmaps exclude records from the filter."""
    counts: list[tuple[int, int]] = []
    look = FilteredReader._may_match

    def noted(
        self: FilteredReader, queue: Any, part: Any, *rest: Any, **named: Any
    ) -> Sequence[int] | None:
        found = look(self, queue, part, *rest, **named)
        counts.append((len(part) // CQ_UNIT_BYTES, -1 if found is None else len(found)))
        return found

    monkeypatch.setattr(FilteredReader, "_may_match", noted)
    report = run_plan(replace(plan_of(8000), workloads=("bitmaps",), faults=()))
    assert report.failure is None
    assert any(0 <= found < units for units, found in counts), counts


def test_a_command_means_its_plan() -> None:
    """The command that is printed for a failure makes exactly that plan again."""
    for seed in range(50):
        plan = plan_of(seed)
        assert plan_from(plan.arguments().split()) == plan


def test_a_failure_shrinks() -> None:
    """A failing plan shrinks to one kind of message, one fault and the fewest steps."""

    def run(plan: Plan) -> Report:
        is_bad = "plain" in plan.workloads and any(fault.kind == "part" for fault in plan.faults)
        return Report(plan, f"seed {plan.seed} broke it" if is_bad and plan.steps > 4 else None)

    faults = tuple(FaultAt(at_ms, kind) for at_ms, kind in enumerate(sorted(FAULTS)))
    plan = replace(plan_of(1), workloads=tuple(WORKLOADS), faults=faults, brokers=2)
    failed = run(plan)
    assert failed.failure is not None
    small = shrink(failed, failed.failure, 200, run).plan
    assert small.workloads == ("plain",)
    assert [fault.kind for fault in small.faults] == ["part"]
    assert (small.brokers, small.steps) == (1, 5)


def test_the_command_prints_totals_and_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints faults, acknowledged messages, and the hits of each named step."""
    assert main(["--seed", "5", "--hooks"]) == 0
    text = capsys.readouterr().out
    assert "1 seeds, 1 count, 0 failed" in text
    assert "disk.sync.commitlog" in text
    assert f"trace {run_plan(plan_of(5)).digest}" in text
    assert main(["--seeds", "5..7"]) == 0
    assert "2 seeds, 2 count, 0 failed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--seed", "1", "--workloads", "plane"], "plain"),
        (["--seed", "1", "--faults", "kill@1"], "broker-kill"),
        (["--seed", "1", "--faults", "part"], "kind@milliseconds"),
        (["--seeds", "1-5"], "from..to"),
        (["--seed", "1", "--settings", "max_index_num=a"], "name=number"),
        (["--seed", "1", "--settings", "max_index=1"], "max_index_num"),
    ],
)
def test_wrong_options_say_what_is_right(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong option is refused with the valid names."""
    assert main(arguments) == 2
    assert word in capsys.readouterr().err


def test_totals_count_by_kind() -> None:
    """A report counts the faults that hit and the acknowledged messages by kind."""
    report = run_plan(replace(plan_of(5), workloads=("plain",), steps=3, faults=()))
    assert report.failure is None
    assert report.faults == Counter()
    assert not report.counts
    assert report.acknowledged["plain"] >= 3
    with pytest.raises(ConfigError):
        plan_from(["--seed", "5", "--workloads", ""])
