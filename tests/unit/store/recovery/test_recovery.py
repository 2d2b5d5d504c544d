"""Opening a store: what is trusted, what is proved, what is derived again."""

from __future__ import annotations

import random
import struct

import pytest
from tests.unit.store.stores import HOST, Rig

from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.errors import StoreCorrupt
from cometmq.model.offsets import QueueOffset
from cometmq.store.base.checkpoint import (
    QueueEnd,
    SideFile,
    SideState,
    StoreProgress,
    load_side_file,
)
from cometmq.store.base.results import BatchItem, GetResult
from cometmq.store.message_store import MessageStore
from cometmq.store.offline.verify import FindingKind, verify_store
from cometmq.testing.disk import SimDisk

SIDE = "/store/cometmq.checkpoint"


def fill(rig: Rig, count: int, topics: int = 3) -> None:
    for n in range(count):
        rig.put(f"T{n % topics}", n % 2, b"%05d" % n + bytes(n % 200))
        if n % 20 == 0:
            rig.tick(300)


def everything(rig: Rig) -> dict[tuple[str, int], list[bytes]]:
    return {
        (topic, queue_id): rig.bodies(topic, queue_id)
        for topic in rig.store.topics()
        for queue_id in rig.store.queues(topic)
    }


def test_kill_reads_only_the_end() -> None:
    """The side file bounds the scan; nothing that was put is missing."""
    rig = Rig()
    fill(rig, 1_000)
    before = everything(rig)
    rig.kill()
    assert rig.report.mode == "checkpoint"
    assert 0 < rig.report.records_scanned < 200
    assert everything(rig) == before


def test_power_cut_reads_from_the_synced_position() -> None:
    """Another boot id: units in the page cache are not believed."""
    rig = Rig(consume_queue_flush_interval_ms=2_000)
    fill(rig, 600)
    for _ in range(3):
        rig.tick(10_000)
    before = everything(rig)
    rig.disk.power_cut()
    rig.open()
    assert rig.report.mode == "checkpoint"
    assert everything(rig) == before
    assert rig.report.scan_start > 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_without_side_file_java_s_way(is_clean: bool) -> None:
    """Its absence costs time, not messages; the report says why and how."""
    rig = Rig()
    fill(rig, 500)
    before = everything(rig)
    if is_clean:
        rig.store.close()
    rig.disk.kill()
    rig.disk.remove(SIDE)
    rig.open()
    assert rig.report.mode == ("normal" if is_clean else "abnormal")
    assert "absent" in rig.report.reason
    assert everything(rig) == before


@pytest.mark.parametrize(
    ("path", "content", "reason"),
    [
        ("/store/abort", b"1", "another process"),
        ("/store/checkpoint", bytes(7) + b"\1" + bytes(4088), "checkpoint"),
        ("/store/abort", None, "another process"),
    ],
)
def test_side_file_of_another_process_is_not_trusted(
    path: str, content: bytes | None, reason: str
) -> None:
    """Java (or anything) that wrote in between is noticed in three ways."""
    rig = Rig()
    fill(rig, 200)
    before = everything(rig)
    rig.disk.kill()
    if content is None:
        rig.disk.remove(path)
    else:
        rig.disk.write_atomic(path, content)
    rig.open()
    assert reason in rig.report.reason
    assert everything(rig) == before


