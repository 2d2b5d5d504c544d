"""A comparison computes and reports the given figures correctly, in all three reports."""

import json
import re
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from bench.base.frames import FrameRing, Targets
from bench.base.loads import Round
from bench.base.measure import Conditions
from bench.base.processes import Server
from bench.java import java_peer
from bench.java.against import (
    FACT_ROWS,
    LOAD_ROWS,
    ROW_NAMES,
    Comparison,
    Estimate,
    Goal,
    RowSpec,
    chosen_rows,
)
from bench.java.against_report import as_json, as_page, as_text, bars, spread_text
from bench.java.against_run import Plan, compare, short
from bench.java.java_load import JavaBodies, check_received
from bench.java.java_peer import PeerMissing, broker_conf, fetch_jars, load_program
from bench.main import run
from bench.suites.family import joined
from bench.suites.suite import Settings
from bench.worker.verify import VerifyFailed

from cometmq.errors import ConfigError

CONDITIONS = Conditions((("machine", "a <test> machine"),))


def one_round(rate: float, **more: Any) -> Round:
    """Make a round of one second with a given rate."""
    return Round(rate=rate, messages_rate=rate, seconds=1.0, read_back=int(rate), **more)


def row(name: str = "send 4x64") -> RowSpec:
    """Return the row with this name."""
    return next(row for row in (*LOAD_ROWS, *FACT_ROWS) if row.name == name)


def compared(name: str = "send 4x64") -> Comparison:
    """Make three pairs of rounds: 200 and 100 a second, p99 20 and 100 us, CPU 1:4."""
    result = Comparison(row(name))
    for ours, theirs in ((190.0, 100.0), (200.0, 80.0), (260.0, 104.0)):
        result.our_rounds.append(
            one_round(ours, p99_us=20.0, server_cpu_s=ours / 1e5, server_resident_kb=50 * 1024)
        )
        result.their_rounds.append(one_round(theirs, p99_us=100.0, server_cpu_s=4 * theirs / 1e5))
    return result


def test_a_ratio_is_the_median_over_pairs_of_neighbours() -> None:
    """Ratio and parts are medians over pairs, so a slow pair of rounds changes nothing."""
    result = compared()
    assert result.pair_ratios == [1.9, 2.5, 2.5]
    assert result.ratio == Estimate(2.5, None, 3)
    assert result.cpu_us_each() == (10.0, 40.0)
    slow_ours, slow_theirs = one_round(2.0, p99_us=900.0), one_round(1.0, p99_us=4500.0)
    result.our_rounds.append(slow_ours)
    result.their_rounds.append(slow_theirs)
    assert result.ratio == Estimate(2.25, None, 4)
    assert result.p99_share() == Estimate(0.2, None, 4)
    assert result.cpu_share() == Estimate(0.25, None, 3)


def test_enough_pairs_give_an_interval() -> None:
    """With 20 pairs the interval reaches from the 6th to the 15th ratio."""
    result = Comparison(row("send 1x64"))
    for number in range(20):
        result.our_rounds.append(one_round(100.0 + number))
        result.their_rounds.append(one_round(100.0))
    assert result.ratio is not None
    assert result.ratio.interval == (1.05, 1.14)
    text = as_text(CONDITIONS, [result])
    assert "1.10 (1.05-1.14) >= 4 times better: MISSED" in text
    assert "fewer than 20 pairs" not in text
    result.our_rounds.pop()
    assert "fewer than 20 pairs, no result to cite (--rounds): send 1x64" in as_text(
        CONDITIONS, [result]
    )


def test_each_thing_asked_is_judged_by_itself() -> None:
    """Rate, p99 and CPU targets are judged one by one, also just above a limit."""
    result = compared()
    assert [(check.value, check.bound, check.is_met) for check in result.checks()] == [
        (2.5, 5.0, False),
        (0.2, 1 / 6, False),
        (0.25, 0.12, False),
    ]
    result.spec = msgspec.structs.replace(result.spec, goal=Goal(ratio=2.5, cpu_share=0.25))
    assert [check.is_met for check in result.checks()] == [True, True]
    result.spec = msgspec.structs.replace(result.spec, goal=Goal(ratio=2.51, cpu_share=0.2499))
    assert [check.is_met for check in result.checks()] == [False, False]


def test_less_is_better_for_seconds_and_megabytes() -> None:
    """For seconds and megabytes less is better, and an absolute bound concerns only us."""
    start = Comparison(row("start-up"), our_values=[0.3, 0.5, 0.4], their_values=[4.0, 5.0, 3.0])
    assert start.ratio == Estimate(10.0, None, 3)
    assert [check.is_met for check in start.checks()] == [True]
    restart = Comparison(row("restart"), our_values=[1.2], their_values=[4.7])
    (check,) = restart.checks()
    assert (check.value, check.bound, check.is_met) == (1.2, 1.0, False)


