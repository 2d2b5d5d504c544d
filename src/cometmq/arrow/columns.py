"""The columns of a scan as Arrow types, and arrays of these types from byte ranges and numbers.

The types are those that Spark accepts from a Python source: string, binary, map of strings,
timestamps in microseconds UTC, all nullable.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cometmq.arrow.options import CORRUPT_COLUMN
from cometmq.codec.ids import HOST_V4_BYTES, decode_host

__all__ = [
    "TIME_MAX_MS",
    "TYPES",
    "constant",
    "hosts",
    "message_ids",
    "schema_of",
    "slices",
    "timestamps",
]

_TIME: Final = pa.timestamp("us", tz="UTC")
TYPES: Final[dict[str, Any]] = {
    "topic": pa.string(),
    "broker": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "body": pa.binary(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "bornHost": pa.string(),
    "storeHost": pa.string(),
    "msgId": pa.string(),
    "uniqKey": pa.string(),
    "reconsumeTimes": pa.int32(),
    "sysFlag": pa.int32(),
    CORRUPT_COLUMN: pa.string(),
}
# Beyond this the microseconds do not fit into 64 bits.
TIME_MAX_MS: Final = (2**63 - 1) // 1000
_HEX: Final = np.frombuffer(
    b"".join(f"{value:02X}".encode() for value in range(256)), dtype=np.uint16
)
_ID_CHARACTERS: Final = 32
#: A longer array of equal texts is too big to keep for the next batch.
_SHARED_ROWS_MAX: Final = 1 << 16
_OFFSET_MAX: Final = 2**31 - 1


def schema_of(columns: tuple[str, ...]) -> Any:
    """The schema of these columns, in this order."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


def slices(buffer: Any, start: NDArray[Any], end: NDArray[Any], kind: Any) -> Any:
    """The byte ranges `start[i]:end[i]` of a buffer as one array, copied once, in C++.

    Ranges ascend, do not overlap and stay below 2**31 (at most a log file).  An array over the
    buffer has the ranges as its even elements and the gaps between them as its odd elements;
    `take` gathers the even ones.
    """
    count = len(start)
    if not count:
        return pa.array([], kind)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = start
    offsets[1::2] = end
    # `take` reserves memory for the mean length of all elements, gaps included, and copies again
    # when that is far too much. The last gap, which is never taken, corrects the mean.
    room = 2 * int((end - start).sum()) + 1
    offsets[-1] = min(int(start[0]) + room, buffer.size, _OFFSET_MAX)
    elements = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), buffer])
    return pc.take(elements, _even(count), boundscheck=False)


def _even(count: int) -> Any:
    """The even numbers 0, 2, 4, ..."""
    return _shared_even(count) if count <= _SHARED_ROWS_MAX else _made_even(count)


@lru_cache(maxsize=16)
def _shared_even(count: int) -> Any:
    return _made_even(count)


def _made_even(count: int) -> Any:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def constant(value: str | None, count: int) -> Any:
    """The same text in every row."""
    # Arrow arrays are immutable, so batches of one size share this one.
    return _constant(value, count) if count <= _SHARED_ROWS_MAX else _repeated(value, count)


@lru_cache(maxsize=16)
def _constant(value: str | None, count: int) -> Any:
    return _repeated(value, count)


def _repeated(value: str | None, count: int) -> Any:
    if value is None:
        return pa.nulls(count, pa.string())
    return pa.repeat(pa.scalar(value, pa.string()), count)


def timestamps(milliseconds: NDArray[np.int64]) -> Any:
    """Milliseconds since 1970 as timestamps; null where the value does not fit."""
    mask = None
    if len(milliseconds) and (
        milliseconds.max() > TIME_MAX_MS or milliseconds.min() < -TIME_MAX_MS
    ):
        mask = (milliseconds > TIME_MAX_MS) | (milliseconds < -TIME_MAX_MS)
        milliseconds = np.where(mask, 0, milliseconds)
    return pa.array(milliseconds * 1000, pa.int64(), mask=mask).view(_TIME)


def hosts(raw: NDArray[Any]) -> Any:
    """8-byte host fields as ``ip:port``; each distinct host is formatted once."""
    fields = np.ascontiguousarray(raw).view(np.int64)
    if len(fields) and (fields == fields[0]).all():
        return constant(decode_host(fields[:1].tobytes()), len(fields))
    packed = pa.array(fields).dictionary_encode()
    words = packed.dictionary.to_numpy().tobytes()
    names = [
        decode_host(words[position : position + HOST_V4_BYTES])
        for position in range(0, len(words), HOST_V4_BYTES)
    ]
    return pa.array(names, pa.string()).take(packed.indices)


def message_ids(store_hosts: NDArray[Any], physical_offsets: NDArray[Any]) -> Any:
    """Offset message ids: hex of the 8-byte store host and the physical offset."""
    count = len(store_hosts)
    text = np.empty((count, 16), np.uint16)
    fields = np.ascontiguousarray(store_hosts).view(np.int64)
    # Nearly always one broker's address: formatted once.
    is_same_host = count and bool((fields == fields[0]).all())
    hosts_raw = fields[:1] if is_same_host else fields
    text[:, :8] = _HEX[hosts_raw.view(np.uint8).reshape(-1, 8)]
    offsets_raw = np.ascontiguousarray(physical_offsets, ">i8").view(np.uint8).reshape(count, 8)
    upper = offsets_raw.view(np.int32)[:, 0]
    if count and (upper == upper[0]).all():
        # Offsets of one log file nearly always share their upper 4 bytes.
        text[:, 8:12] = _HEX[offsets_raw[0, :4]]
    else:
        text[:, 8:12] = _HEX[offsets_raw[:, :4]]
    text[:, 12:] = _HEX[offsets_raw[:, 4:]]
    offsets = np.arange(0, (count + 1) * _ID_CHARACTERS, _ID_CHARACTERS, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )
