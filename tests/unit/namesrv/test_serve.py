"""The process entry: it says when it listens and ends on a signal."""

import signal
import subprocess
import sys

import pytest
from tests.raw_client import PeerClosed, RawClient

PROGRAM = """
from cometmq.namesrv import load_name_server_config, serve
from cometmq.net import run

loaded = load_name_server_config(overrides={
    "listenPort": 0, "bindAddress": "127.0.0.1", "kvConfigPath": "%s/kv.json",
    "productEnvName": "center",
})
run(serve(loaded, lambda server: print(server.address, flush=True)))
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process(tmp_path: object, number: signal.Signals) -> None:
    """Gracefully: connections are closed and the exit code is 0."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM % tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with RawClient(address) as client:
            key = {"namespace": "n", "key": "k"}
            assert client.call(100, {**key, "value": "v"}).code == 0
            process.send_signal(number)
            with pytest.raises(PeerClosed):
                client.receive()
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
