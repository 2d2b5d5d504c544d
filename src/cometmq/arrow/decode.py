"""The vectorised decoder: positions and sizes of records in, columns out.

numpy and Arrow decode all plain records of a batch together: version 1 or 2, IPv4 hosts, lengths
that add up, at the position that the record names.  Every other record goes to the row decoder in
`codec`, which decodes it or says what is wrong.  So only one of the two ever reports a fault.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cometmq.arrow.columns import (
    TIME_MAX_MS,
    TYPES,
    constant,
    hosts,
    message_ids,
    slices,
    timestamps,
)
from cometmq.arrow.native_columns import decode_natively
from cometmq.arrow.options import CORRUPT_COLUMN, ScanOptions
from cometmq.arrow.property_columns import PropertyBatch, parse_properties
from cometmq.arrow.uniform_properties import UniformProperties, same_text
from cometmq.codec.compression import COMPRESSED_FLAG, decompress
from cometmq.codec.crc import is_record_crc_right
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.codec.stored_message import (
    BODY_POSITION_V4,
    BORN_HOST_V6_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6_FLAG,
    TOPIC_BYTES_MAX_V1,
    StoredMessage,
    decode_message,
)
from cometmq.errors import CodecError

__all__ = ["Decoded", "Fault", "QueueRows", "RecordBytes", "decode_records"]

_HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_ms", ">i8"),
        ("born_host", "V8"),
        ("store_ms", ">i8"),
        ("store_host", "V8"),
        ("reconsume_times", ">i4"),
        ("prepared", ">i8"),
        ("body_bytes", ">i4"),
    ]
)
assert _HEAD.itemsize == BODY_POSITION_V4
#: The same bytes with four-byte fields in this machine's byte order, not swapped.
_WORDS: Final = np.dtype(
    {
        "names": ["size", "magic", "queue_id", "sys_flag"],
        "formats": [np.dtype(np.int32)] * 4,
        "offsets": [0, 4, 12, 36],
        "itemsize": BODY_POSITION_V4,
    }
)


def _swapped(value: int) -> np.int32:
    """The number that this machine reads where a record holds ``value`` big-endian.

    Raw words are compared with it, which is faster than swapping the word of every record.
    """
    return np.array([value], ">i4").view(np.int32)[0]  # type: ignore[no-any-return]


_RAW_MAGIC_V1: Final = _swapped(MAGIC_V1)
_ANY_V6: Final = BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG
_PROPERTY_COLUMNS: Final = {"tags": "TAGS", "keys": "KEYS", "uniqKey": "UNIQ_KEY"}
_LMQ_PREFIX: Final = "%LMQ%"
_Properties = PropertyBatch | UniformProperties


class RecordBytes(Protocol):
    """Bytes that hold records: a log file or a broker's answer."""

    @property
    def start(self) -> int | None:
        """Physical offset of the first byte; None where only the records say theirs."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    @property
    def map(self) -> Any:
        """The bytes, for slicing."""

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The bytes as an array."""

    @property
    def buffer(self) -> Any:
        """The bytes as an Arrow buffer."""


@dataclass(frozen=True, slots=True)
class QueueRows:
    """What a consume queue says about the records that its units point to."""

    topic: str
    queue_id: int
    queue_offsets: NDArray[np.int64]

    @property
    def is_own(self) -> bool:
        """Whether the records name this queue; a light queue points to records of other queues."""
        return not self.topic.startswith(_LMQ_PREFIX)


@dataclass(frozen=True, slots=True)
class Fault:
    """A record that does not decode: its row in the batch, and the reason."""

    row: int
    reason: str


@dataclass(slots=True)
class Decoded:
    """Arrays by column, rows in the requested order without those that have a fault."""

    rows: NDArray[Any]
    """Position in the batch of each row in `columns`."""
    columns: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)


@dataclass(slots=True)
class _Plain:
    """The plain records of a batch."""

    rows: NDArray[Any]
    start: NDArray[Any]
    end: NDArray[Any]
    head: NDArray[Any]
    body_end: NDArray[Any]
    topic_start: NDArray[Any]
    topic_end: NDArray[Any]

    def keep(self, mask: NDArray[np.bool_]) -> _Plain:
        """The records that the mask selects."""
        return _Plain(
            self.rows[mask],
            self.start[mask],
            self.end[mask],
            self.head[mask],
            self.body_end[mask],
            self.topic_start[mask],
            self.topic_end[mask],
        )


