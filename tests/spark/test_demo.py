"""The demo's last step on real Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.spark.pipelines.archive.read import archive_files

FLIGHTS = 3_000


@pytest.mark.full
def test_demo_ends_with_an_archive_and_a_report(tmp_path: Path) -> None:
    """Every message is archived, twice in a row, and the page is there."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "cometmq", "demo", "--limit", str(FLIGHTS), "--json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(done.stdout)["archive"]
        assert (told["rows"], told["skipped"], told["fault"]) == (FLIGHTS, "", "")
        assert "class='plot'" in Path(told["report"]).read_text(encoding="utf-8")
        page = Path(json.loads(done.stdout)["page"]).read_text(encoding="utf-8")
        assert page.count("class='plot'") == 7
        assert "Every count and checksum equals the source." in page
        assert len(archive_files(tmp_path / "cometmq-demo" / "archive")) == told["files"]
