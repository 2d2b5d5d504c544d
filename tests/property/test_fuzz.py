"""The fuzzers run, find no fault in a short time, and can repeat a single input."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[2] / "fuzz" / "fuzz_wire.py"
FUZZ_NATIVE = FUZZ.with_name("fuzz_native.py")
SECONDS_MAX = 280
"""A busy machine compiles the core with sanitizers twice in so much time."""
pytestmark = pytest.mark.timeout(SECONDS_MAX + 20)


def run(*arguments: str, script: Path = FUZZ) -> subprocess.CompletedProcess[str]:
    """Run the script once and return its result."""
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_a_short_run_finds_nothing() -> None:
    """Two seconds over all targets find no fault."""
    result = run("--seconds", "2", "--seed", "20261121")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["ok"] is True
    assert report["inputs"] > 100


def test_one_input_can_be_run_again() -> None:
    """The script repeats one input from the hex text that a finding prints."""
    result = run("--target", "record", "--replay", "00000073daa320a7")
    assert (result.returncode, result.stdout.strip()) == (0, "ok")


def test_the_native_core_under_sanitizers() -> None:
    """A second of hostile bytes at every entry point of the core: no step beyond memory."""
    if shutil.which("gcc") is None or shutil.which("gcov") is None:
        pytest.skip("needs gcc and its sanitizers: apt-get install gcc")
    result = run("--seconds", "1", "--seed", "20261121", script=FUZZ_NATIVE)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["executions"] > 1_000
    executed, _, all_lines = report["lines"]["all"].split()
    assert int(executed) > int(all_lines) * 0.7


def test_an_input_of_the_native_core_can_be_run_again() -> None:
    """The script repeats one input from the hex text that a finding prints."""
    if shutil.which("gcc") is None or shutil.which("gcov") is None:
        pytest.skip("needs gcc and its sanitizers: apt-get install gcc")
    result = run("--replay", "00000073daa320a7", script=FUZZ_NATIVE)
    assert (result.returncode, result.stdout.strip()) == (0, "ok")
