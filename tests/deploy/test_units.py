"""The systemd units: known directives, hardened, and started by the commands that exist."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cometmq.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy").rglob("*.service"))
ANALYZE = shutil.which("systemd-analyze")


def unit(path: Path) -> configparser.ConfigParser:
    """A unit's sections; keys keep their letters."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_starts_a_command_without_root(path: Path) -> None:
    """It runs a command of ours as another user, comes back, and is given time to stop."""
    service = unit(path)["Service"]
    program, command, *_ = service["ExecStart"].split()
    assert program.endswith("/cometmq")
    assert command in COMMANDS
    assert service.get("User") or service.get("DynamicUser") == "yes"
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) >= 10
    assert service["NoNewPrivileges"] in ("yes", "true")
    assert service["ProtectSystem"] in ("strict", "full")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_understands_a_unit(path: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` says nothing, but for the program, which is not installed here."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M)
    copy = tmp_path / path.name
    copy.write_text(text, encoding="utf-8")
    assert ANALYZE is not None
    checked = subprocess.run(
        [ANALYZE, "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    complaints = [line for line in checked.stderr.splitlines() if path.name in line]
    assert complaints == []


def test_units_are_found() -> None:
    """At least the broker's and the console's."""
    assert {path.name for path in UNITS} >= {"cometmq.service", "cometmq-console.service"}
