"""The main job, small: the same run as `cometmq demo`, with fewer flights."""

import json
import re
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from cometmq.cli.demo.archive import Archived
from cometmq.cli.demo.archive import _not_done as not_done
from cometmq.cli.demo.flights import Tally
from cometmq.cli.demo.run import DemoPlan, DemoReport, GroupReport, SendReport, percentile
from cometmq.testing.cluster import threaded_cluster

FLIGHTS = 3000


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`cometmq demo ARGUMENTS` without a cluster in the environment and without Spark."""
    return subprocess.run(
        [sys.executable, "-m", "cometmq", "demo", "--no-archive", *arguments],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        env={"PATH": "/usr/bin:/bin", "NAMESRV_ADDR": ""},
    )


@pytest.mark.processes
def test_demo_counts_and_compares() -> None:
    """Own cluster in a process of its own; every count and checksum equals the source."""
    result = run_demo("--limit", str(FLIGHTS), "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["ok"]
    assert report["faults"] == []
    assert report["checksum"]["source"] == report["checksum"]["group"]
    assert report["checksum"]["source_filtered"] == report["checksum"]["filtered"]
    steps = {step["step"]: step["messages"] for step in report["steps"]}
    assert steps["sent"] == FLIGHTS
    assert steps["instance A"] + steps["instance B"] == FLIGHTS
    assert min(steps["instance A"], steps["instance B"]) > 0
    carriers = {row["carrier"]: row for row in report["carriers"]}
    assert sum(row["group"] for row in carriers.values()) == FLIGHTS
    assert carriers["UA"]["filtered"] == carriers["UA"]["source"] > 0
    assert carriers["B6"]["filtered"] == 0
    assert all(row["equal"] for row in carriers.values())


@pytest.mark.processes
def test_demo_uses_a_running_cluster_and_cleans_up() -> None:
    """With -n the demo uses a running cluster and deletes its topic at the end."""
    with threaded_cluster({}) as cluster:
        name_server = cluster.name_server_address
        result = run_demo("-n", name_server, "--limit", "500", "--carriers", "AA, US")
        assert result.returncode == 0, result.stdout + result.stderr
        assert "every count and checksum equals the source" in result.stdout
        assert re.search(r"^AA \|\| US +\d+", result.stdout, re.MULTILINE)
        listed = subprocess.run(
            [sys.executable, "-m", "cometmq", "topic", "list", "--json", "-n", name_server],
            capture_output=True,
            text=True,
            timeout=40,
            check=True,
        )
        assert json.loads(listed.stdout) == []


def test_a_missing_java_is_a_visible_skip() -> None:
    """A missing Java is reported with the remedy and is no fault; a failed step is a fault."""
    lacks = "cometmq: Spark needs Java 17 or later (none): pip install 'cometmq[jdk]' brings one"
    skipped = not_done(2, f"some noise\n{lacks}\n")
    assert skipped.faults(3) == []
    assert skipped.line() == f"archive SKIPPED: {lacks.removeprefix('cometmq: ')}"
    broken = not_done(3, "cometmq: nobody answered\n")
    assert broken.faults(3) == ["the archive: nobody answered"]
    assert Archived(rows=2).faults(3) == ["the archive holds 2 messages of 3"]
    assert Archived(rows=3).faults(3) == []


@pytest.mark.processes
def test_a_skipped_archive_ends_the_demo_well(tmp_path: Path) -> None:
    """A folder in use is not touched, the step says so, and the counts still stand."""
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "mine.txt").write_text("mine")
    result = subprocess.run(
        [sys.executable, "-m", "cometmq", "demo", "--limit", "300", "--archive-to", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        env={"PATH": str(tmp_path), "NAMESRV_ADDR": "", "JAVA_HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every count and checksum equals the source" in result.stdout
    assert "archive SKIPPED: " in result.stdout
    assert (tmp_path / "archive" / "mine.txt").read_text() == "mine"


def report_of(seen: list[bytes], filtered: list[bytes]) -> DemoReport:
    """A report in which bodies a, b, c were sent and b is wanted by the filtered group."""
    plan = DemoPlan("127.0.0.1:9876", "1", ("UA",))
    sent, half, other, some = SendReport(), GroupReport("A"), GroupReport("B"), GroupReport("some")
    expected = Tally()
    for body in (b"a", b"b", b"c"):
        sent.tally.add("UA" if body == b"b" else "AA", body)
    expected.add("UA", b"b")
    for number, body in enumerate(seen):
        (half, other)[number % 2].tally.add("UA" if body == b"b" else "AA", body)
    for body in filtered:
        some.tally.add("UA", body)
    return DemoReport(plan, sent, [half, other], some, expected)


def test_equal_sets_have_no_fault() -> None:
    """The order of arrival and the sharing do not matter."""
    assert report_of([b"c", b"a", b"b"], [b"b"]).faults() == []


@pytest.mark.parametrize(
    ("seen", "filtered", "words"),
    [
        ([b"a", b"b"], [b"b"], "saw 2 messages, expected 3"),
        ([b"a", b"b", b"c", b"c"], [b"b"], "saw 4 messages, expected 3"),
        ([b"a", b"b", b"x"], [b"b"], "checksum"),
        ([b"a", b"c", b"a"], [b"b"], "counts per carrier differ"),
        ([b"a", b"b", b"c"], [], "flights_demo_some_1 saw 0 messages, expected 1"),
    ],
)
def test_every_difference_is_told(seen: list[bytes], filtered: list[bytes], words: str) -> None:
    """Lost, doubled, changed or misfiled: each is a sentence and exit code 1."""
    assert any(words in fault for fault in report_of(seen, filtered).faults())


def test_percentile() -> None:
    """Percentiles of usual values and of an empty list."""
    values = array("d", range(100))
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 99
    assert percentile([], 0.5) == 0


def test_wrong_carriers_are_refused() -> None:
    """An empty list of carriers is a usage error."""
    assert run_demo("--carriers", " , ").returncode == 2
