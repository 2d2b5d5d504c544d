"""Spans gathered from mapped log files: the bytes of each record, whatever the sizes and cuts."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.codec.consume_queue import CQ_UNIT
from cometmq.codec.cq_ext import BitmapHint
from cometmq.codec.stored_message import MAGIC_V1
from cometmq.errors import StoreCorrupt
from cometmq.model.offsets import QueueOffset
from cometmq.store.read import span as spans
from cometmq.store.read import span_gather
from cometmq.store.read.span import BUFFERS_MAX, Span, SpanWish
from cometmq.store.read.span_reader import SpanReader

HEAD = struct.Struct(">ii20xq")
FILE_BYTES = 1 << 13


class Log:
    """Log files side by side, and one queue in them among others' records."""

    def __init__(self) -> None:
        self.files: list[Any] = []
        self.min_offset = 0
        self.units = b""
        self.records: list[bytes] = []
        self.codes: list[int] = []
        self._place = FILE_BYTES

    def put(self, size: int, code: int = 0, *, is_own: bool = True) -> None:
        """Append a record; a file's last bytes stay empty when it does not fit."""
        if self._place + size > FILE_BYTES:
            self.files.append(_Mapped(len(self.files) * FILE_BYTES))
            self._place = 0
        file = self.files[-1]
        position = file.start + self._place
        body = bytes((position + i) % 251 for i in range(size - HEAD.size))
        record = HEAD.pack(size, MAGIC_V1, position) + body
        file.file.data[self._place : self._place + size] = record
        self._place += size
        if is_own:
            self.units += CQ_UNIT.pack(position, size, code)
            self.records.append(record)
            self.codes.append(code)

    def file_at(self, physical_offset: int) -> Any:
        """The file of an offset."""
        index = physical_offset // FILE_BYTES
        return self.files[index] if 0 <= index < len(self.files) else None


class _Mapped:
    def __init__(self, start: int) -> None:
        self.start, self.size, self.end = start, FILE_BYTES, start + FILE_BYTES
        self.file = _Bytes()


class _Bytes:
    def __init__(self) -> None:
        self.data = bytearray(FILE_BYTES)
        self.length = FILE_BYTES

    def size(self) -> int:
        return self.length

    def map_for_reading(self, position: int, length: int) -> memoryview:
        if self.length < FILE_BYTES:
            raise StoreCorrupt("cut")
        return memoryview(self.data)[position : position + length]


class _Queues:
    def __init__(self, log: Log) -> None:
        self._log = log

    def find(self, topic: str, queue_id: int) -> object | None:
        return self if topic == "t" else None

    def units(self, queue: object, first: int, count: int, *, may_block: bool) -> bytes:
        assert may_block
        return self._log.units[first * 20 : (first + count) * 20]


class _Runs:
    def __init__(self) -> None:
        self.damaged: list[tuple[int, int]] = []


def reader_of(log: Log, may_match: Any = None) -> SpanReader:
    """A reader over it."""
    return SpanReader(log, _Queues(log), _Runs(), may_match)  # type: ignore[arg-type]


def read(
    reader: SpanReader,
    log: Log,
    first: int,
    max_bytes: int,
    codes: frozenset[int] | None = None,
    max_count: int = 1 << 20,
    confirmed: int = 1 << 60,
) -> Span | None:
    wish = SpanWish(
        "t",
        0,
        QueueOffset(first),
        len(log.records),
        confirmed,
        max_count,
        max_bytes,
        64,
        has_sizes=True,
    )
    return reader.read(wish, codes)


def records_of(span: Span) -> list[bytes]:
    """The records of a span, cut by its sizes."""
    sizes = struct.unpack_from(f">{span.record_count}i", span.data, span.start)
    assert span.sizes_bytes == 4 * span.record_count
    place = span.start + span.sizes_bytes
    found = []
    for size in sizes:
        found.append(bytes(span.data[place : place + size]))
        place += size
    assert place == span.end
    return found


SIZES = st.one_of(st.integers(91, 140), st.integers(91, 4000))


@given(
    st.lists(st.tuples(SIZES, st.sampled_from([0, 7, -9, 1 << 40]), st.booleans()), max_size=60),
    st.sampled_from([None, frozenset({7}), frozenset({0, -9})]),
    st.integers(1, 20_000),
    st.integers(1, 70),
)
def test_spans_are_the_wanted_records_in_order(
    puts: list[tuple[int, int, bool]],
    codes: frozenset[int] | None,
    max_bytes: int,
    max_count: int,
) -> None:
    """All of them, each once, within the limits, over window and file ends."""
    log = Log()
    for size, code, is_own in puts:
        log.put(size, code, is_own=is_own)
    reader = reader_of(log)
    place, found = 0, []
    while place < len(log.records):
        span = read(reader, log, place, max_bytes, codes, max_count)
        assert span is not None
        assert place < span.following <= len(log.records)
        part = records_of(span)
        assert len(part) <= max_count
        assert len(part) <= 1 or sum(map(len, part)) <= max_bytes
        found += part
        place = span.following
        reader.keep_buffer(span.data)
    # What looks like the address of an extension unit passes: its tag is elsewhere.
    assert found == [
        record
        for record, code in zip(log.records, log.codes, strict=True)
        if codes is None or code in codes or code == 1 << 40
    ]


