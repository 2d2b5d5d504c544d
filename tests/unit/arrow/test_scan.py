"""`cometmq.arrow.scan` on stores made here: equal to the row decoder, damage, limits, mistakes."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.arrow.made_stores import FILE_BYTES, MadeStore, expected_row

from cometmq.arrow import ALL_COLUMNS, COLUMNS, ScanReport, decode, scan
from cometmq.arrow.options import parse_options
from cometmq.codec.crc import body_crc, encode_crc_tail
from cometmq.codec.properties import encode_properties
from cometmq.errors import ConfigError, StoreCorrupt, StoreError

MODES = ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
START_MS = 1_700_000_000_000


def as_rows(reader: Any) -> list[dict[str, Any]]:
    """Plain values; times as ms, maps as dicts."""
    table = reader.read_all()
    for name in ("bornTimestamp", "storeTimestamp"):
        if name in table.column_names:
            place = table.column_names.index(name)
            table = table.set_column(place, name, table[name].cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        for name in ("bornTimestamp", "storeTimestamp"):
            if row.get(name) is not None:
                row[name] //= 1000
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return rows


NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "bb", "Ключ", "", "TAG"])
VALUES = st.sampled_from(["A", "B", "x y", "значение", "🚀", "", "v" * 40])
TEXTS = st.lists(st.tuples(NAMES, VALUES), max_size=5)
JUNK = st.sampled_from([b"\x01", b"\x02", b"\x00", b"\xff\xfe", b"x", b"TAGS\x01A", b"\xc3"])


@st.composite
def property_bytes(draw: st.DrawFn) -> bytes:
    """Mostly as clients write them; twins, empty parts, a missing end, bytes of no meaning."""
    raw = b"".join(f"{name}\x01{value}\x02".encode() for name, value in draw(TEXTS))
    if draw(st.booleans()):
        raw = raw[:-1]
    if draw(st.integers(0, 4)) == 0:
        raw += draw(JUNK)
    return raw


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=60),
            "properties": property_bytes(),
            "topic": st.sampled_from(["T", "U", "Тема", "L" * 130]),
            "queue_id": st.integers(0, 1),
            "sys_flag": st.sampled_from([0, 0, 0, 0x10, 0x20, 0x30, 4, 8]),
            "kind": st.sampled_from([None, None, None, "ZLIB", "LZ4", "ZSTD"]),
            "store_ms": st.integers(0, 1 << 42),
            "born_timestamp_ms": st.integers(-(1 << 40), 1 << 42),
            "reconsume_times": st.integers(-(2**31), 2**31 - 1),
        }
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(1, 9))
def test_every_message_equals_the_row_decoder(records: list[dict[str, Any]], rows: int) -> None:
    """The whole log and each topic, in batches of any size, with CRCs."""
    with tempfile.TemporaryDirectory() as folder:
        store = MadeStore(Path(folder) / "store")
        for record in records:
            store.put(**record)
        root = store.write()
        expected = store.rows()
        options: dict[str, Any] = {"include_properties": True, "batch_rows": rows}
        options["columns"] = ALL_COLUMNS
        assert as_rows(scan(root, check_crc=True, mode="FAILFAST", **options)) == expected
        for topic, queue_id in store.queues:
            found = as_rows(scan(root, topic=topic, queues=[queue_id], mode="FAILFAST", **options))
            assert found == [
                row for row in expected if (row["topic"], row["queueId"]) == (topic, queue_id)
            ]
            tagged = as_rows(scan(root, topic=topic, tags="A || B", **options))
            assert sorted(row["physicalOffset"] for row in tagged) == [
                row["physicalOffset"]
                for row in expected
                if row["topic"] == topic and row["tags"] in {"A", "B"}
            ]


def made(tmp_path: Path, count: int = 40) -> MadeStore:
    """One queue of plain records over several files."""
    store = MadeStore(tmp_path / "store")
    for number in range(count):
        properties = {"TAGS": "AB"[number % 2], "KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}"}
        store.put(
            f"body {number}".encode() * 15,
            encode_properties(properties),
            store_ms=START_MS + number,
        )
    store.write()
    assert len(store.files) > 2
    return store


@pytest.mark.parametrize("name", ALL_COLUMNS)
def test_one_column_alone(name: str, tmp_path: Path) -> None:
    """Each column needs no other, and has the type Spark wants."""
    store = made(tmp_path)
    for topic in (None, "T"):
        reader = scan(store.root, topic=topic, columns=[name], include_properties=True)
        assert reader.schema.names == [name]
        assert as_rows(reader) == [{name: row[name]} for row in store.rows()]


def test_schema_and_default_columns(tmp_path: Path) -> None:
    """All columns, the reason only where rows can have one; properties null unless asked for."""
    store = made(tmp_path, 40)
    table = scan(store.root).read_all()
    assert tuple(table.column_names) == ALL_COLUMNS
    assert table["properties"].null_count == 40
    assert tuple(scan(store.root, mode="FAILFAST").schema.names) == COLUMNS
    assert table.schema.field("storeTimestamp").type == pa.timestamp("us", tz="UTC")
    assert table.schema.field("properties").type == pa.map_(pa.string(), pa.string())
    assert scan(store.root, broker="b", columns=["broker"]).read_all()["broker"][0].as_py() == "b"


@pytest.mark.parametrize("topic", [None, "T"])
@pytest.mark.parametrize(
    ("place", "mask"),
    [(0, 0x40), (3, 4), (7, 1), (35, 2), (87, 0x40), (84, 0x80)],
    ids=["size-huge", "size-by-4", "magic", "physical-offset", "body-length", "body-negative"],
)
def test_damage_in_each_mode(place: int, mask: int, topic: str | None, tmp_path: Path) -> None:
    """One flipped bit of one record's head: that record, and no other, is a row with a reason."""
    store = made(tmp_path)
    at = store.records[5][0]
    store.spoil(at + place, mask=mask)
    expected = [row for row in store.rows() if row["physicalOffset"] != at]
    report = ScanReport()
    rows = as_rows(scan(store.root, topic=topic, include_properties=True, report=report))
    assert [row for row in rows if row["_corrupt_record"] is None] == expected
    [bad] = [row for row in rows if row["_corrupt_record"] is not None]
    assert rows.index(bad) == 5
    assert bad["physicalOffset"] == at
    assert f"commitlog/{0:020d}, position {at}: " in bad["_corrupt_record"]
    assert bad["queueOffset"] == (None if topic is None else 5)
    assert report == ScanReport(rows=40, corrupt=1)
    report = ScanReport()
    kept = as_rows(
        scan(store.root, topic=topic, mode="DROPMALFORMED", include_properties=True, report=report)
    )
    assert [row["physicalOffset"] for row in kept] == [row["physicalOffset"] for row in expected]
    assert (report.rows, report.corrupt, report.dropped) == (39, 1, 1)
    with pytest.raises(StoreCorrupt, match=f"position {at}: .*PERMISSIVE"):
        scan(store.root, topic=topic, mode="FAILFAST").read_all()


