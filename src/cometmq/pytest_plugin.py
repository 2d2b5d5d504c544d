"""The pytest plugin: real clusters as fixtures, and tests in virtual time.

pytest loads it in every run of an environment that has CometMQ, by the entry point of the package.
So it imports nothing of the kit, nor asks for what the kit needs, until a test uses a fixture.

    def test_something(cometmq_cluster):
        with Producer("group", name_server=cometmq_cluster.name_server_address) as producer:
            ...
        cometmq_cluster.pass_time(3600)

    @pytest.mark.cometmq_simulation(seeds=50)
    async def test_something_else(sim_cluster):
        async with sim_cluster.producer("group") as producer:
            ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cometmq.testing.cluster import EmbeddedCluster
    from cometmq.testing.sim_cluster import SimCluster

__all__ = ["cometmq_cluster", "cometmq_session_cluster", "cometmq_settings", "sim_cluster"]

MARK = "cometmq_simulation"


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(seeds=1, first=0, **options): run an async test on a simulated cluster, once for "
        "each seed; options as for cometmq.testing.sim_cluster.run_seed",
    )


@pytest.fixture
def cometmq_settings() -> dict[str, Any]:
    """Broker settings of `cometmq_cluster`; override this fixture to change them."""
    return {}


@pytest.fixture
def cometmq_cluster(cometmq_settings: dict[str, Any]) -> Iterator[EmbeddedCluster]:
    """A fresh name server and broker in this process, for one test."""
    from cometmq.testing.cluster import threaded_cluster

    with threaded_cluster(cometmq_settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cometmq_session_cluster() -> Iterator[EmbeddedCluster]:
    """A name server and broker in this process for all tests; each uses topics of its own."""
    from cometmq.testing.cluster import threaded_cluster

    with threaded_cluster() as cluster:
        yield cluster


@pytest.fixture
def sim_cluster(request: pytest.FixtureRequest) -> SimCluster | None:
    """The simulated cluster of a marked test, which begins with the test."""
    if request.node.get_closest_marker(MARK) is None:
        raise pytest.UsageError(f"sim_cluster belongs to tests with @pytest.mark.{MARK}()")
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on virtual time."""
    marker = pyfuncitem.get_closest_marker(MARK)
    if marker is None:
        return None
    from cometmq.testing.sim_cluster import run_seeds

    options = dict(marker.kwargs)
    first, count = options.pop("first", 0), options.pop("seeds", 1)
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names}

    async def run(cluster: SimCluster) -> None:
        arguments = {**given, "sim_cluster": cluster} if "sim_cluster" in given else given
        await pyfuncitem.obj(**arguments)

    run_seeds(run, range(first, first + count), **options)
    return True
