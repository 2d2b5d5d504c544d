"""The checkers of `make check` run as tests, so that a plain pytest run includes them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = {
    "ruff": ("-m", "ruff", "check", "."),
    "format": ("-m", "ruff", "format", "--check", "."),
    "types": ("-m", "mypy"),
    "layers": ("-c", "from importlinter.cli import lint_imports_command as c; c()"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CHECKS)
def test_checker_is_clean(name: str) -> None:
    """The checker reports no finding; `make check` runs the same."""
    result = subprocess.run(
        [sys.executable, *CHECKS[name]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
