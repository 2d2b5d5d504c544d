"""A real cluster for the tests of both frameworks, whose first delays are one second."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.prefork.forking_server import ForkingServer

import cometmq.sync
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

Serve = Callable[..., AbstractContextManager[ForkingServer]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One name server and broker for the tests of a file."""
    with threaded_cluster({"messageDelayLevel": "1s 1s 1s 1s 1h"}) as running:
        yield running


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[cometmq.sync.Admin]:
    """Makes topics, so that no consumer waits for a route."""
    with cometmq.sync.Admin(name_server=cluster.name_server_address) as client:
        yield client


@contextmanager
def serving(
    folder: Path, name_server: str, module: str, *arguments: str, **environment: str
) -> Iterator[ForkingServer]:
    """``python -m module`` in a folder that it imports from, killed at the end."""
    path = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "NAMESRV_ADDR": name_server,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": os.pathsep.join(path),
            **environment,
        },
    ) as process:
        try:
            yield ForkingServer(process)
        finally:
            process.kill()


@pytest.fixture
def serve(cluster: EmbeddedCluster, tmp_path: Path) -> Serve:
    """``serve(module, *arguments)``: `serving` in ``tmp_path``, with this cluster."""
    return partial(serving, tmp_path, cluster.name_server_address)
