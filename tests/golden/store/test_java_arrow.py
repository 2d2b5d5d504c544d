"""`cometmq.arrow.scan` gives what Java's own code read from a Java 5.4.0 broker's stores."""

from __future__ import annotations

import hashlib
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.store.java_stores import expectation, unpack

from cometmq.arrow import ScanReport, scan
from cometmq.errors import StoreCorrupt

if TYPE_CHECKING:
    from pathlib import Path

SOUND = ["clean", "killed", "expired", "crc", "ext"]
SAME = ["physicalOffset", "topic", "queueId", "queueOffset", "msgId", "uniqKey", "tags", "keys"]
SAME += ["sysFlag", "bornHost", "storeHost", "reconsumeTimes"]


def instant(milliseconds: int) -> datetime:
    """Return milliseconds since 1970 as a scan gives them."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def check(row: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare every column with what Java's decoder read."""
    assert {name: row[name] for name in SAME} == {name: expected[name] for name in SAME}
    assert row["bornTimestamp"] == instant(expected["bornTimestamp"])
    assert row["storeTimestamp"] == instant(expected["storeTimestamp"])
    assert len(row["body"]) == expected["bodyLength"]
    assert hashlib.sha256(row["body"]).hexdigest() == expected["bodySha256"]
    assert dict(row["properties"]) == expected["properties"]
    assert row["_corrupt_record"] is None
    assert row["broker"] == "broker-a"


@pytest.mark.parametrize("name", SOUND)
def test_whole_log_is_what_java_read(name: str, tmp_path: Path) -> None:
    """A scan in log order gives every record of every topic with sound columns and CRCs."""
    root = unpack(name, tmp_path)
    report = ScanReport()
    reader = scan(root, include_properties=True, broker="broker-a", check_crc=True, report=report)
    rows = reader.read_all().to_pylist()
    expected = expectation(name)["records"]
    assert len(rows) == len(expected) > 0
    for row, record in zip(rows, expected, strict=True):
        check(row, record)
    assert report == ScanReport(rows=len(rows))


@pytest.mark.parametrize("name", SOUND)
def test_every_queue_is_what_java_read(name: str, tmp_path: Path) -> None:
    """A scan led by consume queues gives the records that Java's units point to."""
    root = unpack(name, tmp_path)
    records = {record["physicalOffset"]: record for record in expectation(name)["records"]}
    units = 0
    for queue in expectation(name)["queues"]:
        reader = scan(
            root,
            topic=queue["topic"],
            queues=[queue["queueId"]],
            include_properties=True,
            broker="broker-a",
            batch_rows=100,
        )
        rows = reader.read_all().to_pylist()
        readable = [unit for unit in queue["units"] if unit[0] >= queue["minOffset"]]
        assert [(row["queueOffset"], row["physicalOffset"]) for row in rows] == [
            (unit[0], unit[1]) for unit in readable
        ]
        for row in rows:
            check(row, records[row["physicalOffset"]])
        units += len(rows)
    assert units > 100


@pytest.mark.parametrize("name", ["clean", "ext"])
def test_tags_select_as_java_does(name: str, tmp_path: Path) -> None:
    """Tags select as in Java: by the unit's hash where it has one, then by the tag itself."""
    root = unpack(name, tmp_path)
    records = expectation(name)["records"]
    asked = {record["tags"] for record in records if record["topic"] == "TopicKinds"} - {None, ""}
    assert {"AaBB", "BBAa"} <= asked
    for tag in asked:
        found = scan(root, topic="TopicKinds", tags=[tag]).read_all().to_pylist()
        assert sorted(row["physicalOffset"] for row in found) == [
            record["physicalOffset"]
            for record in records
            if record["topic"] == "TopicKinds" and record["tags"] == tag
        ]


def test_flipped_bits_are_rows_with_a_reason(tmp_path: Path, caplog: Any) -> None:
    """A scan reports each record with a flipped bit; the others are as in the clean store."""
    root = unpack("rotten", tmp_path)
    clean = {record["physicalOffset"]: record for record in expectation("clean")["records"]}
    report = ScanReport()
    reader = scan(root, check_crc=True, include_properties=True, broker="broker-a", report=report)
    rows = reader.read_all().to_pylist()
    bad = [row for row in rows if row["_corrupt_record"] is not None]
    assert len(bad) == report.corrupt > 3
    assert len(rows) == len(clean)
    for row in bad:
        assert "commitlog/0000" in row["_corrupt_record"]
        assert row["physicalOffset"] in clean
    dropped = ScanReport()
    with caplog.at_level(logging.WARNING):
        kept = scan(root, check_crc=True, mode="DROPMALFORMED", report=dropped).read_all()
    assert (dropped.dropped, kept.num_rows) == (len(bad), len(rows) - len(bad))
    assert f"{len(bad)} records do not decode" in caplog.text
    with pytest.raises(StoreCorrupt, match=r"commitlog/0+, position \d+: "):
        scan(root, check_crc=True, mode="FAILFAST").read_all()


@pytest.mark.parametrize("name", ["torn", "torn-body"])
def test_torn_tail_ends_where_recovery_ends(name: str, tmp_path: Path) -> None:
    """A record that a crash cut off is no row in either scan."""
    root = unpack(name, tmp_path)
    count = sum(expectation(name)["recordsByTopic"].values())
    report = ScanReport()
    assert scan(root, mode="FAILFAST", check_crc=True, report=report).read_all().num_rows == count
    topic = scan(root, topic="TopicA", mode="FAILFAST", check_crc=True).read_all()
    assert topic.num_rows == expectation(name)["recordsByTopic"]["TopicA"]
