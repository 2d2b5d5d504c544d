"""The unit journal: what many queues got is saved in a row, and goes to their files in passes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.store.stores import HeldWorkers, Rig

from cometmq.store.base.checkpoint import SideState, load_side_file
from cometmq.store.offline.verify import FindingKind, verify_store
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.queue.unit_journal import UnitJournal, saved_units
from cometmq.testing.disk import SimDisk

# A journal from the first queue on, which a pass empties after five seconds.
JOURNALED: dict[str, Any] = {"unit_journal_queues_min": 0, "unit_journal_age_ms": 5_000}


def journal_files(rig: Rig) -> list[str]:
    return [name for name in rig.disk.listdir("/store") if name.startswith("cometmq.units.")]


def journal_path(rig: Rig) -> str:
    (name,) = journal_files(rig)
    return f"/store/{name}"


def side_state(rig: Rig) -> SideState:
    state = load_side_file(rig.disk, "/store/cometmq.checkpoint")
    assert isinstance(state, SideState)
    return state


def fill(rig: Rig, queues: int = 5, each: int = 3) -> None:
    for number in range(queues * each):
        rig.put("T", number % queues, body=b"%d" % number)


def holds_all(rig: Rig, queues: int = 5, each: int = 3) -> bool:
    return all(
        rig.bodies("T", queue_id) == [b"%d" % (queue_id + queues * n) for n in range(each)]
        for queue_id in range(queues)
    )


entries = st.tuples(
    st.sampled_from(["T", "Other", "L" * 127, "L" * 128, "ü" * 100]),
    st.integers(0, (1 << 31) - 1),
    st.integers(0, 1 << 50),
    st.binary(min_size=1, max_size=60),
)


@given(st.lists(st.lists(entries, min_size=1, max_size=4), max_size=6), st.data())
def test_what_is_saved_comes_back(frames: list[list[Any]], data: st.DataObject) -> None:
    """In order, over volumes, and without the frame in which the process died."""
    disk = SimDisk(random.Random(1), lambda: 0)
    disk.makedirs("/store")
    journal = UnitJournal(disk, "/store", 7)
    expected: list[Any] = []
    for frame in frames:
        journal.append([(ConsumeQueue(topic, qid, ""), at, raw) for topic, qid, at, raw in frame])
        expected += frame
        if data.draw(st.booleans()):
            journal.roll()
    assert list(saved_units(disk, "/store", 7)) == expected
    assert list(saved_units(disk, "/store", 6)) == []
    volume = journal.roll()
    journal.append([(ConsumeQueue("T", 0, ""), 0, bytes(20))])
    path = f"/store/cometmq.units.7.{volume}"
    disk.open_random(path, 0, create=False).resize(data.draw(st.integers(0, disk.size(path) - 1)))
    assert list(saved_units(disk, "/store", 7)) == expected
    journal.drop_below(volume)
    assert list(saved_units(disk, "/store", 7)) == []


def test_saved_units_are_a_promise() -> None:
    """The derived position covers them, no queue file was made, and a kill loses nothing."""
    rig = Rig(**JOURNALED)
    fill(rig)
    rig.tick(1_000)
    assert not rig.disk.exists("/store/consumequeue")
    assert rig.store._writer.derived_position == rig.store.max_physical_offset
    assert side_state(rig).progress.derived == rig.store.max_physical_offset
    assert holds_all(rig)
    rig.kill()
    assert (rig.report.mode, rig.report.records_scanned) == ("checkpoint", 0)
    assert rig.report.damages == []
    assert holds_all(rig)
    assert journal_files(rig) == []


def test_few_queues_need_no_journal() -> None:
    """Below the mark units go to their files at once."""
    rig = Rig()
    fill(rig)
    rig.tick(1_000)
    assert len(rig.disk.listdir("/store/consumequeue/T")) == 5
    assert journal_files(rig) == []


def test_a_pass_brings_units_into_files() -> None:
    """After some time, and then the journal's older part is deleted."""
    rig = Rig(**JOURNALED)
    fill(rig)
    rig.tick(1_000)
    first = journal_files(rig)
    rig.put("T", 0, body=b"late")
    for _ in range(8):
        rig.tick(1_000)
    assert len(rig.disk.listdir("/store/consumequeue/T")) == 5
    assert not set(first) & set(journal_files(rig))
    queue = rig.store._queues.find("T", 1)
    assert queue is not None
    assert (queue.written, len(queue.tail), queue.is_journaled) == (3, 0, False)
    rig.kill()
    assert rig.report.damages == []
    assert rig.bodies("T", 0) == [b"0", b"5", b"10", b"late"]


