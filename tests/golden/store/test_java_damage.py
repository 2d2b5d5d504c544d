"""Our store keeps sound messages of damaged Java stores and reports the damage."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.store.java_stores import expectation, open_store, unpack

from cometmq.codec.stored_message import (
    decode_messages,
    decode_messages_lenient,
    read_record_header,
)
from cometmq.errors import StoreCorrupt
from cometmq.store.base.disk import RealDisk
from cometmq.store.base.results import ColdRead, GetResult, GetStatus
from cometmq.store.offline.inspect import inspect_store, read_records
from cometmq.store.offline.verify import FindingKind, verify_store

if TYPE_CHECKING:
    from pathlib import Path

    from cometmq.store.message_store import MessageStore

# `torn`: the record whose second half is zeros, and the queue that lost its last units.
TORN_OFFSET = 346_624
CUT_QUEUE = ("TopicOne", 0)
CUT_QUEUE_MAX = 314


def read_all(store: MessageStore, topic: str, queue_id: int) -> tuple[list[int], list[int]]:
    """Return physical offsets of readable messages, and the queue offsets without one."""
    found: list[int] = []
    skipped: list[int] = []
    offset = store.min_queue_offset(topic, queue_id)
    while offset < store.max_queue_offset(topic, queue_id):
        answer = store.get(topic, queue_id, offset, 1, allow_cold=True)
        assert isinstance(answer, GetResult)
        assert answer.next_queue_offset == offset + 1
        if answer.status is GetStatus.FOUND:
            raw = b"".join(answer.chunks)
            found.append(read_record_header(raw).physical_offset)
            messages, broken = decode_messages_lenient(raw)
            # Inner lengths that lie are served as they stand: one record, alone.
            assert len(messages) + len(broken) == 1
            for message in messages:
                assert (message.topic, message.queue_offset) == (topic, offset)
        else:
            skipped.append(offset)
        offset = answer.next_queue_offset
    return found, skipped


@pytest.mark.parametrize("has_abort", [True, False])
@pytest.mark.parametrize("name", ["torn", "torn-body"])
def test_torn_tail(name: str, has_abort: bool, tmp_path: Path) -> None:
    """Recovery cuts off the torn record and restores lost units, with or without `abort`.

    Java keeps the record of `torn` with its properties gone, and without `abort` it loses the
    seven units, so that their numbers are given again.
    """
    root = unpack(name, tmp_path)
    if not has_abort:
        (root / "abort").unlink()
    store, report = open_store(name, root)
    killed = {(q["topic"], q["queueId"]): q for q in expectation("killed")["queues"]}
    assert store.max_physical_offset == TORN_OFFSET
    assert report.truncated_bytes > 0
    torn_queue = ("TopicA", 3)
    for key, queue in killed.items():
        end = queue["maxOffset"] - (1 if key == torn_queue else 0)
        assert store.max_queue_offset(*key) == end, key
        offsets, skipped = read_all(store, *key)
        assert skipped == []
        assert offsets == [unit[1] for unit in queue["units"]][:end]
    assert store.max_queue_offset(*CUT_QUEUE) == CUT_QUEUE_MAX
    store.close()
    assert verify_store(RealDisk(), str(root)).is_sound


def test_killed_store_with_abort_finds_every_key(tmp_path: Path) -> None:
    """After a crash our index finds every key; Java drops the last index file."""
    root = unpack("clean", tmp_path)
    (root / "abort").write_text("1")
    store, report = open_store("clean", root)
    assert report.mode == "abnormal"
    for topic, key, max_count, begin, end, offsets, _ in expectation("clean")["index"]:
        found = store.prepare_query_index(topic, key, max_count, begin, end)()
        assert found.physical_offsets == sorted(offsets)
    store.close()
    assert verify_store(RealDisk(), str(root)).is_sound


def flip(root: Path, flipped: dict[str, Any]) -> None:
    """Apply one flip of rotten.json."""
    path = root / flipped["file"]
    raw = bytearray(path.read_bytes())
    assert raw[flipped["position"]] == int(flipped["oldByte"], 16)
    raw[flipped["position"]] ^= flipped["mask"]
    path.write_bytes(raw)


LOG_FLIPS = [
    "body",
    "compressed-body",
    "record-size",
    "record-magic",
    "record-physical-offset",
    "record-properties-length",
    "last-file-body",
    "last-file-size",
    "last-file-property-byte",
]


@pytest.mark.parametrize("has_abort", [False, True])
@pytest.mark.parametrize("name", LOG_FLIPS)
def test_flipped_bit_in_the_log(name: str, has_abort: bool, tmp_path: Path) -> None:
    """A damaged record costs at most itself; after a crash Java drops all records behind it."""
    [flipped] = [entry for entry in expectation("rotten")["flips"] if entry["id"] == name]
    root = unpack("clean", tmp_path)
    flip(root, flipped)
    if has_abort:
        (root / "abort").write_text("1")
    clean = expectation("clean")
    record = next(
        entry
        for entry in clean["records"]
        if entry["physicalOffset"]
        <= int(flipped["file"].split("/")[1]) + flipped["position"]
        < entry["physicalOffset"] + entry["size"]
    )
    store, _ = open_store("clean", root)
    assert store.max_physical_offset == clean["maxPhyOffset"]
    for queue in clean["queues"]:
        key = (queue["topic"], queue["queueId"])
        assert store.max_queue_offset(*key) == queue["maxOffset"]
        offsets, skipped = read_all(store, *key)
        is_hit = key == (record["topic"], record["queueId"])
        assert len(skipped) <= int(is_hit), key
        expected = [unit[1] for unit in queue["units"]]
        if skipped:
            expected.remove(record["physicalOffset"])
        assert offsets == expected
    if name in {"record-size", "record-magic", "record-physical-offset"}:
        with pytest.raises(StoreCorrupt, match="position"):
            store.message_at(record["physicalOffset"])
    store.close()


@pytest.mark.parametrize("name", ["cq-physical-offset", "cq-size"])
def test_wrong_unit_is_repaired(name: str, tmp_path: Path) -> None:
    """A unit that points to a wrong record is rebuilt; Java serves the wrong record."""
    [flipped] = [entry for entry in expectation("rotten")["flips"] if entry["id"] == name]
    root = unpack("clean", tmp_path)
    flip(root, flipped)
    assert not verify_store(RealDisk(), str(root)).is_sound
    store, _ = open_store("clean", root)
    for queue in expectation("clean")["queues"]:
        offsets, skipped = read_all(store, queue["topic"], queue["queueId"])
        assert skipped == []
        assert offsets == [unit[1] for unit in queue["units"]]
    store.close()
    report = verify_store(RealDisk(), str(root))
    assert [str(finding) for finding in report.findings] == []


def test_all_flips_at_once(tmp_path: Path) -> None:
    """A store with all flips opens, and every sound message is read."""
    root = unpack("rotten", tmp_path)
    store, _ = open_store("rotten", root)
    read = skipped = 0
    for queue in expectation("clean")["queues"]:
        offsets, gone = read_all(store, queue["topic"], queue["queueId"])
        read += len(offsets)
        skipped += len(gone)
    # Sizes, magics, own offsets and inner lengths that lie; bodies are the client's to check.
    assert skipped <= 4
    assert read + skipped == expectation("clean")["readByQueueCount"]
    store.close()


def test_verify_finds_every_flip(tmp_path: Path) -> None:
    """Verify names the file of each flipped byte and a position near it."""
    root = unpack("rotten", tmp_path)
    report = verify_store(RealDisk(), str(root))
    flips = [
        entry
        for entry in expectation("rotten")["flips"]
        if entry["applied"]
        and entry["file"].split("/")[0] in {"commitlog", "consumequeue", "index"}
    ]
    assert len(flips) == 12
    for entry in flips:
        near = [
            finding
            for finding in report.findings
            if finding.path == str(root / entry["file"])
            and finding.kind is FindingKind.DAMAGE
            and 0 <= entry["position"] - finding.position < 5000
        ]
        assert near, entry["id"]
        assert str(root / entry["file"]) in str(near[0])


@pytest.mark.parametrize("name", ["clean", "killed", "expired", "crc", "ext"])
def test_verify_sound_stores(name: str, tmp_path: Path) -> None:
    """Verify checks every record, unit and entry of Java's sound stores and reports nothing."""
    root = unpack(name, tmp_path)
    steps: list[str] = []
    report = verify_store(RealDisk(), str(root), lambda what, _done, _total: steps.append(what))
    assert [str(finding) for finding in report.findings] == []
    expected = expectation(name)
    assert report.records == len(expected["records"])
    # Queue files keep units of expired messages until the whole file goes.
    assert report.units >= sum(len(queue["units"]) for queue in expected["queues"])
    assert report.log_end == expected["maxPhyOffset"]
    assert {"queues", "index"} <= set(steps)


