"""The report shows what was measured and what limited it, and no figure for void rows."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.base.loads import Load, Round
from bench.base.measure import (
    Conditions,
    Latency,
    cores,
    interval_of_median,
    machine_conditions,
    median_of,
    on_core,
    read_machine,
    read_process,
    shares_of_others,
)
from bench.suites.report import Fact, Row, as_json, as_text, sync_flush_fact

CONDITIONS = Conditions((("python", "3"), ("cores", "two")))


def one_round(rate: float, **figures: float) -> Round:
    """Make a round of one second."""
    return Round(
        rate=rate, messages_rate=rate, seconds=1.0, **figures,  # type: ignore[arg-type]
    )  # fmt: skip


def test_figures_are_medians_and_shares_of_echo() -> None:
    """Figures are medians, which one odd round does not move; a share divides medians."""
    load = Load(name="row", kind="send", target=100.0)
    row = Row(load, [one_round(r) for r in (90, 120, 5000)], [one_round(r) for r in (240, 240, 1)])
    assert row.median("rate") == 120
    assert row.share_of_echo == 0.5
    assert row.reached == pytest.approx(1.2)
    text = as_text(CONDITIONS, [row], [])
    assert "50%" in text
    assert "met 1.20" in text


def test_a_rate_missed_on_a_slower_machine_is_judged_by_its_share_too() -> None:
    """A target of 40 beside an echo of 100 asks for 40 % of the echo on any machine."""
    load = Load(name="row", kind="send", target=40.0, echo_then=100.0)
    slower = Row(load, [one_round(24)], [one_round(50)])
    assert slower.reached == pytest.approx(0.6)
    assert slower.reached_by_share == pytest.approx(1.2)
    assert "40 (40%)  MISSED 0.60, by share met 1.20" in as_text(CONDITIONS, [slower], [])
    worse = Row(load, [one_round(15)], [one_round(50)])
    assert "by share MISSED 0.75" in as_text(CONDITIONS, [worse], [])
    assert Row(Load(name="row", kind="send", target=40.0), [one_round(24)]).share_asked is None


def test_generator_bound_and_disturbed_rows_are_marked() -> None:
    """A letter and its meaning mark rows over 90 % of the generator's core, over 2 % stolen

    time, or over 5 % used by other processes."""
    row = Row(Load(name="row", kind="send"), [one_round(1, generator_cpu_s=0.95)])
    row.stolen_share = 0.05
    row.others_share = 0.06
    assert row.marks == "GSB"
    text = as_text(CONDITIONS, [row], [])
    assert "generator's core" in text
    assert "other guests" in text
    assert "B: other processes here took over 5 %" in text
    assert " 6%" in text
    assert as_json(CONDITIONS, [row], [])["rows"][0]["others_share"] == 0.06
    calm = Row(Load(name="row", kind="send"), [one_round(1, generator_cpu_s=0.5)])
    calm.others_share = 0.05
    assert calm.marks == ""
    assert "B:" not in as_text(CONDITIONS, [calm], [])


def machine(folder: Path, totals: str, processes: dict[int, tuple[int, int]]) -> Path:
    """Write the parts of /proc that are read: totals, and each process's parent and ticks."""
    (folder / "stat").write_text(f"cpu  {totals} 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    for pid, (parent, ticks) in processes.items():
        (folder / str(pid)).mkdir(exist_ok=True)
        rest = f"S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0"
        (folder / str(pid) / "stat").write_text(f"{pid} (a (b) c) {rest}")
    (folder / "99").mkdir(exist_ok=True)  # a process that ends while it is read
    return folder


def test_who_used_the_machine(tmp_path: Path) -> None:
    """Named processes and kernel threads count as ours; all others count as foreign."""
    hertz = os.sysconf("SC_CLK_TCK")
    begun = {7: (1, 0), 8: (2, 0), 9: (1, 0)}
    before = read_machine([7], machine(tmp_path, "100 0 0 0 0 0 0 0", begun))
    assert before is not None
    # 3 s of user time, 1 s each by process 7, kernel thread 8 and somebody's 9; 2 s stolen.
    ended = {7: (1, hertz), 8: (2, hertz), 9: (1, hertz)}
    totals = f"{100 + 3 * hertz} 0 0 0 0 50 60 {2 * hertz}"
    after = read_machine([7], machine(tmp_path, totals, ended))
    assert after is not None
    # What this test itself has used is in `ours_s` too.
    own_s = after.ours_s - before.ours_s - 2.0
    assert -1e-6 < own_s < 1.0  # sums of seconds round
    after = replace(after, clock_s=before.clock_s + 10.0, ours_s=after.ours_s - own_s)
    whole_s = 10.0 * (os.cpu_count() or 1)
    stolen, others = shares_of_others(before, after)
    assert stolen == pytest.approx(2.0 / whole_s)
    assert others == pytest.approx(1.0 / whole_s)


def test_a_machine_that_tells_nothing_marks_nothing(tmp_path: Path) -> None:
    """Without a readable /proc there is no reading and no share."""
    assert read_machine(proc=tmp_path) is None
    (tmp_path / "stat").write_text("intr 1 2 3\n")
    assert read_machine(proc=tmp_path) is None
    assert shares_of_others(None, None) == (0.0, 0.0)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="no /proc")
