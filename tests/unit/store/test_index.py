"""Index: exact entries, both ways of adding, rolling, queries."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.stores import HOST, START_MS, HeldWorkers, Rig

from cometmq.codec.index import (
    INDEX_ENTRY,
    INDEX_HEADER_BYTES,
    IndexHeader,
    entry_position,
    index_file_bytes,
)
from cometmq.codec.java_hash import index_key_hash, java_hash, tags_code
from cometmq.store.base.results import BatchItem
from cometmq.store.index import service as index_service
from cometmq.store.index.file import IndexFile, hash_many
from cometmq.store.offline.verify import verify_store
from cometmq.testing.disk import SimDisk

SLOTS, ENTRIES = 13, 60


def empty_file(disk: SimDisk, name: str, header: IndexHeader | None = None) -> IndexFile:
    file = disk.open_random(f"/{name}", index_file_bytes(SLOTS, ENTRIES), create=True)
    return IndexFile(name, file, SLOTS, ENTRIES, header or IndexHeader(0, 0, 0, 0, 0, 1))


def content(file: IndexFile) -> bytes:
    file.file.write(*file.head_write())
    return file.file.read(0, index_file_bytes(SLOTS, ENTRIES))


entries = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 5), st.integers(0, 3_000)),
    min_size=1,
    max_size=40,
)


@given(entries, st.lists(st.integers(1, 10), min_size=1, max_size=10), st.booleans())
@settings(max_examples=60)
def test_both_ways_write_the_same_bytes(
    steps: list[tuple[int, int, int]], cuts: list[int], is_rolled: bool
) -> None:
    """One by one through the file, or many through numpy: byte-equal files."""
    disk = SimDisk(random.Random(0), lambda: 0)
    header = IndexHeader(START_MS - 5000, START_MS - 5000, 7, 7, 0, 1) if is_rolled else None
    one, many = empty_file(disk, "one", header), empty_file(disk, "many", header)
    offset, time_ms = 100, START_MS
    rows = []
    for key_hash, more, later in steps:
        offset += more
        time_ms += later
        rows.append((key_hash, offset, time_ms))
        one.add_one(key_hash, offset, time_ms)
    many.adopt_slots(many.load_slots())
    start = 0
    for cut in [*cuts, len(rows)]:
        part = rows[start : start + cut]
        start += len(part)
        if part:
            columns = [np.array(column, dtype=np.int64) for column in zip(*part, strict=True)]
            many.file.write(*many.add_many(*columns))
    write = many.slot_writes()
    assert write is not None
    write()
    assert content(one) == content(many)


def test_first_entries_are_java_s() -> None:
    """Head, chain and time differences as IndexFile.putKey makes them."""
    disk = SimDisk(random.Random(0), lambda: 0)
    file = empty_file(disk, "f")
    file.add_one(5, 1000, START_MS)
    file.add_one(5 + SLOTS, 2000, START_MS + 2_900)
    file.add_one(6, 3000, START_MS + 1)
    assert file.header == IndexHeader(START_MS, START_MS + 1, 1000, 3000, 2, 4)
    got = [
        INDEX_ENTRY.unpack(file.file.read(entry_position(number, SLOTS), 20))
        for number in (1, 2, 3)
    ]
    assert got == [(5, 1000, 0, 0), (5 + SLOTS, 2000, 2, 1), (6, 3000, 0, 0)]


texts = st.lists(st.text(max_size=20), max_size=30)


@given(texts, st.sampled_from(["Topic#", "T#T#", "Ünï#", ""]))
def test_many_hashes_are_java_s(keys: list[str], prefix: str) -> None:
    """Hashing at once gives what the codec gives one by one, beyond ASCII too."""
    before = java_hash(prefix) & 0xFFFFFFFF
    found = hash_many(keys, [before] * len(keys))
    assert found.tolist() == [index_key_hash(prefix + key) for key in keys]


def put_keys(rig: Rig, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        rig.put(
            "T",
            n % 3,
            b"%d" % n,
            properties=f"UNIQ_KEY\x01U{n}\x02KEYS\x01k{n} all\x02TAGS\x01Tag{n % 2}\x02".encode(),
            index_keys=(f"U{n}", f"k{n} all", f"Tag{n % 2}"),
            tags_code=tags_code(f"Tag{n % 2}"),
        )


@pytest.mark.parametrize("step", [1, 30, 500])
def test_queries_over_rolled_files(step: int) -> None:
    """Every key is found, whatever batch it came in, before and after a restart."""
    rig = Rig(commit_log_file_bytes=1 << 20)
    for start in range(0, 600, step):
        put_keys(rig, min(step, 600 - start), start)
        rig.tick(50)
    for _ in range(2):
        assert len(rig.store._index.files) > 3
        for n in range(0, 600, 37):
            for key in (f"U{n}", f"k{n}"):
                [offset] = rig.store.prepare_query_index("T", key, 64)().physical_offsets
                record = rig.store.message_at(offset)
                assert record is not None
                assert key.encode() in bytes(record)
        assert len(rig.store.prepare_query_index("T", "all", 64)().physical_offsets) == 64
        tagged = rig.store.prepare_query_index("T", "Tag1", 1000, index_type="T")().physical_offsets
        assert len(tagged) == 300
        assert tagged == sorted(tagged)
        rig.reopen()
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_query_catches_up_first() -> None:
    """What was put a moment ago is found, though its entry is still waiting."""
    rig = Rig(workers=HeldWorkers())
    put_keys(rig, 200)
    [offset] = rig.store.prepare_query_index("T", "k199", 5)().physical_offsets
    assert offset > 0
    assert rig.store.prepare_query_index("T", "nothing", 5)().physical_offsets == []
    assert rig.store.prepare_query_index("Other", "k199", 5)().physical_offsets == []


def test_query_by_time() -> None:
    """Entries outside the asked time are left out."""
    rig = Rig()
    for n in range(10):
        rig.put(index_keys=(None, "key", None), store_ms=START_MS + n * 10_000)
    found = rig.store.prepare_query_index("T", "key", 64, START_MS + 20_000, START_MS + 50_000)()
    assert len(found.physical_offsets) == 4
    assert found.last_update_timestamp_ms == START_MS + 90_000


def test_waiting_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a single turn of the timer the waiting list still does not grow for ever."""
    monkeypatch.setattr(index_service, "_WAITING_MAX", 500)
    rig = Rig(commit_log_file_bytes=1 << 20, index_entry_count=20_000, index_slot_count=1000)
    monkeypatch.setattr("cometmq.store.append.appender._KEYS_WAITING_MAX", 100)
    for n in range(3_000):
        rig.now_ms += 1
        put_keys(rig, 1, n)
        assert len(rig.store._index.pending) <= 600


