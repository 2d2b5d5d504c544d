"""A run that executes no test is a failure."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("def test_one() -> None:\n    assert True\n", 0),
        ("def test_one() -> None:\n    assert False\n", 1),
        ("import pytest\n\ndef test_one() -> None:\n    pytest.skip('no peer')\n", 5),
        ("def helper() -> None:\n    assert True\n", 5),
    ],
)
def test_exit_code_of_a_run(body: str, code: int, tmp_path: Path) -> None:
    """The exit code is 0 for passed, 1 for failed, 5 where no test was executed."""
    for name in ("conftest.py", "slow.txt"):
        shutil.copy(ROOT / "tests" / name, tmp_path)
    (tmp_path / "test_it.py").write_text(body, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr


def test_closing_line_is_the_last_output() -> None:
    """pytest's summary is the last output of .ci/run."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip()
    assert script.splitlines()[-1] == "exec .venv/bin/python -m pytest -n 4"
