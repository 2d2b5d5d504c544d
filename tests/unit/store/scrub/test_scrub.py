"""The digests of sealed log files, the tour that finds rotten bytes, and their repair."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.unit.store.stores import Rig

from cometmq import Message, sync
from cometmq.cli.main import root as cometmq
from cometmq.cli.terminal.exit_codes import STORE
from cometmq.errors import RemoteError, StoreError, StoreLocked
from cometmq.store.base.disk import RealDisk
from cometmq.store.offline.verify import verify_store
from cometmq.store.scrub.digests import DIGESTS_NAME, load_digests
from cometmq.testing.cluster import threaded_cluster

HOUR_MS = 3_600_000
FILE_BYTES = 65_536


def scrubbed(root: Path, **settings: Any) -> Rig:
    """A store on the real disk whose tour reads everything every hour."""
    return Rig(
        RealDisk(),
        root=str(root),
        scrub_bytes_per_s=1 << 30,
        scrub_interval_ms=HOUR_MS,
        **settings,
    )


def fill(rig: Rig, files: int) -> None:
    """Seal some log files, and let the store give them their digests."""
    while len(rig.store._log.files) <= files:
        rig.put(body=os.urandom(1_000))
    settle(rig, files)


def settle(rig: Rig, files: int) -> None:
    """Tick until the files' digests are written."""
    for _ in range(200):
        rig.tick(1_000)
        if len(load_digests(rig.disk, rig.config.root)) == files:
            return
    raise AssertionError("no digest")


def log_file(root: Path, number: int) -> Path:
    return root / "commitlog" / f"{number * FILE_BYTES:020d}"


def rot(path: Path, position: int, *, mtime_changes: bool = False) -> bytes:
    """Change one byte as a disk does, without a new modification time; the bytes before."""
    before = path.read_bytes()
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([before[position] ^ 0x10]))
    mtime_ns = stat.st_mtime_ns + (10**9 if mtime_changes else 0)
    os.utime(path, ns=(stat.st_atime_ns, mtime_ns))
    return before


def tour(rig: Rig) -> int:
    """Let an hour pass and the tour go round; how many blocks it read."""
    before = rig.store.scrubber.counts.blocks_read
    rig.now_ms += HOUR_MS
    for _ in range(20):
        rig.tick(1_000)
    return rig.store.scrubber.counts.blocks_read - before


def test_sealed_files_have_digests_over_restarts(tmp_path: Path) -> None:
    """A sound tour says nothing; a torn line of the file is made again."""
    rig = scrubbed(tmp_path)
    fill(rig, 3)
    digests = load_digests(rig.disk, str(tmp_path))
    assert sorted(digests) == [0, FILE_BYTES, 2 * FILE_BYTES]
    assert tour(rig) == 3
    rig.store.close()
    path = tmp_path / DIGESTS_NAME
    path.write_bytes(path.read_bytes()[:-5])
    rig.open()
    settle(rig, 3)
    remade = load_digests(rig.disk, str(tmp_path))
    assert {key: digest.crcs for key, digest in remade.items()} == {
        key: digest.crcs for key, digest in digests.items()
    }
    assert rig.store.scrubber.counts.rotten_blocks == 0
    rig.store.close()


def test_a_rotten_byte_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With file, place and the next step; the store goes on."""
    rig = scrubbed(tmp_path)
    fill(rig, 2)
    rot(log_file(tmp_path, 1), 40_000)
    with caplog.at_level(logging.ERROR, "cometmq.store"):
        assert tour(rig) == 2
        assert tour(rig) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{log_file(tmp_path, 1)} has rotten bytes between positions 0 and")
    assert "--repair-from" in said
    assert rig.store.scrubber.counts.rotten_blocks == 1
    rig.store.close()


def test_a_file_that_somebody_wrote_into_gets_a_new_digest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that had the store in between may have changed it."""
    rig = scrubbed(tmp_path)
    fill(rig, 2)
    rot(log_file(tmp_path, 0), 40_000, mtime_changes=True)
    with caplog.at_level(logging.WARNING, "cometmq.store"):
        tour(rig)
        settle(rig, 2)
        tour(rig)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert rig.store.scrubber.counts.rotten_blocks == 0
    rig.store.close()


def test_files_that_are_gone_leave_the_digests(tmp_path: Path) -> None:
    """Files that recovery or an operator took away have no digest any more."""
    rig = scrubbed(tmp_path)
    fill(rig, 3)
    rig.store.close()
    log_file(tmp_path, 0).unlink()
    rig.open()
    while len(rig.store._log.files) <= 3:
        rig.put(body=os.urandom(1_000))
    settle(rig, 3)
    assert FILE_BYTES in load_digests(rig.disk, str(tmp_path))
    assert 0 not in load_digests(rig.disk, str(tmp_path))
    rig.store.close()


def verify(*arguments: str) -> Result:
    """`cometmq store verify`; errors are raised."""
    return CliRunner().invoke(
        cometmq, ["store", "verify", *arguments], standalone_mode=False, catch_exceptions=False
    )


def test_repair_from_a_broker_with_the_same_log(tmp_path: Path) -> None:
    """The sealed bytes come back; a broker with another log is refused, and nothing is written."""
    rig = scrubbed(tmp_path / "store")
    fill(rig, 2)
    rig.store.close()
    store, copy, other = (tmp_path / name for name in ("store", "copy", "other"))
    shutil.copytree(store, copy)
    path = log_file(store, 1)
    good = rot(path, 40_000)
    result = verify(str(store))
    assert result.return_value == STORE
    assert "the disk changed them" in result.stdout
    rotten = path.read_bytes()
    with threaded_cluster(store_path=str(other)) as cluster:
        with sync.Producer("p", name_server=cluster.name_server_address) as producer:
            producer.send(Message("T", b"x"))
        with pytest.raises(RemoteError, match="is not in the flushed log"):
            verify(str(store), "--repair-from", cluster.broker_address)
    with threaded_cluster(store_path=str(copy)) as cluster:
        changed = log_file(copy, 1)
        rot(changed, 40_001)
        with pytest.raises(StoreError, match="has other bytes there"):
            verify(str(store), "--repair-from", cluster.broker_address)
        assert path.read_bytes() == rotten
        rot(changed, 40_001)
        with pytest.raises(StoreLocked):
            verify(str(copy), "--repair-from", cluster.broker_address)
        result = verify(str(store), "--repair-from", cluster.broker_address)
    assert result.return_value == 0
    assert path.read_bytes() == good
    (kept,) = store.glob("cometmq.rot-*")
    assert kept.read_bytes() == rotten
    assert verify_store(RealDisk(), str(store)).is_sound
    # The repaired file is looked at again, and is not taken for one that somebody changed.
    again = scrubbed(store)
    assert tour(again) == 2
    assert again.store.scrubber.counts.rotten_blocks == 0
    again.store.close()
