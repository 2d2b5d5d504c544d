"""The fuzzer runs, finds nothing in a short time, and repeats a single input."""

import json
import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parents[2] / "fuzz" / "fuzz_wire.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One run of the script."""
    return subprocess.run(
        [sys.executable, str(FUZZ), *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_short_run_finds_nothing() -> None:
    """Two seconds over all targets; `--seconds` and `--seed` make it longer and other."""
    result = run("--seconds", "2", "--seed", "20261121")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["ok"] is True
    assert report["inputs"] > 100


def test_one_input_can_be_run_again() -> None:
    """With the hex that a finding prints."""
    result = run("--target", "record", "--replay", "00000073daa320a7")
    assert (result.returncode, result.stdout.strip()) == (0, "ok")
