"""SQL filters and extension files of a Java broker's store are read and written alike."""

import tarfile
from pathlib import Path

import pytest
from tests.golden.store.java_stores import expectation

from cometmq.codec.consume_queue import (
    decode_cq_ext_address,
    encode_cq_ext_address,
    encode_cq_ext_unit,
)
from cometmq.codec.cq_ext import encode_cq_ext_end_blank, has_cq_ext_room, walk_cq_ext
from cometmq.core.filter.bloom_filter import BloomFilter
from cometmq.core.filter.consumer_filter import decode_filter_file, encode_filter_file
from cometmq.core.filter.filter_table import FilterTable

HERE = Path(__file__).parent
FILE_BYTES = 4096


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """Return filter and extension files by their path in the store."""
    found: dict[str, bytes] = {}
    with tarfile.open(HERE / "ext.tar.xz") as archive:
        for member in archive:
            path = member.name.removeprefix("ext/")
            if path.startswith("consumequeue_ext/") or path == "config/consumerFilter.json":
                content = archive.extractfile(member)
                if content is not None:
                    found[path] = content.read()
    return dict(sorted(found.items()))


def test_the_filters_are_read_and_written_as_java_wrote_them(files: dict[str, bytes]) -> None:
    """Writing the filters that were read gives equal bytes, with bits that we computed."""
    raw = files["config/consumerFilter.json"]
    filters = decode_filter_file(raw)
    assert encode_filter_file(filters) == raw
    assert [one.group for one in filters] == ["GroupSql", "GroupSql3", "GroupSql2"]
    assert filters[2].text == "color IN ('red', '蓝') OR a IS NULL"
    bloom = BloomFilter()
    for one in filters:
        assert one.key == bloom.key(one.group, one.topic)
        assert one.is_dead
        assert one.expression is not None


def test_every_unit_is_where_its_address_says(files: dict[str, bytes]) -> None:
    """Reading the files in turn gives Java's units in the order of their addresses."""
    expected = expectation("ext")
    addresses = {
        (entry["topic"], entry["queueId"]): entry["rawTagsCodes"]
        for entry in expected["extAddresses"]
    }
    seen = 0
    for queue in expected["queues"]:
        place = (queue["topic"], queue["queueId"])
        if place not in addresses:
            continue
        folder = f"consumequeue_ext/{place[0]}/{place[1]}/"
        walked = [
            unit
            for path, content in files.items()
            if path.startswith(folder)
            for unit in walk_cq_ext(content, int(path.removeprefix(folder)))
        ]
        assert [encode_cq_ext_address(one.file_position) for one in walked] == addresses[place]
        for one, (*_, unit) in zip(walked, queue["units"], strict=True):
            bitmap = bytes.fromhex(unit["bitMap"] or "")
            assert one.unit == (unit["tagsCode"], unit["msgStoreTime"], bitmap)
            assert one.unit_bytes == unit["size"]
            seen += 1
    assert seen == sum(map(len, addresses.values())) > 500


def test_files_written_by_our_rule_are_java_s(files: dict[str, bytes]) -> None:
    """The same units give the same bytes, with the blank at a file's end and the new file."""
    folder = "consumequeue_ext/TopicSql/0/"
    theirs = [content for path, content in files.items() if path.startswith(folder)]
    ours = [b""]
    for content in theirs:
        for one in walk_cq_ext(content):
            raw = encode_cq_ext_unit(*one.unit)
            if not has_cq_ext_room(len(ours[-1]), len(raw), FILE_BYTES):
                ours[-1] += encode_cq_ext_end_blank()
                ours.append(b"")
            ours[-1] += raw
    assert len(theirs) > 2
    assert [content.ljust(FILE_BYTES, b"\0") for content in ours] == theirs


def test_bitmaps_are_those_java_computed(files: dict[str, bytes]) -> None:
    """Three filters over 420 messages give Java's bitmaps, which miss no message."""
    filters = decode_filter_file(files["config/consumerFilter.json"])
    table = FilterTable(BloomFilter())
    assert table.load(filters, now_ms=0)
    expected = expectation("ext")
    records = {
        record["queueOffset"]: record
        for record in expected["records"]
        if record["topic"] == "TopicSql"
    }
    path = "consumequeue_ext/TopicSql/0/"
    units = [
        one.unit
        for name, content in files.items()
        if name.startswith(path)
        for one in walk_cq_ext(content)
    ]
    matched = passed = 0
    for number, unit in enumerate(units):
        properties = records[number]["properties"]
        assert table.bitmap("TopicSql", properties) == unit.bitmap, (number, properties)
        for one in filters:
            assert one.expression is not None
            is_match = one.expression.matches(properties)
            may_match = table.may_match(one, unit)
            assert may_match or not is_match
            matched += is_match
            passed += may_match
    assert 0 < matched <= passed < 3 * len(units)
    assert decode_cq_ext_address(expected["extAddresses"][0]["rawTagsCodes"][0]) == 0
