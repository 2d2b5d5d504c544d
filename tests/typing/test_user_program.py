"""The public names are fully typed for a user's strict type checker."""

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("user_program.py")
SOURCE = Path(__file__).resolve().parents[2] / "src"
REFUSED = re.compile(r"# refused: ([a-z-]+)$")
COMPLAINT = re.compile(r"user_program\.py:(\d+): error: .*\[([a-z-]+)\]$")


def test_a_users_program_under_strict_mypy(tmp_path: Path) -> None:
    """mypy accepts the correct lines and refuses each wrong line with its code."""
    text = PROGRAM.read_text(encoding="utf-8")
    lines = text.replace("# mypy: ignore-errors", "#").splitlines()
    expected = {
        (number, found[1])
        for number, line in enumerate(lines, 1)
        if (found := REFUSED.search(line)) is not None
    }
    # The user's folder and settings, not ours; of ours only what py.typed says is looked at.
    copy = tmp_path / PROGRAM.name
    copy.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = tmp_path / "mypy.ini"
    settings.write_text(f"[mypy]\nstrict = true\nmypy_path = {SOURCE}\nfollow_imports = silent\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(settings)),
            *("--cache-dir", str(tmp_path / "cache"), "--no-error-summary", str(copy)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    complaints = {
        (int(match[1]), match[2])
        for line in done.stdout.splitlines()
        if (match := COMPLAINT.search(line)) is not None
    }
    assert len(expected) >= 5
    assert complaints == expected, done.stdout + done.stderr
    assert (SOURCE / "cometmq" / "py.typed").exists()
