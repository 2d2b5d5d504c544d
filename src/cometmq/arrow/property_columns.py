"""The property strings of a batch, parsed by numpy into arrays of names and values.

A string is ``name 0x01 value 0x02`` repeated; the last 0x02 is optional.  A row of another form
(an empty name or value, a stray separator, a repeated name, bytes that are not UTF-8) is marked
`odd`: `codec.properties` has the rules for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cometmq.arrow.columns import slices
from cometmq.arrow.uniform_properties import UniformProperties, uniform_properties

__all__ = ["PropertyBatch", "parse_properties"]

_ONES: Final = np.uint64(1)
# A batch with at most this many names has one bit for each; otherwise sorting finds repeats.
_BITS: Final = 63


@dataclass(slots=True)
class PropertyBatch:
    """The entries of all rows in order; row r has entries `offsets[r]:offsets[r + 1]`."""

    count: int
    odd: NDArray[np.bool_]
    offsets: NDArray[np.int32]
    names: Any
    """Dictionary array."""
    buffer: Any
    value_start: NDArray[Any]
    value_end: NDArray[Any]
    rows: NDArray[Any]
    """Row of each entry."""

    def as_map(self) -> Any:
        """The properties of every row as a map."""
        values = slices(self.buffer, self.value_start, self.value_end, pa.string())
        keys = self.names.dictionary.take(self.names.indices)
        return pa.MapArray.from_arrays(pa.array(self.offsets), keys, values)

    def column(self, name: str) -> Any:
        """One property as a column, null where it is absent."""
        code = self.names.dictionary.index(name).as_py()
        if code < 0:
            return pa.nulls(self.count, pa.string())
        entries = np.flatnonzero(self.names.indices.to_numpy() == code)
        values = slices(
            self.buffer, self.value_start[entries], self.value_end[entries], pa.string()
        )
        if len(entries) == self.count:
            return values
        index = np.full(self.count, -1, np.int64)
        index[self.rows[entries]] = np.arange(len(entries))
        return values.take(pa.array(index, mask=index < 0))


def parse_properties(
    buffer: Any, start: NDArray[Any], end: NDArray[Any]
) -> PropertyBatch | UniformProperties:
    """The properties at `start[i]:end[i]` of a buffer; the caller must not use odd rows."""
    count = len(start)
    lengths = end - start
    gathered = slices(buffer, start, end, pa.binary())
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    total = int(bounds[-1])
    raw = gathered.buffers()[2] if count else None
    if raw is None:
        raw = pa.py_buffer(b"")
    data = np.frombuffer(raw, np.uint8, total)
    # 1 and 2 only: 0 wraps around to 255.
    separators = np.flatnonzero((data - np.uint8(1)) < 2)
    uniform = uniform_properties(raw, data, bounds, separators)
    if uniform is not None:
        return uniform
    is_name_end = data[separators] == 1
    first = np.searchsorted(separators, bounds)
    # Insert a missing last 0x02 after the row's last byte.
    is_cut = np.zeros(count, np.bool_)
    filled = np.flatnonzero(lengths)
    is_cut[filled] = data[bounds[filled + 1] - 1] != 2
    step = np.ones(len(separators), np.int64)
    if is_cut.any():
        cut = np.flatnonzero(is_cut)
        separators = np.insert(separators, first[cut + 1], bounds[cut + 1])
        is_name_end = np.insert(is_name_end, first[cut + 1], False)
        step = np.insert(step, first[cut + 1], 0)
        first = first + np.concatenate(([0], np.cumsum(is_cut)))
    odd = _odd_separators(count, first, is_name_end)
    odd |= _odd_text(data, bounds, is_cut)
    if odd.any():
        return _only_odd(odd)
    name_end = separators[0::2]
    value_end = separators[1::2]
    name_start = np.empty(len(name_end), np.int64)
    name_start[:1] = 0
    name_start[1:] = value_end[:-1] + step[1::2][:-1]
    value_start = name_end + 1
    offsets = first // 2
    rows = np.repeat(np.arange(count), np.diff(offsets))
    empty = (name_end == name_start) | (value_end == value_start)
    if empty.any():
        odd[rows[empty]] = True
        return _only_odd(odd)
    names = slices(raw, name_start, name_end, pa.string()).dictionary_encode()
    odd |= _has_repeats(names, rows, offsets, count)
    return PropertyBatch(
        count, odd, offsets.astype(np.int32), names, raw, value_start, value_end, rows
    )


def _only_odd(odd: NDArray[np.bool_]) -> PropertyBatch:
    empty = np.zeros(0, np.int64)
    names = pa.array([], pa.string()).dictionary_encode()
    offsets = np.zeros(len(odd) + 1, np.int32)
    return PropertyBatch(len(odd), odd, offsets, names, None, empty, empty, empty)


def _odd_separators(
    count: int, first: NDArray[Any], is_name_end: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Rows whose separators do not alternate from a first 0x01 to a last 0x02."""
    odd = (np.diff(first) & 1).astype(np.bool_)
    if not odd.any() and is_name_end[0::2].all() and not is_name_end[1::2].any():
        return odd
    rows = np.repeat(np.arange(count), np.diff(first))
    turn = (np.arange(len(is_name_end)) - first[:-1][rows]) & 1
    odd[rows[is_name_end != (turn == 0)]] = True
    return odd


def _odd_text(
    data: NDArray[np.uint8], bounds: NDArray[Any], is_cut: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Rows that may not be UTF-8; a row without its last 0x02 counts unless it is ASCII."""
    count = len(is_cut)
    if not len(data) or data.max() < 128:
        return np.zeros(count, np.bool_)
    high = np.zeros(len(data) + 1, np.int64)
    np.cumsum(data >= 128, out=high[1:])
    has_high: NDArray[np.bool_] = high[bounds[1:]] > high[bounds[:-1]]
    try:
        # Separators are ASCII, so if the whole is UTF-8, each name and value is.
        str(data.data, "utf-8")
    except UnicodeDecodeError:
        odd = has_high.copy()
        for row in np.flatnonzero(has_high):
            try:
                str(data[bounds[row] : bounds[row + 1]].data, "utf-8")
                odd[row] = False
            except UnicodeDecodeError:
                odd[row] = True
        return odd
    has_high &= is_cut
    return has_high


def _has_repeats(
    names: Any, rows: NDArray[Any], offsets: NDArray[Any], count: int
) -> NDArray[np.bool_]:
    """Rows in which a name is repeated: there the last value counts."""
    odd = np.zeros(count, np.bool_)
    if not len(rows):
        return odd
    codes = names.indices.to_numpy()
    if len(names.dictionary) <= _BITS:
        bits = _ONES << codes.astype(np.uint64)
        filled = np.flatnonzero(np.diff(offsets))
        starts = offsets[filled]
        # The sum of the bits equals their union only if no bit is repeated.
        odd[filled] = np.add.reduceat(bits, starts) != np.bitwise_or.reduceat(bits, starts)
        return odd
    order = np.sort(rows * len(names.dictionary) + codes)
    odd[order[1:][order[1:] == order[:-1]] // len(names.dictionary)] = True
    return odd