def test_a_row_without_both_sides_is_not_judged() -> None:
    """A row that failed or has one side is not judged."""
    half = compared()
    half.their_rounds = []
    failed = compared()
    failed.error = "3 messages are missing"
    for result in (half, failed):
        assert not result.has_figures
        assert result.checks() == []


def test_the_text_says_met_missed_and_failed() -> None:
    """The text has rate and processor time side by side, and a line for each target and failure."""
    failed = [Comparison(row(name), error="other bytes") for name in ("pull32 x1", "pull32 x16")]
    text = as_text(CONDITIONS, [compared(), *failed])
    line = r"send 4x64 +200 +100 +sends/s +2\.50x +- +>= 5x +10 +40 +25\.0% +- +3 +MISSED"
    assert re.search(line, text)
    assert "0 of 3 targets met" in text
    assert "0.20 (-) <= 0.167 of the p99 of Java: MISSED" in text
    assert "0.25 (-) <= 0.12 of the processor time of Java: MISSED" in text
    assert "FAILED  pull32 x1, pull32 x16: other bytes" in text


def test_the_json_holds_every_figure() -> None:
    """The report is JSON and holds medians, all rounds and verdicts."""
    document = json.loads(json.dumps(as_json(CONDITIONS, [compared()])))
    (found,) = document["rows"]
    assert found["ratio"] == {"value": 2.5, "interval": None, "pairs": 3}
    assert found["ours"]["values"] == [190.0, 200.0, 260.0]
    assert found["java"]["cpu_us_each"] == 40.0
    assert len(found["java"]["rounds"]) == 3
    assert [check["met"] for check in found["checks"]] == [False, False, False]


def test_the_page_needs_nothing_beside_itself() -> None:
    """The page loads nothing, escapes its text, and draws bars as long as the medians."""
    note = Comparison(row("start-up"), our_values=[0.4], their_values=[4.0], note="<b>ours</b>")
    page = as_page(CONDITIONS, [compared(), note, Comparison(row("restart"), error="<oh>")])
    assert not re.search(r"https?://|src=|href=|@import|url\(", page)
    assert "a &lt;test&gt; machine" in page
    assert "&lt;b&gt;ours&lt;/b&gt;" in page
    assert "restart failed: &lt;oh&gt;" in page
    assert page.count("<svg") == 2
    drawing = ElementTree.fromstring(bars(compared()))
    ours, theirs = (float(rect.attrib["width"]) for rect in drawing.iter("rect"))
    assert ours == pytest.approx(2 * theirs, rel=0.01)
    assert len(list(drawing.iter("line"))) == 2


def test_rows_are_chosen_by_name_group_or_part() -> None:
    """A whole name or group selects exactly that; part of a name selects all that contain it."""
    assert len(chosen_rows(("all",))) == len(ROW_NAMES) == len(set(ROW_NAMES))
    assert [row.name for row in chosen_rows(("send 1x1",))] == ["send 1x1"]
    assert {row.group for row in chosen_rows(("pulls",))} == {"pulls"}
    assert [row.name for row in chosen_rows(("java sync 1 ", "java sync 6"))] == [
        "java sync 1 binary",
        "java sync 64",
        "java sync 64 binary",
    ]
    assert chosen_rows(("nothing",)) == []
    with pytest.raises(ConfigError, match="java backlog"):
        run(["--against", "java", "--only", "nothing"])


def test_without_a_choice_the_rows_with_a_goal_run_in_every_form() -> None:
    """Each raw row with a goal runs in three forms of headers, Java's client in two."""
    names = [row.name for row in chosen_rows(())]
    raw = ["send 1x1", "send 1x64", "send 4x64", "send 1KiB 4x16", "pull32 x1", "pull32 x16"]
    client = ["java sync 1", "java sync 16", "java sync 64", "java batch100 4"]
    wanted = [
        name + form for form in ("", " go", " binary") for name in [*raw, "10,000 queues : 8"]
    ]
    wanted += [name + form for form in ("", " binary") for name in client]
    assert sorted(names) == sorted(wanted)
    forms = {row.name: row.load.form for row in chosen_rows(()) if row.load is not None}
    assert forms["send 1x1"] == "java"
    assert forms["pull32 x16 go"] == "go"
    assert forms["10,000 queues : 8 binary"] == "binary"


@pytest.mark.parametrize(
    "arguments", [["--html", "x"], ["--against", "java", "--broker", "127.0.0.1:1"]]
)
def test_options_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    """Options that contradict each other are refused before any process starts."""
    with pytest.raises(ConfigError):
        run(arguments)


