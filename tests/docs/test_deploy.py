"""The files of deploy/replicas are what the servers take: settings, options, units, compose."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from cometmq.cli.main import root

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "replicas"
UNITS = sorted(FOLDER.glob("*.service"))


def accepts(line: list[str]) -> None:
    """Whether a command line of ours is one, without running it."""
    assert line[0].rpartition("/")[2] == "cometmq"
    result = CliRunner().invoke(root, [*line[1:], "--help"])
    assert result.exit_code == 0, (line, result.output)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("broker.conf", "broker"), ("controller.conf", "controller"), ("namesrv.conf", "name-server")],
)
def test_the_configurations_are_accepted(name: str, kind: str) -> None:
    """Every key is known, and none of them has no effect."""
    result = CliRunner().invoke(
        root, ["config", "check", str(FOLDER / name), "--for", kind, "--json"]
    )
    assert (result.exit_code, result.output.strip()) == (0, "[]"), result.output


def test_the_units_run_what_is_there() -> None:
    """Each names a command and a configuration of the folder."""
    assert len(UNITS) == 3
    for path in UNITS:
        lines = path.read_text("utf-8").splitlines()
        (command,) = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
        words = shlex.split(command)
        assert words[0] == "/opt/cometmq/bin/cometmq"
        accepts(words)
        assert (FOLDER / Path(words[-1]).name).exists()


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """As systemd-analyze reads them; the program's path is made one that exists."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS:
        text = path.read_text("utf-8").replace("/opt/cometmq/bin/cometmq", "/bin/true")
        (tmp_path / path.name).write_text(text, "utf-8")
    checked = subprocess.run(
        [program, "verify", *(str(tmp_path / path.name) for path in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in checked.stderr.splitlines() if "cometmq-" in line]
    assert complaints == []


def test_the_compose_file_runs_what_is_there() -> None:
    """Its commands are ours, its addresses fit together."""
    text = (FOLDER / "compose.yaml").read_text("utf-8").partition("\nservices:\n")[2]
    parts = re.split(r"^  (\w+):\n", text, flags=re.M)[1:]
    services = dict(zip(parts[::2], parts[1::2], strict=True))
    (broker,) = re.findall(r"command: &broker >-\n((?:      .*\n)+)", text)
    addresses = {
        name: re.findall(r"ipv4_address: ([\d.]+)", part)[0] for name, part in services.items()
    }
    assert len(set(addresses.values())) == len(services) == 9
    for name, part in services.items():
        commands = re.findall(r"command: .*>-\n((?:      .*\n)+)", part)
        words = shlex.split(commands[0] if commands else broker)
        if name.startswith("etcd"):
            assert words[:3] == ["etcd", "--name", name]
            assert f"http://{addresses[name]}:2379" in words
            assert f"{name}=http://{addresses[name]}:2380" in words[-1]
            continue
        accepts(words)
        if name.startswith("controller"):
            assert f"cometmqControllerAddress={addresses[name]}:9877" in words
            endpoints = words[words.index("--etcd") + 1].split(";")
            assert endpoints == [f"http://{addresses[f'etcd{n}']}:2379" for n in (1, 2, 3)]
        if name.startswith("broker"):
            assert f"{addresses['names']}:9876" in words
            wanted = ";".join(f"{addresses[f'controller{n}']}:9877" for n in (1, 2))
            assert f"controllerAddr={wanted}" in words
