"""A cluster in this process, and servers that fork as processes beside it."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cometmq.sync
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

WAIT_S = 30.0


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """One name server and broker for every test of this folder."""
    with threaded_cluster() as running:
        yield running


class ForkingServer:
    """A process and the lines it has written so far (both streams)."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()

    @property
    def log(self) -> str:
        """Everything written so far."""
        with self._news:
            return "".join(self._lines)

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """The first match in the log; fails with the whole log when the process ends first."""
        deadline = time.monotonic() + WAIT_S
        while (match := re.search(pattern, self.log)) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no {pattern!r} in:\n{self.log}")
            with self._news:
                self._news.wait(0.1)
        return match

    def end(self) -> str:
        """Ask it to end with SIGTERM; its log once it has, with exit code 0."""
        self.process.terminate()
        status = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert status == 0, self.log
        return self.log


@pytest.fixture
def serve(cluster: EmbeddedCluster, tmp_path: Path) -> Callable[..., Any]:
    """``serve(module, *arguments)``: ``python -m module`` in ``tmp_path``, killed at the end."""

    @contextmanager
    def start(module: str, *arguments: str) -> Iterator[ForkingServer]:
        with subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "NAMESRV_ADDR": cluster.name_server_address,
                "PYTHONUNBUFFERED": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        ) as process:
            try:
                yield ForkingServer(process)
            finally:
                process.kill()

    return start


@pytest.fixture
def bodies_of(cluster: EmbeddedCluster) -> Callable[[str, int], list[str]]:
    """``bodies_of(topic, count)``: what is stored in a topic, waiting for ``count`` messages."""

    def read(topic: str, count: int) -> list[str]:
        bodies: list[str] = []
        with cometmq.sync.PullConsumer(
            "onlooker", name_server=cluster.name_server_address, auto_commit=False
        ) as consumer:
            queues = consumer.fetch_queues(topic)
            consumer.assign(queues)
            for queue in queues:
                consumer.seek_to_begin(queue)
            deadline = time.monotonic() + WAIT_S
            while len(bodies) < count and time.monotonic() < deadline:
                bodies += [message.body.decode() for message in consumer.poll(500)]
            # Whatever came twice would be right behind.
            bodies += [message.body.decode() for message in consumer.poll(200)]
        return sorted(bodies)

    return read
