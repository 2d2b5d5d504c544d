"""Which files go and when writes are refused."""

from __future__ import annotations

import errno
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.store.stores import START_MS, HeldWorkers, Rig

from cometmq.store.base.config import StoreConfig
from cometmq.store.base.results import ColdRead, GetResult, GetStatus
from cometmq.store.offline.verify import verify_store
from cometmq.store.retention.retention import (
    DiskUse,
    RetentionDecision,
    decide_retention,
    used_percent,
)
from cometmq.testing.disk import SimDisk

HOUR_MS = 3_600_000
OLD, NEW = 73 * HOUR_MS, 71 * HOUR_MS
CONFIG = StoreConfig(root="/x")
LOOSE = StoreConfig(root="/x", is_clean_forced=False)


@pytest.mark.parametrize(
    ("used", "ages", "hour", "was_full", "config", "expected"),
    [
        # Nothing but the hour of deleteWhen lets expired files go.
        (10, [OLD, OLD, NEW], 3, False, CONFIG, (0, False)),
        (10, [OLD, OLD, NEW], 4, False, CONFIG, (2, False)),
        (10, [NEW, OLD], 4, False, CONFIG, (0, False)),
        # Above 75 % expired ones go at any hour.
        (76, [OLD, NEW], 3, False, CONFIG, (1, False)),
        (75, [OLD, NEW], 3, False, CONFIG, (0, False)),
        # Above 85 % age does not count, if the operator did not forbid it.
        (86, [NEW, NEW], 3, False, CONFIG, (2, False)),
        (86, [NEW, NEW], 3, False, LOOSE, (0, False)),
        (86, [OLD, NEW], 3, False, LOOSE, (1, False)),
        # Above 90 % writes are refused; until 85 % the refusal stays.
        (91, [NEW], 3, False, CONFIG, (1, True)),
        (90, [NEW], 3, False, CONFIG, (1, False)),
        (86, [NEW], 3, True, CONFIG, (1, True)),
        (85, [NEW], 3, True, CONFIG, (0, False)),
        # Ten files in one go.
        (95, [NEW] * 30, 3, False, CONFIG, (10, True)),
    ],
)
def test_decision(
    used: int,
    ages: list[int],
    hour: int,
    was_full: bool,
    config: StoreConfig,
    expected: tuple[int, bool],
) -> None:
    """The table of the module, row by row."""
    found = decide_retention(config, DiskUse(used, ages), hour=hour, was_full=was_full)
    assert found == RetentionDecision(*expected, is_forced=used > 85 and config is CONFIG)


def test_share_is_rounded_up() -> None:
    """As upstream does: a hair above 90 % is 91."""
    assert [used_percent(1000, used) for used in (0, 900, 901, 1000)] == [0, 90, 91, 100]
    assert used_percent(0, 0) == 0