def test_a_large_journal_is_emptied_before_its_time() -> None:
    """The tails in memory are bounded by the journal's size."""
    rig = Rig(unit_journal_queues_min=0, unit_journal_bytes_max=4_000)
    for _ in range(30):
        fill(rig)
        rig.tick(500)
    tails = sum(len(queue.tail) for queue in rig.store._queues)
    assert tails < 8_000 < 30 * 15 * 20
    assert len(journal_files(rig)) <= 2


def test_what_is_synced_is_in_files() -> None:
    """A round against power cuts goes no further than the last pass."""
    rig = Rig(**JOURNALED, consume_queue_flush_interval_ms=1_000)
    fill(rig)
    for _ in range(4):
        rig.tick(1_000)
    assert rig.store._writer.synced_position == 0
    for _ in range(8):
        rig.tick(1_000)
    assert rig.store._writer.synced_position == rig.store.max_physical_offset
    rig.disk.power_cut()
    rig.open()
    assert holds_all(rig)


def test_a_power_cut_needs_no_journal() -> None:
    """What was saved and not filed is derived from the log again."""
    rig = Rig(**JOURNALED, is_sync_flush=True)
    fill(rig)
    rig.tick(1_000)
    assert journal_files(rig)
    rig.disk.power_cut()
    rig.open()
    assert rig.report.records_scanned == 15
    assert holds_all(rig)


def test_a_clean_stop_leaves_queue_files_only() -> None:
    """Any tool, and a Java broker, finds all units where they belong."""
    rig = Rig(**JOURNALED)
    fill(rig)
    rig.tick(1_000)
    assert journal_files(rig)
    rig.store.close()
    assert journal_files(rig) == []
    raw = rig.disk.read_bytes("/store/consumequeue/T/4/00000000000000000000")
    assert len(raw[:80].rstrip(b"\0")) > 40
    rig.open()
    assert holds_all(rig)


def test_a_stop_in_the_middle_of_a_pass_loses_nothing() -> None:
    """Queues whose turn is under way are neither clean nor waiting."""
    workers = HeldWorkers()
    rig = Rig(**JOURNALED, workers=workers)
    fill(rig)
    rig.tick(1_000)
    while workers.run():
        pass
    rig.tick(10_000)
    assert rig.store._writer._passing
    rig.store.close()
    rig.workers = HeldWorkers()
    rig.open()
    assert rig.report.records_scanned == 0
    assert holds_all(rig)


def test_a_deleted_topic_does_not_come_back() -> None:
    """Its units are still in the journal; those of its second life count."""
    rig = Rig(**JOURNALED)
    fill(rig)
    rig.put("Kept")
    rig.tick(1_000)
    rig.store.delete_topic("T")
    rig.put("T", 1, body=b"second life")
    rig.tick(1_000)
    rig.kill()
    assert rig.store.queues("T") == [1]
    assert rig.bodies("T", 1) == [b"second life"]
    assert rig.bodies("Kept") == [b"body"]


def test_a_removed_queue_does_not_come_back() -> None:
    """Its units are in the journal's older part, its messages have expired."""
    rig = Rig(commit_log_file_bytes=8_192, unit_journal_queues_min=0, unit_journal_age_ms=900)
    for _ in range(5):
        rig.put("Old")
    rig.tick(1_000)
    raw = rig.disk.read_bytes(journal_path(rig))
    for _ in range(200):
        rig.put("New", body=bytes(200))
    for _ in range(3):
        rig.tick(1_000)
    rig.store._retention.drop_files(3)
    rig.store.clean_expired_queues()
    for _ in range(3):
        rig.tick(1_000)
    assert rig.store.queues("Old") == []
    # As if its volume had outlived it: the one that was deleted comes back.
    generation = side_state(rig).heading["units_generation"]
    rig.disk.write_atomic(f"/store/cometmq.units.{generation}.0", raw)
    rig.kill()
    assert rig.report.mode == "checkpoint"
    assert rig.store.max_queue_offset("Old", 0) == 0
    assert not rig.disk.exists("/store/consumequeue/Old")
    assert len(rig.bodies("New")) > 0


