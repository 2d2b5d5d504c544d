"""Our store reads the same records, queues and answers from a Java 5.4.0 broker's files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.store.java_stores import expectation, open_store, unpack

from cometmq.codec.compression import decompress
from cometmq.codec.ids import decode_host
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.store.base.results import ColdRead, GetResult, GetStatus, TimeBoundary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cometmq.store.message_store import MessageStore

SOUND = ["clean", "killed", "expired", "crc", "ext"]


def get(store: MessageStore, topic: str, queue_id: int, offset: int, count: int) -> GetResult:
    """Read messages, and wait for bytes outside memory as the broker does."""
    found = store.get(topic, queue_id, offset, count)
    if isinstance(found, ColdRead):
        found.warm()
        found = store.get(topic, queue_id, offset, count, allow_cold=True)
    assert isinstance(found, GetResult)
    return found


def walk(store: MessageStore, topic: str, queue_id: int) -> Iterator[tuple[int, StoredMessage]]:
    """Yield all readable messages of a queue with their queue offsets."""
    offset = store.min_queue_offset(topic, queue_id)
    end = store.max_queue_offset(topic, queue_id)
    while offset < end:
        found = get(store, topic, queue_id, offset, 1)
        if found.status is GetStatus.FOUND:
            [message] = decode_messages(b"".join(found.chunks))
            yield offset, message
        assert found.next_queue_offset > offset
        offset = found.next_queue_offset


def check_record(message: StoredMessage, expected: dict[str, Any]) -> None:
    """Compare a record with every field that Java's decoder gave."""
    body = message.body
    if message.sys_flag & 1:
        body = decompress(body, message.sys_flag, 1 << 24)
    actual = {
        "physicalOffset": message.physical_offset,
        "size": message.total_size,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "msgId": message.offset_message_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": decode_host(message.born_host),
        "storeHost": decode_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "storedBodyLength": message.body_bytes,
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "properties": message.properties,
    }
    assert actual == {key: expected[key] for key in actual}