def filled(**config: Any) -> Rig:
    """Some log, queue and index files, hours apart."""
    rig = Rig(commit_log_file_bytes=8_192, **config)
    for n in range(400):
        rig.put(
            "T",
            n % 2,
            b"%03d" % n + bytes(100),
            properties=b"KEYS\x01k%d\x02" % n,
            index_keys=(None, f"k{n}", None),
            store_ms=rig.now_ms,
        )
        if n % 10 == 0:
            rig.tick(HOUR_MS // 10)
    rig.tick(2_000)
    return rig


def test_expired_files_go_with_all_that_points_at_them() -> None:
    """Log files by age, then queue files and index files; minimum offsets move."""
    rig = filled(index_entry_count=100)
    before = len(rig.disk.listdir("/store/commitlog"))
    assert before > 5
    rig.store._retention.drop_files(4)
    rig.tick(100)
    assert len(rig.disk.listdir("/store/commitlog")) == before - 4
    assert rig.store.min_physical_offset == 4 * 8_192
    first = rig.store.min_queue_offset("T", 0)
    assert first > 0
    assert rig.get("T", 0, 0).status is GetStatus.OFFSET_TOO_SMALL
    bodies = rig.bodies("T", 0)
    assert len(bodies) == rig.store.max_queue_offset("T", 0) - first
    assert rig.store.message_at(0) is None
    assert rig.store.earliest_store_time("T", 0) > START_MS
    assert rig.store.prepare_query_index("T", "k3", 5)().physical_offsets == []
    assert rig.disk.listdir("/store/index")[0] > "20231114"
    rig.reopen()
    assert rig.store.min_queue_offset("T", 0) == first
    assert rig.bodies("T", 0) == bodies
    # All but the last file: the newest messages always stay.
    rig.store._retention.drop_files(1_000)
    assert len(rig.disk.listdir("/store/commitlog")) == 1
    assert len(rig.disk.listdir("/store/consumequeue/T/0")) == 1
    # One more than the newest: a message's keys may be spread over two files.
    assert len(rig.disk.listdir("/store/index")) <= 2
    assert rig.bodies("T", 0)[-1][:3] == b"398"
    rig.kill()
    assert rig.bodies("T", 0)[-1][:3] == b"398"
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_files_go_at_their_hour() -> None:
    """Modification time plus fileReservedTime, at the hours of deleteWhen, local time."""
    now = datetime.fromtimestamp(START_MS / 1000, tz=UTC).astimezone()
    rig = filled(file_reserved_hours=2)
    hour = datetime.fromtimestamp(rig.now_ms / 1000, tz=UTC).astimezone().hour
    files = len(rig.disk.listdir("/store/commitlog"))
    if hour not in (4,):
        rig.tick(15_000)
        assert len(rig.disk.listdir("/store/commitlog")) == files
    rig.store.delete_expired_now()
    rig.tick(15_000)
    left = len(rig.disk.listdir("/store/commitlog"))
    assert 1 < left < files
    while datetime.fromtimestamp(rig.now_ms / 1000, tz=UTC).astimezone().hour != 4:
        rig.tick(HOUR_MS)
    for _ in range(3):
        rig.tick(11_000)
    assert len(rig.disk.listdir("/store/commitlog")) == 1
    assert now.tzinfo is not None


def test_files_that_went_while_ages_were_taken_are_not_counted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker looks at ages; meanwhile the oldest files go, as the mover had freed them."""
    workers = HeldWorkers()
    rig = filled(workers=workers, file_reserved_hours=1_000_000)
    files = rig.store._log.files
    for file in files[2:]:
        rig.disk._inode(file.path).mtime_ms = rig.now_ms + HOUR_MS
    third = files[2].start
    retention = rig.store._retention
    monkeypatch.setattr(retention, "synced_count", lambda count: count)
    while workers.run():
        pass
    retention.change(replace(rig.config, file_reserved_hours=0))
    retention.delete_expired_now()
    retention.tick(rig.now_ms + 1)
    retention.drop_files(2)
    assert rig.store._log.files[0].start == third
    while workers.run():
        pass
    assert rig.store._log.files[0].start == third


def test_reader_outlives_its_file() -> None:
    """A chunk that is on its way out stays readable when its file expires."""
    rig = filled()
    first = rig.store.min_queue_offset("T", 0)
    found = rig.get("T", 0, first)
    copy = b"".join(found.chunks)
    rig.store._retention.drop_files(1_000)
    rig.tick(100)
    assert b"".join(found.chunks) == copy


def test_queue_whose_messages_are_all_gone() -> None:
    """Minimum and maximum meet; the next message goes on with the number."""
    rig = Rig(commit_log_file_bytes=8_192)
    for _ in range(5):
        rig.put("Old")
    for _ in range(200):
        rig.put("New", body=bytes(200))
    rig.tick(2_000)
    rig.store._retention.drop_files(2)
    assert rig.store.min_queue_offset("Old", 0) == rig.store.max_queue_offset("Old", 0) == 5
    assert rig.get("Old", 0, 2).status is GetStatus.OFFSET_TOO_SMALL
    assert rig.get("Old", 0, 5).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert rig.put("Old", body=b"six").queue_offset == 5
    for _ in range(2):
        assert rig.bodies("Old") == [b"six"]
        rig.tick(2_000)
        rig.kill()


class Crash(BaseException):
    """The node dies here; nothing in the store may catch it."""


def cold(*_: Any) -> None:
    """Nothing is in memory."""


def test_first_offsets_are_found_by_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an expiry the loop reads no cold unit; a pull waits for who does, others skip on."""
    workers = HeldWorkers()
    rig = filled()
    rig.store._retention.drop_files(0)
    rig.store._retention._workers = workers
    before = rig.store.min_queue_offset("T", 0)
    rig.tick(60_000)
    monkeypatch.setattr("cometmq.testing.disk.SimRandomFile.read_resident", cold)
    rig.store._retention.drop_files(4)
    reads = rig.disk.counts["read"]
    assert rig.store.min_queue_offset("T", 0) == before
    found = rig.store.get("T", 0, before, 32)
    assert isinstance(found, ColdRead)
    assert rig.disk.counts["read"] == reads
    found.warm()
    assert rig.disk.counts["read"] > reads
    again = rig.store.get("T", 0, before, 32, allow_cold=True)
    assert isinstance(again, GetResult)
    assert again.status is GetStatus.OFFSET_TOO_SMALL
    first = again.min_queue_offset
    assert first == rig.store.min_queue_offset("T", 0) > before
    other = rig.store.min_queue_offset("T", 1)
    while workers.run():
        pass
    assert rig.store.min_queue_offset("T", 1) > other
    monkeypatch.undo()
    assert len(rig.bodies("T", 0)) == rig.store.max_queue_offset("T", 0) - first


def quiet_queues() -> Rig:
    """Queues whose messages have all expired, and others."""
    rig = Rig(commit_log_file_bytes=8_192)
    for topic, queue_id in (("Old", 0), ("Old", 1), ("Half", 0), ("Watched", 0)):
        for _ in range(5):
            rig.put(topic, queue_id)
    rig.put("RMQ_SYS_TRANS_HALF_TOPIC")
    for number in range(200):
        rig.put("New", body=bytes(200))
        if number == 150:
            rig.put("Half", 1)
    rig.store.watch("Watched", 0)
    rig.tick(2_000)
    rig.store._retention.drop_files(3)
    return rig


@pytest.mark.parametrize("end", ["kill", "power cut", "close"])
def test_queues_without_messages_are_removed(end: str) -> None:
    """Directories go, and topics that have none left; numbering begins again at 0."""
    rig = quiet_queues()
    rig.store.clean_expired_queues()
    for _ in range(3):
        rig.tick(2_000)
    for _ in range(2):
        assert not rig.disk.exists("/store/consumequeue/Old")
        assert rig.disk.listdir("/store/consumequeue/Half") == ["1"]
        assert rig.disk.exists("/store/consumequeue/Watched/0")
        assert rig.disk.exists("/store/consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0")
        assert len(rig.bodies("New")) > 100
        assert rig.store.max_queue_offset("Old", 0) == 0
        assert rig.store.max_queue_offset("Watched", 0) == 5
        if end == "close":
            rig.store.close()
            rig.open()
        elif end == "kill":
            rig.kill()
        else:
            rig.tick(120_000)
            rig.tick(120_000)
            rig.tick(120_000)
            rig.disk.power_cut()
            rig.open()
        assert rig.report.mode == "checkpoint", rig.report.reason
        assert rig.report.damages == []
    assert rig.put("Old", 0, b"new").queue_offset == 0
    assert rig.bodies("Old") == [b"new"]
    rig.tick(2_000)
    rig.kill()
    assert rig.bodies("Old") == [b"new"]
    assert rig.report.mode == "checkpoint"


def test_a_crash_between_the_frame_and_the_removal() -> None:
    """The side file says that the queue is gone, its directory is still there."""
    rig = quiet_queues()
    hits: list[str] = []

    def die() -> None:
        hits.append("remove")
        raise Crash

    rig.disk.at("remove", path_contains="/consumequeue/Old/", action=die)
    with pytest.raises(Crash):
        rig.store.clean_expired_queues()
        rig.tick(2_000)
    assert hits == ["remove"]
    rig.kill()
    assert rig.report.mode == "checkpoint"
    assert rig.store.max_queue_offset("Old", 0) == 0
    assert rig.put("Old", 0, b"new").queue_offset == 0
    rig.tick(2_000)
    rig.kill()
    assert rig.bodies("Old") == [b"new"]
    assert len(rig.bodies("New")) > 100


def test_a_message_that_comes_meanwhile_keeps_its_queue() -> None:
    """A worker found the queue empty; by the time the loop hears of it, it is not."""
    workers = HeldWorkers()
    rig = quiet_queues()
    rig.store._retention._workers = workers
    rig.store.clean_expired_queues()
    assert rig.put("Old", 0, b"six").queue_offset == 5
    while workers.run():
        pass
    rig.tick(2_000)
    assert rig.bodies("Old") == [b"six"]
    assert not rig.disk.exists("/store/consumequeue/Old/1")


def test_a_file_stays_until_its_units_are_synced() -> None:
    """Also when it has expired: after a power cut nothing could make them again."""
    rig = Rig(commit_log_file_bytes=8_192)
    for _ in range(100):
        rig.put("T", body=bytes(200))
    retention = rig.store._retention
    assert len(rig.store._log.files) > 2
    assert retention.synced_count(2) == 0
    for _ in range(5):
        rig.tick(60_000)
    assert retention.synced_count(2) == 2


@pytest.mark.parametrize("seed", range(6))
def test_a_queue_whose_messages_are_gone_keeps_its_number_over_a_power_cut(seed: int) -> None:
    """Files go at the first moment they may: only the side file knows where the queue ended."""
    now_ms = [START_MS]
    disk = SimDisk(random.Random(seed), lambda: now_ms[0])
    rig = Rig(disk, commit_log_file_bytes=8_192, is_sync_flush=True)
    for number in range(3):
        assert rig.put("Quiet", body=b"early").queue_offset == number
    for _ in range(100):
        rig.put("T", body=bytes(200))
    retention = rig.store._retention
    while retention.synced_count(2) < 2:
        rig.tick(100)
        # As retention asks for it when files are to go before the minute is over.
        rig.store._writer.sync_round()
    assert rig.store.flushed_offset == rig.store.max_physical_offset
    retention.drop_files(2)
    assert rig.store.min_physical_offset == 2 * 8_192
    disk.power_cut()
    rig.open()
    assert rig.put("Quiet", body=b"late").queue_offset == 3


def test_a_log_file_that_cannot_be_removed_keeps_those_behind_it() -> None:
    """A gap in the log would not open; the next files that go take it along."""
    rig = filled(index_entry_count=100)
    before = rig.disk.listdir("/store/commitlog")
    bad_sector = rig.disk.fail_with(OSError(errno.EIO, "bad sector"))
    for _ in range(10):
        rig.disk.at("remove", path_contains=before[1], action=bad_sector)
    rig.store._retention.drop_files(3)
    rig.tick(100)
    assert rig.disk.listdir("/store/commitlog") == before[1:]
    rig.disk.forget_triggers()
    rig.store._retention.drop_files(1)
    rig.tick(100)
    assert rig.disk.listdir("/store/commitlog") == before[4:]
    bodies = rig.bodies("T", 0)
    rig.kill()
    assert rig.bodies("T", 0) == bodies


def test_a_log_file_is_gone_for_good_before_the_next_one_goes() -> None:
    """A power cut brings none back, so none that followed can be missing."""
    rig = filled()
    before = rig.disk.listdir("/store/commitlog")
    seen: list[list[str]] = []
    rig.store._retention.drop_files(3)
    for _ in range(8):
        rig.disk.power_cut()
        seen.append(rig.disk.listdir("/store/commitlog"))
    assert seen == [before[3:]] * 8
