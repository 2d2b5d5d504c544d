"""How soon a broker serves a large store after a stop, a kill and a power cut.

    .venv/bin/python -m bench.large_store FOLDER [--gigabytes 20] [--repeats 5]

FOLDER gets a store of that size, unless it has one: batches of messages of 4 KiB, each with its
unique key, that a producer sends to a broker.  Then `cometmq broker` runs on it again and again.
Measured is the time from the start of its process until it has answered a pull of the newest
message, and after that one of the oldest.

`clean`: the broker before had stopped.  `kill`: it was killed while messages were sent.  `power`:
the same, and the boot id that it has noted is another one, so it checks the end of the log and
derives anew what it has not synced.  Before each start the kernel forgets its cached pages of the
store, so everything comes from the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import cometmq
import cometmq.sync
from cometmq import Message
from cometmq.errors import CometError
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader

TOPIC: Final = "Large"
BODY: Final = bytes(4096)
BATCH: Final = 64
IN_FLIGHT: Final = 8
HOW: Final = ("clean", "kill", "power")
READY_S: Final = 600.0
OTHER_BOOT: Final = (
    "import runpy, sys, cometmq.store.base.disk as disk;"
    "disk.RealDisk.boot_id = lambda self: 'another boot';"
    "sys.argv[0] = 'cometmq'; runpy.run_module('cometmq', run_name='__main__')"
)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Servers:
    """A name server, and a broker that starts again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names, self.port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.name_server = f"127.0.0.1:{self.names}"
        self.broker: subprocess.Popen[bytes] | None = None
        settings = f"kvConfigPath={folder}/kv.json", f"configStorePath={folder}/names.conf"
        self._names = self._run(
            [
                *("-m", "cometmq", "name-server", "--listen", "127.0.0.1"),
                *("--port", str(self.names)),
                *(word for setting in settings for word in ("--set", setting)),
            ]
        )

    def _run(self, line: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "servers.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *line], stdout=log, stderr=log)

    def start(self, *, is_other_boot: bool = False) -> float:
        """Start the broker; return when."""
        program = ["-c", OTHER_BOOT] if is_other_boot else ["-m", "cometmq"]
        began = time.monotonic()
        self.broker = self._run(
            [
                *(*program, "broker", "--listen", "127.0.0.1", "--port", str(self.port)),
                *("-n", self.name_server, "--store", str(self.folder / "store")),
                *("--set", "fileReservedTime=10000", "--set", "diskMaxUsedSpaceRatio=95"),
                *("--set", "diskSpaceWarningLevelRatio=99"),
                *("--set", "diskSpaceCleanForciblyRatio=99"),
            ]
        )
        return began

    def end(self, number: signal.Signals) -> None:
        """End the broker."""
        if self.broker is not None:
            self.broker.send_signal(number)
            self.broker.wait()
            self.broker = None

    def close(self) -> None:
        """End both."""
        self.end(signal.SIGTERM)
        self._names.terminate()
        self._names.wait()

    def ask(self, code: int, ext: dict[str, str]) -> RemotingCommand:
        """Ask the broker once, as soon as it listens."""
        deadline = time.monotonic() + READY_S
        reader = FrameReader()
        while True:
            assert self.broker is not None
            assert self.broker.poll() is None, "the broker has ended: see servers.log"
            try:
                with socket.create_connection(("127.0.0.1", self.port), 60) as connection:
                    connection.sendall(encode_command(RemotingCommand.request(code, ext)))
                    while True:
                        for answer in reader.receive(connection.recv(1 << 20)):
                            assert isinstance(answer, RemotingCommand)
                            return answer
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.002)

    def edge(self, code: int) -> int:
        """The first (31) or the next (30) offset of the first queue."""
        return int(self.ask(code, {"topic": TOPIC, "queueId": "0"}).ext_fields["offset"])

    def pull(self, queue_offset: int) -> None:
        """Pull one message of the first queue."""
        answer = self.ask(
            11,
            {
                "consumerGroup": "TOOLS_CONSUMER",
                "topic": TOPIC,
                "queueId": "0",
                "queueOffset": str(queue_offset),
                "maxMsgNums": "1",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
            },
        )
        assert answer.code == 0, answer.remark
        assert len(answer.body) > len(BODY)


def size_of(folder: Path) -> int:
    """Bytes that the log has on the disk."""
    files = folder.glob("store/commitlog/*")
    return sum(path.stat().st_blocks * 512 for path in files)


async def fill(name_server: str, folder: Path, wanted: int) -> None:
    """Send until the log is as large as wanted."""
    async with cometmq.Producer("p", name_server=name_server, timeout_ms=60_000) as producer:
        batch = [Message(TOPIC, BODY)] * BATCH

        async def send() -> None:
            while size_of(folder) < wanted:
                for _ in range(64):
                    with contextlib.suppress(CometError):
                        await producer.send_batch(batch)

        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))


def forget_pages(folder: Path) -> None:
    """Have the kernel forget what it has cached of the store."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            number = os.open(path, os.O_RDONLY)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)


@contextlib.contextmanager
def sending(name_server: str) -> Iterator[None]:
    """Send all the time; failures do not matter."""
    is_over = threading.Event()

    def send() -> None:
        with cometmq.sync.Producer("q", name_server=name_server, timeout_ms=500) as producer:
            while not is_over.is_set():
                with contextlib.suppress(CometError):
                    producer.send(Message(TOPIC, BODY))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def main() -> None:
    """Measure, and print a line for each way to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    servers = Servers(folder)
    try:
        servers.start()
        servers.ask(105, {"topic": TOPIC})
        asyncio.run(fill(servers.name_server, folder, int(options.gigabytes * 1e9)))
        servers.end(signal.SIGTERM)
        print(f"log: {size_of(folder) / 1e9:.1f} GB in {folder}")
        for how in HOW:
            newest_s, oldest_s = [], []
            for _ in range(options.repeats):
                servers.start()
                first = servers.edge(31)
                if how == "clean":
                    servers.end(signal.SIGTERM)
                else:
                    with sending(servers.name_server):
                        time.sleep(2)
                        servers.end(signal.SIGKILL)
                forget_pages(folder / "store")
                began = servers.start(is_other_boot=how == "power")
                servers.pull(servers.edge(30) - 1)
                newest_s.append(time.monotonic() - began)
                servers.pull(first)
                oldest_s.append(time.monotonic() - began)
                servers.end(signal.SIGTERM)
            print(
                f"{how:6} newest after {statistics.median(newest_s):.2f} s"
                f" (slowest {max(newest_s):.2f}), oldest after {statistics.median(oldest_s):.2f} s"
                f" (slowest {max(oldest_s):.2f})",
                flush=True,
            )
    finally:
        servers.close()


if __name__ == "__main__":
    main()
