"""The checksum of some messages of a queue, the same from a broker, a store or an archive.

Job: fold columns of record batches into CRCs, however the rows are cut into batches.  It must not
know where the batches came from.

A checksum is eight CRC-32 values in a row: queue offsets, store times (microseconds), and for each
of body, keys and tags one of the lengths (-1 for null) and one of the bytes; every number
little-endian.
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
    """Fed with batches in queue order; `text` is the result so far."""

    __slots__ = ("_bytes", "_numbers", "first_us", "last_us", "rows")

    def __init__(self) -> None:
        self._numbers = dict.fromkeys(CHECKED_COLUMNS, 0)
        self._bytes = dict.fromkeys(_TEXTS, 0)
        self.rows = 0
        self.first_us: int | None = None
        """Smallest store time, microseconds since 1970."""
        self.last_us: int | None = None

    def add(self, batch: Any) -> None:
        """Fold in a batch, or a table, with at least `CHECKED_COLUMNS`."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        for name in _NUMBERS:
            values = _one(batch.column(name)).cast("int64").fill_null(-1)
            numbers = values.to_numpy(zero_copy_only=False)
            if name == "storeTimestamp":
                low, high = int(numbers.min()), int(numbers.max())
                self.first_us = low if self.first_us is None else min(self.first_us, low)
                self.last_us = high if self.last_us is None else max(self.last_us, high)
            self._numbers[name] = zlib.crc32(numbers.astype("<i8").tobytes(), self._numbers[name])
        for name in _TEXTS:
            lengths, data = _parts(_one(batch.column(name)))
            self._numbers[name] = zlib.crc32(lengths, self._numbers[name])
            self._bytes[name] = zlib.crc32(data, self._bytes[name])

    @property
    def text(self) -> str:
        """64 hexadecimal digits."""
        sums = [self._numbers[name] for name in _NUMBERS]
        for name in _TEXTS:
            sums += [self._numbers[name], self._bytes[name]]
        return "".join(f"{value:08x}" for value in sums)


def _one(column: Any) -> Any:
    """A column of a batch or of a table as one array."""
    return column.combine_chunks() if hasattr(column, "chunks") else column


def _parts(column: Any) -> tuple[bytes, Any]:
    """(lengths as little-endian int32, -1 for null; the bytes of all values in a row)."""
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        column = pc.fill_null(column, b"" if str(column.type) == "binary" else "")
    _, offset_buffer, data = column.buffers()
    places = np.frombuffer(offset_buffer, np.int32)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(places)
    if valid is not None:
        lengths = np.where(valid, lengths, -1)
    coded = lengths.astype("<i4").tobytes()
    if data is None or places[-1] == places[0]:
        return coded, b""
    return coded, memoryview(data)[int(places[0]) : int(places[-1])]
