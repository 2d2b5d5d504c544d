"""Trace records: what clients write to the trace topic about sends, handlers and transactions.

A body is UTF-8 text.  A record ends with 0x02, 0x01 separates its fields, and the first field is
its kind.  An absent text is written as ``null``, because a reader drops empty fields at the end:

    Pub             time region group topic msgId tags keys storeHost bodyLength costMs msgType
                    offsetMsgId success [clientHost]
    SubBefore       time region group requestId msgId retryTimes keys [clientHost]
    SubAfter        requestId msgId costMs success keys contextCode [time group]
    EndTransaction  time region group topic msgId tags keys storeHost msgType transactionId state
                    fromCheck

Source: TraceDataEncoder of RocketMQ 5.4.0.  Its batches have a list of ids in msgId, joined by
commas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

__all__ = [
    "CONTEXT_FAILED",
    "CONTEXT_SUCCESS",
    "MESSAGE_TYPES",
    "TraceRecord",
    "decode_traces",
    "encode_trace",
    "trace_keys",
]

MESSAGE_TYPES: Final = ("NORMAL", "TRANSACTION_HALF", "TRANSACTION_COMMIT", "DELAY", "ORDER")
CONTEXT_SUCCESS: Final = 0
CONTEXT_FAILED: Final = 4
_NULL: Final = "null"
_SEPARATORS: Final = str.maketrans("\x01\x02", "  ")
#: Fields of the oldest known writer, without the kind.
_NEEDED: Final = {"Pub": 12, "SubBefore": 6, "SubAfter": 4, "EndTransaction": 11}


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One record; times are milliseconds since 1970, and fields that its kind lacks are empty."""

    kind: str
    message_id: str
    time_ms: int = 0
    region: str = "DefaultRegion"
    group: str = ""
    topic: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    body_bytes: int = 0
    cost_ms: int = 0
    message_type: str = "NORMAL"
    offset_message_id: str = ""
    success: bool = True
    request_id: str = ""
    retry_times: int = 0
    context_code: int = CONTEXT_SUCCESS
    transaction_id: str = ""
    state: str = ""
    from_check: bool = False


def trace_keys(record: TraceRecord) -> tuple[str, ...]:
    """The keys by which a reader finds the message with this record."""
    return (record.message_id, *record.keys.split())


def encode_trace(record: TraceRecord) -> str:
    """Write a record."""
    head = (record.kind, record.time_ms, record.region, record.group)
    kind_number = MESSAGE_TYPES.index(record.message_type)
    fields: tuple[object, ...]
    if record.kind == "SubBefore":
        own = (record.request_id, record.message_id, record.retry_times, record.keys or _NULL)
        fields = (*head, *own)
    elif record.kind == "SubAfter":
        fields = (
            *(record.kind, record.request_id, record.message_id, record.cost_ms),
            *(_bool(record.success), record.keys or _NULL, record.context_code),
            *(record.time_ms, record.group),
        )
    else:
        message = (record.topic, record.message_id, record.tags or _NULL, record.keys or _NULL)
        if record.kind == "Pub":
            end: tuple[object, ...] = (
                *(record.body_bytes, record.cost_ms, kind_number),
                *(record.offset_message_id or _NULL, _bool(record.success)),
            )
        else:
            end = (kind_number, record.transaction_id, record.state, _bool(record.from_check))
        fields = (*head, *message, record.store_host or _NULL, *end)
    return "\x01".join(str(each).translate(_SEPARATORS) for each in fields) + "\x02"


def _bool(is_so: bool) -> str:
    return "true" if is_so else "false"


def decode_traces(body: bytes) -> Iterator[TraceRecord]:
    """Read the records of a body; what is none, and kinds that are not known, are passed over."""
    for text in body.decode("utf-8", "replace").split("\x02"):
        kind, *fields = text.split("\x01")
        needed = _NEEDED.get(kind)
        if needed is None or len(fields) < needed:
            continue
        try:
            yield _record(kind, ["" if field == _NULL else field for field in fields])
        except (ValueError, IndexError):
            continue


def _record(kind: str, fields: list[str]) -> TraceRecord:
    if kind == "SubBefore":
        return TraceRecord(
            kind,
            fields[4],
            int(fields[0]),
            region=fields[1],
            group=fields[2],
            request_id=fields[3],
            retry_times=int(fields[5]),
            keys=fields[6] if len(fields) > 6 else "",
        )
    if kind == "SubAfter":
        return TraceRecord(
            kind,
            fields[1],
            int(fields[6]) if len(fields) > 6 else 0,
            request_id=fields[0],
            cost_ms=int(fields[2]),
            success=fields[3] == "true",
            keys=fields[4],
            context_code=int(fields[5]) if len(fields) > 5 else CONTEXT_SUCCESS,
            group=fields[7] if len(fields) > 7 else "",
        )
    record = TraceRecord(
        kind,
        fields[4],
        int(fields[0]),
        region=fields[1],
        group=fields[2],
        topic=fields[3],
        tags=fields[5],
        keys=fields[6],
        store_host=fields[7],
    )
    if kind == "Pub":
        # Writers up to 4.4 have no offsetMsgId.
        has_offset = len(fields) > 12
        return replace(
            record,
            body_bytes=int(fields[8]),
            cost_ms=int(fields[9]),
            message_type=MESSAGE_TYPES[int(fields[10])],
            offset_message_id=fields[11] if has_offset else "",
            success=fields[12 if has_offset else 11] == "true",
        )
    return replace(
        record,
        message_type=MESSAGE_TYPES[int(fields[8])],
        transaction_id=fields[9],
        state=fields[10],
        from_check=len(fields) > 11 and fields[11] == "true",
    )
