"""The demo's last step: its messages archived by Spark, in a process of its own.

Where PySpark or a Java is missing the step is skipped, visibly, with what to type.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["Archived", "archive_demo"]

#: A slow machine's JVM, and 336,776 rows; beyond it something hangs.
TIMEOUT_S: Final = 300
COLUMNS: Final = (
    "carrier string, flight int, origin string, dest string, distance bigint, "
    "dep_delay double, arr_delay double, time_hour string"
)


@dataclass(frozen=True, slots=True)
class Archived:
    """What became of the step."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    folder: str = ""
    report: str = ""
    skipped: str = ""
    """Why it was not tried, and what to do about it."""
    fault: str = ""

    def line(self) -> str:
        """For a person."""
        if self.skipped:
            return f"archive SKIPPED: {self.skipped}"
        if self.fault:
            return f"archive FAILED: {self.fault}"
        return (
            f"archived by Spark: {self.rows:,} rows, {self.files} Parquet files, "
            f"{self.size_bytes / 1_048_576:.1f} MiB, {self.seconds:.1f} s\n"
            f"archive {self.folder}\nreport  {self.report}"
        )

    def faults(self, sent_count: int) -> list[str]:
        """What is wrong: nothing where the step was skipped."""
        if self.fault:
            return [f"the archive: {self.fault}"]
        if not self.skipped and self.rows != sent_count:
            return [f"the archive holds {self.rows} messages of {sent_count}"]
        return []


def archive_demo(name_server: str, topic: str, folder: Path) -> Archived:
    """`cometmq pipeline archive` on the demo's topic; an earlier demo's archive is replaced."""
    target = folder.absolute() / "archive"
    if (target / "_manifest").is_dir():
        shutil.rmtree(target)
    page = folder.absolute() / "report.html"
    command = [sys.executable, "-m", "cometmq", "pipeline", "archive", "-n", name_server]
    command += ["--topic", topic, "--to", str(target), "--json-schema", COLUMNS]
    command += ["--report", str(page), "--json"]
    started = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603 - this very interpreter
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Archived(fault=f"no end after {TIMEOUT_S} s")
    seconds = time.monotonic() - started
    if done.returncode != 0:
        return _not_done(done.returncode, done.stderr)
    told: dict[str, Any] = json.loads(done.stdout)
    return Archived(
        rows=told["rows"],
        files=told["files"],
        size_bytes=told["file_bytes"],
        seconds=seconds,
        folder=str(target),
        report=str(page),
    )


def _not_done(code: int, stderr: str) -> Archived:
    """Exit code 2 says what this machine lacks; any other that something broke."""
    from cometmq.cli.terminal.exit_codes import USAGE

    lines = [line for line in stderr.strip().splitlines() if line.startswith("cometmq: ")]
    last = stderr.strip().rpartition("\n")[2]
    text = lines[-1].removeprefix("cometmq: ") if lines else last or f"exit code {code}"
    return Archived(skipped=text) if code == USAGE else Archived(fault=text)