@pytest.mark.parametrize("name", SOUND)
def test_queues_and_records_are_java_s(name: str, tmp_path: Path) -> None:
    """Every queue has Java's ends, and every unit points to the record that Java read."""
    expected = expectation(name)
    records = {record["physicalOffset"]: record for record in expected["records"]}
    store, report = open_store(name, unpack(name, tmp_path))
    assert report.damages == []
    read = 0
    for queue in expected["queues"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        assert store.min_queue_offset(topic, queue_id) == queue["minOffset"]
        assert store.max_queue_offset(topic, queue_id) == queue["maxOffset"]
        units = {unit[0]: unit for unit in queue["units"]}
        for offset, message in walk(store, topic, queue_id):
            assert [message.physical_offset, message.total_size] == units[offset][1:3]
            check_record(message, records[message.physical_offset])
            read += 1
    assert read == expected["readByQueueCount"]
    assert store.max_physical_offset == expected["maxPhyOffset"]
    assert store.min_physical_offset == expected["minPhyOffset"]
    store.close()


@pytest.mark.parametrize("name", SOUND)
def test_edge_answers_are_java_s(name: str, tmp_path: Path) -> None:
    """Reads at the edges of a queue give Java's status, next offset, minimum and maximum."""
    store, _ = open_store(name, unpack(name, tmp_path))
    answers = expectation(name)["getMessageAnswers"]
    assert answers
    for topic, queue_id, offset, status, following, first, end in answers:
        found = get(store, topic, queue_id, offset, 1)
        actual = (
            found.status.name,
            found.next_queue_offset,
            found.min_queue_offset,
            found.max_queue_offset,
        )
        assert actual == (status, following, first, end), (topic, queue_id, offset)
    store.close()


@pytest.mark.parametrize("name", SOUND)
def test_offsets_by_time_are_java_s(name: str, tmp_path: Path) -> None:
    """Searches by time give Java's offsets before, at, between and after the store times."""
    store, _ = open_store(name, unpack(name, tmp_path))
    answers = expectation(name)["offsetByTime"]
    assert answers
    for topic, queue_id, time_ms, boundary, answer in answers:
        actual = store.queue_offset_by_time(topic, queue_id, time_ms, TimeBoundary[boundary])
        assert actual == answer, (topic, queue_id, time_ms, boundary)
    store.close()


@pytest.mark.parametrize("name", SOUND)
def test_index_answers_are_java_s(name: str, tmp_path: Path) -> None:
    """Queries by key and by tag give Java's physical offsets."""
    expected = expectation(name)
    store, _ = open_store(name, unpack(name, tmp_path))
    assert expected["index"]
    for topic, key, max_count, begin, end, offsets, _ in expected["index"]:
        found = store.prepare_query_index(topic, key, max_count, begin, end)()
        assert found.physical_offsets == sorted(offsets), (topic, key)
    for topic, tag, max_count, begin, end, offsets in expected["tagIndex"]:
        found = store.prepare_query_index(topic, tag, max_count, begin, end, "T")()
        assert found.physical_offsets == sorted(offsets), (topic, tag)
    store.close()


def digests(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below a directory."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", SOUND)
def test_opening_changes_nothing_of_java_s(name: str, tmp_path: Path) -> None:
    """Opening and closing changes no file of Java but the crash marker and the checkpoint."""
    root = unpack(name, tmp_path, with_timer=name == "clean")
    before = digests(root)
    store, _ = open_store(name, root)
    store.close()
    after = digests(root)
    assert "abort" not in after
    may_change = {"abort", "checkpoint", "lock"}
    # Java reserves a file behind the last one; nothing is in it.
    if name == "killed":
        may_change.add("commitlog/00000000000000393216")
    for path, digest in before.items():
        if path not in may_change:
            assert after.get(path) == digest, path
    added = set(after) - set(before)
    assert added <= {"cometmq.checkpoint", "lock", "checkpoint"}


@pytest.mark.parametrize("name", SOUND)
def test_second_start_reads_no_log(name: str, tmp_path: Path) -> None:
    """After a clean stop the side file spares the log's reading, and answers stay the same."""
    root = unpack(name, tmp_path)
    store, first = open_store(name, root)
    assert first.mode in {"normal", "abnormal"}
    assert "absent" in first.reason
    ends = {
        (topic, queue_id): store.max_queue_offset(topic, queue_id)
        for topic in store.topics()
        for queue_id in store.queues(topic)
    }
    store.close()
    store, second = open_store(name, root)
    assert (second.mode, second.reason, second.records_scanned) == ("checkpoint", "", 0)
    assert ends == {key: store.max_queue_offset(*key) for key in ends}
    store.close()


@pytest.mark.parametrize("name", SOUND)
def test_queues_and_index_are_rebuilt_from_the_log(name: str, tmp_path: Path) -> None:
    """Consume queues and index are rebuilt from the log alone."""
    root = unpack(name, tmp_path)
    import shutil

    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    expected = expectation(name)
    store, report = open_store(name, root)
    assert report.records_scanned == len(expected["records"])
    for queue in expected["queues"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        # A queue whose numbering began again lost its older half for good; the log has it.
        assert store.max_queue_offset(topic, queue_id) == queue["maxOffset"], topic
        if queue["minOffset"] == queue["maxOffset"]:
            continue
        units = {unit[0]: unit for unit in queue["units"]}
        for offset, message in walk(store, topic, queue_id):
            assert [message.physical_offset, message.total_size] == units[offset][1:3]
    for topic, key, max_count, begin, end, offsets, _ in expected["index"]:
        found = store.prepare_query_index(topic, key, max_count, begin, end)()
        assert set(offsets) <= set(found.physical_offsets) or len(offsets) == max_count
    store.close()
    store, again = open_store(name, root)
    assert again.mode == "checkpoint"
    store.close()
