"""One real cluster for all hostile tests of a module: it has to survive every one of them."""

import logging
from collections.abc import Iterator

import pytest

from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A name server and a broker with small frames of everything."""
    with threaded_cluster() as running:
        yield running


@pytest.fixture(params=["name server", "broker"])
def address(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> str:
    """The address of each of the two servers in turn."""
    is_broker = request.param == "broker"
    return cluster.broker_address if is_broker else cluster.name_server_address


@pytest.fixture(autouse=True)
def no_surprises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Bad input may be warned of; an error in the log is an exception nobody foresaw."""
    yield
    surprises = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.startswith(("cometmq", "asyncio"))
    ]
    assert surprises == []
