"""The simulated disk: what was synced stays, what was not may be lost, nothing is invented."""

import random

import pytest

from cometmq.errors import DiskFull, StoreLocked
from cometmq.testing.disk import SimDisk
from cometmq.testing.inode import PAGE_BYTES
from cometmq.testing.loop import NodeCrashed


def make_disk(seed: int = 1, **options: int) -> SimDisk:
    """A disk with a directory /s whose name is durable."""
    disk = SimDisk(random.Random(seed), lambda: 1_700_000_000_000, **options)
    disk.makedirs("/s")
    disk.sync_dir("/")
    return disk


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_what_was_synced(seed: int) -> None:
    """Synced pages are whole; each later page is the old one, the new one or a mix of sectors."""
    disk = make_disk(seed)
    log = disk.open_log("/s/log", 8 * PAGE_BYTES, create=True)
    window = log.map(0, 8 * PAGE_BYTES)
    window[: 4 * PAGE_BYTES] = b"a" * (4 * PAGE_BYTES)
    log.sync()
    disk.sync_dir("/s")
    window[2 * PAGE_BYTES :] = b"b" * (6 * PAGE_BYTES)
    disk.power_cut()
    after = disk.read_bytes("/s/log")
    assert after[: 2 * PAGE_BYTES] == b"a" * (2 * PAGE_BYTES)
    assert set(after[2 * PAGE_BYTES : 4 * PAGE_BYTES]) <= {ord("a"), ord("b")}
    assert set(after[4 * PAGE_BYTES :]) <= {0, ord("b")}
    assert len(after) == 8 * PAGE_BYTES


def test_power_cuts_differ_between_seeds() -> None:
    """Lost, kept and torn all occur."""
    fates = set()
    for seed in range(30):
        disk = make_disk(seed)
        file = disk.open_random("/s/q", 0, create=True)
        disk.sync_dir("/s")
        file.sync()
        file.write(0, b"n" * PAGE_BYTES)
        disk.power_cut()
        content = disk.read_bytes("/s/q")
        fates.add("lost" if not content.strip(b"\0") else "kept" if 0 not in content else "torn")
    assert fates == {"lost", "kept", "torn"}


def test_a_kill_keeps_everything() -> None:
    """The page cache outlives the process; locks do not."""
    disk = make_disk()
    disk.lock("/s/lock")
    log = disk.open_log("/s/log", PAGE_BYTES, create=True)
    window = log.map(0, PAGE_BYTES)
    window[:5] = b"hello"
    boot = disk.boot_id()
    disk.kill()
    window[:5] = b"ghost"
    assert disk.read_bytes("/s/log")[:5] == b"hello"
    assert disk.boot_id() == boot
    disk.lock("/s/lock")
    with pytest.raises(StoreLocked):
        disk.lock("/s/lock")
    with pytest.raises(OSError, match="crashed"):
        log.sync()


def test_names_are_durable_after_sync_dir_only() -> None:
    """A file that was made without it is sometimes gone, and never gone with it."""
    survived = set()
    for seed in range(20):
        disk = make_disk(seed)
        disk.open_random("/s/sure", 0, create=True).sync()
        disk.sync_dir("/s")
        disk.open_random("/s/unsure", 0, create=True).sync()
        disk.power_cut()
        assert disk.exists("/s/sure")
        survived.add(disk.exists("/s/unsure"))
    assert survived == {True, False}


def test_rename_and_remove_can_be_undone_by_a_power_cut() -> None:
    """Each of the two directory states is possible, and none between."""
    seen = set()
    for seed in range(30):
        disk = make_disk(seed)
        disk.write_atomic("/s/a", b"old")
        disk.rename("/s/a", "/s/b")
        disk.power_cut()
        seen.add(tuple(disk.listdir("/s")))
        disk.remove("/s/" + disk.listdir("/s")[0])
        assert disk.listdir("/s") == []
    assert seen == {("a",), ("b",)}


