"""`cometmq bench --against java`, as short as it goes: a row of each use of the Java client."""

import json
from pathlib import Path

import pytest
from bench.java import against_run
from bench.main import run
from interop.peers import cache_folder

ROWS = ("java sync 1", "java backlog")


@pytest.mark.full
def test_both_brokers_are_loaded_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producer and consumer rows run; a backlog is filled, and everything is read back."""
    monkeypatch.setenv("COMETMQ_INTEROP_CACHE", str(cache_folder()))
    monkeypatch.setattr(against_run, "WARM_UP_ROUND_S", 0.2)
    report, page = tmp_path / "report.json", tmp_path / "page.html"
    arguments = ["--against", "java", "--quick", "--seconds", "1", "--warm-up", "0.4"]
    arguments += ["--java-heap", "512m", "--no-pin", "--store", str(tmp_path / "stores")]
    arguments += [word for row in ROWS for word in ("--only", row)]
    code = run([*arguments, "--json", str(report), "--html", str(page)])
    document = json.loads(report.read_text())
    skipped = {row["skipped"] for row in document["rows"]} - {None}
    if skipped:
        pytest.skip("; ".join(skipped))
    assert [row["error"] for row in document["rows"]] == [None] * len(ROWS)
    assert code == 0
    assert [row["name"] for row in document["rows"]] == list(ROWS)
    for row in document["rows"]:
        for side in ("ours", "java"):
            rounds = row[side]["rounds"]
            assert len(rounds) == len(row[side]["values"]) == 1
            assert all(one["acknowledged"] == one["read_back"] > 0 for one in rounds)
    assert page.read_text().count("<svg") == len(ROWS)
    assert list((tmp_path / "stores").iterdir()) == []