def has_table(file: IndexFile) -> bool:
    return file.slots is not None


def test_few_messages_need_no_table() -> None:
    """A quiet broker keeps no slot table in memory; a busy one drops it when it gets quiet."""
    rig = Rig(commit_log_file_bytes=1 << 20, index_entry_count=20_000, index_slot_count=1000)
    put_keys(rig, 10)
    rig.tick(100)
    newest = rig.store._index.newest
    assert newest is not None
    assert not has_table(newest)
    put_keys(rig, 1000, 10)
    rig.tick(100)
    assert has_table(newest)
    for _ in range(5):
        rig.tick(31_000)
    assert not has_table(newest)
    put_keys(rig, 10, 2000)
    rig.tick(100)
    assert len(rig.store.prepare_query_index("T", "k2005", 5)().physical_offsets) == 1


def test_disabled_index_answers_nothing() -> None:
    """messageIndexEnable=false: no files, no entries."""
    rig = Rig(is_index_enabled=False)
    put_keys(rig, 10)
    rig.tick(100)
    assert rig.store.prepare_query_index("T", "k1", 5)().physical_offsets == []
    assert rig.disk.listdir("/store/index") == []
    rig.kill()
    assert rig.report.mode == "checkpoint"


@pytest.mark.parametrize("damage", ["size", "head", "gone"])
def test_damaged_file_is_built_again(damage: str) -> None:
    """A wrong size, a wrong head or no file at all: the log has every key."""
    rig = Rig(commit_log_file_bytes=1 << 20)
    put_keys(rig, 400)
    rig.tick(100)
    rig.store.close()
    names = rig.disk.listdir("/store/index")
    path = f"/store/index/{names[1]}"
    if damage == "size":
        rig.disk.cut(path, 1000)
    elif damage == "head":
        rig.disk.open_random(path, 0, create=False).write(36, b"\x7f\xff\xff\xff")
    else:
        rig.disk.remove_tree("/store/index")
    rig.open()
    assert rig.report.index_entries_built > 100
    for n in (0, 100, 200, 399):
        assert len(rig.store.prepare_query_index("T", f"k{n}", 5)().physical_offsets) == 1
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_slot_table_is_mended_after_a_kill() -> None:
    """Slots that were only in memory come back from the entries."""
    rig = Rig(commit_log_file_bytes=1 << 20, index_entry_count=20_000, index_slot_count=1000)
    put_keys(rig, 1_500)
    rig.tick(100)
    newest = rig.store._index.newest
    assert newest is not None
    written = newest.file.read(INDEX_HEADER_BYTES, 4000)
    put_keys(rig, 1_500, 1_500)
    rig.tick(100)
    # The table is written every few seconds, the entries at once.
    assert newest.file.read(INDEX_HEADER_BYTES, 4000) == written
    rig.kill()
    for n in (0, 1500, 2999):
        assert len(rig.store.prepare_query_index("T", f"k{n}", 5)().physical_offsets) == 1
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_batch_keys_are_indexed() -> None:
    """Each message of a batch under its own keys."""
    rig = Rig()
    items: list[Any] = [
        BatchItem(0, b"", b"UNIQ_KEY\x01b%d\x02" % n, 0, (f"b{n}", None, None)) for n in range(10)
    ]
    result = rig.store.put_batch("T", 0, items, born_host=HOST)
    for n in range(10):
        found = rig.store.prepare_query_index("T", f"b{n}", 5)()
        assert found.physical_offsets == [result.physical_offsets[n]]


