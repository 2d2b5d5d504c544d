"""The native core and the Python text make the same record batches of any store and any answer."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.golden.store.java_stores import unpack
from tests.unit.arrow.made_stores import FILE_BYTES, MadeStore

from cometmq import native
from cometmq.arrow import ALL_COLUMNS, ScanReport, scan
from cometmq.arrow.decode import Decoded, QueueRows, decode_records
from cometmq.arrow.live_span import WireRecords
from cometmq.arrow.options import parse_options
from cometmq.arrow.store_scan import walk_records
from cometmq.codec.stored_message import encode_message

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    native.decode_columns is None, reason=f"there is nothing to compare: {native.describe()}"
)

START_MS = 1_700_000_000_000
USUAL = b"UNIQ_KEY\x01id%d\x02KEYS\x01order 7\x02TAGS\x01A\x02CLUSTER\x01c\x02"
ODD_PROPERTIES = [
    b"",
    b"TAGS\x01B\x02",
    b"TAGS\x01A\x02UNIQ_KEY\x01x\x02",
    "KEYS\x01grün\x02TAGS\x01ü\x02".encode(),
    b"KEYS\x01last",
    b"own\x01" + b"long value " * 9 + b"\x02KEYS\x01\x00eight b\x00\x02",
    b"".join(b"name%d\x01v\x02" % number for number in range(70)),
    b"TAGS\x01A\x02TAGS\x01B\x02",
    b"TAGS\x01\x02",
    b"\x01A\x02",
    b"TAGS\x01A\x01\x02",
    b"TAGS\x02",
    b"TAGS",
    b"KEYS\x01\xff\x02",
    b"KEYS\x01\xc3\x02\x02",
    b"KEYS\x01\xed\xa0\x80\x02",
    b"__CRC32#\x010987654321\x02",
    b"KEYS\x01k\x02__CRC32#\x01098765432a\x02",
]
HOSTS = [bytes(8), bytes([255] * 8), bytes([10, 0, 0, 7, 0, 0, 0x2A, 0x9F]), b"\x7f\0\0\x01" * 2]
USUAL_RECORD = st.fixed_dictionaries(
    {"body": st.binary(max_size=60), "properties": st.just(USUAL % 1)}
)
ODD_RECORD = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=60),
        "properties": st.sampled_from(ODD_PROPERTIES),
        "topic": st.sampled_from(["T", "T", "U", "Тема", "L" * 130]),
        "queue_id": st.integers(0, 1),
        "sys_flag": st.sampled_from([0, 0, 0, 0, 4, 8, 0x10, 0x20, 0x30]),
        "kind": st.sampled_from([None, None, None, "ZLIB"]),
        "store_ms": st.sampled_from([0, START_MS - 1, START_MS + 1, 1 << 62]),
        "born_timestamp_ms": st.sampled_from([-1, 0, START_MS, -(1 << 62)]),
        "born_host": st.sampled_from(HOSTS),
        "reconsume_times": st.sampled_from([0, -1, 2**31 - 1]),
    }
)
RECORDS = st.lists(st.one_of(USUAL_RECORD, USUAL_RECORD, ODD_RECORD), max_size=30)
COLUMNS = st.lists(st.sampled_from(ALL_COLUMNS), min_size=1, max_size=9, unique=True)
LIMITS = st.sampled_from(
    [{}, {}, {}, {"tags": "A"}, {"tags": "A||ü"}, {"starting_timestamp": START_MS},
     {"ending_timestamp": START_MS + 1}, {"check_crc": True}, {"check_crc": True}]
)  # fmt: skip


@contextlib.contextmanager
def python_text() -> Iterator[None]:
    """Decode without the core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "decode_columns", None)
        patch.setattr(native, "walk_records", None)
        yield


def _values(column: pa.Array) -> list[Any]:
    """Values; a damaged time may be one that no datetime has."""
    is_time = pa.types.is_timestamp(column.type)
    return list((column.cast(pa.int64()) if is_time else column).to_pylist())


