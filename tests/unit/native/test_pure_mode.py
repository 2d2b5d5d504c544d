"""The Python text serves every send and hashes every key where the native core is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq import native

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("unit/broker/send", "unit/store/append", "unit/store/index", "golden/replay")
"""The tests of all that has two forms; `make pure` runs the whole suite so."""


@pytest.mark.timeout(240)
def test_the_same_tests_without_the_core() -> None:
    """Each installation without a compiler runs the Python text, so each test run proves it too."""
    if os.environ.get(native.PURE_VARIABLE) == "1":
        pytest.skip("the whole run is without the native core")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *(f"tests/{room}" for room in ROOMS)],
        cwd=ROOT,
        env={
            **{name: text for name, text in os.environ.items() if "PYTEST" not in name},
            native.PURE_VARIABLE: "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout.splitlines()[-1]
