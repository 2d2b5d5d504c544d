"""`cometmq controller` as a process, alone and inside a name server, and what `status` says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.raw_client import RawClient

pytestmark = pytest.mark.processes


@contextmanager
def serving(*line: str) -> Iterator[str]:
    """Run a command of ours until its ready line, which is given; it has to stop on a signal."""
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
            assert process.returncode == 0
        finally:
            process.kill()


def run(*line: str) -> subprocess.CompletedProcess[str]:
    """A command of ours to its end."""
    return subprocess.run(
        [sys.executable, "-m", "cometmq", *line],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def join(address: str) -> None:
    """Make one broker of a set known to a controller, as a broker does."""
    names = {"clusterName": "c", "brokerName": "b"}
    with RawClient(address) as client:
        wanted = {"appliedBrokerId": "1", "registerCheckCode": "10.0.0.9:10911;1"}
        assert client.call(1013, {**names, **wanted}).code == 0
        asked = {"brokerId": "1", "designateElect": "false"}
        assert client.call(1002, {**names, **asked}).code == 0


def test_a_controller_keeps_its_sets_over_a_restart(tmp_path: Path) -> None:
    """`status` lists them; a second controller in the folder is refused."""
    place = ("--listen", "127.0.0.1", "--port", "0", "--store", str(tmp_path / "c"))
    with serving("controller", *place) as line:
        assert line.startswith("cometmq controller: ready in ")
        join(line.split()[-1])
        second = run("controller", *place)
        assert second.returncode != 0
        assert f"{tmp_path}/c" in second.stderr
    with serving("controller", *place) as line:
        address = line.split()[-1]
        shown = json.loads(run("controller", "status", "-a", address, "--json").stdout)
        assert shown == [
            {
                "broker": "b",
                "id": 1,
                "address": "10.0.0.9:10911",
                "role": "master",
                "in_sync": True,
                "alive": False,
                "master_epoch": 1,
                "leader": address,
            }
        ]
        assert run("controller", "status", "other", "-a", address, "--json").stdout.strip() == "[]"
        refused = run("replica", "elect", "b", "1", "-a", address, "--cluster", "c")
        assert refused.returncode == 1
        assert "no in-sync replica can become the master" in refused.stderr
        with RawClient(address) as client:
            alive = {"clusterName": "c", "brokerName": "b", "brokerId": "1"}
            assert client.call(904, {**alive, "brokerAddr": "10.0.0.9:10911"}).code == 0
            elected = run("replica", "elect", "b", "1", "-a", address, "--cluster", "c")
        assert elected.stdout == "master of b: broker 1 at 10.0.0.9:10911, epoch 1\n"


def test_a_name_server_runs_a_controller(tmp_path: Path) -> None:
    """Both answer, and both stop."""
    settings = (
        f"kvConfigPath={tmp_path}/kv.json",
        "enableControllerInNamesrv=true",
        "controllerPort=0",
        f"controllerStorePath={tmp_path}/c",
    )
    options = [word for setting in settings for word in ("--set", setting)]
    with serving("name-server", "--listen", "127.0.0.1", "--port", "0", *options) as line:
        name_server, controller = line.split(", ")[-2:]
        join(controller.split()[-1])
        with RawClient(name_server.split()[-1]) as client:
            assert client.call(106).code == 0


def test_status_says_whom_it_asked() -> None:
    """Nobody listens there."""
    asked = run("controller", "status", "-a", "127.0.0.1:1")
    assert asked.returncode == 3
    assert "no controller leads: 127.0.0.1:1" in asked.stderr