def test_a_query_reads_nothing_on_the_loop() -> None:
    """After a kill the slot table is doubtful: a worker reads it, not who asks."""
    workers = HeldWorkers()
    rig = Rig(commit_log_file_bytes=1 << 20, index_entry_count=1_000, workers=workers)
    for first in range(0, 1_200, 300):
        put_keys(rig, 300, first)
        rig.tick(100)
        workers.run()
        workers.run()
    rig.kill()
    # Some wait, some are added but not written, some are in full files.
    put_keys(rig, 200, 1_200)
    before = rig.disk.counts.copy()
    looks = {
        number: rig.store._index.prepare_query("T", f"k{number}", 9, 0, 1 << 60, "K")
        for number in (0, 500, 1_100, 1_250, 1_399)
    }
    assert rig.disk.counts == before
    assert rig.store._index.pending
    for number, look in looks.items():
        assert len(look().physical_offsets) == 1, number
    assert rig.disk.counts["read"] > before["read"]
    # What is indexed between the two steps is found once.
    look = rig.store._index.prepare_query("T", "k1300", 9, 0, 1 << 60, "K")
    for _ in range(5):
        workers.run()
        rig.tick(100)
    assert rig.store._index.pending == []
    assert len(look().physical_offsets) == 1


def test_entries_on_their_way_to_the_file_are_found() -> None:
    """A worker has not written them yet, and the table in memory leads to them."""
    workers = HeldWorkers()
    rig = Rig(commit_log_file_bytes=1 << 20, index_entry_count=5_000, workers=workers)
    put_keys(rig, 250)
    rig.tick(100)
    workers.run()
    put_keys(rig, 250, 250)
    rig.tick(100)
    index = rig.store._index
    assert index.has_unwritten
    assert index.pending == []
    for number in (0, 249, 250, 499):
        assert len(rig.store.prepare_query_index("T", f"k{number}", 9)().physical_offsets) == 1