def test_changed_log_is_noticed() -> None:
    """The marked record must still be what it was."""
    rig = Rig()
    fill(rig, 200)
    rig.reopen()
    state = load_side_file(rig.disk, SIDE)
    assert isinstance(state, SideState)
    rig.store.close()
    file = rig.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False)
    file.write(state.progress.mark + 44, b"\xff")
    rig.open()
    assert "the log changed" in rig.report.reason


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_side_file_cut_anywhere(cut: int) -> None:
    """A torn frame ends the file; what came before still holds."""
    rig = Rig()
    fill(rig, 400)
    before = everything(rig)
    rig.disk.kill()
    size = rig.disk.size(SIDE)
    rig.disk.cut(SIDE, max(0, size - cut * size // 60))
    rig.open()
    assert everything(rig) == before


def test_side_file_frames_and_base() -> None:
    """Frames add up; a new base replaces them; a deleted topic leaves its floor."""
    disk = SimDisk(random.Random(0), lambda: 0)
    disk.makedirs("/s")
    side = SideFile(disk, "/s", {"process_id": 7})
    side.write_base(StoreProgress(derived=10), {("A", 0): QueueEnd(1, 10)}, {})
    side.append(StoreProgress(derived=20, physic_ms=5), {("B", 3): QueueEnd(2, 20)})
    side.append(StoreProgress(derived=30, physic_ms=6), {("A", 0): QueueEnd(3, 30)})
    side.append_floor("B", 30)
    side.append(StoreProgress(derived=40, physic_ms=7), {("B", 3): QueueEnd(1, 40)})
    state = load_side_file(disk, "/s/cometmq.checkpoint")
    assert isinstance(state, SideState)
    assert state.progress == StoreProgress(derived=40, physic_ms=7)
    assert state.previous_physic_ms == 6
    assert state.queues == {("A", 0): QueueEnd(3, 30), ("B", 3): QueueEnd(1, 40)}
    assert state.floors == {"B": 30}
    assert state.heading["process_id"] == 7
    small = disk.size("/s/cometmq.checkpoint")
    for n in range(20_000):
        side.append(StoreProgress(derived=n), {("A", 0): QueueEnd(n, n)})
    assert disk.size("/s/cometmq.checkpoint") < (2 << 20)
    side.write_base(StoreProgress(log_min=35), state.queues, state.floors)
    assert disk.size("/s/cometmq.checkpoint") < 4 * small
    again = load_side_file(disk, "/s/cometmq.checkpoint")
    assert isinstance(again, SideState)
    # The log begins behind the floor: no record of the deleted topic is left.
    assert again.floors == {}


def test_missing_units_in_an_older_file_make_the_scan_begin_earlier() -> None:
    """A queue that ends too early is noticed by its next record."""
    rig = Rig(is_index_enabled=False)
    fill(rig, 800)
    before = everything(rig)
    rig.store.close()
    rig.disk.remove(SIDE)
    path = "/store/consumequeue/T0/0/" + "0" * 20
    rig.disk.remove("/store/consumequeue/T0/0/" + "2000".zfill(20))
    rig.disk.open_random(path, 0, create=False).write(20 * 20, bytes(2000 - 400))
    rig.open()
    assert any("earlier file" in damage for damage in rig.report.damages)
    assert everything(rig) == before


def test_units_behind_the_log_are_cut() -> None:
    """Units of records the log lost do not survive, and their numbers are given again."""
    rig = Rig()
    fill(rig, 100)
    rig.store.close()
    rig.disk.remove(SIDE)
    end = rig.store.max_physical_offset
    count = rig.store.max_queue_offset("T0", 0)
    file = rig.disk.open_random("/store/consumequeue/T0/0/" + "0" * 20, 0, create=False)
    for extra in range(3):
        file.write((count + extra) * 20, CQ_UNIT.pack(end + extra * 100, 100, 0))
    rig.open()
    assert rig.store.max_queue_offset("T0", 0) == count
    assert any("; cut" in damage for damage in rig.report.damages)
    rig.put("T0", 0, b"next")
    assert rig.bodies("T0", 0)[-1] == b"next"
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_stale_records_behind_the_end_are_cleared_and_kept() -> None:
    """What follows a torn record is never taken for new, and can be looked at."""
    rig = Rig(is_sync_flush=True)
    fill(rig, 50)
    rig.tick(600)
    torn = rig.put("T0", 0, b"torn" * 20)
    stale = rig.put("T0", 0, b"stale")
    rig.disk.kill()
    file = rig.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False)
    file.write(torn.physical_offset + 90, bytes(40))
    # Nobody knows of a flush behind the torn record: the side file is from before.
    rig.disk.remove(SIDE)
    rig.disk.remove("/store/checkpoint")
    rig.open()
    assert rig.store.max_physical_offset == torn.physical_offset
    name = f"cometmq.cut-{torn.physical_offset:020d}"
    assert b"stale" in rig.disk.read_bytes(f"/store/{name}")
    assert not file_has(rig, stale.physical_offset)
    rig.put("T0", 0, b"new")
    rig.tick(1)
    rig.tick(600)
    assert rig.bodies("T0", 0)[-1] == b"new"


def file_has(rig: Rig, physical_offset: int) -> bool:
    raw = rig.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False).read(
        physical_offset, 8
    )
    return bool(raw.strip(b"\0"))