def test_a_busy_neighbour_is_seen() -> None:
    """A foreign process counts until it has ended as our child; our own does not count."""
    burn = "import time\nwhile time.process_time() < {}: pass\nprint(1, flush=True)\ninput()"
    begin = read_machine()
    with subprocess.Popen(
        [sys.executable, "-c", burn.format(0.6)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        as_other, as_ours = read_machine(), read_machine([process.pid])
        process.communicate(b"\n")
    assert begin is not None
    assert as_other is not None
    assert as_ours is not None
    assert as_other.used_s - begin.used_s >= 0.5
    assert as_ours.ours_s - as_other.ours_s >= 0.5
    ended = read_machine()
    assert ended is not None
    assert ended.ours_s - as_other.ours_s >= 0.5


def test_a_failed_row_has_no_figures() -> None:
    """A failed row prints only the reason."""
    row = Row(Load(name="bad row", kind="send"), [one_round(777)], error="3 messages missing")
    text = as_text(CONDITIONS, [row], [])
    assert "777" not in text
    assert "FAILED  bad row: 3 messages missing" in text


def test_latency_target_is_a_multiple_of_echo() -> None:
    """A row with `echo_target` is judged by its median latency."""
    load = Load(name="row", kind="send", echo_target=1.25)
    row = Row(load, [one_round(1, p50_us=75.0)], [one_round(1, p50_us=50.0)])
    assert row.latency_to_echo == 1.5
    assert "MISSED" in as_text(CONDITIONS, [row], [])


@pytest.mark.parametrize(
    ("fdatasync_us", "floor"), [(None, 50_000), (100.0, 50_000), (10_000.0, 0.8 * 25_600)]
)
def test_synchronous_flush_is_judged_by_the_disk(fdatasync_us: float | None, floor: float) -> None:
    """The target is half of the asynchronous rate, or what the disk allows if that is less."""
    rows = [
        Row(Load(name=name, kind="send"), [one_round(rate)])
        for name, rate in (("send 4x64", 100_000), ("send sync 4x64", 30_000))
    ]
    (fact,) = sync_flush_fact(Conditions((), fdatasync_us), rows)
    assert fact.floor == pytest.approx(floor)
    assert fact.holds is (floor <= 30_000)
    word = "met" if fact.holds else "MISSED"
    assert word in as_text(CONDITIONS, rows, [fact])
    assert sync_flush_fact(CONDITIONS, rows[:1]) == []


def test_json_carries_all_rounds_and_serialises() -> None:
    """The JSON holds conditions, medians, rounds and facts."""
    row = Row(Load(name="row", kind="send"), [one_round(1), one_round(3)])
    document = as_json(CONDITIONS, [row], [Fact("ready", 0.3, "s", 0.4)])
    again = json.loads(json.dumps(document))
    assert again["conditions"] == {"python": "3", "cores": "two"}
    assert [r["rate"] for r in again["rows"][0]["rounds"]] == [1, 3]
    assert again["rows"][0]["median"]["rate"] == 2
    assert again["facts"][0]["holds"] is True


def test_percentiles_are_ordered_and_in_microseconds() -> None:
    """Percentiles are ordered, and nanoseconds become microseconds."""
    import numpy as np

    latency = Latency.of(np.arange(1, 100_001, dtype=np.int64) * 1000)
    assert latency is not None
    assert latency.p50_us == pytest.approx(50_000, rel=0.01)
    assert latency.p50_us < latency.p99_us < latency.p999_us <= latency.max_us == 100_000
    assert Latency.of(np.empty(0, np.int64)) is None


def test_conditions_name_what_a_reader_needs(tmp_path: Path) -> None:
    """The conditions name machine, Python, cores and the disk's fdatasync time."""
    rows = machine_conditions(tmp_path, None, None).as_dict()
    assert {"machine", "python", "libraries", "cores", "store folder"} <= rows.keys()
    assert any(name.startswith("fdatasync") for name in rows)
    assert list(tmp_path.iterdir()) == []


def test_readings_of_a_process_that_has_gone_are_none() -> None:
    """A process without a /proc entry has no reading; our own has one."""
    import os

    assert read_process(2**22 + 1) is None
    if Path("/proc/self/stat").exists():
        reading = read_process(os.getpid())
        assert reading is not None
        assert reading.resident_kb > reading.anonymous_kb > 0


def test_pinning_is_undone() -> None:
    """Children are pinned, and this process is free again afterwards."""
    before = cores()
    with on_core(before[0] if before else None):
        assert len(cores()) == (1 if before else 0)
    assert cores() == before


def test_median_ignores_what_is_missing() -> None:
    """Rounds without a figure do not count as zero."""
    assert median_of([None, 2, 4]) == 3
    assert median_of([None]) is None


def test_the_interval_of_a_median_is_that_of_a_coin() -> None:
    """The ranks are those of the sign test: 1 of 6, 2 of 9, 6 of 20; five values are too few."""
    assert interval_of_median([5.0, 1.0, 4.0, 2.0, 3.0]) is None
    assert interval_of_median([]) is None
    assert interval_of_median([5.0, 1.0, 4.0, 2.0, 6.0, 3.0]) == (1.0, 6.0)
    assert interval_of_median(range(1, 10)) == (2, 8)
    assert interval_of_median(range(1, 21)) == (6, 15)
    assert interval_of_median(range(1, 21), confidence=0.999) == (3, 18)


def test_the_interval_misses_the_median_as_seldom_as_it_says() -> None:
    """Of 2,000 samples of a skewed distribution with median 1, less than 5 % + 2 % miss it."""
    chance = random.Random(7)
    missed = 0
    for _ in range(2_000):
        low, high = interval_of_median([2 ** chance.gauss(0, 2) for _ in range(20)]) or (0, 0)
        missed += not low <= 1 <= high
    assert 0 < missed < 2_000 * 0.07
