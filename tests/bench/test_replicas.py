"""The rows of replicas, in small: sends to masters with slaves, and a slave that catches up."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.suites.replicas import measure_replicas
from bench.suites.suite import Settings

NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@NEEDS_PROC
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_slave_catches_up_with_every_byte(tmp_path: Path) -> None:
    """Each size of record gives bytes and records a second; the slave has the master's end."""
    settings = Settings(folder=tmp_path, rounds=1, fill_messages=2000)
    rows, facts = measure_replicas("catch-up", settings, lambda text: None)
    assert [row.error for row in rows] == []
    assert [fact.unit for fact in facts] == ["MB/s", "1/s"] * 2
    assert all(fact.value > 0 for fact in facts)
    assert list(tmp_path.iterdir()) == []


@NEEDS_PROC
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(180)
def test_sends_are_measured_with_slaves_and_without(tmp_path: Path) -> None:
    """Four rows, whose messages were all read back, and the ratio of those that wait."""
    settings = Settings(folder=tmp_path, rounds=1, seconds=0.2)
    rows, facts = measure_replicas("sends", settings, lambda text: None)
    assert [row.error for row in rows] == [""] * 4
    assert all(one.read_back == one.acknowledged > 0 for row in rows for one in row.rounds)
    assert facts[0].value > 0
    assert list(tmp_path.iterdir()) == []