@given(
    st.lists(st.tuples(SIZES, st.booleans()), max_size=60),
    st.integers(1, 20_000),
    st.integers(1, 70),
    st.integers(2, 5),
    st.booleans(),
)
def test_matching_spans_are_what_matches_in_order(
    puts: list[tuple[int, bool]], max_bytes: int, max_count: int, every: int, has_bitmaps: bool
) -> None:
    """By needles, by bitmaps and without: each once, within the limits, in bounded steps."""
    log = Log()
    for size, is_own in puts:
        log.put(size, is_own=is_own)
    # What is searched for stands in some of the records, at places that depend on their bytes.
    needles = (bytes([100, 101, 102]), b"\x07\x08\x02")
    wanted = [one for n, one in enumerate(log.records) if n % every == 0 and needles[0] in one]
    by_bitmap: dict[bytes, int] = {one: n for n, one in enumerate(log.records)}

    def may_match(queue: object, raw: bytes, hint: object) -> list[int]:
        first = log.units.index(raw) // 20 if raw else 0
        return [n for n in range(len(raw) // 20) if (first + n) % every == 0]

    reader = reader_of(log, may_match if has_bitmaps else None)
    place, found = 0, []
    while place < len(log.records):
        end = len(log.records)
        span = reader.read_matching(
            SpanWish(
                "t", 0, QueueOffset(place), end, 1 << 60, max_count, max_bytes, 64, has_sizes=True
            ),
            lambda record: by_bitmap[bytes(record)] % every == 0 and needles[0] in bytes(record),
            BitmapHint((), 32, 0),
            needles,
            let_go=lambda: None,
        )
        assert span is not None
        assert place < span.following <= len(log.records)
        part = records_of(span)
        assert len(part) <= max_count
        assert len(part) <= 1 or sum(map(len, part)) <= max_bytes
        found += part
        place = span.following
        reader.keep_buffer(span.data)
    assert found == wanted


def filled(count: int = 20) -> Log:
    log = Log()
    for number in range(count):
        log.put(300 + number % 3)
        log.put(200, is_own=False)
    return log


@pytest.mark.parametrize("codes", [None, frozenset({0})])
@pytest.mark.parametrize(
    "spoil", ["magic", "size", "offset", "unit", "negative", "beyond", "confirmed", "damaged"]
)
def test_a_span_ends_before_what_is_not_sound(spoil: str, codes: frozenset[int] | None) -> None:
    """And there is none where the first one is not."""
    log = filled()
    reader = reader_of(log)
    position, size, code = CQ_UNIT.unpack_from(log.units, 7 * 20)
    file = log.file_at(position)
    at = position - file.start
    confirmed = 1 << 60
    unit = None
    if spoil in {"magic", "size", "offset"}:
        file.file.data[at + {"magic": 5, "size": 3, "offset": 35}[spoil]] ^= 4
    elif spoil == "unit":
        unit = CQ_UNIT.pack(position + 1, size, code)
    elif spoil == "negative":
        unit = CQ_UNIT.pack(-5, size, code)
    elif spoil == "beyond":
        unit = CQ_UNIT.pack(1 << 50, size, code)
    elif spoil == "confirmed":
        confirmed = position + size - 1
    else:
        reader._runs.damaged.append((position + 3, position + 4))
    if unit is not None:
        log.units = log.units[: 7 * 20] + unit + log.units[8 * 20 :]
    span = read(reader, log, 0, 1 << 20, codes, confirmed=confirmed)
    assert span is not None
    assert (span.record_count, span.following) == (7, 7)
    assert records_of(span) == log.records[:7]
    assert read(reader, log, 7, 1 << 20, codes, confirmed=confirmed) is None


def test_no_span_of_an_unknown_queue_or_a_cut_file() -> None:
    """A file that was cut from outside is not touched."""
    log = filled()
    reader = reader_of(log)
    assert (
        reader.read(
            SpanWish("u", 0, QueueOffset(0), 5, 1 << 60, 10, 1000, 0, has_sizes=False), None
        )
        is None
    )
    assert read(reader, log, 0, 1 << 20) is not None
    log.files[0].file.length = 100
    assert read(reader, log, 0, 1 << 20) is None
    log.files[0].file.length = FILE_BYTES
    assert read(reader, log, 0, 1 << 20) is not None


def test_few_windows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a span is; and a window whose file is gone is dropped at the next look."""
    monkeypatch.setattr(spans, "WINDOW_BYTES", 1024)
    monkeypatch.setattr(spans, "WINDOW_OVERLAP_BYTES", 512)
    monkeypatch.setattr(span_gather, "WINDOW_BYTES", 1024)
    log = filled(200)
    reader = reader_of(log)
    span = read(reader, log, 0, 1 << 20)
    assert span is not None
    assert records_of(span) == log.records
    assert 0 < len(reader._windows) <= spans.WINDOWS_MAX
    log.files = []
    assert not reader.drop_idle()


def test_a_buffer_is_used_again_only_when_nobody_looks_at_it() -> None:
    """An answer on its way out keeps its bytes."""
    log = filled()
    reader = reader_of(log)
    first = read(reader, log, 0, 1 << 20)
    assert first is not None
    held = memoryview(first.data)[first.start : first.end]
    before = bytes(held)
    reader.keep_buffer(first.data)
    second = read(reader, log, 5, 1 << 20)
    assert second is not None
    assert second.data is not first.data
    assert bytes(held) == before
    held.release()
    third = read(reader, log, 0, 1 << 20)
    assert third is not None
    assert third.data is first.data
    assert records_of(third) == log.records
    for _ in range(2 * BUFFERS_MAX):
        reader.keep_buffer(bytearray(10))
    assert len(reader._buffers) == BUFFERS_MAX