def test_write_atomic_is_all_or_nothing() -> None:
    """A crash just before it leaves the old content, one just after it the new."""
    disk = make_disk()
    disk.write_atomic("/s/config.json", b"old")
    disk.at("write_atomic", action=disk.fail_with(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        disk.write_atomic("/s/config.json", b"new")
    disk.power_cut()
    assert disk.read_bytes("/s/config.json") == b"old"
    disk.write_atomic("/s/config.json", b"new")
    disk.power_cut()
    assert disk.read_bytes("/s/config.json") == b"new"


@pytest.mark.parametrize("step", ["write_atomic.sync", "write_atomic.rename"])
def test_a_process_may_end_within_write_atomic(step: str) -> None:
    """The old content stays, and the temporary file too; the next write replaces both."""
    disk = make_disk()
    disk.write_atomic("/s/config.json", b"old")
    disk.at(step, action=disk.fail_with(NodeCrashed()))
    with pytest.raises(NodeCrashed):
        disk.write_atomic("/s/config.json", b"new")
    disk.power_cut()
    assert disk.read_bytes("/s/config.json") == b"old"
    disk.write_atomic("/s/config.json", b"new")
    disk.power_cut()
    assert disk.tree() == {"/s/config.json": 3}


def test_a_failed_sync_of_write_atomic_leaves_no_file() -> None:
    """As the real disk removes its temporary file."""
    disk = make_disk()
    disk.fail_sync(operation="write_atomic.sync", path_contains="config")
    with pytest.raises(OSError, match="error"):
        disk.write_atomic("/s/config.json", b"new")
    assert disk.tree() == {}


def test_what_is_durable() -> None:
    """Bytes are once they are synced, and the name is too."""
    disk = make_disk()
    log = disk.open_log("/s/log", 2 * PAGE_BYTES, create=True)
    log.write(0, b"one")
    log.sync()
    assert not disk.is_durable("/s/log", 0, 3)
    disk.sync_dir("/s")
    assert disk.is_durable("/s/log", 0, 3)
    log.write(3, b"two")
    assert disk.is_durable("/s/log", 0, 3)
    assert not disk.is_durable("/s/log", 0, 4)
    file = disk.open_random("/s/queue", 0, create=True)
    disk.sync_dir("/s")
    file.write(PAGE_BYTES, b"unit")
    assert not disk.is_durable("/s/queue", PAGE_BYTES, PAGE_BYTES + 4)
    file.sync()
    assert disk.is_durable("/s/queue", PAGE_BYTES, PAGE_BYTES + 4)


def test_a_kill_within_a_write_tears_the_last_record_alone() -> None:
    """Nothing, a beginning, or a hole in the record that the copy had come to."""
    records = b"".join(size.to_bytes(4, "big") + b"r" * (size - 4) for size in (100, 300, 200))
    fates = set()
    for seed in range(60):
        disk = make_disk(seed)
        log = disk.open_log("/s/log", PAGE_BYTES, create=True)

        def die(disk: SimDisk = disk) -> None:
            disk.kill()
            raise NodeCrashed

        disk.at("write", action=die)
        with pytest.raises(NodeCrashed):
            log.write(0, records)
        after = disk.read_bytes("/s/log")[: len(records)].rstrip(b"\0")
        differs = next((at for at in range(len(after)) if after[at] != records[at]), len(after))
        fates.add("beginning" if differs == len(after) else "hole")
        if differs < len(after):
            end = next(end for end in (100, 400, 600) if differs < end)
            assert len(after) <= end
    assert fates == {"beginning", "hole"}


def test_a_full_disk_refuses_and_recovers() -> None:
    """Reads go on, and space that is given back can be used."""
    disk = make_disk(capacity_bytes=4 * PAGE_BYTES)
    disk.open_log("/s/log", 3 * PAGE_BYTES, create=True)
    file = disk.open_random("/s/q", 1 << 20, create=True)
    file.write(0, b"x")
    with pytest.raises(DiskFull, match="no space for 4096"):
        file.write(10 * PAGE_BYTES, b"y")
    assert disk.usage("/s") == (4 * PAGE_BYTES, 4 * PAGE_BYTES)
    disk.remove("/s/log")
    file.write(10 * PAGE_BYTES, b"y")
    assert file.read(10 * PAGE_BYTES, 1) == b"y"


def test_hooks_count_hits_on_matching_paths() -> None:
    """Only the n-th matching operation triggers, once."""
    disk = make_disk()
    seen: list[str] = []
    disk.at("sync", path_contains="log", hit=2, action=lambda: seen.append("now"))
    log = disk.open_random("/s/log", 0, create=True)
    other = disk.open_random("/s/queue", 0, create=True)
    for file in (other, log, other, log, log):
        file.sync()
        if file is other:
            assert seen in ([], [])
    assert seen == ["now"]
    assert disk.counts["sync"] == 5


def test_sparse_files_read_zeros_and_know_where_data_is() -> None:
    """Cut and extended files too."""
    disk = make_disk()
    file = disk.open_random("/s/q", 100_000, create=True)
    assert file.read(99_990, 100) == bytes(10)
    assert file.next_data(0) is None
    file.write(50_000, b"abc")
    assert file.next_data(0) == 50_000 // PAGE_BYTES * PAGE_BYTES
    file.resize(50_001)
    assert file.read(50_000, 10) == b"a"
    file.resize(60_000)
    assert file.read(50_000, 3) == b"a\0\0"
    disk.flip_bit("/s/q", 50_000, 1)
    assert file.read(50_000, 1) == b"c"


def test_directories_move_and_vanish_with_what_they_hold() -> None:
    """As a file system's do."""
    disk = make_disk()
    disk.makedirs("/s/a/b")
    disk.write_atomic("/s/a/b/f", b"1")
    disk.rename("/s/a", "/s/c")
    assert disk.listdir("/s") == ["c"]
    assert disk.read_bytes("/s/c/b/f") == b"1"
    disk.remove_tree("/s/c")
    assert disk.listdir("/s") == []
    with pytest.raises(FileNotFoundError):
        disk.write_atomic("/nowhere/f", b"")
