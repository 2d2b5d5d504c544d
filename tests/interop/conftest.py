"""Pairs of client and servers as a fixture; a plain run takes few pairs, `make interop` all."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop.peers import Unavailable
from interop.servers import Cluster
from tests.interop.stage import Stage, met, pairs_of, raised, servers_for_kinds

HERE = Path(__file__).resolve().parent
IS_FULL = os.environ.get("INTEROP") == "full"
# Foreign runtimes start in seconds, and a first run fetches and builds them.
TIMEOUT_S = 900


def pytest_configure(config: pytest.Config) -> None:
    """The markers of this folder."""
    for line in (
        "needs(*features): clients without them are left out",
        "at(server): only at this broker",
        "kind(name, short=clients): a kind of message, also with foreign clients at RocketMQ's "
        "broker in the long lane; servers of all these tests have the settings of `kinds.py`",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per pair whose client has what the scenario needs."""
    if "stage" not in metafunc.fixturenames:
        return
    marks = list(metafunc.definition.iter_markers())
    is_kind = any(mark.name == "kind" for mark in marks)
    fitting = pairs_of(marks, full=IS_FULL)
    metafunc.parametrize(
        "stage",
        [(client, server, is_kind or not IS_FULL) for client, server in fitting],
        ids=[f"{client}@{server}" for client, server in fitting],
        indirect=True,
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark this folder's tests; `tests/conftest.py` leaves the long lane out of a plain run."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker("interop")
        item.add_marker("processes")
        item.add_marker("slow")
        item.add_marker(pytest.mark.timeout(TIMEOUT_S, func_only=False))


@pytest.fixture(scope="session")
def kind_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    """Servers for all kinds of message, started when they are first asked for.

    All clients share them: a Java broker with timers takes its time to start.
    """
    with contextlib.ExitStack() as stack:

        @functools.cache
        def of(server: str) -> Cluster:
            folder = tmp_path_factory.mktemp(f"kinds-{server}")
            return stack.enter_context(servers_for_kinds(server, folder, full=IS_FULL))

        yield of


@pytest.fixture(scope="session")
def stage(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kind_servers: Callable[[str], Cluster],
) -> Iterator[Stage]:
    """A client and servers, once for all scenarios of a pair, and once for those of its kinds.

    In a plain run the servers of the kinds serve all scenarios: a start costs seconds.
    """
    client, server, is_kind = request.param
    folder = tmp_path_factory.mktemp(f"{client}-at-{server}")
    with contextlib.ExitStack() as stack:
        try:
            if is_kind:
                made = met(client, server, kind_servers(server), folder)
            else:
                made = raised(client, server, folder)
            yield stack.enter_context(made)
        except Unavailable as error:
            pytest.skip(f"{client} against {server}: {error}")