def test_list_names_every_row_and_target(capsys: pytest.CaptureFixture[str]) -> None:
    """The list has one line for each row."""
    assert run(["--against", "java", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ROW_NAMES)
    assert any("send 4x64" in line and "p99 at most 17%" in line for line in lines)


def test_without_java_nothing_runs_and_the_error_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Java the comparison is refused before it starts anything."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    arguments = ["--against", "java", "--quick", "--store", str(tmp_path), "--only", "pulls"]
    with pytest.raises(PeerMissing, match=r"java is not installed.*install a JDK 17"):
        run(arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_flat_cost_needs_no_java_and_reads_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both loads of the row run on brokers of ours, and every message is read back."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    spec = row("10,000 queues : 8 binary")
    assert spec.load is not None
    few = msgspec.structs.replace(spec, load=msgspec.structs.replace(spec.load, topics=20))
    plan = replace(short(Plan(Settings(tmp_path))), warm_up_s=0.0)
    plan = replace(plan, settings=replace(plan.settings, seconds=0.1))
    (found,) = compare(plan, [few], lambda text: None)
    assert found.error == ""
    assert found.spec.other == "8 queues"
    for one in (*found.our_rounds, *found.their_rounds):
        assert one.acknowledged == one.read_back > 0
    assert len(found.pair_ratios) == 1


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names Maven or the compiler when one of them is missing."""
    monkeypatch.setenv("COMETMQ_INTEROP_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: "java" if name == "java" else None)
    with pytest.raises(PeerMissing, match=r"mvn is not installed.*install Maven"):
        fetch_jars("rocketmq-broker")
    folder = tmp_path / "rocketmq-client-5.4.0"
    folder.mkdir()
    (folder / "complete").touch()
    assert fetch_jars("rocketmq-client") == folder
    with pytest.raises(PeerMissing, match=r"javac is not installed.*install a JDK"):
        load_program(tmp_path)


def test_the_package_brings_what_the_java_side_needs() -> None:
    """The Java load program and its project file lie inside the package."""
    assert (java_peer.HERE / "Load.java").is_file()
    assert "${artifact}" in (java_peer.HERE / "pom.xml").read_text()


def test_settings_of_the_java_broker_win_over_ours(tmp_path: Path) -> None:
    """Settings for the Java broker replace ours, such as the synchronous flush."""
    conf = broker_conf(tmp_path, 4711, "127.0.0.1:1", {"flushDiskType": "SYNC_FLUSH"})
    assert conf["listenPort"] == "4711"
    assert conf["flushDiskType"] == "SYNC_FLUSH"


def test_bodies_of_the_java_program_are_known_without_a_ring() -> None:
    """The Java program's bodies, twelve digits and a pattern, can be computed."""
    bodies = JavaBodies(Targets("T"), 40)
    body = b"000000001234" + b"0123456789" * 2 + b"01234567"
    assert len(body) == 40
    assert bodies.body_crc(1234) == zlib.crc32(body) & 0x7FFFFFFF


def test_a_consumer_that_misses_doubles_or_changes_a_message_is_found_out() -> None:
    """A consumer that misses, repeats or changes one of three messages is reported."""
    ring = FrameRing(Targets("T", 1, 4), body_bytes=64, batch_count=0, seed=3)
    ids = [0, 1000, 2000]
    good = np.array([(number, ring.body_crc(number)) for number in ids], np.int64)
    check_received(good, ring, 3)
    for bad in (good[:2], np.concatenate([good[:2], good[:1]]), np.concatenate([good, good[:1]])):
        with pytest.raises(VerifyFailed, match="got"):
            check_received(bad, ring, 3)
    good[1, 1] ^= 1
    with pytest.raises(VerifyFailed, match="message 1000 with another body"):
        check_received(good, ring, 3)


def test_rounds_that_ran_at_once_are_joined() -> None:
    """Rounds that ran at once are joined: rates add up, the worst latency counts."""
    both = joined([one_round(10, p99_us=5.0), one_round(20, p99_us=7.0, acknowledged=3)])
    assert (both.rate, both.p99_us, both.acknowledged, both.read_back) == (30, 7.0, 3, 30)
    assert both.p50_us is None


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_side_that_is_not_measured_stands_still(tmp_path: Path) -> None:
    """The side that is not measured is stopped, continues later, and can be ended."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    server = Server("", "", process, tmp_path / "log", 0.0)
    try:
        server.pause()
        deadline = time.monotonic() + 30
        state = ""
        while state != "T" and time.monotonic() < deadline:
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]
        assert state == "T"
        server.stop()
        assert process.returncode == -signal.SIGTERM
    finally:
        server.kill()


def test_spreads_are_shown_from_two_figures_on() -> None:
    """A spread needs at least two figures."""
    assert spread_text([1.0]) == ""
    assert spread_text([3.0, 1234.0, 2.0]) == "2-1,234"
