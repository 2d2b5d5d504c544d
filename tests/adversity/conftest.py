"""One real cluster serves all hostile tests of a module and has to survive each of them."""

import logging
from collections.abc import Iterator

import pytest

from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Start a name server and a broker whose limits are small."""
    with threaded_cluster() as running:
        yield running


@pytest.fixture(params=["name server", "broker"])
def address(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> str:
    """Run the test once with the broker's address and once with the name server's."""
    is_broker = request.param == "broker"
    return cluster.broker_address if is_broker else cluster.name_server_address


@pytest.fixture(autouse=True)
def no_surprises(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail on an error in the log; a warning about bad input is expected."""
    yield
    surprises = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.startswith(("cometmq", "asyncio"))
    ]
    assert surprises == []
