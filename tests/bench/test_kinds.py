"""The suite `kinds` sends, delivers and checks every kind against a real broker."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
from bench.base.control import create_topics
from bench.base.loads import KIND_LOADS, Load, WorkOrder
from bench.base.processes import Server, start_broker
from bench.main import _kind_loads, run
from bench.suites.kinds import KIND_SETTINGS, kind_round
from bench.suites.suite import Settings
from bench.worker.kind_worker import KindFailed, KindRun

from cometmq.errors import CometError
from cometmq.net.env import system_environment
from cometmq.net.loop import run as run_loop

pytestmark = pytest.mark.processes
PLAIN = KIND_LOADS[0]
_SEEDS = count(1)
"""Topics are named for them: what runs again must not find what it sent the first time."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start one broker that takes every kind."""
    store = tmp_path_factory.mktemp("kinds") / "store"
    with start_broker(store, settings=KIND_SETTINGS) as running:
        yield running


@pytest.mark.parametrize("load", KIND_LOADS, ids=lambda load: load.program)
def test_every_message_of_a_kind_is_read_back(load: Load, server: Server, tmp_path: Path) -> None:
    """Each message is read back once and unchanged, and the phases add up to its cost."""
    one = kind_round(Settings(tmp_path), load, server, 0.05)
    assert one.acknowledged == one.read_back == 250
    if one.server_cpu_s is not None:
        assert {"send", "pull"} <= one.phases_cpu_s.keys()
        assert ("commit" in one.phases_cpu_s) == (load.program == "transactional")
        assert ("lock" in one.phases_cpu_s) == (load.program == "ordered")
        assert sum(one.phases_cpu_s.values()) == pytest.approx(one.server_cpu_s)


def test_what_was_lost_or_changed_voids_the_round(server: Server) -> None:
    """The check reports a lost or changed message, and the round does not count."""
    order = WorkOrder(load=PLAIN, address=server.address, seconds=0.01, seed=next(_SEEDS))
    one = KindRun(order, 0)
    try:
        run_loop(create_topics(system_environment(), server.address, one.targets))
        one.round()
        records = one._pull_all()
        with pytest.raises(KindFailed, match="63 of 64"):
            one._check(records[1:])
        with pytest.raises(KindFailed, match="came twice"):
            one._check([*records, records[5]])
        changed = msgspec.structs.replace(records[7], body=records[7].body[:-1] + b"?")
        with pytest.raises(KindFailed, match="was changed"):
            one._check([changed])
        moved = msgspec.structs.replace(records[7], queue_id=99)
        with pytest.raises(KindFailed, match="queue 99"):
            one._check([moved])
    finally:
        one.close()


def test_a_broker_that_is_gone_voids_the_round() -> None:
    """A broker that has ended voids the round with the reason."""
    with pytest.raises(CometError):
        KindRun(WorkOrder(load=PLAIN, address="127.0.0.1:1"), 0)


def test_the_suite_prints_rows_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """The suite prints the chosen rows and the plain ones to compare them with."""
    arguments = ["--suite", "kinds", "--only", "transactional", "--rounds", "1", "--no-pin"]
    assert run([*arguments, "--seconds", "0.05", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["rows"]] == ["message plain", "message transactional"]
    assert all(row["read_back"] == row["acknowledged"] > 0 for row in report["rows"])
    for fact in report["facts"]:
        assert fact["name"] == "cost of message transactional to plain"
        assert fact["limit"] == 4


def test_all_kinds_or_those_that_are_named() -> None:
    """All kinds or the named ones run, and the plain one is always first."""
    assert _kind_loads(()) == KIND_LOADS
    assert [load.program for load in _kind_loads(["filtered", "delayed"])] == [
        "plain",
        "delayed",
        "filtered",
    ]
