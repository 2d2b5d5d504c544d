"""Bodies of the trace topic as columns, one row per traced step of a message; without Spark.

Arrow's kernels parse a batch of bodies; Python loops over the kinds of records, not over rows.

A body is UTF-8 text with several records.  A record ends with 0x02, 0x01 separates its fields, and
the first field names its kind (upstream ``TraceDataEncoder``, 5.4.0; older clients write fewer
fields and Go's client one more, so only the necessary fields are required):

    Pub             time region group topic msgId tags keys storeHost bodyLength costMs msgType
                    offsetMsgId success [clientHost]
    SubBefore       time region group requestId msgId retryTimes keys [clientHost]
    SubAfter        requestId msgId costMs success keys contextCode [time group]
    EndTransaction  time region group topic msgId tags keys storeHost msgType transactionId state
                    fromCheck
    Recall          time region group topic msgId success

A record that does not fit becomes a row of kind ``BAD`` with the reason and is counted.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BAD", "CONTEXT_CODES", "KINDS", "MESSAGE_TYPES", "SCHEMA", "parse_contexts"]

BAD: Final = "BAD"
MESSAGE_TYPES: Final = ("NORMAL", "TRANSACTION_HALF", "TRANSACTION_COMMIT", "DELAY", "ORDER")
CONTEXT_CODES: Final = ("SUCCESS", "TIMEOUT", "EXCEPTION", "NULL", "FAILED")
_REASON_TEXT_MAX: Final = 120

SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.string()),
        pa.field("timeMs", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("groupName", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("msgId", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.string()),
        pa.field("storeHost", pa.string()),
        pa.field("bodyBytes", pa.int64()),
        pa.field("costMs", pa.int64()),
        pa.field("msgType", pa.string()),
        pa.field("offsetMsgId", pa.string()),
        pa.field("success", pa.bool_()),
        pa.field("requestId", pa.string()),
        pa.field("retryTimes", pa.int64()),
        pa.field("result", pa.string()),
        pa.field("transactionId", pa.string()),
        pa.field("state", pa.string()),
        pa.field("clientHost", pa.string()),
        pa.field("reason", pa.string()),
    ]
)

#: kind -> (column, position of its field); the first `_NEEDED` fields are required.
KINDS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "Pub": (
        ("timeMs", 1),
        ("region", 2),
        ("groupName", 3),
        ("topic", 4),
        ("msgId", 5),
        ("tags", 6),
        ("keys", 7),
        ("storeHost", 8),
        ("bodyBytes", 9),
        ("costMs", 10),
        ("msgType", 11),
        ("offsetMsgId", 12),
        ("success", 13),
        ("clientHost", 14),
    ),
    "SubBefore": (
        ("timeMs", 1),
        ("region", 2),
        ("groupName", 3),
        ("requestId", 4),
        ("msgId", 5),
        ("retryTimes", 6),
        ("keys", 7),
        ("clientHost", 8),
    ),
    "SubAfter": (
        ("requestId", 1),
        ("msgId", 2),
        ("costMs", 3),
        ("success", 4),
        ("keys", 5),
        ("result", 6),
        ("timeMs", 7),
        ("groupName", 8),
    ),
    "EndTransaction": (
        ("timeMs", 1),
        ("region", 2),
        ("groupName", 3),
        ("topic", 4),
        ("msgId", 5),
        ("tags", 6),
        ("keys", 7),
        ("storeHost", 8),
        ("msgType", 9),
        ("transactionId", 10),
        ("state", 11),
    ),
    "Recall": (
        ("timeMs", 1),
        ("region", 2),
        ("groupName", 3),
        ("topic", 4),
        ("msgId", 5),
        ("success", 6),
    ),
}
#: Fields of a record of the oldest known client, including its kind.
_NEEDED: Final = {"Pub": 13, "SubBefore": 7, "SubAfter": 5, "EndTransaction": 12, "Recall": 7}
_NUMBERS: Final = ("timeMs", "bodyBytes", "costMs", "retryTimes")
#: Codes that clients write as numbers; a number beyond the list stays text.
_CODED: Final = {"msgType": MESSAGE_TYPES, "result": CONTEXT_CODES}
#: Fields in which Java writes "null" for an absent text.
_ABSENT: Final = ("tags", "keys", "offsetMsgId", "clientHost", "groupName", "transactionId")


def parse_contexts(bodies: Any) -> Any:
    """The traced steps in ``bodies`` as one record batch with the columns of `SCHEMA`.

    Args:
        bodies: a binary array; null and empty bodies have no records.

    Rows come kind by kind: a step carries its own time, and the order of records in a body is
    not defined.
    """
    text, broken = _decoded(bodies)
    records = pc.list_flatten(pc.split_pattern(text, "\x02"))
    records = records.filter(pc.not_equal(records, ""))
    fields = pc.split_pattern(records, "\x01")
    counts = pc.list_value_length(fields)
    kinds = pc.list_element(fields, 0) if len(fields) else pa.array([], pa.string())
    parts = [_bad(broken, "the body is not UTF-8")]
    is_listed = None
    for kind in KINDS:
        is_kind = pc.equal(kinds, kind)
        is_listed = is_kind if is_listed is None else pc.or_(is_listed, is_kind)
        is_whole = pc.greater_equal(counts, _NEEDED[kind])
        short = records.filter(pc.and_(is_kind, pc.invert(is_whole)))
        parts.append(_bad(short, f"a {kind} record has fewer than {_NEEDED[kind]} fields"))
        chosen = pc.and_(is_kind, is_whole)
        parts += _rows(kind, fields.filter(chosen), counts.filter(chosen), records.filter(chosen))
    parts.append(_bad(records.filter(pc.invert(is_listed)), "unknown kind of record"))
    batches = pa.Table.from_batches([part for part in parts if len(part)], SCHEMA)
    return batches.combine_chunks().to_batches()[0] if len(batches) else _empty()


def _empty() -> Any:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)


def _decoded(bodies: Any) -> tuple[Any, Any]:
    """(texts, bodies that are not UTF-8 with replacement characters)."""
    if pa.types.is_string(bodies.type):
        return bodies.drop_null(), pa.array([], pa.string())
    try:
        return bodies.cast(pa.string()).drop_null(), pa.array([], pa.string())
    except pa.ArrowInvalid:
        pass
    # One damaged body makes the cast of its batch fail; only then decode body by body.
    good, bad = [], []
    for body in bodies.drop_null().to_pylist():
        try:
            good.append(body.decode("utf-8"))
        except UnicodeDecodeError:
            bad.append(body.decode("utf-8", "replace"))
    return pa.array(good, pa.string()), pa.array(bad, pa.string())


def _bad(records: Any, reason: str) -> Any:
    """Rows for unreadable records: the reason, and the record's beginning."""
    count = len(records)
    shown = pc.utf8_slice_codeunits(pc.replace_substring(records, "\x01", "|"), 0, _REASON_TEXT_MAX)
    columns = {
        "kind": pa.repeat(pa.scalar(BAD), count),
        "reason": pc.binary_join_element_wise(pa.scalar(reason), shown, ": "),
    }
    return _batch(columns, count)