def test_damage_below_the_flushed_position_is_stepped_over() -> None:
    """A rotten record in the scanned part costs itself only, and keeps its number."""
    rig = Rig()
    results = [rig.put("T", 0, b"%03d" % n + bytes(100)) for n in range(300)]
    rig.tick(11_000)
    rig.store.close()
    rig.disk.remove(SIDE)
    rig.disk.remove_tree("/store/consumequeue")
    bad = results[150].physical_offset
    rig.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False).write(bad, b"\xff" * 30)
    # Units are gone, so nothing proves that the log went on: that is Java's answer as well.
    rig.open()
    assert rig.store.max_queue_offset("T", 0) == 150
    whole = Rig()
    results = [whole.put("T", 0, b"%03d" % n + bytes(100)) for n in range(300)]
    whole.tick(11_000)
    whole.store.close()
    whole.disk.remove(SIDE)
    whole.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False).write(bad, b"\xff" * 30)
    whole.open()
    assert whole.store.max_queue_offset("T", 0) == 300
    assert len(whole.bodies("T", 0)) == 299
    assert any("passed over" in damage for damage in whole.report.damages)
    report = verify_store(whole.disk, "/store")
    assert {finding.kind for finding in report.findings} == {FindingKind.DAMAGE}
    assert any(finding.position == bad for finding in report.findings)


def test_missing_log_file_in_the_middle_stops_the_start() -> None:
    """Going on would lose messages in silence; the sentence names the file and the way out."""
    rig = Rig(commit_log_file_bytes=8_192)
    fill(rig, 300)
    rig.store.close()
    rig.disk.remove("/store/commitlog/" + "8192".zfill(20))
    with pytest.raises(StoreCorrupt, match=r"no file 0+8192 before 0+16384; put it back"):
        rig.open()


def test_cut_log_file_is_filled_up() -> None:
    """A shortened last file loses what was cut off, and only that."""
    rig = Rig()
    fill(rig, 100)
    rig.store.close()
    before = everything_offline(rig)
    rig.disk.cut("/store/commitlog/" + "0" * 20, before[50][0])
    rig.open()
    assert any("what was cut off is lost" in damage for damage in rig.report.damages)
    left = sum(len(bodies) for bodies in everything(rig).values())
    assert left == 50
    rig.put("T0", 0, b"on")
    rig.reopen()
    assert rig.bodies("T0", 0)[-1] == b"on"


def everything_offline(rig: Rig) -> list[tuple[int, bytes]]:
    from cometmq.store.offline.inspect import read_records

    records = read_records(rig.disk, "/store", count=10_000)
    return [(record.physical_offset, record.body) for record in records]


def test_cut_and_oversized_queue_files_are_mended() -> None:
    """Queue files get their size back, their units come from the log."""
    rig = Rig()
    fill(rig, 300)
    before = everything(rig)
    rig.store.close()
    rig.disk.remove(SIDE)
    rig.disk.cut("/store/consumequeue/T0/0/" + "0" * 20, 333)
    rig.disk.open_random("/store/consumequeue/T1/1/" + "0" * 20, 0, create=False).resize(9_999)
    rig.open()
    assert len([damage for damage in rig.report.damages if "bytes long" in damage]) == 2
    assert everything(rig) == before
    assert rig.disk.size("/store/consumequeue/T0/0/" + "0" * 20) == 2_000