def decode_records(
    file: RecordBytes,
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    options: ScanOptions,
    queue_rows: QueueRows | None,
) -> Decoded:
    """Decode the records at these file positions and apply the limits of time and tags."""
    decoded = decode_natively(file, start, size, options, queue_rows)
    if decoded is not None:
        return Decoded(*decoded)
    plain = _plain_records(file, start, size, queue_rows)
    if "body" in options.columns and _has_flag(plain.head, COMPRESSED_FLAG):
        plain = plain.keep((plain.head["sys_flag"] & COMPRESSED_FLAG) == 0)
    if options.check_crc:
        plain = plain.keep(_is_crc_right(file, plain))
    is_slow = np.full(len(start), len(plain.rows) < len(start))
    if len(plain.rows) < len(start):
        is_slow[plain.rows] = False
    plain = _in_time(plain, options)
    properties, plain = _properties(file, plain, options, is_slow)
    topics, plain, properties = _topics(file, plain, properties, options, queue_rows, is_slow)
    if options.tags is not None and properties is not None:
        wanted = pa.array(options.tags, pa.string())
        mask = pc.is_in(properties.column("TAGS"), value_set=wanted).to_numpy(zero_copy_only=False)
        if not mask.all():
            plain = plain.keep(mask)
            properties, plain = _properties(file, plain, options, is_slow)
            topics = None if topics is None else topics.filter(pa.array(mask))
    columns = _columns(file, plain, properties, topics, options, queue_rows)
    slow = np.flatnonzero(is_slow)
    if not len(slow):
        return Decoded(plain.rows, columns)
    return _with_slow_rows(
        file, start, size, options, queue_rows, Decoded(plain.rows, columns), slow
    )


# -- all records at once -------------------------------------------------------------------------


def _plain_records(
    file: RecordBytes,
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    queue_rows: QueueRows | None,
) -> _Plain:
    """The records that numpy decodes."""
    data = file.bytes
    rows, start, end = _inside(data, start, size)
    if len(rows):
        heads = np.ndarray((len(data) - 87,), "V88", file.map, strides=(1,))[start].view(_HEAD)
        usual = _usual_records(file, rows, start, end, heads, queue_rows)
        if usual is not None:
            return usual
    else:
        heads = np.zeros(0, _HEAD)
    words = heads.view(_WORDS)
    body_bytes = heads["body_bytes"].astype(np.int64)
    body_end = start + (BODY_POSITION_V4 + body_bytes)
    is_v2 = words["magic"] == _swapped(MAGIC_V2)
    topic_start = body_end + 1
    has_v2 = bool(is_v2.any())
    if has_v2:
        topic_start += is_v2
    is_good = heads["size"] == end - start
    is_good &= (words["magic"] == _swapped(MAGIC_V1)) | is_v2
    is_good &= (words["sys_flag"] & _swapped(_ANY_V6)) == 0
    is_good &= body_bytes >= 0
    is_good &= topic_start + 2 <= end
    if file.start is not None:
        is_good &= heads["physical_offset"] == start + file.start
    if queue_rows is not None and queue_rows.is_own:
        is_good &= words["queue_id"] == _swapped(queue_rows.queue_id)
        is_good &= heads["queue_offset"] == _at_rows(queue_rows.queue_offsets, rows)
    plain = _Plain(rows, start, end, heads, body_end, topic_start, topic_start)
    if not is_good.all():
        plain = plain.keep(is_good)
        is_v2 = is_v2[is_good]
    return _plain_tails(data, plain, is_v2 if has_v2 else None)


def _usual_records(
    file: RecordBytes,
    rows: NDArray[Any],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    heads: NDArray[Any],
    queue_rows: QueueRows | None,
) -> _Plain | None:
    """All records, if each is plain, of version 1 and with a topic of the same length; else None.

    The checks are those of `_plain_records`, with one result for the batch instead of one for
    each record.
    """
    words = heads.view(_WORDS)
    data = file.bytes
    if (
        _has_flag(heads, _ANY_V6)
        or (words["magic"] != _RAW_MAGIC_V1).any()
        or (words["size"] != (end - start).astype(">i4").view(np.int32)).any()
        or (file.start is not None and (heads["physical_offset"] != start + file.start).any())
    ):
        return None
    if queue_rows is not None and queue_rows.is_own:
        queue_offsets = _at_rows(queue_rows.queue_offsets, rows)
        if (words["queue_id"] != _swapped(queue_rows.queue_id)).any() or (
            heads["queue_offset"] != queue_offsets
        ).any():
            return None
    body_bytes = heads["body_bytes"].astype(np.int64)
    body_end = start + BODY_POSITION_V4
    body_end += body_bytes
    # Do not follow a body length that points outside the record.
    if body_bytes.min() < 0 or (tail_bytes := end - body_end).min() <= 0:
        return None
    topic_bytes = int(data[body_end[0]])
    # Topic length, topic and properties length, gathered once per record.
    width = 1 + topic_bytes + 2
    if topic_bytes > TOPIC_BYTES_MAX_V1 or tail_bytes.min() < width:
        return None
    view = np.ndarray((len(data) - width + 1,), f"V{width}", file.map, strides=(1,))
    tails = view[body_end].view(np.uint8).reshape(-1, width)
    property_bytes = tail_bytes - width
    if (
        (tails[:, 0] != topic_bytes).any()
        or property_bytes.max() > PROPERTIES_BYTES_MAX
        or (tails[:, -2] != property_bytes >> 8).any()
        or (tails[:, -1] != property_bytes & 0xFF).any()
    ):
        return None
    topic_start = body_end + 1
    return _Plain(rows, start, end, heads, body_end, topic_start, topic_start + topic_bytes)