def test_queries_on_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    """No new file can be made: keys wait, are found where they wait, and go in when it empties."""
    rig = Rig(commit_log_file_bytes=1 << 20, index_entry_count=300)
    put_keys(rig, 100)
    rig.tick(100)
    files = len(rig.disk.listdir("/store/index"))
    capacity_bytes = rig.disk.capacity_bytes
    rig.disk.capacity_bytes = 0
    for first in range(100, 400, 50):
        put_keys(rig, 50, first)
        rig.tick(100)
    assert rig.store._index.pending
    assert "waits for space" in caplog.text
    assert len(rig.disk.listdir("/store/index")) == files
    for number in (0, 99, 100, 399):
        assert len(rig.store.prepare_query_index("T", f"k{number}", 9)().physical_offsets) == 1, (
            number
        )
    rig.disk.capacity_bytes = capacity_bytes
    for _ in range(5):
        rig.tick(100)
    assert rig.store._index.pending == []
    for number in (0, 99, 100, 399):
        assert len(rig.store.prepare_query_index("T", f"k{number}", 9)().physical_offsets) >= 1, (
            number
        )


def test_a_stop_writes_the_slots_that_a_worker_no_longer_does() -> None:
    """Its job begins after the stop, and must not take the changed pages along."""
    workers = HeldWorkers()
    rig = Rig(
        commit_log_file_bytes=1 << 20,
        index_entry_count=5_000,
        index_slot_count=1000,
        workers=workers,
    )
    put_keys(rig, 300)
    for _ in range(4):
        rig.tick(100)
        workers.run()
    newest = rig.store._index.newest
    assert newest is not None
    assert has_table(newest)
    put_keys(rig, 300, 300)
    # The table is due for writing, and its job waits when the store is closed.
    rig.tick(10_000)
    assert index_service.IndexState.WRITING in rig.store._index.state
    rig.store.close()
    workers.run()
    assert verify_store(rig.disk, "/store").findings == []


@pytest.mark.parametrize("kept", [0, 1, 4, 10])
@pytest.mark.parametrize("stale", [(70,), (70, 10, 500), (500, 90), ()])
def test_entries_of_an_earlier_life_go(kept: int, stale: tuple[int, ...]) -> None:
    """Behind the last sync a power cut may leave what an earlier life wrote, of records long lost.

    Their offsets may lie below what was synced, and come in any order.
    """
    file = empty_file(SimDisk(random.Random(1), lambda: START_MS), "stale")
    right = {(100 + n, 5 * n) for n in range(kept)}
    for key_hash, offset in sorted(right):
        file.add_one(key_hash, offset, START_MS)
    for offset in stale:
        file.add_one(7, offset, START_MS)
    file.cut(100, lambda key_hash, offset: (key_hash, offset) in right)
    assert file.header.index_count == 1 + kept
    found = {tuple(row)[:2] for row in file.read_entries(1, 1 + kept).tolist()}
    assert found == right


@pytest.mark.parametrize("changed", range(1, 9))
def test_a_changed_entry_drops_no_other(changed: int) -> None:
    """A disk let it lead behind the end; the search for the first entry to drop passes over it."""
    disk = SimDisk(random.Random(1), lambda: START_MS)
    file = empty_file(disk, "changed")
    for number in range(9):
        file.add_one(100 + number, 10 * number, START_MS)
    disk.flip_bit("/changed", entry_position(changed, SLOTS) + 5, 6)
    file.cut(85)
    assert file.header.index_count == 10
    file.cut(50)
    # The last one that stays may be the changed one, which goes alone.
    assert file.header.index_count == (5 if changed == 5 else 6)
