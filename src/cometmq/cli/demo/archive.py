"""The demo's last step: Spark archives the messages, in its own process.

Where PySpark or Java is missing, the demo skips this step and says how to install it.
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

#: Enough for 336,776 rows on a slow machine's JVM.
TIMEOUT_S: Final = 300
COLUMNS: Final = (
    "carrier string, flight int, origin string, dest string, distance bigint, "
    "month int, hour int, dep_delay double, arr_delay double, time_hour string"
)


@dataclass(frozen=True, slots=True)
class Archived:
    """The outcome of the step."""

    rows: int = 0
    files: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    folder: str = ""
    report: str = ""
    skipped: str = ""
    """Why the step was skipped, and what to install."""
    fault: str = ""

    @property
    def is_done(self) -> bool:
        """Whether there is an archive."""
        return not self.skipped and not self.fault

    def line(self) -> str:
        """Describe the outcome for the terminal."""
        if self.skipped:
            return f"archive SKIPPED: {self.skipped}"
        if self.fault:
            return f"archive FAILED: {self.fault}"
        return (
            f"archived by Spark: {self.rows:,} rows, {self.files} Parquet files, "
            f"{self.size_bytes / 1_048_576:.1f} MiB, {self.seconds:.1f} s\n"
            f"archive {self.folder}\nreport  {self.report} (about the archive)"
        )

    def faults(self, sent_count: int) -> list[str]:
        """Each failed check in one sentence; none where the step was skipped."""
        if self.fault:
            return [f"the archive: {self.fault}"]
        if not self.skipped and self.rows != sent_count:
            return [f"the archive holds {self.rows} messages of {sent_count}"]
        return []


def archive_demo(name_server: str, topic: str, folder: Path) -> Archived:
    """Run `cometmq pipeline archive` on the demo's topic; replace an earlier demo's archive."""
    target = folder.absolute() / "archive"
    if (target / "_manifest").is_dir():
        shutil.rmtree(target)
    page = folder.absolute() / "archive.html"
    command = [sys.executable, "-m", "cometmq", "pipeline", "archive", "-n", name_server]
    command += ["--topic", topic, "--to", str(target), "--json-schema", COLUMNS]
    command += ["--report", str(page), "--json"]
    started = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Archived(fault=f"no end after {TIMEOUT_S} s")
    seconds = time.monotonic() - started
    if done.returncode != 0:
        return _not_done(done.returncode, done.stderr)
    summary: dict[str, Any] = json.loads(done.stdout)
    return Archived(
        rows=summary["rows"],
        files=summary["files"],
        size_bytes=summary["file_bytes"],
        seconds=seconds,
        folder=str(target),
        report=str(page),
    )


def _not_done(code: int, stderr: str) -> Archived:
    """Read the error: exit code 2 means that this machine lacks something, any other a failure."""
    from cometmq.cli.terminal.exit_codes import USAGE

    lines = [line for line in stderr.strip().splitlines() if line.startswith("cometmq: ")]
    last = stderr.strip().rpartition("\n")[2]
    text = lines[-1].removeprefix("cometmq: ") if lines else last or f"exit code {code}"
    return Archived(skipped=text) if code == USAGE else Archived(fault=text)
