"""The checksum of a range of messages, equal for a broker, a store and an archive.

It does not depend on how the rows are divided into batches.  A checksum is the concatenation of
eight CRC-32 values: of queue offsets, of store times (microseconds), and for each of body, keys
and tags one of the lengths (-1 for null) and one of the bytes.  Numbers are little-endian.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc

__all__ = ["CHECKED_COLUMNS", "Checksum"]

_NUMBERS: Final = ("queueOffset", "storeTimestamp")
_TEXTS: Final = ("body", "keys", "tags")
CHECKED_COLUMNS: Final = (*_NUMBERS, *_TEXTS)


class Checksum:
    """Takes batches in queue order; `text` is the checksum so far."""

    __slots__ = ("_bytes", "_numbers", "first_us", "last_us", "rows")

    def __init__(self) -> None:
        self._numbers = dict.fromkeys(CHECKED_COLUMNS, 0)
        self._bytes = dict.fromkeys(_TEXTS, 0)
        self.rows = 0
        self.first_us: int | None = None
        """Least store time, microseconds since 1970."""
        self.last_us: int | None = None

    def add(self, batch: Any) -> None:
        """Add a batch or a table that has at least `CHECKED_COLUMNS`."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        for name in _NUMBERS:
            values = _as_array(batch.column(name)).cast("int64").fill_null(-1)
            numbers = values.to_numpy(zero_copy_only=False)
            if name == "storeTimestamp":
                low, high = int(numbers.min()), int(numbers.max())
                self.first_us = low if self.first_us is None else min(self.first_us, low)
                self.last_us = high if self.last_us is None else max(self.last_us, high)
            self._numbers[name] = zlib.crc32(numbers.astype("<i8").tobytes(), self._numbers[name])
        for name in _TEXTS:
            lengths, data = _parts(_as_array(batch.column(name)))
            self._numbers[name] = zlib.crc32(lengths, self._numbers[name])
            self._bytes[name] = zlib.crc32(data, self._bytes[name])

    @property
    def text(self) -> str:
        """64 hexadecimal digits."""
        sums = [self._numbers[name] for name in _NUMBERS]
        for name in _TEXTS:
            sums += [self._numbers[name], self._bytes[name]]
        return "".join(f"{value:08x}" for value in sums)


def _as_array(column: Any) -> Any:
    """A column of a batch or a table as one array."""
    return column.combine_chunks() if hasattr(column, "chunks") else column


def _parts(column: Any) -> tuple[bytes, Any]:
    """(lengths as little-endian int32, -1 for null; the concatenated bytes of all values)."""
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        column = pc.fill_null(column, b"" if str(column.type) == "binary" else "")
    _, offset_buffer, data = column.buffers()
    bounds = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(bounds)
    if valid is not None:
        lengths = np.where(valid, lengths, -1)
    coded = lengths.astype("<i4").tobytes()
    if data is None or bounds[-1] == bounds[0]:
        return coded, b""
    return coded, memoryview(data)[int(bounds[0]) : int(bounds[-1])]
