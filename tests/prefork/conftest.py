"""Starts a cluster in this process and forking servers beside it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.prefork.forking_server import WAIT_S, ForkingServer

import cometmq.sync
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    """Start one name server and broker for all tests of this folder."""
    with threaded_cluster() as running:
        yield running


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
    """``bodies_of(topic, count)`` waits for ``count`` messages and returns their bodies."""

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