def test_directories_that_are_no_queues_are_ignored() -> None:
    """Names that are no integers, files among directories."""
    rig = Rig()
    fill(rig, 50)
    before = everything(rig)
    rig.store.close()
    for name in (
        "consumequeue/T0/abc",
        "consumequeue/T0/007",
        "consumequeue/T0/-1",
        "rocksdbstore",
    ):
        rig.disk.makedirs(f"/store/{name}")
    rig.disk.open_random("/store/consumequeue/stray", 5, create=True)
    rig.disk.remove(SIDE)
    rig.open()
    assert everything(rig) == before


def test_numbering_that_began_again_is_followed() -> None:
    """Java removed the queue and numbers from 0: the later messages are the queue."""
    rig = Rig()
    rig.put("T", 0, b"old0")
    rig.put("T", 0, b"old1")
    rig.tick(2_000)
    rig.store.delete_topic("T")
    rig.put("T", 0, b"new0")
    rig.tick(2_000)
    rig.store.close()
    # Without our floors, from the log alone, as after a visit of Java.
    rig.disk.remove(SIDE)
    rig.disk.remove_tree("/store/consumequeue")
    rig.open()
    assert rig.bodies("T", 0) == [b"new0"]


def test_delayed_messages_get_their_delivery_time_again() -> None:
    """The unit of SCHEDULE_TOPIC_XXXX holds when it is due, not a hash."""
    rig = Rig(delays_ms=(1_000, 5_000))
    rig.put("SCHEDULE_TOPIC_XXXX", 1, properties=b"DELAY\x012\x02TAGS\x01x\x02", tags_code=1)
    rig.put("SCHEDULE_TOPIC_XXXX", 1, properties=b"DELAY\x0199\x02", tags_code=1)
    rig.tick(2_000)
    rig.store.close()
    rig.disk.remove(SIDE)
    rig.disk.remove_tree("/store/consumequeue")
    rig.open()
    queue = rig.store._queues.find("SCHEDULE_TOPIC_XXXX", 1)
    assert queue is not None
    store_ms = rig.store.earliest_store_time("SCHEDULE_TOPIC_XXXX", 1)
    codes = [rig.store._queues.unit(queue, QueueOffset(n)).tags_code for n in (0, 1)]  # type: ignore[union-attr]
    assert codes == [store_ms + 5_000, store_ms + 5_000]


def test_queue_that_begins_late_is_filled_with_pre_blanks() -> None:
    """Rebuilt after its first messages expired: Java must find no zero unit in front."""
    rig = Rig(commit_log_file_bytes=8_192)
    for n in range(150):
        rig.put("T", 0, b"%03d" % n + bytes(300))
    rig.tick(2_000)
    rig.store._retention.drop_files(4)
    first = rig.store.min_queue_offset("T", 0)
    assert first > 0
    rig.store.close()
    rig.disk.remove(SIDE)
    rig.disk.remove_tree("/store/consumequeue")
    rig.open()
    assert rig.store.min_queue_offset("T", 0) == first
    start = first * 20 // 2_000 * 2_000
    raw = rig.disk.open_random(f"/store/consumequeue/T/0/{start:020d}", 0, create=False).read(0, 20)
    assert CQ_UNIT.unpack(raw) == (0, 0x7FFFFFFF, 0)
    assert [int(body[:3]) for body in rig.bodies("T", 0)] == list(range(first, 150))
    rig.reopen()
    assert rig.store.min_queue_offset("T", 0) == first
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_reserved_and_foreign_files_do_not_disturb() -> None:
    """An empty file reserved by Java, a zero-length one, our own leftover."""
    rig = Rig()
    fill(rig, 50)
    before = everything(rig)
    rig.disk.kill()
    rig.disk.open_log("/store/commitlog/" + "65536".zfill(20), 65_536, create=True)
    rig.disk.open_random("/store/commitlog/" + "131072".zfill(20), 0, create=True)
    rig.disk.open_log("/store/cometmq.next", 65_536, create=True)
    rig.open()
    assert everything(rig) == before
    assert rig.report.damages == []
    fill(rig, 600)
    rig.kill()
    assert sum(map(len, everything(rig).values())) == 650


