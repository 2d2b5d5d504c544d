"""A store opened with other file sizes than it was made with: the files say the sizes."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.store.stores import Rig

from cometmq.codec.stored_message import BLANK, MAGIC_BLANK
from cometmq.errors import StoreCorrupt
from cometmq.store.recovery.file_sizes import made_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.testing.disk import SimDisk

SIDE = "/store/cometmq.checkpoint"
LOG = "/store/commitlog/" + "0" * 20
QUEUE = "/store/consumequeue/T/0/" + "0" * 20


def filled(count: int = 300, **config: Any) -> Rig:
    """Two queues of two files each, one log file, one index file."""
    rig = Rig(index_slot_count=50, index_entry_count=1_000, **config)
    for n in range(count):
        rig.put("T", n % 2, b"%03d" % n, index_keys=(None, f"k{n}", None))
    rig.tick(2_000)
    rig.store.close()
    return rig


def content(disk: SimDisk, path: str = "/store") -> dict[str, bytes]:
    """All files below a path but the lock."""
    found: dict[str, bytes] = {}
    for name in disk.listdir(path):
        below = f"{path}/{name}"
        if disk.is_dir(below):
            found |= content(disk, below)
        elif name != "lock":
            found[below] = disk.read_bytes(below)
    return found


def lengths(disk: SimDisk, directory: str) -> set[int]:
    """The lengths of the files in a directory of the store."""
    return {len(raw) for path, raw in content(disk).items() if f"/{directory}/" in path}


def check_whole(rig: Rig, count: int = 300) -> None:
    """All messages are there, found by queue and by key."""
    assert len(rig.bodies("T", 0)) + len(rig.bodies("T", 1)) == count
    for key in ("k0", f"k{count - 1}"):
        assert len(rig.store.prepare_query_index("T", key, 5)().physical_offsets) == 1


K = 1024
FILE = 64 * K


@pytest.mark.parametrize(
    ("row", "setting", "stated", "is_whole", "size"),
    [
        # Nothing tells a size, or everything tells the same.
        ([], FILE, 16 * K, False, FILE),
        ([(0, 0)], FILE, None, False, FILE),
        ([(0, FILE)], FILE, None, False, FILE),
        ([(FILE, FILE), (2 * FILE, FILE), (3 * FILE, 0)], FILE, None, False, FILE),
        # The names of several tell it, whatever was cut.
        ([(0, FILE), (FILE, FILE)], 16 * K, None, False, FILE),
        ([(0, FILE), (FILE, 100)], 16 * K, None, False, FILE),
        ([(0, 100), (FILE, FILE)], 4 * FILE, None, False, FILE),
        ([(0, FILE), (FILE, 0)], 4 * FILE, None, False, FILE),
        ([(0, FILE), (FILE, 16 * K)], 16 * K, 16 * K, False, FILE),
        ([(0, FILE), (FILE, FILE), (4 * FILE, FILE)], 4 * FILE, None, False, FILE),
        # All were cut: the side file or the setting agrees with the names.
        ([(0, 100), (FILE, 100)], 16 * K, FILE, False, FILE),
        ([(0, 100), (FILE, 200)], FILE, None, False, FILE),
        # One that is missing looks like two that were cut.
        ([(0, 16 * K), (FILE, 16 * K)], FILE, None, False, None),
        ([(0, 16 * K), (FILE, 16 * K)], 16 * K, 16 * K, False, None),
        ([(0, 100), (FILE, 200)], 16 * K, None, False, None),
        # A lone file and our side file.
        ([(0, FILE)], 4 * FILE, FILE, False, FILE),
        ([(0, 100)], 4 * FILE, FILE, False, FILE),
        ([(FILE, 100)], 16 * K, FILE, False, FILE),
        ([(0, 16 * K)], FILE, FILE, True, FILE),
        ([(0, 16 * K)], 4 * FILE, FILE, True, None),
        ([(0, FILE)], 4 * FILE, 16 * K, True, FILE),
        # A lone file that no side file knows, as Java leaves it.
        ([(0, FILE)], 4 * FILE, None, True, FILE),
        ([(0, FILE)], 16 * K, None, True, FILE),
        ([(3 * FILE, FILE)], 4 * FILE, None, True, FILE),
        ([(0, 100)], FILE, None, False, FILE),
        ([(2 * FILE, 100)], FILE, None, False, FILE),
        ([(0, FILE)], 16 * K, None, False, None),
        # Its name is no multiple of its length, so it was cut in its zeros.
        ([(4 * FILE, 48 * K)], FILE, None, True, FILE),
        ([(4 * FILE, 48 * K)], 16 * K, None, True, None),
        ([(FILE, 100)], 4 * FILE, None, False, None),
    ],
)
def test_what_names_and_lengths_tell(
    row: Sequence[tuple[int, int]],
    setting: int,
    stated: int | None,
    is_whole: bool,
    size: int | None,
) -> None:
    """Each line of the module's table, and what is unknown stays unknown."""
    assert made_size(row, setting, stated, lambda: is_whole) == size


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"consume_queue_file_bytes": 4_000},
            "the files of /store/consumequeue have 2000 bytes each, so that size holds and not"
            " mappedFileSizeConsumeQueue=4000: a store keeps the sizes it was made with",
        ),
        ({"consume_queue_file_bytes": 1_000}, "mappedFileSizeConsumeQueue=1000"),
        (
            {"index_slot_count": 60},
            "the files of /store/index have 50 slots and 1000 entries each, so that holds and not"
            " maxHashSlotNum=60 and maxIndexNum=1000: a store keeps the sizes it was made with",
        ),
        ({"index_entry_count": 900}, "maxHashSlotNum=50 and maxIndexNum=900"),
        ({"commit_log_file_bytes": 32_768}, "mappedFileSizeCommitLog=32768"),
        (
            {"commit_log_file_bytes": 1 << 30},
            "the files of /store/commitlog have 65536 bytes each, so that size holds and not"
            " mappedFileSizeCommitLog=1073741824: a store keeps the sizes it was made with",
        ),
    ],
)
@pytest.mark.parametrize("is_ours", [True, False])
def test_the_size_of_an_existing_store_is_read_from_its_files(
    changes: dict[str, Any], text: str, is_ours: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A setting with another size than the files does not stop the start: the files win.

    One log line says which size holds and why, whether ours or Java wrote the store last, and new
    files get that size too.
    """
    rig = filled()
    if not is_ours:
        rig.disk.remove(SIDE)
    made = rig.config
    rig.config = replace(made, **changes)
    with caplog.at_level(logging.WARNING):
        rig.open()
    assert rig.report.damages == []
    assert [record.message for record in caplog.records if text in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
    assert rig.store.config == made
    check_whole(rig)
    for n in range(300, 900):
        rig.put("T", n % 2, b"%03d" % n, index_keys=(None, f"k{n}", None))
    rig.tick(2_000)
    rig.store.close()
    assert len(rig.disk.listdir("/store/commitlog")) == 2
    assert lengths(rig.disk, "commitlog") == {65_536}
    assert lengths(rig.disk, "consumequeue") == {2_000}
    assert len(lengths(rig.disk, "index")) == 1
    for config in (made, rig.config):
        rig.config = config
        rig.open()
        assert (rig.report.mode, rig.report.damages) == ("checkpoint", [])
        check_whole(rig, 900)
        rig.store.close()


def test_a_cut_log_file_gets_the_size_of_the_store_back() -> None:
    """A crash that shortens a file does not change the size, whatever the setting says."""
    rig = filled(900)
    second = "/store/commitlog/" + "65536".zfill(20)
    rig.disk.cut(second, 3_000)
    rig.config = replace(rig.config, commit_log_file_bytes=1 << 20)
    rig.open()
    assert rig.disk.size(second) == 65_536
    assert any("3000 bytes long, expected 65536" in damage for damage in rig.report.damages)
    kept = len(rig.bodies("T", 0)) + len(rig.bodies("T", 1))
    assert 500 < kept < 900
    alone = filled()
    alone.disk.cut(LOG, 20_000)
    alone.config = replace(alone.config, commit_log_file_bytes=1 << 20)
    alone.open()
    assert alone.disk.size(LOG) == 65_536


def test_a_lone_file_of_java_that_was_cut_is_filled_to_the_setting() -> None:
    """Without our side file a lone file that ends in a record was cut; the setting is its size."""
    rig = filled()
    rig.disk.remove(SIDE)
    rig.disk.cut(LOG, 20_000)
    rig.open()
    assert rig.disk.size(LOG) == 65_536
    assert any("20000 bytes long, expected 65536" in damage for damage in rig.report.damages)


def test_a_full_lone_file_tells_its_size_by_its_blank() -> None:
    """The BLANK of a full file reaches to the file's end, so nothing was cut."""
    rig = Rig(commit_log_file_bytes=8_192)
    while rig.store.max_physical_offset < 8_000:
        rig.put("T", 0, b"x")
    rig.store.close()
    rig.disk.remove(SIDE)
    end = rig.store.max_physical_offset
    file = rig.disk.open_random(LOG, 8_192, create=False)
    file.write(end, BLANK.pack(8_192 - end, MAGIC_BLANK) + b"\xee" * (8_184 - end))
    rig.config = replace(rig.config, commit_log_file_bytes=1 << 20)
    rig.open()
    assert rig.store.config.commit_log_file_bytes == 8_192
    assert rig.report.damages == []
    rig.put("T", 0, b"next")
    assert rig.bodies("T", 0)[-1] == b"next"
    assert rig.disk.listdir("/store/commitlog") == ["0" * 20, "8192".zfill(20)]


@pytest.mark.parametrize("setting", [16_384, 4_096])
def test_a_lone_cut_file_that_is_longer_than_the_setting_stops_the_start(setting: int) -> None:
    """Nobody can say how long it was; nothing is changed, and the right setting opens it."""
    rig = filled()
    rig.disk.remove(SIDE)
    rig.disk.cut(LOG, 20_000)
    before = content(rig.disk)
    right = rig.config
    rig.config = replace(right, commit_log_file_bytes=setting)
    with pytest.raises(
        StoreCorrupt,
        match=f"they are 20000 bytes long; mappedFileSizeCommitLog says {setting}. Nothing was",
    ):
        rig.open()
    assert content(rig.disk) == before
    rig.config = right
    rig.open()
    assert rig.disk.size(LOG) == 65_536


@pytest.mark.parametrize("setting", [8_192, 16_384, 65_536])
def test_a_missing_log_file_stops_the_start_with_any_setting(setting: int) -> None:
    """Two files that are one apart look like two cut ones of double size: nothing is changed."""
    rig = Rig(commit_log_file_bytes=8_192)
    while len(rig.disk.listdir("/store/commitlog")) < 3:
        rig.put("T", 0, bytes(100))
    rig.store.close()
    rig.disk.remove("/store/commitlog/" + "8192".zfill(20))
    before = content(rig.disk)
    rig.config = replace(rig.config, commit_log_file_bytes=setting)
    with pytest.raises(StoreCorrupt, match=r"16384 apart; .* put missing files back"):
        rig.open()
    assert content(rig.disk) == before


def test_index_files_of_two_sizes_stop_the_start() -> None:
    """Files that were made with different sizes do not say which one holds."""
    rig = filled()
    kept = content(rig.disk, "/store/index")
    other = Rig(index_slot_count=60, index_entry_count=1_000)
    for n in range(300):
        other.put("T", 0, index_keys=(None, f"k{n}", None))
    other.tick(2_000)
    other.store.close()
    (raw,) = content(other.disk, "/store/index").values()
    rig.disk.write_atomic("/store/index/20400101000000000", raw)
    with pytest.raises(StoreCorrupt, match=r"different sizes, .*move /store/index away"):
        rig.open()
    assert kept.items() <= content(rig.disk, "/store/index").items()


def test_one_cut_queue_file_is_mended_as_before() -> None:
    """A single short file among others, or alone, was cut and is no other size."""
    for setting in (2_000, 4_000, 1_000):
        rig = filled()
        path = QUEUE.replace("0" * 20, "2000".zfill(20))
        rig.disk.cut(path, 900)
        rig.config = replace(rig.config, consume_queue_file_bytes=setting)
        rig.open()
        assert rig.disk.size(path) == 2_000
        assert len(rig.bodies("T", 0)) == 150
        alone = Rig()
        alone.put("T")
        alone.tick(2_000)
        alone.store.close()
        alone.disk.cut(QUEUE, 60)
        alone.config = replace(alone.config, consume_queue_file_bytes=setting)
        alone.open()
        assert alone.disk.size(QUEUE) == 2_000
        assert len(alone.bodies("T", 0)) == 1


def test_empty_queue_files_are_filled() -> None:
    """A power cut may leave names without content; what they had is in the log."""
    rig = Rig()
    for queue_id in range(3):
        rig.put("T", queue_id)
    rig.tick(2_000)
    rig.store.close()
    for queue_id in range(3):
        rig.disk.cut(QUEUE.replace("/T/0/", f"/T/{queue_id}/"), 0)
    rig.open()
    assert lengths(rig.disk, "consumequeue") == {2_000}
    assert [len(rig.bodies("T", queue_id)) for queue_id in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("setting", [2_000, 4_000])
def test_queue_files_that_contradict_the_side_file_stop_the_start(setting: int) -> None:
    """Several of one length were made so, or all were cut: nothing is changed."""
    rig = Rig()
    for queue_id in range(3):
        rig.put("T", queue_id)
    rig.tick(2_000)
    rig.store.close()
    for queue_id in range(3):
        rig.disk.cut(QUEUE.replace("/T/0/", f"/T/{queue_id}/"), 1_000)
    before = content(rig.disk)
    rig.config = replace(rig.config, consume_queue_file_bytes=setting)
    with pytest.raises(
        StoreCorrupt, match=f"1000 bytes long; mappedFileSizeConsumeQueue says {setting}"
    ):
        rig.open()
    assert content(rig.disk) == before
    rig.config = replace(rig.config, consume_queue_file_bytes=1_000)
    rig.open()
    assert len(rig.bodies("T", 2)) == 1
