"""A start without settings opens what docs/reference/safe-defaults.md says, and nothing else."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "safe-defaults.md"


@pytest.mark.processes
@pytest.mark.parametrize("options", [(), ("--console-port", "0")])
def test_up_listens_on_this_machine_only(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Two ports of 127.0.0.1, three with the console; files are below the store only."""
    home = tmp_path / "home"
    home.mkdir()
    ports = ("--name-server-port", "0", "--broker-port", "0")
    command = [sys.executable, "-m", "cometmq", "up", "--store", str(home / "store"), *ports]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home,
        env={"PATH": "/usr/bin", "HOME": str(home), "PYTHONPATH": ":".join(sys.path)},
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = psutil.Process(process.pid).net_connections("tcp")
        listening = {each.laddr for each in found if each.status == psutil.CONN_LISTEN}
        named = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", ready)}
        assert {address.port for address in listening} == named
        assert len(named) == 2 + bool(options)
        assert {address.ip for address in listening} == {"127.0.0.1"}
        assert [path.name for path in home.iterdir()] == ["store"]
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=50)
    assert process.returncode == 0, errors


def test_the_page_names_the_default_ports() -> None:
    """What the code has by default is what the page says."""
    from cometmq.broker.base.config import effective_keys
    from cometmq.cli.serve.console import CONSOLE_PORT
    from cometmq.controller.config import ControllerConfig
    from cometmq.namesrv.config import NameServerConfig

    text = PAGE.read_text(encoding="utf-8")
    keys = effective_keys()
    names, controller = NameServerConfig(), ControllerConfig()
    for address in (
        f"{keys['bindAddress'][0]}:{keys['listenPort'][0]}",
        f"{keys['metricsPromExporterHost'][0]}:{keys['metricsPromExporterPort'][0]}",
        f"{names.bind_address}:{names.listen_port}",
        f"{names.metrics_prom_exporter_host}:{names.metrics_prom_exporter_port}",
        f"{controller.bind_address}:{controller.port()}",
        f"127.0.0.1:{CONSOLE_PORT}",
    ):
        assert address in text
    assert keys["metricsExporterType"][0] == names.metrics_exporter_type == "DISABLE"
