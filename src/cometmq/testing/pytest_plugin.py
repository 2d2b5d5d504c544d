"""The pytest plugin: a real cluster as a fixture.

The broker is imported only when a test asks for the fixture, since pytest loads plugins in every
run.

Enable it in `conftest.py`:

    pytest_plugins = ["cometmq.testing.pytest_plugin"]

    def test_something(cometmq_cluster):
        with Producer("group", name_server=cometmq_cluster.name_server_address) as producer:
            ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cometmq.testing.cluster import EmbeddedCluster

__all__ = ["cometmq_cluster", "cometmq_settings"]


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
