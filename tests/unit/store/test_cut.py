"""A closed store is cut at a physical offset, whole or not at all after any crash on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from tests.property.test_replication import filled, record_at, whole_log
from tests.unit.store.stores import Rig

from cometmq.errors import StoreError
from cometmq.store.base.disk import RealDisk
from cometmq.store.offline.cut import cut_store
from cometmq.testing.loop import NodeCrashed

SIZES: Final = [9_000] * 24
"""Three log files of seven messages, and the begin of a fourth."""
KEPT: Final = 9
"""Messages in front of the cut, which is in the second file."""


def closed() -> tuple[Rig, bytes, int]:
    """A closed store, its log, and the end of the message in front of the cut."""
    rig = filled(SIZES)
    log = whole_log(rig.store)
    unit = rig.store.get("t", KEPT % 2, KEPT // 2, 1, allow_cold=True)
    end = log.index(b"".join(unit.chunks))  # type: ignore[union-attr]
    rig.store.close()
    return rig, log, end


def check_cut(rig: Rig, log: bytes, end: int) -> None:
    """The log ends at the cut, queues and keys are what it derives, and the rest is kept."""
    store = rig.open()
    assert store.max_physical_offset == end
    assert whole_log(store) == log[:end]
    assert [store.max_queue_offset("t", queue_id) for queue_id in (0, 1)] == [4, 4]
    for number in range(8):
        assert record_at(store, number % 2, number // 2)
    assert store.prepare_query_index("t", "k3", 9)().physical_offsets
    assert not store.prepare_query_index("t", "k12", 9)().physical_offsets
    assert rig.disk.read_bytes(f"/store/cometmq.cut-{end}") == log[end:]
    rig.put("t", 1, b"new")
    assert store.max_queue_offset("t", 1) == 5
    rig.reopen()
    assert rig.store.max_queue_offset("t", 1) == 5


def test_a_log_is_cut_with_all_that_is_derived_from_it() -> None:
    """Over the end of log files; what was cut off is in a file of its own."""
    rig, log, end = closed()
    assert cut_store(rig.disk, "/store", end, len(log)) == f"/store/cometmq.cut-{end}"
    check_cut(rig, log, end)


def test_a_snapshot_keeps_its_bytes(tmp_path: Path) -> None:
    """It shares the log's files by hard links."""
    rig, log, end = closed()
    root, snapshot = tmp_path / "store", tmp_path / "snapshot"
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    snapshot.mkdir()
    for name in rig.disk.listdir("/store/commitlog"):
        (folder / name).write_bytes(rig.disk.read_bytes(f"/store/commitlog/{name}"))
    for path in folder.iterdir():
        (snapshot / path.name).hardlink_to(path)
    cut_store(RealDisk(), str(root), end, len(log))
    kept = b"".join(path.read_bytes() for path in sorted(snapshot.iterdir()))
    assert kept[: len(log)] == log
    after = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert after.rstrip(b"\0") == log[:end].rstrip(b"\0")
    assert len(after) == 2 * 65_536
    assert (root / f"cometmq.cut-{end}").read_bytes() == log[end:]


def test_an_end_that_is_not_in_the_log_is_refused() -> None:
    """Nothing is changed then."""
    rig, log, _ = closed()
    with pytest.raises(StoreError, match="has no bytes from"):
        cut_store(rig.disk, "/store", len(log) + 70_000, len(log))
    assert whole_log(rig.open()) == log


@pytest.mark.parametrize("operation", ["write", "sync", "remove", "rename", "read"])
@pytest.mark.parametrize("is_power_cut", [True, False])
def test_a_crash_on_the_way_is_mended_by_cutting_again(operation: str, is_power_cut: bool) -> None:
    """Before each such step: the store opens, has what stays, and is cut the next time."""
    hits = 0
    for hit in range(1, 40):
        rig, log, end = closed()

        def crash(rig: Rig = rig) -> None:
            if is_power_cut:
                rig.disk.power_cut()
            else:
                rig.disk.kill()
            raise NodeCrashed

        rig.disk.at(operation, action=crash, hit=hit)
        try:
            cut_store(rig.disk, "/store", end, len(log))
        except NodeCrashed:
            hits += 1
        else:
            break
        rig.disk.forget_triggers()
        store = rig.open()
        found = store.max_physical_offset
        assert whole_log(store)[:end] == log[:end]
        store.close()
        if found > end:
            cut_store(rig.disk, "/store", end, found)
        else:
            assert found == end
        store = rig.open()
        assert whole_log(store) == log[:end]
        assert [store.max_queue_offset("t", queue_id) for queue_id in (0, 1)] == [4, 4]
        assert rig.disk.read_bytes(f"/store/cometmq.cut-{end}")[:100] == log[end : end + 100]
    assert hits
