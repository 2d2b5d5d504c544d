"""Pairs of client and servers as a fixture; a plain run takes few pairs, `make interop` all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.peers import Unavailable
from tests.interop.stage import Stage, features_of, pairs, raised

HERE = Path(__file__).resolve().parent
IS_FULL = os.environ.get("INTEROP") == "full"
# Foreign runtimes start in seconds, and a first run fetches and builds them.
TIMEOUT_S = 900


def pytest_configure(config: pytest.Config) -> None:
    """The markers of this folder."""
    config.addinivalue_line("markers", "needs(*features): clients without them are left out")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per pair whose client has what the scenario needs."""
    if "stage" not in metafunc.fixturenames:
        return
    needed = {name for mark in metafunc.definition.iter_markers("needs") for name in mark.args}
    fitting = [pair for pair in pairs(full=IS_FULL) if needed <= features_of(pair[0])]
    metafunc.parametrize(
        "stage", fitting, ids=[f"{client}@{server}" for client, server in fitting], indirect=True
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
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """A client and servers, started once for all scenarios of a pair."""
    client, server = request.param
    folder = tmp_path_factory.mktemp(f"{client}-at-{server}")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(raised(client, server, folder))
        except Unavailable as error:
            pytest.skip(f"{client} against {server}: {error}")