def test_progress_is_told() -> None:
    """Opening tells what it is doing."""
    rig = Rig()
    fill(rig, 300)
    rig.store.close()
    rig.disk.remove(SIDE)
    steps: list[tuple[str, int, int]] = []
    store = MessageStore(rig.config, rig.disk, rig.workers, lambda: rig.now_ms)
    store.load(lambda *step: steps.append(step))
    assert ("queues", 0, 3) in steps
    store.close()


def test_batch_torn_by_a_kill_keeps_its_whole_records() -> None:
    """A batch is one write; a death in the middle leaves a prefix of it."""
    rig = Rig()
    rig.store.put_batch(
        "T", 0, [BatchItem(0, b"%d" % n, b"", 0, None) for n in range(10)], born_host=HOST
    )
    end = rig.store.max_physical_offset
    rig.disk.kill()
    file = rig.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False)
    file.write(end - 150, bytes(150))
    rig.open()
    assert rig.bodies() == [b"%d" % n for n in range(8)]
    assert struct.calcsize(">qiq") == 20


def test_a_wrong_tags_code_is_corrected() -> None:
    """Where the scan sees it: a consumer that filters gets the message."""
    rig = Rig()
    for number in range(10):
        tags = "A" if number % 2 else "B"
        rig.put(properties=f"TAGS\x01{tags}\x02".encode(), tags_code=ord(tags))
    rig.put("SCHEDULE_TOPIC_XXXX", 1, properties=b"DELAY\x012\x02", tags_code=4_711)
    rig.store.close()
    rig.disk.flip_bit("/store/consumequeue/T/0/" + "0" * 20, 3 * 20 + 19, 2)
    rig.disk.remove("/store/cometmq.checkpoint")
    rig.open()
    assert rig.report.damages == [
        "/store/consumequeue/T/0: the unit of queue offset 3 has tags code 69, its record gives 65;"
        " corrected"
    ]
    found = rig.store.get("T", 0, 0, 32, codes=frozenset({ord("A")}))
    assert isinstance(found, GetResult)
    assert found.count == 5
    queue = rig.store._queues.find("SCHEDULE_TOPIC_XXXX", 1)
    assert queue is not None
    # Made with the delay levels of its day.
    assert rig.store._queues.unit(queue, QueueOffset(0)).tags_code == 4_711  # type: ignore[union-attr]
    rig.reopen()
    assert rig.report.damages == []


@pytest.mark.parametrize("place", [0, 10, 30, 40])
def test_a_hole_in_the_last_record(place: int) -> None:
    """A process that died within the copy of a record: its end may be there, its middle not."""
    rig = Rig()
    rig.put(body=b"whole")
    properties = b"UNIQ_KEY\x01" + b"k" * 60 + b"\x02"
    end = rig.put(body=b"torn", properties=properties).end_offset
    log = rig.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False)
    log.write(end - len(properties) + place, bytes(20))
    rig.kill()
    assert rig.bodies() == [b"whole"]
    assert rig.put(body=b"next").queue_offset == 1
    assert rig.bodies() == [b"whole", b"next"]


