"""Which ports a default start opens, seen from the kernel, in a network namespace of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Runs in the namespace: starts a command, waits for its ready line, prints what listens.
SCAN = """
import json, subprocess, sys
import psutil
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
process = subprocess.Popen(
    [sys.executable, "-m", "cometmq", *sys.argv[1:]], stdout=subprocess.PIPE, text=True
)
line = process.stdout.readline()
listening = sorted(
    (each.laddr.ip, each.laddr.port)
    for each in psutil.net_connections("inet")
    if each.status == psutil.CONN_LISTEN
)
udp = [each.laddr for each in psutil.net_connections("udp")]
process.terminate()
process.wait(30)
print(json.dumps({"ready": line, "listening": listening, "udp": udp}))
"""
#: What each command opens without settings: (address, port).
OPENED = {
    "up": [("127.0.0.1", 9876), ("127.0.0.1", 10909), ("127.0.0.1", 10911)],
    "name-server": [("0.0.0.0", 9876)],
    "broker": [("0.0.0.0", 10909), ("0.0.0.0", 10911)],
}


def can_unshare() -> bool:
    """Whether this user may make a network namespace."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.processes
@pytest.mark.parametrize("command", OPENED)
def test_a_default_start_opens_these_ports_and_no_others(command: str, tmp_path: Path) -> None:
    """docs/reference/safe-defaults.md promises the same."""
    if not can_unshare():
        pytest.skip("no network namespace can be made: it takes root, unshare and iproute2")
    options = [] if command == "name-server" else ["--store", str(tmp_path / "store")]
    scanned = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", SCAN, command, *options],
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "HOME": str(tmp_path),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src"),
        },
        check=True,
    )
    seen = json.loads(scanned.stdout.splitlines()[-1])
    assert "ready" in seen["ready"]
    assert [tuple(each) for each in seen["listening"]] == OPENED[command]
    assert seen["udp"] == []