@pytest.mark.parametrize("damage", ["gap", "file"])
def test_a_journal_that_does_not_meet_the_files_is_not_believed(damage: str) -> None:
    """Units are derived from the whole log then."""
    rig = Rig(**JOURNALED)
    fill(rig)
    for _ in range(8):
        rig.tick(1_000)
    fill(rig)
    rig.tick(1_000)
    if damage == "file":
        rig.disk.remove("/store/consumequeue/T/2/00000000000000000000")
    else:
        generation = side_state(rig).heading["units_generation"]
        strange = UnitJournal(rig.disk, "/store", generation + 1)
        strange.append([(ConsumeQueue("T", 3, ""), 4_711, b"\x01" * 20)])
        rig.disk.rename(
            f"/store/cometmq.units.{generation + 1}.0", f"/store/cometmq.units.{generation}.999"
        )
    rig.kill()
    assert rig.report.mode == "normal"
    assert ("unit journal lacks" if damage == "gap" else "has lost the file") in rig.report.reason
    for queue_id in range(5):
        assert len(rig.bodies("T", queue_id)) == 6


def test_a_journal_that_cannot_be_written_promises_nothing() -> None:
    """Its units wait, and are saved at the next turn."""
    rig = Rig(**JOURNALED)
    first = rig.put("A")
    rig.disk.at("write", path_contains="cometmq.units", action=rig.disk.fail_with(OSError(5, "io")))
    rig.tick(1_000)
    assert rig.store._writer.derived_position == first.physical_offset
    rig.tick(1_000)
    rig.tick(1_000)
    assert rig.store._writer.derived_position == rig.store.max_physical_offset
    rig.kill()
    assert rig.bodies("A") == [b"body"]


def test_a_pass_that_fails_is_tried_again() -> None:
    """Its queues stay kept, and the journal stays until they are in files."""
    rig = Rig(**JOURNALED)
    fill(rig)
    rig.tick(1_000)
    before = journal_files(rig)
    rig.disk.at("write", path_contains="consumequeue", action=rig.disk.fail_with(OSError(5, "io")))
    rig.tick(5_000)
    assert set(before) <= set(journal_files(rig))
    for _ in range(3):
        rig.tick(1_000)
    assert not set(before) & set(journal_files(rig))
    rig.kill()
    assert rig.report.damages == []
    assert holds_all(rig)


def test_verify_knows_what_a_kill_left_in_the_journal() -> None:
    """Units in it are checked like those in files; a note says that they are not there yet."""
    rig = Rig(**JOURNALED)
    fill(rig)
    rig.tick(1_000)
    report = verify_store(rig.disk, "/store")
    assert (report.units, report.records, report.is_sound) == (15, 15, True)
    notes = [finding.text for finding in report.findings if finding.kind is FindingKind.NOTE]
    assert len([text for text in notes if text.startswith("3 units are in the unit jo")]) == 5
    path = journal_path(rig)
    rig.disk.remove(path)
    assert not verify_store(rig.disk, "/store").is_sound


def test_verify_finds_wrong_units_in_the_journal() -> None:
    """One that leads nowhere, and one that is not there."""
    rig = Rig(**JOURNALED)
    fill(rig)
    rig.tick(1_000)
    path = journal_path(rig)
    generation = int(path.split(".")[2])
    saved = list(saved_units(rig.disk, "/store", generation))
    topic, queue_id, first, units = saved[0]
    rig.disk.remove(path)
    journal = UnitJournal(rig.disk, "/store", generation)
    wrong = bytes([units[0] ^ 0x40]) + units[1:]
    journal.append([(ConsumeQueue(topic, queue_id, ""), first, wrong)])
    journal.append([(ConsumeQueue(name, qid, ""), at, raw) for name, qid, at, raw in saved[2:]])
    kinds = Counter(finding.kind for finding in verify_store(rig.disk, "/store").findings)
    assert (kinds[FindingKind.STALE], kinds[FindingKind.MISSING]) == (1, 1)
