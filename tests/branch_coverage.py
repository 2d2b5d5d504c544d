"""Measures which branches of the pure rooms their own tests take; `make cov` runs it.

A room fails below the share that ``coverage.toml`` demands. A function with a branch that no test
takes needs an entry there with its reason, and an entry without such a function must go.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/cometmq/"


def measure(rooms: list[str], tests: list[str]) -> dict[str, Any]:
    """Run the tests and return the report of coverage.py."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--cov-branch"]
        command += [f"--cov=cometmq.{room}" for room in rooms]
        command += [f"--cov-report=json:{report}", *tests]
        subprocess.run(command, cwd=ROOT, check=True)
        result: dict[str, Any] = json.loads(report.read_text())
        return result


def check(report: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Print the share of each room and return what is wrong."""
    faults: list[str] = []
    missed: set[str] = set()
    for room in settings["rooms"]:
        files = {
            path.removeprefix(PACKAGE): file
            for path, file in report["files"].items()
            if path.startswith(f"{PACKAGE}{room}/")
        }
        total = sum(file["summary"]["num_branches"] for file in files.values())
        covered = sum(file["summary"]["covered_branches"] for file in files.values())
        percent = 100 * covered / max(1, total)
        print(f"{room}: {covered} of {total} branches, {percent:.1f} %")
        if percent < settings["branches_percent_min"]:
            faults.append(f"{room} has {percent:.1f} % of its branches covered")
        missed.update(
            f"{path}:{name}"
            for path, file in files.items()
            for name, function in file["functions"].items()
            if function["missing_branches"]
        )
    listed = set(settings["uncovered"])
    faults += [f"{name} has an untaken branch and no reason" for name in sorted(missed - listed)]
    faults += [f"{name} is listed, and all its branches are" for name in sorted(listed - missed)]
    return faults


def main() -> int:
    """Measure, print the faults, and return the exit code."""
    settings = tomllib.loads((ROOT / "tests/coverage.toml").read_text())
    faults = check(measure(settings["rooms"], settings["tests"]), settings)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