@pytest.mark.parametrize("topic", [None, "T"])
def test_a_batch_checked_as_one_misses_nothing(
    topic: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte of a record outside its body, changed: seen as when each record is checked."""
    store = MadeStore(tmp_path / "store")
    for number in range(8):
        store.put(b"body" * number, encode_properties({"TAGS": "A"}))
    store.write()
    at, record = store.records[5]
    body = range(88, 88 + int.from_bytes(record[84:88], "big"))
    places = [place for place in range(len(record)) if place not in body]

    def read() -> list[dict[str, Any]]:
        return as_rows(scan(store.root, topic=topic, include_properties=True))

    assert len([row for row in read() if row["_corrupt_record"] is None]) == 8
    as_one, one_by_one = {}, {}
    for place in places:
        store.spoil(at + place, mask=0x41)
        as_one[place] = read()
        with monkeypatch.context() as patch:
            patch.setattr(decode, "_usual_records", lambda *_: None)
            one_by_one[place] = read()
        store.spoil(at + place, mask=0x41)
    assert as_one == one_by_one
    lies = {place for place, rows in as_one.items() if rows[5]["_corrupt_record"]}
    # Size, magic, physical offset, lengths of body, topic and properties.
    checked = {*range(8), *range(28, 36), *range(84, 88), body.stop, body.stop + 2, body.stop + 3}
    assert checked <= lies
    if topic is not None:
        assert {*range(12, 16), *range(20, 28)} <= lies


def test_bodies_that_lie(tmp_path: Path) -> None:
    """A changed body is seen when CRCs are compared; one that does not decompress always is."""
    store = MadeStore(tmp_path / "store")
    plain = store.put(b"x" * 50)
    packed = store.put(b"y" * 500, kind="ZLIB")
    store.put(b"z")
    store.write()
    store.spoil(plain + 90)
    store.spoil(packed + 95, mask=0xFF)
    bad = [row["physicalOffset"] for row in as_rows(scan(store.root)) if row["_corrupt_record"]]
    assert bad == [packed]
    rows = as_rows(scan(store.root, check_crc=True))
    assert ["body CRC" in (row["_corrupt_record"] or "") for row in rows] == [True, True, False]
    # Without the body nobody needs to unpack it.
    assert scan(store.root, columns=["keys"], mode="FAILFAST").read_all().num_rows == 3


def test_crc_tail(tmp_path: Path) -> None:
    """A record that ends with its own CRC: right as written, wrong after a change of its topic."""
    store = MadeStore(tmp_path / "store")
    start = store.put(b"body", encode_properties({"TAGS": "A"}) + encode_crc_tail(0))
    record = bytearray(store.records[0][1])
    record[-20:] = encode_crc_tail(body_crc(record[:-20]))
    store.records[0] = (start, bytes(record))
    store.files[0][:] = record
    store.put(b"what a crash cuts off is the last record, so this is not")
    store.write()
    [row, _] = as_rows(scan(store.root, check_crc=True, include_properties=True))
    assert row == expected_row(bytes(record))
    store.spoil(16)
    [row, _] = as_rows(scan(store.root, check_crc=True))
    assert "CRC of the whole record" in row["_corrupt_record"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("topic", [None, "T"])
def test_torn_tail_is_the_end(topic: str | None, mode: str, tmp_path: Path) -> None:
    """What a crash left of the last record is no row, and no reason to fail."""
    store = made(tmp_path)
    position, record = store.records[-1]
    start = position // FILE_BYTES * FILE_BYTES
    path = store.root / "commitlog" / f"{start:020d}"
    raw = bytearray(path.read_bytes())
    raw[position - start + 70 :] = bytes(len(raw) - (position - start + 70))
    path.write_bytes(raw)
    report = ScanReport()
    rows = as_rows(scan(store.root, topic=topic, mode=mode, report=report))
    assert len(rows) == 39
    assert report == ScanReport(rows=39, torn=1)
    assert len(record) > 70


def test_units_that_point_nowhere(tmp_path: Path) -> None:
    """Into a file that is missing: corrupt in the middle, expired before the log's beginning."""
    store = made(tmp_path)
    second = store.root / "commitlog" / f"{FILE_BYTES:020d}"
    lost = sum(FILE_BYTES <= position < 2 * FILE_BYTES for position, _ in store.records)
    second.unlink()
    rows = as_rows(scan(store.root, topic="T"))
    assert len(rows) == 40
    reasons = [row["_corrupt_record"] for row in rows if row["_corrupt_record"]]
    assert len(reasons) == lost > 0
    assert all("no log file holds this position" in reason for reason in reasons)
    (store.root / "commitlog" / f"{0:020d}").unlink()
    report = ScanReport()
    rest = as_rows(scan(store.root, topic="T", mode="FAILFAST", report=report))
    assert len(rest) + report.expired == 40
    assert report.expired > lost


def test_limits(tmp_path: Path) -> None:
    """Queue offsets and store times choose rows; both ends as documented."""
    store = made(tmp_path)

    def offsets(**options: Any) -> list[int]:
        found = scan(store.root, topic="T", columns=["queueOffset"], batch_rows=7, **options)
        return [int(row["queueOffset"]) for row in as_rows(found)]

    assert offsets(starting_offsets={0: 10}, ending_offsets={0: 12}) == [10, 11]
    assert offsets(starting_offsets='{"T": {"broker-a:0": 38}}') == [38, 39]
    assert offsets(starting_offsets="latest") == []
    assert offsets(ending_offsets={"0": -1}, starting_offsets={"0": -2}) == list(range(40))
    assert offsets(starting_timestamp=START_MS + 5, ending_timestamp=START_MS + 8) == [5, 6, 7]
    late = datetime.fromtimestamp((START_MS + 39) / 1000, UTC)
    assert offsets(starting_timestamp=late) == [39]
    assert offsets(tags=["A"], ending_offsets={0: 5}) == [0, 2, 4]
    log = as_rows(scan(store.root, starting_timestamp=START_MS + 38, columns=["keys"]))
    assert log == [{"keys": "k38"}, {"keys": "k39"}]


def test_empty_stores(tmp_path: Path) -> None:
    """No log file, an empty one, one of zeros: no rows; a folder without a store: an error."""
    log = tmp_path / "commitlog"
    log.mkdir()
    assert scan(tmp_path).read_all().num_rows == 0
    (log / f"{0:020d}").touch()
    assert scan(tmp_path).read_all().num_rows == 0
    (log / f"{0:020d}").write_bytes(bytes(FILE_BYTES))
    assert scan(tmp_path, mode="FAILFAST").read_all().num_rows == 0
    with pytest.raises(StoreError, match="holds no commitlog"):
        scan(log)
    with pytest.raises(StoreError, match="is not a directory"):
        scan(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "PERMISIVE"}, "did you mean 'PERMISSIVE'"),
        ({"mode": "failfast"}, "did you mean 'FAILFAST'"),
        ({"columns": ["queueID"]}, "did you mean 'queueId'"),
        ({"columns": "body"}, r"write \['body'\]"),
        ({"columns": []}, "columns is empty"),
        ({"columns": ["body", "body"]}, "named twice"),
        ({"topic": "T", "starting_offsets": "earlyest"}, "did you mean 'earliest'"),
        ({"topic": "T", "ending_offsets": "last"}, "did you mean 'latest'"),
        ({"topic": "T", "starting_offsets": "{"}, "is not JSON"),
        ({"topic": "T", "starting_offsets": {"U": {"0": 1}}}, "speaks of topic 'U'"),
        ({"topic": "T", "starting_offsets": {"x": 1}}, "names queue 'x'"),
        ({"topic": "T", "starting_offsets": {0: -3}}, "-2 .earliest."),
        ({"topic": "T", "starting_offsets": 5}, "got 5"),
        ({"starting_offsets": {0: 1}}, "needs a topic"),
        ({"queues": [1]}, "needs a topic"),
        ({"topic": "T", "queues": [-1]}, "expected queue ids"),
        ({"topic": ""}, "topic must be a name"),
        ({"tags": "A ||"}, "names no tag"),
        ({"batch_rows": 0}, "not in 1"),
        ({"batch_rows": "9"}, "must be an integer"),
        ({"starting_timestamp": "now"}, "ms since 1970"),
        ({"starting_timestamp": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"starting_timestamp": 5, "ending_timestamp": 4}, "is after"),
        ({"starting_timestamp": 1 << 63}, "ms since 1970 have 64 bits"),
        ({"topic": "T", "queues": 3}, r"queues must be a list of queue ids, got 3: write \[3\]"),
        ({"topic": "T", "queues": [[0]]}, r"queues holds \[0\]"),
        ({"topic": "T", "queues": []}, "queues is empty"),
        ({"tags": 5}, "tags must be a list of tags"),
        ({"tags": b"A"}, "tags holds 65: expected text"),
        ({"columns": 5}, "columns must be a list of names"),
        ({"include_properties": "false"}, "include_properties must be True or False, got 'false'"),
        ({"check_crc": "no"}, "check_crc must be True or False"),
        ({"broker": 5}, "broker must be a name"),
        ({"report": {}}, "report must be a ScanReport"),
        (
            {"topic": "T", "starting_offsets": {0: 40}, "ending_offsets": {0: 10}},
            "of queue 0 is 40, after its ending offset 10",
        ),
        (
            {"topic": "T", "starting_offsets": {"a:0": 2}, "ending_offsets": {"a:0": 1}},
            "of queue a:0 is 2, after its ending offset 1",
        ),
        ({"topic": "T", "starting_offsets": {0: 1, "0": 5}}, "names queue '0' twice"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Before any file is opened: the directory does not even exist."""
    with pytest.raises(ConfigError, match=message):
        scan(tmp_path / "nowhere", **options)


def test_unknown_topics_and_queues(tmp_path: Path) -> None:
    """The nearest topic, the queues there are, the end of the queue."""
    root = made(tmp_path).root
    with pytest.raises(StoreError, match=r"no topic 't'.*did you mean 'T'"):
        scan(root, topic="t")
    with pytest.raises(StoreError, match=r"no queue 3, only \[0\]"):
        scan(root, topic="T", queues=[3])
    with pytest.raises(StoreError, match="ends at offset 40"):
        scan(root, topic="T", starting_offsets={0: 41})


@pytest.mark.parametrize("path", [5, b"store", ""])
def test_a_path_of_a_wrong_kind_is_told(path: Any) -> None:
    """The empty one is not the current folder."""
    with pytest.raises(ConfigError, match=r"path must be the store's directory, got"):
        scan(path)


def test_offsets_of_equal_queues_of_two_brokers_are_apart() -> None:
    """Whatever their order, each broker's begin is held against its own end."""
    options = parse_options(
        topic="T",
        starting_offsets={"b:0": 5, "a:0": 40},
        ending_offsets={"a:0": 50, "b:0": 7},
    )
    assert options.starting_by_broker == {("a", 0): 40, ("b", 0): 5}
    assert options.ending_by_broker == {("a", 0): 50, ("b", 0): 7}


def test_a_store_is_of_one_broker(tmp_path: Path) -> None:
    """Offsets of another broker's queue 0 are not taken for those of this one."""
    root = made(tmp_path).root
    with pytest.raises(StoreError, match="'broker-a' and 'broker-b' are named"):
        scan(root, topic="T", broker="broker-a", starting_offsets={"broker-b:0": 3})
    with pytest.raises(StoreError, match="keep the offsets of the one whose store it is"):
        scan(root, topic="T", starting_offsets={"broker-a:0": 3, "broker-b:0": 4})
    assert len(as_rows(scan(root, topic="T", starting_offsets={"broker-a:0": 3}))) == 37


def test_missing_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: Any) -> None:
    """One line that says what to install."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'cometmq\[arrow\]'"):
        scan(tmp_path)


def test_a_store_is_only_read(tmp_path: Path) -> None:
    """Nothing in the directory changes, and a directory nobody may write will do."""
    root = made(tmp_path).root
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert scan(root).read_all().num_rows == scan(root, topic="T").read_all().num_rows == 40
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