def _has_flag(heads: NDArray[Any], flag: int) -> bool:
    """Whether any record's system flag has one of these bits."""
    return bool(np.bitwise_or.reduce(heads.view(_WORDS)["sys_flag"]) & _swapped(flag))


def _inside(
    data: NDArray[np.uint8], start: NDArray[np.int64], size: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Rows, starts and ends of the ranges that lie in the data and ascend.

    One pass gathers ascending ranges; a queue whose ranges do not ascend is damaged.
    """
    end = start + size
    if not len(start):
        return np.arange(0), start, end
    if (
        size.min() >= RECORD_BYTES_MIN
        and start[0] >= 0
        and end[-1] <= len(data)
        and bool((start[1:] >= end[:-1]).all())
    ):
        return np.arange(len(start)), start, end
    inside = (size >= RECORD_BYTES_MIN) & (start >= 0) & (end <= len(data))
    reach = np.maximum.accumulate(np.where(inside, end, 0))
    inside[1:] &= start[1:] >= reach[:-1]
    rows = np.flatnonzero(inside)
    return rows, start[rows], end[rows]


def _at_rows(values: NDArray[np.int64], rows: NDArray[Any]) -> NDArray[np.int64]:
    """`values[rows]`, without a copy when all rows are selected."""
    return values if len(rows) == len(values) else values[rows]


def _plain_tails(data: NDArray[np.uint8], plain: _Plain, is_v2: NDArray[np.bool_] | None) -> _Plain:
    """The records whose topic and properties end where the record ends.

    Lengths are gathered byte by byte: numpy gathers single bytes several times faster than
    unaligned words, and the second byte is already in the cache.
    """
    length = data[plain.body_end].astype(np.int64)
    is_good = length <= TOPIC_BYTES_MAX_V1
    if is_v2 is not None:
        length = np.where(is_v2, (length << 8) | data[plain.topic_start - 1], length)
    plain.topic_end = plain.topic_start + length
    is_good &= plain.topic_end + 2 <= plain.end
    if not is_good.all():
        plain = plain.keep(is_good)
    length = data[plain.topic_end].astype(np.int64)
    length <<= 8
    length |= data[plain.topic_end + 1]
    is_good = plain.topic_end + 2 + length == plain.end
    is_good &= length <= PROPERTIES_BYTES_MAX
    return plain if is_good.all() else plain.keep(is_good)


def _is_crc_right(file: RecordBytes, plain: _Plain) -> NDArray[np.bool_]:
    """Whether body CRC and CRC tail are right; the only check that visits each record."""
    view = memoryview(file.map)
    crc32 = zlib.crc32
    body_start = plain.start + BODY_POSITION_V4
    crcs = np.array(
        [
            crc32(view[begin:end])
            for begin, end in zip(body_start.tolist(), plain.body_end.tolist(), strict=True)
        ],
        np.int64,
    )
    right: NDArray[np.bool_] = ((crcs & 0x7FFFFFFF) == plain.head["crc"]) | (
        body_start == plain.body_end
    )
    for row, (begin, end) in enumerate(zip(plain.start.tolist(), plain.end.tolist(), strict=True)):
        if view[end - 1] == 2 and is_record_crc_right(view[begin:end]) is False:
            right[row] = False
    return right


def _in_time(plain: _Plain, options: ScanOptions) -> _Plain:
    if options.starting_ms is None and options.ending_ms is None:
        return plain
    store_ms = plain.head["store_ms"].astype(np.int64)
    mask = np.ones(len(store_ms), np.bool_)
    if options.starting_ms is not None:
        mask &= store_ms >= options.starting_ms
    if options.ending_ms is not None:
        mask &= store_ms < options.ending_ms
    return plain.keep(mask)


def _properties(
    file: RecordBytes, plain: _Plain, options: ScanOptions, is_slow: NDArray[np.bool_]
) -> tuple[_Properties | None, _Plain]:
    """Parsed properties if a column or the tags need them; odd rows become slow rows."""
    columns = options.columns
    is_wanted = (
        options.tags is not None
        or any(name in columns for name in _PROPERTY_COLUMNS)
        or ("properties" in columns and options.include_properties)
    )
    if not is_wanted:
        return None, plain
    parsed = parse_properties(file.buffer, plain.topic_end + 2, plain.end)
    # Repeated, since a row that is odd in one way hides rows that are odd in another.
    while parsed.odd.any():
        is_slow[plain.rows[parsed.odd]] = True
        plain = plain.keep(~parsed.odd)
        parsed = parse_properties(file.buffer, plain.topic_end + 2, plain.end)
    return parsed, plain


def _topics(
    file: RecordBytes,
    plain: _Plain,
    properties: _Properties | None,
    options: ScanOptions,
    queue_rows: QueueRows | None,
    is_slow: NDArray[np.bool_],
) -> tuple[Any, _Plain, _Properties | None]:
    """The records' own topics, if no queue names the topic; each name is checked to be UTF-8."""
    if queue_rows is not None:
        return None, plain, properties
    same = same_text(file.bytes, plain.topic_start, plain.topic_end)
    if same is not None and _is_text(same):
        return constant(same.decode(), len(plain.rows)), plain, properties
    raw = slices(file.buffer, plain.topic_start, plain.topic_end, pa.binary()).dictionary_encode()
    is_text = np.array([_is_text(topic) for topic in raw.dictionary.to_pylist()], np.bool_)
    if not is_text.all():
        mask = is_text[raw.indices.to_numpy()]
        is_slow[plain.rows[~mask]] = True
        plain = plain.keep(mask)
        properties, plain = _properties(file, plain, options, is_slow)
        return _topics(file, plain, properties, options, queue_rows, is_slow)
    return raw.dictionary.cast(pa.string()).take(raw.indices), plain, properties


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _columns(
    file: RecordBytes,
    plain: _Plain,
    properties: _Properties | None,
    topics: Any,
    options: ScanOptions,
    queue_rows: QueueRows | None,
) -> dict[str, Any]:
    head = plain.head
    count = len(plain.rows)
    made: dict[str, Any] = {}
    for name in options.columns:
        if name == "topic":
            made[name] = topics if queue_rows is None else constant(queue_rows.topic, count)
        elif name == "broker":
            made[name] = constant(options.broker, count)
        elif name == "queueId":
            made[name] = _queue_ids(head, queue_rows, count)
        elif name == "queueOffset":
            own = (
                head["queue_offset"]
                if queue_rows is None
                else _at_rows(queue_rows.queue_offsets, plain.rows)
            )
            made[name] = pa.array(own.astype(np.int64))
        elif name == "physicalOffset":
            made[name] = pa.array(head["physical_offset"].astype(np.int64))
        elif name == "body":
            body_start = plain.start + BODY_POSITION_V4
            made[name] = slices(file.buffer, body_start, plain.body_end, pa.binary())
        elif name in _PROPERTY_COLUMNS:
            assert properties is not None
            made[name] = properties.column(_PROPERTY_COLUMNS[name])
        elif name == "properties":
            is_filled = options.include_properties and properties is not None
            made[name] = properties.as_map() if is_filled and properties is not None else None
            if made[name] is None:
                made[name] = pa.nulls(count, TYPES[name])
        elif name == CORRUPT_COLUMN:
            made[name] = pa.nulls(count, pa.string())
        else:
            made[name] = _head_column(name, head)
    return made


def _queue_ids(head: NDArray[Any], queue_rows: QueueRows | None, count: int) -> Any:
    if queue_rows is None:
        return pa.array(head["queue_id"].astype(np.int32))
    return pa.array(np.full(count, queue_rows.queue_id, np.int32))


def _head_column(name: str, head: NDArray[Any]) -> Any:
    if name == "bornTimestamp":
        return timestamps(head["born_ms"].astype(np.int64))
    if name == "storeTimestamp":
        return timestamps(head["store_ms"].astype(np.int64))
    if name == "bornHost":
        return hosts(head["born_host"])
    if name == "storeHost":
        return hosts(head["store_host"])
    if name == "msgId":
        return message_ids(head["store_host"], head["physical_offset"])
    if name == "reconsumeTimes":
        return pa.array(head["reconsume_times"].astype(np.int32))
    return pa.array(head["sys_flag"].astype(np.int32))


# -- record by record --------------------------------------------------------------------------


def _with_slow_rows(
    file: RecordBytes,
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    options: ScanOptions,
    queue_rows: QueueRows | None,
    decoded: Decoded,
    slow: NDArray[Any],
) -> Decoded:
    """Add the slow rows, decoded one by one, in their positions."""
    rows: list[int] = []
    values: dict[str, list[Any]] = {name: [] for name in options.columns}
    for row in slow.tolist():
        decoded_row = _decode_row(file, int(start[row]), int(size[row]), options, queue_rows, row)
        if isinstance(decoded_row, Fault):
            decoded.faults.append(decoded_row)
        elif decoded_row is not None:
            rows.append(row)
            for name in options.columns:
                values[name].append(decoded_row[name])
    if rows:
        order = np.concatenate((decoded.rows, np.array(rows, np.int64)))
        take = np.argsort(order)
        decoded.rows = order[take]
        for name in options.columns:
            slow_values = pa.array(values[name], TYPES[name])
            decoded.columns[name] = pa.concat_arrays([decoded.columns[name], slow_values]).take(
                pa.array(take)
            )
    return decoded


def _decode_row(
    file: RecordBytes,
    start: int,
    size: int,
    options: ScanOptions,
    queue_rows: QueueRows | None,
    row: int,
) -> dict[str, Any] | Fault | None:
    """One record's values; None when the limits of time or tags exclude it."""
    if start < 0 or size < RECORD_BYTES_MIN or start + size > file.size:
        return Fault(row, f"a record of {size} bytes does not fit here into {file.size} bytes")
    try:
        # From the record's own bytes only, so that a size that is too large is noticed.
        message = decode_message(file.map[start : start + size], 0, check_crc=options.check_crc)
    except CodecError as error:
        return Fault(row, str(error).removeprefix("record at position 0: "))
    physical_offset = message.physical_offset if file.start is None else file.start + start
    reason = _misplaced(message, physical_offset, size, queue_rows, row)
    if reason is not None:
        return Fault(row, reason)
    if options.starting_ms is not None and message.store_timestamp_ms < options.starting_ms:
        return None
    if options.ending_ms is not None and message.store_timestamp_ms >= options.ending_ms:
        return None
    if options.tags is not None and message.properties.get("TAGS") not in options.tags:
        return None
    body = message.body
    if "body" in options.columns:
        try:
            body = decompress(body, message.sys_flag)
        except CodecError as error:
            return Fault(row, str(error))
    return _row_values(message, body, options, queue_rows, row)


def _misplaced(
    message: StoredMessage, physical_offset: int, size: int, queue_rows: QueueRows | None, row: int
) -> str | None:
    if message.total_size != size:
        return f"its unit says {size} bytes, the record {message.total_size}"
    if message.physical_offset != physical_offset:
        return f"it says physical offset {message.physical_offset}, it stands at {physical_offset}"
    if queue_rows is None or not queue_rows.is_own:
        return None
    expected = (queue_rows.queue_id, int(queue_rows.queue_offsets[row]))
    if (message.queue_id, message.queue_offset) != expected:
        return (
            f"it says queue {message.queue_id}, offset {message.queue_offset}; its unit is"
            f" offset {expected[1]} of queue {expected[0]}"
        )
    return None


def _row_values(
    message: StoredMessage,
    body: bytes,
    options: ScanOptions,
    queue_rows: QueueRows | None,
    row: int,
) -> dict[str, Any]:
    properties = message.properties
    return {
        "topic": message.topic if queue_rows is None else queue_rows.topic,
        "broker": options.broker,
        "queueId": message.queue_id if queue_rows is None else queue_rows.queue_id,
        "queueOffset": message.queue_offset
        if queue_rows is None
        else int(queue_rows.queue_offsets[row]),
        "physicalOffset": message.physical_offset,
        "body": body,
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "properties": list(properties.items()) if options.include_properties else None,
        "bornTimestamp": _microseconds(message.born_timestamp_ms),
        "storeTimestamp": _microseconds(message.store_timestamp_ms),
        "bornHost": message.born_address,
        "storeHost": message.store_address,
        "msgId": message.offset_message_id,
        "uniqKey": properties.get("UNIQ_KEY"),
        "reconsumeTimes": message.reconsume_times,
        "sysFlag": message.sys_flag,
        CORRUPT_COLUMN: None,
    }


def _microseconds(milliseconds: int) -> int | None:
    return milliseconds * 1000 if -TIME_MAX_MS <= milliseconds <= TIME_MAX_MS else None