@pytest.mark.parametrize("name", ["clean", "killed", "expired", "crc", "ext"])
def test_inspect_finds_sizes_and_ends(name: str, tmp_path: Path) -> None:
    """Inspect takes sizes from the files alone and shows Java's queue ends and log files."""
    root = unpack(name, tmp_path)
    expected = expectation(name)
    view = inspect_store(RealDisk(), str(root))
    conf = expected["brokerConf"]
    assert view.log_file_bytes == int(conf["mappedFileSizeCommitLog"])
    assert view.queue_file_bytes == int(conf["mappedFileSizeConsumeQueue"])
    assert {(i.slot_count, i.entry_count_max) for i in view.index_files} == {
        (int(conf["maxHashSlotNum"]), int(conf["maxIndexNum"]))
    }
    ends = {(queue.topic, queue.queue_id): queue.max_queue_offset for queue in view.queues}
    for queue in expected["queues"]:
        assert ends[queue["topic"], queue["queueId"]] == queue["maxOffset"]
    assert (view.abort is not None) is (name == "killed")
    records = read_records(RealDisk(), str(root), count=10_000)
    assert [record.physical_offset for record in records] == [
        record["physicalOffset"] for record in expected["records"]
    ]
    assert any(path.startswith("config/") for path, _ in view.other_files)


