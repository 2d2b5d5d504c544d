"""The processes of a run: the broker (`cometmq up`), the echo server, and the workers.

Servers are started on the server's core, so that all their threads inherit it. The end of the
context always stops a started server by its process id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.base.control import wait_until_served
from bench.base.measure import on_core
from cometmq.errors import ClientError
from cometmq.net.env import system_environment
from cometmq.net.loop import run
from cometmq.net.network import TcpNetwork

__all__ = [
    "READY_S_MAX",
    "Server",
    "broker_command",
    "free_ports",
    "run_worker",
    "spawn",
    "start_broker",
    "start_echo",
]

READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 30.0
CLONE: Final = str(Path(__file__).resolve().parents[2])


@dataclass(slots=True)
class Server:
    """A running server process; `ready_s` is the time until it answered its first request."""

    address: str
    name_server: str
    process: subprocess.Popen[bytes]
    log: Path
    ready_s: float

    @property
    def pid(self) -> int:
        """Process id, for /proc readings."""
        return self.process.pid

    def pause(self) -> None:
        """Stop the process (SIGSTOP) until `resume`."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process continue."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, like kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process by SIGTERM, or by SIGKILL if that does not help."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            # A stopped process could not end.
            self.resume()
            try:
                self.process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.kill()

    def log_tail(self) -> str:
        """The last lines the process wrote."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        except OSError:
            return ""


def free_ports(count: int) -> list[int]:
    """Ports without a listener at the time of the call."""

    async def find() -> list[int]:
        network = TcpNetwork()
        listeners = [await network.listen("127.0.0.1", 0, asyncio.Protocol) for _ in range(count)]
        ports = [listener.port for listener in listeners]
        for listener in listeners:
            listener.close()
        return ports

    return asyncio.run(find())


def _environment() -> dict[str, str]:
    """Our environment, with the clone on Python's path for `python -m bench...`."""
    paths = [CLONE, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def broker_command(
    store: Path, name_server_port: int, broker_port: int, settings: Mapping[str, str]
) -> list[str]:
    """The command line of a name server and broker in one process."""
    command = [sys.executable, "-m", "cometmq", "up", "--store", str(store)]
    command += ["--name-server-port", str(name_server_port), "--broker-port", str(broker_port)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    return command


def spawn(command: Sequence[str], log: Path, core: int | None) -> subprocess.Popen[bytes]:
    """Start a process on a core; its output goes to `log`."""
    with log.open("ab") as out, on_core(core):
        return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=_environment())


def _wait(
    process: subprocess.Popen[bytes], address: str, begin: float, log: Path, ready_s_max: float
) -> float:
    env = system_environment()
    ready: float | None = None
    try:
        while True:
            left = begin + ready_s_max - time.monotonic()
            ready = run(wait_until_served(env, address, min(left, 1.0))) if left > 0 else None
            if ready is not None:
                return ready - begin
            if process.poll() is not None or left <= 0:
                break
    finally:
        if ready is None:  # also after a signal to us: nobody else knows the process yet
            process.kill()
            process.wait()
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    why = f"ended with code {process.returncode}" if left > 0 else f"gave no answer in {left:.0f} s"
    raise ClientError(f"the server on {address} {why}; its last lines:\n{tail}")


@contextlib.contextmanager
def start_broker(
    store: Path,
    *,
    core: int | None = None,
    settings: Mapping[str, str] | None = None,
    ready_s_max: float = READY_S_MAX,
) -> Iterator[Server]:
    """Run `cometmq up` on free ports and a store directory until it answers a request."""
    name_server_port, broker_port = free_ports(2)
    address = f"127.0.0.1:{broker_port}"
    command = broker_command(store, name_server_port, broker_port, settings or {})
    log = store.with_suffix(".log")
    begin = time.monotonic()
    process = spawn(command, log, core)
    ready_s = _wait(process, address, begin, log, ready_s_max)
    server = Server(address, f"127.0.0.1:{name_server_port}", process, log, ready_s)
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def start_echo(folder: Path, *, core: int | None = None, body_bytes: int = 128) -> Iterator[Server]:
    """Run the echo server on a free port."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "bench.worker.echo", "--port", str(port)]
    command += ["--body", str(body_bytes)]
    log = folder / "echo.log"
    begin = time.monotonic()
    process = spawn(command, log, core)
    server = Server(address, "", process, log, _wait(process, address, begin, log, READY_S_MAX))
    try:
        yield server
    finally:
        server.stop()


def run_worker(module: str, order: bytes, core: int | None) -> Any:
    """Run `python -m <module>` with a JSON order on stdin; return its output.

    Raises:
        ClientError: the worker failed; the text has its last lines.
    """
    with tempfile.TemporaryFile() as errors, on_core(core):
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(),
        )
        try:
            answer, _ = process.communicate(order)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            errors.seek(0)
            text = errors.read().decode(errors="replace").strip()
            last = text.splitlines()[-1] if text else f"exit code {process.returncode}"
            raise ClientError(last)
        return answer