def _batch(columns: dict[str, Any], count: int) -> Any:
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(count, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _rows(kind: str, fields: Any, counts: Any, records: Any) -> list[Any]:
    """Rows of one kind; records without an id or with a malformed number become bad rows."""
    texts: dict[str, Any] = {}
    for column, index in KINDS[kind]:
        texts[column] = _field(fields, counts, index)
    right = pa.repeat(pa.scalar(True), len(fields))
    for column in _NUMBERS:
        if column in texts:
            is_number = pc.match_substring_regex(texts[column], r"^-?[0-9]{1,18}$")
            right = pc.and_(right, pc.fill_null(is_number, True))
    right = pc.and_(right, pc.greater(pc.utf8_length(texts["msgId"]), 0))
    good = {name: array.filter(right) for name, array in texts.items()}
    count = len(good["msgId"])
    for column in _NUMBERS:
        if column in good:
            good[column] = good[column].cast(pa.int64())
    if "success" in good:
        good["success"] = pc.equal(good["success"], "true")
    for column, names in _CODED.items():
        if column in good:
            good[column] = _named(good[column], names)
    for column in _ABSENT:
        if column in good:
            absent = pc.is_in(good[column], pa.array(["", "null"]))
            good[column] = pc.if_else(absent, pa.scalar(None, pa.string()), good[column])
    good["kind"] = pa.repeat(pa.scalar(kind), count)
    bad = _bad(records.filter(pc.invert(right)), f"a {kind} record without an id or a number")
    return [_batch(good, count), bad]


def _field(fields: Any, counts: Any, index: int) -> Any:
    """The field ``index`` of every record; null where a record is shorter."""
    if not len(fields):
        return pa.array([], pa.string())
    starts = pc.subtract(counts, counts)
    starts = pc.add(pa.array(fields.offsets)[:-1], starts)
    position = pc.if_else(pc.greater(counts, index), pc.add(starts, index), None)
    return fields.values.take(position)


def _named(codes: Any, names: tuple[str, ...]) -> Any:
    """Names for numeric codes; names and unknown codes stay."""
    for number, name in enumerate(names):
        codes = pc.if_else(pc.equal(codes, str(number)), name, codes)
    return codes
