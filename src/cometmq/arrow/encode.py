"""Columns of bodies, tags and keys encoded as the bodies of batch messages, all rows at once.

Arrow encodes whole columns into the bytes that `cometmq.client` writes message by message
(`SendCodec.batch_item`, `codec.batch`).  For rows that need the client's rules and error texts
(a separator in a tag, keys with a blank) the result is None.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.codec.batch import BATCH_ITEM_OVERHEAD_BYTES
from cometmq.codec.properties import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["encode_rows"]

_EMPTY: Final = pa.scalar(b"", pa.binary())
_HEAD_FIELDS: Final = 5
_GRAPHIC: Final = (0x21, 0x7E)


def encode_rows(
    bodies: Any,
    ids: Sequence[str],
    *,
    tags: Any = None,
    keys: Any = None,
    message_bytes_max: int,
    block_bytes: int,
) -> Iterator[tuple[bytes, int]] | None:
    """Batch bodies of at most ``block_bytes``, with their row counts; None if a row is odd.

    Args:
        bodies: a binary array.
        ids: the unique id of each row, ASCII.
        tags, keys: string arrays, null or empty where there is none.
        message_bytes_max: the most bytes of one encoded row.
    """
    if bodies.null_count or (tags is not None and not _is_free_of_separators(tags)):
        return None
    if keys is not None and not _is_graphic(keys):
        return None
    properties = pc.binary_join_element_wise(
        *([] if keys is None else [_named(b"KEYS", keys)]),
        _text(b"UNIQ_KEY\x01"),
        pa.array(ids, pa.string()).cast(pa.binary()),
        _text(b"\x02WAIT\x01true\x02"),
        *([] if tags is None else [_named(b"TAGS", tags)]),
        _EMPTY,
    )
    body_bytes, properties_bytes = _lengths(bodies), _lengths(properties)
    total = body_bytes + properties_bytes + BATCH_ITEM_OVERHEAD_BYTES
    if (
        not len(total)
        or properties_bytes.max() > PROPERTIES_BYTES_MAX
        or total.max() > message_bytes_max
    ):
        return None
    head = np.zeros((len(total), _HEAD_FIELDS), ">i4")
    head[:, 0] = total
    head[:, -1] = body_bytes
    items = pc.binary_join_element_wise(
        _fixed(head), bodies, _fixed(properties_bytes.astype(">u2")[:, None]), properties, _EMPTY
    )
    return _blocks(items, block_bytes)


def _blocks(items: Any, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Runs of rows of at most ``block_bytes``; a larger row is a run by itself."""
    _, offsets, data = items.buffers()
    ends = np.frombuffer(offsets, np.int32)[items.offset : items.offset + len(items) + 1]
    view = memoryview(data)
    row = 0
    while row < len(items):
        last = int(np.searchsorted(ends, ends[row] + block_bytes, "right")) - 1
        last = max(row + 1, last)
        yield bytes(view[int(ends[row]) : int(ends[last])]), last - row
        row = last


def _text(value: bytes) -> Any:
    return pa.scalar(value, pa.binary())


def _named(name: bytes, values: Any) -> Any:
    """``name 0x01 value 0x02``; empty where there is no value."""
    values = pc.fill_null(values.cast(pa.binary()), _EMPTY)
    entry = pc.binary_join_element_wise(_text(name + b"\x01"), values, _text(b"\x02"), _EMPTY)
    return pc.if_else(pc.greater(pc.binary_length(values), 0), entry, _EMPTY)


def _fixed(values: NDArray[Any]) -> Any:
    """A matrix of numbers as a binary array, one element per row."""
    count, width = len(values), values.itemsize * values.shape[1]
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _lengths(values: Any) -> NDArray[np.int64]:
    lengths: NDArray[Any] = pc.binary_length(values).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _bytes_of(values: Any) -> NDArray[np.uint8]:
    """The bytes of a string array, those of null rows included."""
    _, offsets, data = values.buffers()
    if data is None:
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def _is_free_of_separators(values: Any) -> bool:
    # 1 and 2 only: 0 wraps around to 255.
    return not bool(((_bytes_of(values) - np.uint8(1)) < 2).any())


def _is_graphic(values: Any) -> bool:
    """Whether all bytes are visible ASCII, so that no rule about spaces applies."""
    data = _bytes_of(values)
    return bool(((data >= _GRAPHIC[0]) & (data <= _GRAPHIC[1])).all())