def test_extension_units_filter_by_their_tags_code(tmp_path: Path) -> None:
    """A unit whose code is an address is filtered by the code in the extension file."""
    root = unpack("ext", tmp_path)
    store, _ = open_store("ext", root)
    checked = 0
    for queue in expectation("ext")["queues"]:
        for unit in queue["units"]:
            if len(unit) < 5:
                continue
            real = unit[4]["tagsCode"] if isinstance(unit[4], dict) else unit[4][0]
            wanted = store.get(
                queue["topic"],
                queue["queueId"],
                unit[0],
                1,
                codes=frozenset({real}),
                allow_cold=True,
            )
            assert not isinstance(wanted, ColdRead)
            assert wanted.status is GetStatus.FOUND
            other = store.get(
                queue["topic"],
                queue["queueId"],
                unit[0],
                1,
                codes=frozenset({real + 1}),
                allow_cold=True,
            )
            assert not isinstance(other, ColdRead)
            if other.status is GetStatus.FOUND:
                [message] = decode_messages(b"".join(other.chunks))
                assert message.queue_offset > unit[0]
            checked += 1
    assert checked > 100
    store.close()


def test_units_come_back_when_one_queue_is_gone(tmp_path: Path) -> None:
    """A deleted queue directory is rebuilt although the side file lists its end."""
    root = unpack("clean", tmp_path)
    store, _ = open_store("clean", root)
    store.close()
    shutil.rmtree(root / "consumequeue" / "TopicOne" / "0")
    store, report = open_store("clean", root)
    assert "does not end where it did" in report.reason
    [queue] = [
        q for q in expectation("clean")["queues"] if (q["topic"], q["queueId"]) == ("TopicOne", 0)
    ]
    offsets, skipped = read_all(store, "TopicOne", 0)
    assert skipped == []
    assert offsets == [unit[1] for unit in queue["units"]]
    store.close()
