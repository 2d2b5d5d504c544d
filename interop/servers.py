"""A name server and a broker, ours or RocketMQ's, as processes that tests kill and restart.

Job: choose free ports and a store, start until connections are accepted, stop, kill, and start
again on the same ports and the same store. Must not: know a client or a scenario.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from interop.peers import JAVA_SERVER, java_command, java_server_class_path

__all__ = ["Cluster", "JavaCluster", "OurCluster", "OurController", "ServerFailed"]

START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 30.0


class ServerFailed(Exception):
    """A server ended before it served, or did not report in time that it serves."""


def free_port() -> int:
    """A port P that is free together with P-2 (VIP channel) and P+1 (replication).

    P is below the ports that the system gives to connections, so a stopped broker gets it again.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for one in (port - 2, port, port + 1):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", one))
            return port


class Server:
    """One process that prints a line with a certain word when it serves."""

    def __init__(self, name: str, ready: str, folder: Path) -> None:
        self._name = name
        self._ready = ready
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._copier: threading.Thread | None = None
        self._is_ready = threading.Event()
        self._has_ended = False
        self.log_path = folder / f"{name}.log"

    def start(self, command: Sequence[str]) -> None:
        """Start it and wait until it serves."""
        self._is_ready.clear()
        self._has_ended = False
        environment = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
        environment["ROCKETMQ_HOME"] = str(self._folder)
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            env=environment,
        )
        self._process = process
        self._copier = threading.Thread(target=self._copy, args=(process,), daemon=True)
        self._copier.start()
        self._is_ready.wait(START_TIMEOUT_S)
        if self._has_ended or process.poll() is not None or not self._is_ready.is_set():
            tail = self.log_path.read_text("utf-8", "replace")[-2000:]
            self.stop(signal.SIGKILL)
            raise ServerFailed(f"{self._name} does not serve; its log ends:\n{tail}")

    @property
    def process_id(self) -> int:
        """The id of the running process."""
        assert self._process is not None, f"{self._name} does not run"
        return self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal and wait for the process's end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if self._copier is not None:
                self._copier.join()
            assert process.stdout is not None
            process.stdout.close()

    def _copy(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with self.log_path.open("ab") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if self._ready.encode() in line:
                    self._is_ready.set()
        if not self._is_ready.is_set():
            self._has_ended = True
            self._is_ready.set()


class Cluster:
    """A name server and a broker on ports of 127.0.0.1 that stay the same over restarts.

    Args:
        folder: takes store, configuration and logs.
        joins: another cluster whose name server the broker registers with, instead of its own.
        settings: further settings of the broker.
        registers_at: the broker's name server, `host:port`, for example a `Tap`.
    """

    kind = ""

    def __init__(
        self,
        folder: Path,
        ready: str,
        joins: "Cluster | None" = None,
        *,
        settings: Mapping[str, str] | None = None,
        registers_at: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.broker_name = "broker-a" if joins is None else "broker-b"
        self.settings = dict(settings or {})
        self.registers_at = registers_at
        self._joins = joins
        self.folder = folder
        self.store_path = folder / "store"
        self.name_server_port = free_port()
        self.broker_port = free_port()
        self._name_server = Server("name-server", ready, folder)
        self._broker = Server("broker", ready, folder)

    @property
    def name_server(self) -> str:
        """`host:port` of the name server, for clients."""
        if self._joins is not None:
            return self._joins.name_server
        return f"127.0.0.1:{self.name_server_port}"

    @property
    def broker(self) -> str:
        """`host:port` of the broker."""
        return f"127.0.0.1:{self.broker_port}"

    def __enter__(self) -> Self:
        try:
            if self._joins is None:
                self.start_name_server()
            self.start_broker()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop both servers."""
        try:
            self._broker.stop(signal.SIGKILL)
        finally:
            self._name_server.stop(signal.SIGKILL)

    def start_name_server(self) -> None:
        """Start the name server."""
        self._name_server.start(self.name_server_command())

    def start_broker(self) -> None:
        """Start the broker on its store."""
        self._broker.start(self.broker_command())

    @property
    def broker_process_id(self) -> int:
        """The process id of the running broker."""
        return self._broker.process_id

    def move_broker(self, number: int = signal.SIGTERM) -> None:
        """Stop the broker and start it on its store at another port."""
        self.stop_broker(number)
        self.broker_port = free_port()
        self.start_broker()

    def stop_name_server(self, number: int = signal.SIGTERM) -> None:
        """End the name server by a signal."""
        self._name_server.stop(number)

    def stop_broker(self, number: int = signal.SIGTERM) -> None:
        """End the broker by a signal."""
        self._broker.stop(number)

    def name_server_command(self) -> list[str]:
        """The command line of the name server."""
        raise LookupError(self.kind)

    def broker_command(self) -> list[str]:
        """The command line of the broker."""
        raise LookupError(self.kind)


class OurCluster(Cluster):
    """CometMQ's servers."""

    kind = "cometmq"

    def __init__(
        self,
        folder: Path,
        joins: Cluster | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        name_server_settings: Mapping[str, str] | None = None,
        registers_at: str | None = None,
    ) -> None:
        self._name_server_settings = dict(name_server_settings or {})
        super().__init__(folder, "ready in", joins, settings=settings, registers_at=registers_at)

    def name_server_command(self) -> list[str]:
        """`cometmq name-server`."""
        return [
            *(sys.executable, "-m", "cometmq", "name-server"),
            *("--listen", "127.0.0.1", "--port", str(self.name_server_port)),
            # Its default paths are in the user's home, as RocketMQ's are.
            *("--set", f"kvConfigPath={self.folder}/namesrv/kvConfig.json"),
            *("--set", f"configStorePath={self.folder}/namesrv.conf"),
            *(f"--set={name}={value}" for name, value in self._name_server_settings.items()),
        ]

    def broker_command(self) -> list[str]:
        """`cometmq broker`."""
        settings = {
            "brokerName": self.broker_name,
            "brokerIP1": "127.0.0.1",
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            **self.settings,
        }
        return [
            *(sys.executable, "-m", "cometmq", "broker"),
            *("-n", self.registers_at or self.name_server),
            *("--listen", "127.0.0.1", "--port", str(self.broker_port)),
            *("--store", str(self.store_path)),
            *(f"--set={name}={value}" for name, value in settings.items()),
        ]


class JavaCluster(Cluster):
    """RocketMQ's servers.

    Args:
        options: further options of both Java processes.
        version: of both servers.
    """

    kind = "java"

    def __init__(
        self,
        folder: Path,
        joins: Cluster | None = None,
        *,
        settings: Mapping[str, str] | None = None,
        registers_at: str | None = None,
        options: Sequence[str] = (),
        version: str = JAVA_SERVER,
    ) -> None:
        super().__init__(
            folder, "boot success", joins, settings=settings, registers_at=registers_at
        )
        self._class_path = java_server_class_path(version)
        if version.startswith("4."):  # version 4 does not start without a logging configuration
            (folder / "conf").mkdir()
            for name in ("namesrv", "broker"):
                self._write(f"conf/logback_{name}.xml", ["<configuration/>"])
        self._options = tuple(options)

    def _write(self, name: str, lines: Sequence[str]) -> None:
        (self.folder / name).write_text("\n".join(lines) + "\n", "utf-8")

    def _java(self, *heap: str) -> list[str]:
        return java_command(
            self._class_path,
            *heap,
            *self._options,
            f"-Duser.home={self.folder}",
            "-Drocketmq.client.logRoot=" + str(self.folder / "logs"),
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        )

    def name_server_command(self) -> list[str]:
        """`NamesrvStartup -c`."""
        self._write("namesrv.conf", [f"listenPort={self.name_server_port}"])
        return [
            *self._java("-Xms64m", "-Xmx256m"),
            *(
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                "-c",
                str(self.folder / "namesrv.conf"),
            ),
        ]

    def broker_command(self) -> list[str]:
        """`BrokerStartup -c`."""
        settings = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.broker_name,
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",
            "listenPort": str(self.broker_port),
            "namesrvAddr": self.registers_at or self.name_server,
            "storePathRootDir": str(self.store_path),
            "storePathCommitLog": f"{self.store_path}/commitlog",
            "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
            "autoCreateTopicEnable": "true",
            # Reading the timer wheel costs seconds at start; no scenario here uses it.
            "timerWheelEnable": "false",
            # Otherwise it drops one-way sends that waited for 200 ms on a busy machine.
            "waitTimeMillsInSendQueue": "60000",
            **self.settings,
        }
        self._write("broker.conf", [f"{name}={value}" for name, value in settings.items()])
        return [
            *self._java("-Xms256m", "-Xmx1g", "-XX:MaxDirectMemorySize=512m"),
            *("org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.folder / "broker.conf")),
        ]


class OurController:
    """CometMQ's controller, on a port of 127.0.0.1 that stays the same over restarts.

    Args:
        etcd: address of etcd, ``http://host:port``; None for a local file.
    """

    def __init__(self, folder: Path, *, etcd: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._server = Server("controller", "ready in", folder)
        self._store = ("--etcd", etcd) if etcd else ("--store", str(folder / "controller"))

    def start(self) -> None:
        """Start it on its store."""
        self._server.start(
            [
                *(sys.executable, "-m", "cometmq", "controller", *self._store),
                *("--listen", "127.0.0.1", "--port", str(self.port)),
            ]
        )

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it by a signal."""
        self._server.stop(number)