def scanned(root: Path, **options: Any) -> tuple[list[Any], dict[str, int]]:
    """The batches of a scan as values, and its report."""
    report = ScanReport()
    batches = []
    for batch in scan(root, report=report, **options):
        batch.validate(full=True)
        # Also the buffers beyond the values, as a reader in another language sees them.
        batches.append((batch.schema, [_values(column) for column in batch.columns]))
    return batches, asdict(report)


def put_all(store: MadeStore, records: list[dict[str, Any]]) -> None:
    for record in records:
        fields = dict(record)
        if fields.get("sys_flag", 0) & 0x10:
            fields.pop("born_host", None)
        store.put(fields.pop("body"), fields.pop("properties"), **fields)


@settings(max_examples=80, deadline=None)
@example([], [(94, 128)], ["broker"], {}, False, False, 1)  # a topic that is not UTF-8
@given(
    RECORDS,
    st.lists(st.tuples(st.integers(0, FILE_BYTES - 1), st.integers(1, 255)), max_size=2),
    COLUMNS,
    LIMITS,
    st.booleans(),
    st.booleans(),
    st.integers(1, 99),
)
def test_scans_are_equal(
    records: list[dict[str, Any]],
    flips: list[tuple[int, int]],
    columns: list[str],
    limits: dict[str, Any],
    by_queue: bool,
    with_properties: bool,
    batch_rows: int,
) -> None:
    """Whatever a store holds, whatever is damaged, and whatever is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        store = MadeStore(Path(folder) / "store")
        put_all(store, [{"body": b"first", "properties": USUAL % 0}, *records])
        root = store.write()
        for position, mask in flips:
            store.spoil(position, mask=mask)
        options = {
            "columns": columns,
            "include_properties": with_properties,
            "batch_rows": batch_rows,
            **({"topic": "T"} if by_queue else {}),
            **limits,
        }
        natively = scanned(root, **options)
        with python_text():
            assert scanned(root, **options) == natively


@pytest.mark.parametrize("name", ["clean", "crc", "expired", "ext", "rotten", "torn"])
def test_stores_of_java_are_scanned_alike(name: str, tmp_path: Path) -> None:
    """Stores that RocketMQ wrote, some with damage."""
    root = unpack(name, tmp_path)
    for check_crc in (False, True):
        natively = scanned(root, include_properties=True, check_crc=check_crc)
        with python_text():
            assert scanned(root, include_properties=True, check_crc=check_crc) == natively


def answer(count: int, **fields: Any) -> tuple[WireRecords, Any, Any]:
    """Records as a broker sends them, with their positions and sizes."""
    records = [
        encode_message("T", b"body %d" % number, USUAL % number, queue_offset=7 + number, **fields)
        for number in range(count)
    ]
    size = np.array([len(record) for record in records], np.int64)
    return WireRecords(b"".join(records)), np.cumsum(size) - size, size


def decoded_natively(*arguments: Any) -> Decoded:
    """Decode with the core, which must not leave the records to the Python text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cometmq.arrow.decode._plain_records", None)
        return decode_records(*arguments)


def columns_of(decoded: Decoded) -> dict[str, Any]:
    return {name: column.to_pylist() for name, column in decoded.columns.items()}


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("with_properties", [False, True])
def test_the_core_takes_plain_records(count: int, with_properties: bool) -> None:
    """It decodes an answer with every column itself, also one in several blocks."""
    records, start, size = answer(count)
    options = parse_options(
        columns=ALL_COLUMNS, include_properties=with_properties, check_crc=not with_properties
    )
    rows = QueueRows("T", 0, np.arange(7, 7 + count, dtype=np.int64))
    for queue_rows in (rows, None):
        arguments = (records, start, size, options, queue_rows)
        natively = decoded_natively(*arguments)
        with python_text():
            assert columns_of(decode_records(*arguments)) == columns_of(natively)
        assert natively.rows.tolist() == list(range(count))


