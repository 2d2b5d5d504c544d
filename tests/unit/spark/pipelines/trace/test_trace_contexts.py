"""Bodies of the trace topic: real ones, generated ones, damaged ones."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from tests.golden.wire.captures import load_frames
from tests.unit.spark.generated_events import traced_messages

from cometmq.spark.pipelines.trace.contexts import BAD, KINDS, SCHEMA, parse_contexts
from cometmq.wire.frame.framing import decode_frame

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


def parsed(*bodies: bytes | None) -> list[dict[str, Any]]:
    """Rows without their nulls."""
    rows = parse_contexts(pa.array(bodies, pa.binary())).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def captured_bodies() -> list[bytes]:
    """What Java 4.9.8, Java 5.4.0 and Go 2.1.2 sent to the trace topic."""
    bodies = []
    for captured in load_frames():
        if captured.is_request and captured.code in (10, 310) and "/trace" in captured.where:
            command = decode_frame(captured.frame)
            topic = command.ext_fields.get("b") or command.ext_fields.get("topic")
            if topic == TRACE_TOPIC:
                bodies.append(bytes(command.body))
    return bodies


def test_real_clients_bodies_are_read_whole() -> None:
    """Every record of the captures is read, those of old Java and those of Go among them."""
    rows = parsed(*captured_bodies())
    assert Counter(row["kind"] for row in rows) == {"Pub": 8, "SubBefore": 11, "SubAfter": 11}
    assert {row["groupName"] for row in rows if row["kind"] == "Pub"} == {
        "GO_PG_trace",
        "J498_PG_trace",
        "C540_PG_trace",
    }
    go, *_ = (row for row in rows if row["kind"] == "Pub" and row["groupName"] == "GO_PG_trace")
    assert go == {
        "kind": "Pub",
        "timeMs": 1795264098472,
        "region": "DefaultRegion",
        "groupName": "GO_PG_trace",
        "topic": "GO_Trace",
        "msgId": "0A4D00027BC50000000069ac46d00001",
        "tags": "TagT",
        "keys": "trk1 trk2",
        "storeHost": "127.0.0.1:41011",
        "bodyBytes": 7,
        "costMs": 8,
        "msgType": "NORMAL",
        "offsetMsgId": "7F0000010000A033000000000000208C",
        "success": True,
        "clientHost": "10.77.0.2",
    }
    failed = [row for row in rows if row["kind"] == "SubAfter" and not row["success"]]
    assert {row["result"] for row in failed} == {"FAILED"}


@pytest.mark.parametrize("seed", range(5))
def test_generated_stream_is_read_whole(seed: int) -> None:
    """As many rows as records were written, the damaged ones as bad rows with a reason."""
    traced = traced_messages(seed, 60)
    rows = parsed(*traced.bodies)
    bad = [row for row in rows if row["kind"] == BAD]
    assert len(bad) == traced.bad
    assert len(rows) == traced.steps + traced.bad
    assert all(row["reason"] for row in bad)
    assert {row["msgId"] for row in rows if row["kind"] == "Pub"} == traced.messages


def by_rows(body: bytes) -> Counter[tuple[str, str]]:
    """The same records told by a plain loop: kind and message id; damaged ones by their kind."""
    told: Counter[tuple[str, str]] = Counter()
    needed = {"Pub": 13, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 12, "Recall": 7}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Counter({(BAD, ""): 1})
    for record in filter(None, text.split("\x02")):
        fields = record.split("\x01")
        kind = fields[0]
        good = kind in needed and len(fields) >= needed[kind]
        if good:
            places = dict(KINDS[kind])
            numbers = ("timeMs", "bodyBytes", "costMs", "retryTimes")
            for name in numbers:
                place = places.get(name)
                if place is not None and place < len(fields):
                    digits = fields[place].removeprefix("-")
                    good &= digits.isascii() and digits.isdigit() and len(digits) <= 18
            message_id = fields[places["msgId"]]
            good &= message_id != ""
            if good:
                told[kind, message_id] += 1
        if not good:
            told[BAD, ""] += 1
    return told


@pytest.mark.parametrize("seed", range(20))
def test_damaged_bodies_are_read_as_a_plain_loop_reads_them(seed: int) -> None:
    """Bytes changed, cut out and repeated at random: the same records, never an exception."""
    chance = random.Random(seed)
    bodies = []
    for body in traced_messages(seed, 20).bodies:
        data = bytearray(body)
        for _ in range(chance.randrange(4)):
            place = chance.randrange(len(data) + 1)
            how = chance.randrange(3)
            if how == 0:
                data[place:place] = chance.choice((b"\x01", b"\x02", b"x", b"\xff", b""))
            elif how == 1:
                del data[place : place + chance.randrange(20)]
            else:
                data[place:place] = data[place : place + 30]
        bodies.append(bytes(data))
    expected: Counter[tuple[str, str]] = Counter()
    for body in bodies:
        expected += by_rows(body)
    rows = parsed(*bodies)
    assert Counter((row["kind"], row.get("msgId", "")) for row in rows) == expected


def test_nothing_in_nothing_out() -> None:
    """No body, an empty body and separators alone give no row, and the schema all the same."""
    batch = parse_contexts(pa.array([None, b"", b"\x02\x02"], pa.binary()))
    assert len(batch) == 0
    assert batch.schema == SCHEMA
    assert parse_contexts(pa.array([], pa.binary())).schema == SCHEMA


def test_transaction_and_recall() -> None:
    """The records no capture holds, as their encoder writes them."""
    rows = parsed(
        b"EndTransaction\x0117\x01R\x01PG\x01T\x01ID\x01\x01\x01h:1\x012\x01TX\x01COMMIT_MESSAGE"
        b"\x01false\x02Recall\x0118\x01R\x01PG\x01T\x01ID\x01true\x02"
    )
    end, recall = rows
    assert end["kind"] == "EndTransaction"
    assert (end["state"], end["transactionId"], end["msgType"]) == (
        "COMMIT_MESSAGE",
        "TX",
        "TRANSACTION_COMMIT",
    )
    assert (recall["kind"], recall["success"], recall["timeMs"]) == ("Recall", True, 18)


def test_short_end_of_a_delivery() -> None:
    """Old clients end a delivery without result, time and group: null, not a bad record."""
    (row,) = parsed(b"SubAfter\x01REQ\x01ID\x015\x01true\x02")
    assert row == {
        "kind": "SubAfter",
        "requestId": "REQ",
        "msgId": "ID",
        "costMs": 5,
        "success": True,
    }