@pytest.mark.parametrize("hole", [(0, 400), (200, 16), (399, 1)], ids=str)
@pytest.mark.parametrize("is_power_cut", [False, True], ids=["kill", "power cut"])
def test_a_hole_in_the_body_of_the_last_record(hole: tuple[int, int], is_power_cut: bool) -> None:
    """Only the CRC tells of it, and no reader may see such a message."""
    rig = Rig(flush_interval_ms=1 << 40, flush_thorough_interval_ms=1 << 40)
    rig.put(body=b"whole")
    rig.tick(1_000)
    if is_power_cut:
        rig.disk.sync_all()
    body = b"torn" * 100
    start = rig.put(body=body).physical_offset
    log = rig.disk.open_random("/store/commitlog/" + "0" * 20, 0, create=False)
    in_record = bytes(log.read(start, 1000)).index(body)
    log.write(start + in_record + hole[0], bytes(hole[1]))
    if is_power_cut:
        # Every page reached the disk, the torn one too; the store's own account did not.
        rig.disk.sync_all()
        rig.disk.power_cut()
        rig.open()
    else:
        rig.kill()
    assert rig.bodies() == [b"whole"]
    assert rig.put(body=b"next").queue_offset == 1
    assert rig.bodies() == [b"whole", b"next"]


def test_damages_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """By the store, which knows how many are too many; each names its file."""
    rig = Rig()
    for _ in range(50):
        rig.put()
    rig.store.close()
    path = "/store/consumequeue/T/0/" + "0" * 20
    rig.disk.cut(path, 100)
    caplog.clear()
    rig.open()
    assert rig.report.damages
    logged = [record.getMessage() for record in caplog.records if path in record.getMessage()]
    assert sorted(logged) == sorted(damage for damage in rig.report.damages if path in damage)
    assert logged


def test_a_queue_that_was_moved_away_is_derived_again() -> None:
    """What no bounded scan sees is made right by taking the queue's directory away."""
    rig = Rig(commit_log_file_bytes=16_384)
    for number in range(600):
        tags = "A" if number % 2 else "B"
        rig.put(properties=f"TAGS\x01{tags}\x02".encode(), tags_code=ord(tags))
        rig.put("Other")
    rig.store.close()
    rig.disk.flip_bit("/store/consumequeue/T/0/" + "0" * 20, 3 * 20 + 19, 2)
    rig.open()
    assert rig.report.damages == []
    rig.store.close()
    assert [finding.position for finding in verify_store(rig.disk, "/store").findings] == [72]
    rig.disk.rename("/store/consumequeue/T/0", "/elsewhere")
    rig.open()
    assert len(rig.bodies()) == 600
    assert len(rig.bodies("Other")) == 600
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_last_unit_is_not_believed(is_clean: bool) -> None:
    """A disk changed it, and no stop and no start cuts its message off."""
    rig = Rig()
    fill(rig, 30)
    before = everything(rig)
    path, position = "/store/consumequeue/T0/0/" + "0" * 20, (len(before["T0", 0]) - 1) * 20
    # Where it leads: physical offset and size.
    for bit in range(8 * 12):
        rig.tick(2_000)
        rig.disk.flip_bit(path, position + bit // 8, bit % 8)
        _ = rig.reopen() if is_clean else rig.kill()
        assert everything(rig) == before, bit
        # It was corrected, so the next start has nothing to mend.
        rig.reopen()
        assert (rig.report.mode, rig.report.damages) == ("checkpoint", []), bit
    rig.store.close()
    assert verify_store(rig.disk, "/store").findings == []


def test_what_a_start_did_not_finish_goes() -> None:
    """A kill while a start copies what it cuts off leaves a part of the copy."""
    rig = Rig()
    fill(rig, 30)
    for name in ("cometmq.cut-00000000000000018913.tmp", "cometmq.checkpoint.tmp"):
        rig.disk.open_random(f"/store/{name}", 0, create=True).write(0, b"part")
    rig.kill()
    assert [name for name in rig.disk.listdir("/store") if name.endswith(".tmp")] == []
