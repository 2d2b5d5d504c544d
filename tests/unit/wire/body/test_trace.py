"""Trace records: Java's captured ones, and what our own writer makes of every field."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.wire.body.trace import TraceRecord, decode_traces, encode_trace, trace_keys

#: Written by a client of RocketMQ 5.4.0 (reference page of operations, 6).
CAPTURED = (
    "Pub\x011795264488633\x01DefaultRegion\x01C540_PG_trace\x01C540_Trace\x010A4D0000\x01TagT\x01"
    "trk1 trk2\x01127.0.0.1:41011\x017\x0118\x010\x017F000001BA24\x01true\x02"
)
PUB = TraceRecord(
    "Pub",
    "0A4D0000",
    1795264488633,
    "DefaultRegion",
    "C540_PG_trace",
    "C540_Trace",
    "TagT",
    "trk1 trk2",
    "127.0.0.1:41011",
    7,
    18,
    "NORMAL",
    "7F000001BA24",
)


def test_a_captured_record_both_ways() -> None:
    """Byte by byte, and by its keys."""
    assert list(decode_traces(CAPTURED.encode())) == [PUB]
    assert encode_trace(PUB) == CAPTURED
    assert trace_keys(PUB) == ("0A4D0000", "trk1", "trk2")


@pytest.mark.parametrize(
    "record",
    [
        replace(PUB, tags="", keys="", offset_message_id="", success=False, message_type="DELAY"),
        TraceRecord("SubBefore", "id", 5, "r", "g", request_id="q", retry_times=3, keys="k"),
        TraceRecord("SubBefore", "id", 5, "r", "g", request_id="q"),
        TraceRecord(
            "SubAfter", "id", 9, group="g", request_id="q", cost_ms=4, success=False, context_code=4
        ),
        TraceRecord(
            "EndTransaction",
            "id",
            9,
            group="g",
            topic="T",
            message_type="TRANSACTION_COMMIT",
            transaction_id="id",
            state="COMMIT_MESSAGE",
            from_check=True,
        ),
    ],
)
def test_each_kind_is_read_as_it_is_written(record: TraceRecord) -> None:
    """An absent text is written as null, as Java does, because a reader drops empty ends."""
    text = encode_trace(record)
    assert list(decode_traces(text.encode())) == [record]
    assert "\x01\x01" not in text
    assert not text.endswith("\x01\x02")


def test_older_and_foreign_records() -> None:
    """Without offsetMsgId, with a client's host behind, SubAfter without time and group."""
    old = CAPTURED.replace("7F000001BA24\x01", "")
    go = CAPTURED.replace("true\x02", "true\x0110.0.0.1\x02")
    short = "SubAfter\x01q\x01id\x014\x01true\x01k\x020\x02"
    decoded = list(decode_traces((old + go + short).encode()))
    assert decoded[0] == replace(PUB, offset_message_id="")
    assert decoded[1] == PUB
    assert (decoded[2].message_id, decoded[2].cost_ms, decoded[2].time_ms) == ("id", 4, 0)


def test_separators_in_a_text_do_not_break_a_record() -> None:
    """They become blanks."""
    (read,) = decode_traces(encode_trace(replace(PUB, tags="a\x01b\x02c")).encode())
    assert read.tags == "a b c"


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    """What is no record is passed over."""
    for text in (body, CAPTURED.encode()[:-20] + body, b"Pub\x01" + b"\x01".join([body] * 13)):
        assert isinstance(list(decode_traces(text)), list)
