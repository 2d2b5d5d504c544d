"""Every program of the bench runs against real broker processes with checked counts."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
from bench.base.loads import CLIENT_LOADS, RAW_LOADS, Load, Rounds, WorkOrder
from bench.base.processes import Server, run_worker, start_broker, start_echo
from bench.suites import operations
from bench.suites.operations import FEW_QUEUES, measure_operation
from bench.suites.suite import Settings, run_row

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start one `cometmq up` for all rows without special settings."""
    store = tmp_path_factory.mktemp("bench") / "store"
    with start_broker(store, settings={"mappedFileSizeCommitLog": str(64 << 20)}) as running:
        yield running


_ATTEMPTS = count()


def tiny(load: Load, server: Server, seed: int) -> Rounds:
    """Run one short round of a load in its worker process."""
    order = WorkOrder(
        # Without a target, which would size the fill for a real measurement.
        load=msgspec.structs.replace(load, target=None),
        address=server.address,
        name_server=server.name_server,
        server_pid=server.pid,
        rounds=1,
        seconds=0.1,
        warm_up_s=0.02,
        fill_messages=3000,
        # Topics are named for it: what runs again must not find what it sent the first time.
        seed=seed + 1000 * next(_ATTEMPTS),
    )
    module = "bench.worker.client_worker" if load.kind == "client" else "bench.worker.worker"
    answer = run_worker(module, msgspec.json.encode(order), None)
    return msgspec.json.decode(answer, type=Rounds)


@pytest.mark.parametrize("number", range(len(RAW_LOADS)), ids=lambda n: RAW_LOADS[n].name)
def test_raw_loads_are_read_back_from_a_real_broker(number: int, server: Server) -> None:
    """Every acknowledged message of every load is read back."""
    (one,) = tiny(RAW_LOADS[number], server, 100 + number).rounds
    assert one.acknowledged == one.read_back > 0
    assert one.rate > 0
    assert one.server_cpu_s is None or one.server_cpu_s >= 0


@pytest.mark.parametrize("number", range(len(CLIENT_LOADS)), ids=lambda n: CLIENT_LOADS[n].name)
def test_client_programs_lose_and_repeat_nothing(number: int, server: Server) -> None:
    """Senders report true results, and consumers read each message once."""
    load = CLIENT_LOADS[number]
    (one,) = tiny(load, server, 200 + number).rounds
    assert one.acknowledged == one.read_back > 0
    if load.program.startswith(("push", "async-for")):
        assert one.read_back >= 3000


def settings_for(folder: Path) -> Settings:
    """Return settings for one short round without pinned processes."""
    return Settings(folder=folder, rounds=1, seconds=0.1, fill_messages=2000)


def test_a_row_starts_and_removes_a_broker_of_its_own(tmp_path: Path) -> None:
    """A row starts a broker with its settings, gives figures, and removes the store."""
    load = msgspec.structs.replace(FEW_QUEUES, flush="sync")
    row = run_row(load, settings_for(tmp_path), None)
    assert row.error == ""
    assert row.rounds[0].read_back > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["client async 64", "client linger", "async for"])
def test_a_clients_row_has_a_share_of_echo_too(name: str, tmp_path: Path) -> None:
    """A client row is compared with an echo that answers the same requests."""
    (load,) = [load for load in CLIENT_LOADS if load.name == name]
    with start_echo(tmp_path) as echo:
        row = run_row(msgspec.structs.replace(load, target=None), settings_for(tmp_path), echo)
    assert not row.error
    assert len(row.echo) == len(row.rounds) == 1
    assert row.echo[0].rate == row.echo[0].messages_rate
    assert row.share_of_echo is not None
    assert row.share_of_echo > 0


def test_a_row_whose_broker_does_not_start_says_why(tmp_path: Path) -> None:
    """A row whose broker refuses a setting quotes the broker's error."""
    load = msgspec.structs.replace(FEW_QUEUES, settings={"flushDiskType": "SOMETIMES"})
    row = run_row(load, settings_for(tmp_path), None)
    assert "flushDiskType" in row.error
    assert row.rounds == []
    assert list(tmp_path.iterdir()) == []


def test_restart_after_kill_reads_everything_back(tmp_path: Path) -> None:
    """After a kill -9 and a start, every acknowledged message is read back."""
    said: list[str] = []
    rows, facts = measure_operation(
        "restart", settings_for(tmp_path), said.append, gigabytes=0.02, queues=64
    )
    assert [row.error for row in rows] == []
    (fact,) = facts
    assert fact.value > 0
    assert "acknowledged messages read back" in fact.note
    assert any("killed" in text for text in said)
    assert list(tmp_path.iterdir()) == []


def test_start_measures_an_empty_and_a_used_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start gives one fact for readiness and two for memory where /proc exists."""
    monkeypatch.setattr(operations, "IDLE_AFTER_S", 0.05)
    rows, facts = measure_operation(
        "start", settings_for(tmp_path), lambda text: None, gigabytes=0.01, queues=8
    )
    assert rows == []
    assert facts[0].name == "ready on an empty store"
    assert len(facts) == (3 if Path("/proc/self/stat").exists() else 1)
    assert all(fact.value > 0 for fact in facts)


def test_rolling_files_keep_what_has_not_expired(tmp_path: Path) -> None:
    """While retention removes small log files, all other acknowledged messages are read back."""
    rows, facts = measure_operation(
        "rolling", settings_for(tmp_path), lambda text: None, gigabytes=0.01, queues=8
    )
    assert [row.error for row in rows] == [""]
    assert rows[0].rounds[0].acknowledged == (
        rows[0].rounds[0].read_back + rows[0].rounds[0].expired
    )
    assert "had expired" in facts[0].note


def test_two_processes_are_measured_beside_one(tmp_path: Path) -> None:
    """One and two processes are measured, verified and ended, and their stores removed."""
    rows, facts = measure_operation(
        "processes", settings_for(tmp_path), lambda text: None, gigabytes=0.01, queues=8
    )
    assert [row.error for row in rows] == ["", ""]
    assert all(row.rounds[0].acknowledged == row.rounds[0].read_back > 0 for row in rows)
    assert facts[0].name == "2 processes to one"
    assert list(tmp_path.iterdir()) == []