@pytest.mark.parametrize("changed_from", [1, 40, 64, 100])
def test_names_that_change_within_a_batch(changed_from: int) -> None:
    """Names of properties are those of the row, also of rows before the first change."""
    log, size = bytearray(), []
    for number in range(150):
        properties = b"a\x01b\x02" if number == changed_from else USUAL % number
        record = encode_message("T", b"", properties, physical_offset=len(log))
        log += record
        size.append(len(record))
    sizes = np.array(size, np.int64)
    arguments = (
        WireRecords(bytes(log)), np.cumsum(sizes) - sizes, sizes,
        parse_options(columns=["properties", "tags"], include_properties=True), None,
    )  # fmt: skip
    natively = columns_of(decoded_natively(*arguments))
    assert natively["properties"][changed_from] == [("a", "b")]
    with python_text():
        assert columns_of(decode_records(*arguments)) == natively


def test_columns_grow_beyond_what_the_first_rows_let_expect() -> None:
    """Rows that become a hundred times longer are as right as the first ones."""
    bodies = [b"x" * (1 if number < 500 else 300) for number in range(1000)]
    records = [
        encode_message("T", body, b"KEYS\x01" + (body or b"k") + b"\x02", reconsume_times=number)
        for number, body in enumerate(bodies)
    ]
    size = np.array([len(record) for record in records], np.int64)
    options = parse_options(columns=["body", "keys", "reconsumeTimes"])
    decoded = decoded_natively(
        WireRecords(b"".join(records)), np.cumsum(size) - size, size, options, None
    )
    assert columns_of(decoded) == {
        "body": bodies,
        "keys": [body.decode() for body in bodies],
        "reconsumeTimes": list(range(1000)),
    }
    assert pa.RecordBatch.from_arrays(list(decoded.columns.values()), list("abc")).nbytes < 900_000


@settings(max_examples=100, deadline=None)
@given(
    RECORDS,
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=2),
    st.integers(0, 400),
    st.integers(0, 3000),
    st.integers(0, 40),
)
def test_walks_are_equal(
    records: list[dict[str, Any]],
    changes: list[tuple[int, int]],
    position: int,
    last: int,
    count: int,
) -> None:
    """From any position of any bytes the same records are found."""
    data = bytearray()
    for record in records:
        data += encode_message(record.get("topic", "T"), record["body"], record["properties"])
    for index, byte in changes:
        data[index : index + 1] = bytes([byte])
    position = min(position, len(data)) if count % 2 else 0
    last = min(last, len(data) - 8)
    assert native.walk_records is not None
    assert native.walk_records(data, position, last, count) == walk_records(
        data, position, last, count
    )


@pytest.mark.parametrize("wrong", [(-1, 0, 0), (1, 0, 0), (0, 0, -1)])
def test_walks_from_outside_are_refused(wrong: tuple[int, int, int]) -> None:
    """A position beyond the bytes is a mistake of ours."""
    assert native.walk_records is not None
    with pytest.raises(ValueError, match="walk_records"):
        native.walk_records(b"", *wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"starts": b"\0" * 9},
        {"sizes": b""},
        {"kinds": b"\x01"},
        {"kinds": b"\x11"},
        {"kinds": bytes(33)},
        {"tags": [b"A"]},
        {"queue_offsets": b""},
    ],
)
def test_arguments_out_of_range_are_refused(change: dict[str, Any]) -> None:
    """A mistake of ours is an exception, and no batch."""
    arguments: dict[str, Any] = {
        "log": b"", "log_start": 0, "starts": bytes(8), "sizes": bytes(8), "kinds": b"\x05",
        "queue_id": 0, "queue_offsets": bytes(8), "starting_ms": 0, "ending_ms": 0, "tags": None,
        "is_crc_checked": False,
    }  # fmt: skip
    assert native.decode_columns is not None
    assert native.decode_columns(*arguments.values()) is None
    with pytest.raises(ValueError, match="decode_columns"):
        native.decode_columns(*(arguments | change).values())
