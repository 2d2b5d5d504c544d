"""`store inspect` and `store verify` on a store that a broker left behind."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cometmq import sync
from cometmq.cli.main import root
from cometmq.cli.terminal.exit_codes import STORE
from cometmq.errors import StoreError
from cometmq.model import Message
from cometmq.store.base.disk import RealDisk
from cometmq.store.offline.inspect import read_records
from cometmq.testing.cluster import threaded_cluster

MESSAGES = 20
TOPIC = "Kept"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store directory with twenty messages, closed."""
    store = tmp_path_factory.mktemp("kept")
    settings = {"mappedFileSizeCommitLog": 1 << 20, "storePathRootDir": str(store)}
    with (
        threaded_cluster(settings) as cluster,
        sync.Producer("keeper", name_server=cluster.name_server_address) as producer,
    ):
        for number in range(MESSAGES):
            producer.send(Message(TOPIC, f"body {number}".encode(), tags="t", keys="k"))
    return store


def run(*arguments: str) -> Result:
    """`cometmq store ARGUMENTS`; errors are raised."""
    return CliRunner().invoke(
        root, ["store", *arguments], standalone_mode=False, catch_exceptions=False
    )


def test_inspect_shows_files_and_ranges(kept: Path) -> None:
    """Queues, log and index files, the checkpoint and everything else."""
    view = json.loads(run("inspect", str(kept), "--json").stdout)
    assert view["closed_in_peace"]
    assert view["checkpoint"]["physic_timestamp_ms"] > 0
    assert view["log_file_bytes"] == 1 << 20
    held = [
        queue["max_queue_offset"] - queue["min_queue_offset"]
        for queue in view["queues"]
        if queue["topic"] == TOPIC
    ]
    assert sum(held) == MESSAGES
    assert any(file["path"] == "config/topics.json" for file in view["other_files"])
    text = run("inspect", str(kept)).stdout
    assert "closed in peace" in text
    assert TOPIC in text


def test_inspect_prints_records(kept: Path) -> None:
    """The messages of the log, from a position on."""
    records = json.loads(run("inspect", str(kept), "--records", "5", "--json").stdout)
    assert [record["body"] for record in records] == [f"body {number}" for number in range(5)]
    assert {(record["tags"], record["keys"]) for record in records} == {("t", "k")}
    later = run("inspect", str(kept), "--from", str(records[3]["physical_offset"]), "--json")
    assert json.loads(later.stdout)[0] == records[3]


def test_sound_store_is_sound(kept: Path) -> None:
    """Every record, unit and index entry is checked."""
    result = run("verify", str(kept), "--json")
    report = json.loads(result.stdout)
    assert result.return_value == 0
    assert report["is_sound"]
    assert report["records"] == report["units"] == MESSAGES
    assert run("verify", str(kept)).stdout.endswith("sound\n")


def test_flipped_bit_is_named_by_file_and_position(kept: Path) -> None:
    """Exit code 5, with the file and position of the fault."""
    record = read_records(RealDisk(), str(kept), count=3)[2]
    (log,) = (kept / "commitlog").glob("0*")
    position = log.read_bytes().index(b"body 2")
    descriptor = os.open(log, os.O_RDWR)
    try:
        os.pwrite(descriptor, b"B", position)
        result = run("verify", str(kept), "--json")
        shown = run("verify", str(kept))
    finally:
        os.pwrite(descriptor, b"b", position)
        os.close(descriptor)
    assert result.return_value == STORE
    report = json.loads(result.stdout)
    assert not report["is_sound"]
    (finding,) = [item for item in report["findings"] if item["kind"] == "damage"]
    assert finding["path"] == str(log)
    assert finding["position"] == record.physical_offset
    assert f"position {record.physical_offset}" in shown.stdout


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_other_folders_are_refused(command: str, tmp_path: Path) -> None:
    """A folder without a store is refused."""
    with pytest.raises(StoreError, match="holds no commitlog"):
        run(command, str(tmp_path))
    with pytest.raises(StoreError, match="is no directory"):
        run(command, str(tmp_path / "absent"))
