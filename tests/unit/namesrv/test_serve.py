"""The process entry: it says when it listens and ends on a signal."""

import signal
import subprocess
import sys

import pytest
from tests.raw_client import PeerClosed, RawClient


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process(tmp_path: object, number: signal.Signals) -> None:
    """Gracefully: connections are closed and the exit code is 0."""
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "cometmq", "name-server", "--port", "0"),
            *("--listen", "127.0.0.1", "--set", f"kvConfigPath={tmp_path}/kv.json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().rsplit(maxsplit=1)[1]
        with RawClient(address) as client:
            key = {"namespace": "n", "key": "k"}
            assert client.call(100, {**key, "value": "v"}).code == 0
            process.send_signal(number)
            with pytest.raises(PeerClosed):
                client.receive()
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")
