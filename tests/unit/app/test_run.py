"""The life of a program: `run()` and `cometmq app run` in a process of their own, with signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cometmq.sync
from cometmq.testing import EmbeddedCluster, threaded_cluster

WORKER = """
import asyncio
import threading

import cometmq

app = cometmq.App("g")
go_on = threading.Event()

@app.on_startup
async def open_pool() -> None:
    print("startup", flush=True)

@app.on_shutdown
async def close_pool() -> None:
    await app.send("done", "last words")
    print("shutdown", flush=True)

@app.consumer("t", consume_from="first", drain_timeout_ms=30_000)
async def take(body: str) -> None:
    print("begin", body, flush=True)
    # The test lets the handler end by a line on standard input.
    await asyncio.to_thread(input)
    print("end", body, flush=True)

@app.consumer("u", group="threads", consume_from="first")
def take_plain(body: str) -> None:
    print("plain", body, flush=True)

if __name__ == "__main__":
    app.run()
    print("closed", flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with threaded_cluster() as running:
        yield running


@contextmanager
def worker(
    cluster: EmbeddedCluster, folder: Path, *command: str, script: str = WORKER
) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs the worker; killed at the end if it still runs."""
    (folder / "worker.py").write_text(script)
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "NAMESRV_ADDR": cluster.name_server_address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_until(process: "subprocess.Popen[str]", last: str) -> list[str]:
    """The lines of standard output up to this one."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if lines[-1] == last:
            return lines
    assert process.stderr is not None
    raise AssertionError(f"{last!r} was not printed: {lines}, {process.stderr.read()}")


def send(cluster: EmbeddedCluster, topic: str, body: bytes) -> None:
    with cometmq.sync.Producer("pg", name_server=cluster.name_server_address) as producer:
        producer.send(cometmq.sync.Message(topic, body))


def committed(cluster: EmbeddedCluster, group: str, topic: str) -> int:
    with cometmq.sync.PullConsumer(group, name_server=cluster.name_server_address) as reader:
        return sum(reader.committed(queue) or 0 for queue in reader.fetch_queues(topic))


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(cluster: EmbeddedCluster, tmp_path: Path, number: signal.Signals) -> None:
    """The handler in work ends and is acknowledged; then the hooks run and all is closed."""
    script = WORKER.replace('"t"', f'"{number.name}"').replace('App("g")', f'App("{number.name}")')
    send(cluster, number.name, b"slow")
    with worker(cluster, tmp_path, "worker.py", script=script) as process:
        lines_until(process, "begin slow")
        process.send_signal(number)
        assert process.stderr is not None
        assert "a second signal ends the process at once" in process.stderr.readline()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        lines = lines_until(process, "closed")
        assert lines[:1] == ["end slow"]
        assert lines[-2:] == ["shutdown", "closed"]
        assert process.wait(20) == 0
    assert committed(cluster, number.name, number.name) == 1


@pytest.mark.processes
def test_a_second_signal_ends_at_once(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """The handler never ends, nothing is acknowledged, and the message comes again."""
    script = WORKER.replace('"t"', '"hung"').replace('App("g")', 'App("hung")')
    send(cluster, "hung", b"slow")
    with worker(cluster, tmp_path, "worker.py", script=script) as process:
        lines_until(process, "begin slow")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
    assert committed(cluster, "hung", "hung") == 0


@pytest.mark.processes
def test_the_command_runs_an_app(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """`cometmq app run module:app`, found from the current directory; -n wins."""
    script = WORKER.replace('"t"', '"cli"').replace('App("g")', 'App("cli")')
    address = cluster.name_server_address
    send(cluster, "cli", b"one")
    command = ["-m", "cometmq", "app", "run", "worker:app", "-n", address]
    with worker(cluster, tmp_path, *command, script=script) as process:
        lines_until(process, "begin one")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        lines_until(process, "end one")
        process.send_signal(signal.SIGTERM)
        lines_until(process, "shutdown")
        assert process.wait(20) == 0
    assert committed(cluster, "cli", "cli") == 1


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("worker", "give MODULE:APP"),
        ("nowhere:app", "there is no module nowhere"),
        ("worker:application", "the module worker has no application"),
        ("worker:go_on", "no cometmq.App"),
    ],
)
def test_a_wrong_target_is_named(
    target: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that says what is wrong, before anything starts."""
    from cometmq.cli.serve.app import _load
    from cometmq.errors import ConfigError

    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "worker", raising=False)
    with pytest.raises(ConfigError, match=text):
        _load(target)
