"""Where the bytes of records are: what the decoder wants of a log file or of a broker's answer.

Job: one shape for both, and the sizes of records that stand one after the other.  It must not
decode a record.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from cometmq.codec.stored_message import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RecordBytes", "WireRecords", "walk_sizes"]

_SIZE: Final = struct.Struct(">i")


class RecordBytes(Protocol):
    """Bytes with records in them."""

    @property
    def start(self) -> int | None:
        """Physical offset of the first byte; None where only the records know theirs."""

    @property
    def size(self) -> int:
        """How many bytes."""

    @property
    def map(self) -> Any:
        """The bytes, to be cut by slices."""

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """The same as an array."""

    @property
    def buffer(self) -> Any:
        """The same as an Arrow buffer."""


class WireRecords:
    """Records as a broker sent them, one after the other."""

    __slots__ = ("buffer", "bytes", "map", "size", "start")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.start: int | None = None
        self.size = len(data)
        self.map: Any = memoryview(data)
        self.bytes: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.buffer: Any = pa.py_buffer(data)


def walk_sizes(data: bytes | bytearray | memoryview) -> tuple[list[int], int]:
    """Sizes of the records that stand one after the other, and where that ends.

    It ends before the end of the data where a size leads nowhere.
    """
    sizes: list[int] = []
    unpack = _SIZE.unpack_from
    place, end = 0, len(data)
    while place + RECORD_BYTES_MIN <= end:
        (size,) = unpack(data, place)
        if not RECORD_BYTES_MIN <= size <= end - place:
            break
        sizes.append(size)
        place += size
    return sizes, place
