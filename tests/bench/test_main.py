"""The command selects rows, refuses wrong options, and gives its exit codes and texts."""

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from bench.base.loads import CLIENT_LOADS, KIND_LOADS, RAW_LOADS, SCALE_STEPS
from bench.main import _name_server_of, run
from bench.suites.operations import OPERATIONS
from bench.suites.replicas import REPLICAS

import cometmq
from cometmq.cli.bench import load_command
from cometmq.errors import ConfigError


@pytest.fixture
def served(memory_broker: Any) -> Any:
    """Run a memory broker in its own thread; the worker is another process."""
    broker = memory_broker()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(broker.listen(), loop).result(10)
    yield broker
    loop.call_soon_threadsafe(broker.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_list_names_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    """The list has one line for every row."""
    assert run(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    loads = RAW_LOADS + CLIENT_LOADS + KIND_LOADS
    assert len(lines) == len(loads) + len(OPERATIONS) + len(SCALE_STEPS) + len(REPLICAS)
    for load in loads:
        assert any(load.name in line for line in lines)


def test_rows_have_names_of_their_own() -> None:
    """Row names are unique, as `--only` and the reports need it."""
    names = [load.name for load in RAW_LOADS + CLIENT_LOADS + KIND_LOADS]
    assert len(set(names)) == len(names)


def test_the_name_server_of_a_running_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name server comes from -n, else from NAMESRV_ADDR, else from the own cluster."""
    monkeypatch.setenv("NAMESRV_ADDR", "a:1")
    options = {"external": "b:2", "external_name_server": ""}
    assert _name_server_of(options) == "a:1"
    assert _name_server_of({**options, "external_name_server": "c:3"}) == "c:3"
    assert _name_server_of({**options, "external": ""}) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "no such row"],
        ["--set", "flushDiskType", "--only", "send 1x1"],
        ["--broker", "127.0.0.1:1", "--suite", "operations"],
        ["-n", "127.0.0.1:1"],
    ],
)
def test_wrong_usage_is_refused(arguments: list[str]) -> None:
    """Wrong options are refused before any process starts."""
    with pytest.raises(ConfigError):
        run(arguments)


@pytest.mark.processes
def test_a_row_against_a_running_broker(
    served: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A verified row gives exit code 0 and its JSON file, and leaves no other file."""
    report = tmp_path / "report.json"
    folder = tmp_path / "stores"
    arguments = ["--broker", served.address, "--kind", "batch", "--batch", "10", "--window", "2"]
    arguments += ["--seconds", "0.05", "--rounds", "2", "--no-echo", "--no-pin"]
    assert run([*arguments, "--store", str(folder), "--json", str(report)]) == 0
    document = json.loads(report.read_text())
    (row,) = document["rows"]
    assert row["error"] is None
    assert row["acknowledged"] == row["read_back"] == served.messages > 0
    assert len(row["rounds"]) == 2
    assert document["conditions"]["server"] == f"running broker {served.address}"
    assert list(folder.iterdir()) == []
    assert "batch10 1x2" in capsys.readouterr().out


@pytest.mark.processes
def test_a_row_that_fails_gives_exit_code_one(
    served: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed row gives exit code 1 and prints the reason in place of figures."""
    served.refuse_every = 5
    arguments = ["--broker", served.address, "--kind", "send", "--seconds", "0.05"]
    assert run([*arguments, "--rounds", "1", "--no-echo", "--no-pin"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_wheel_says_where_the_load_programs_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Outside a clone the command says how to get the load programs and ends with code 2."""
    monkeypatch.delitem(sys.modules, "bench.main", raising=False)
    monkeypatch.setattr(cometmq, "__file__", str(tmp_path / "lib" / "cometmq" / "__init__.py"))
    with pytest.raises(ConfigError, match=r"python -m bench.*pip install -e \..*JDK.*Maven"):
        load_command()
