"""Arrow arrays over the columns that the native core decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from cometmq import native
from cometmq.arrow.columns import TYPES, constant
from cometmq.arrow.options import COLUMNS, CORRUPT_COLUMN
from cometmq.arrow.uniform_properties import repeated_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cometmq.arrow.decode import QueueRows, RecordBytes
    from cometmq.arrow.options import ScanOptions

__all__ = ["decode_natively"]

_NUMBERS: Final = {name: number for number, name in enumerate(COLUMNS)}
_TIME_MIN: Final = -(2**63)
_TIME_MAX: Final = 2**63 - 1


def decode_natively(
    file: RecordBytes,
    start: NDArray[np.int64],
    size: NDArray[np.int64],
    options: ScanOptions,
    queue_rows: QueueRows | None,
) -> tuple[NDArray[np.int64], dict[str, Any]] | None:
    """The rows within the limits, and their columns; None where Python has to decode."""
    if native.decode_columns is None:
        return None
    names = [name for name in options.columns if _is_decoded(name, options, queue_rows)]
    if queue_rows is None and "topic" not in names:
        # A record whose topic is not UTF-8 is damaged, whoever looks at it.
        names.append("topic")
    is_own = queue_rows is not None and queue_rows.is_own
    decoded = native.decode_columns(
        file.map,
        -1 if file.start is None else file.start,
        np.ascontiguousarray(start),
        np.ascontiguousarray(size),
        bytes(map(_NUMBERS.__getitem__, names)),
        queue_rows.queue_id if queue_rows is not None else 0,
        np.ascontiguousarray(queue_rows.queue_offsets) if queue_rows and is_own else None,
        _TIME_MIN if options.starting_ms is None else options.starting_ms,
        _TIME_MAX if options.ending_ms is None else options.ending_ms,
        None if options.tags is None else frozenset(map(str.encode, options.tags)),
        options.check_crc,
    )
    if decoded is None:
        return None
    rows = np.arange(len(start)) if decoded[0] is None else np.frombuffer(decoded[0], np.int64)
    columns = zip(names, decoded[1], strict=True)
    made = {name: _array(name, column, len(rows)) for name, column in columns}
    return rows, {
        name: made[name] if name in made else _same(name, rows, options, queue_rows)
        for name in options.columns
    }


def _is_decoded(name: str, options: ScanOptions, queue_rows: QueueRows | None) -> bool:
    """Whether the values come from the records."""
    if name in {"topic", "queueId", "queueOffset"}:
        return queue_rows is None
    if name == "properties":
        return options.include_properties
    return name not in {"broker", CORRUPT_COLUMN}


def _same(name: str, rows: NDArray[np.int64], options: ScanOptions, queue: QueueRows | None) -> Any:
    """A column that is the same in every row, or that the queue gives."""
    count = len(rows)
    if name == "broker":
        return constant(options.broker, count)
    if queue is None or name in {"properties", CORRUPT_COLUMN}:
        return pa.nulls(count, TYPES[name])
    if name == "topic":
        return constant(queue.topic, count)
    if name == "queueId":
        return pa.array(np.full(count, queue.queue_id, np.int32))
    offsets = queue.queue_offsets
    return pa.array(offsets if count == len(offsets) else offsets[rows])


def _array(name: str, column: Any, count: int) -> Any:
    kind = TYPES[name]
    if isinstance(column, bytearray):
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(column)])
    if name == "properties":
        return _map(column, count)
    offsets, values, validity, nulls = column
    buffers = [None if validity is None else pa.py_buffer(validity)]
    buffers += [pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, count, buffers, nulls)


def _map(column: Any, count: int) -> Any:
    row_offsets, names, offsets, values = column
    entries = len(offsets) // 4 - 1
    if isinstance(names, list):
        keys = repeated_names(tuple(name.decode() for name in names), count)
    else:
        keys = _array("topic", (*names, None, 0), entries)
    items = _array("topic", (offsets, values, None, 0), entries)
    starts = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(row_offsets)])
    return pa.MapArray.from_arrays(starts, keys, items)
