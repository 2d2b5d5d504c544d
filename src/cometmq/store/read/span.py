"""A span of one queue, the mapped windows it is read from, and the buffers it is gathered in.

A window maps a part of a log file for reading.  It is dropped when it was not used for a while
(`drop_idle`) or when retention has removed its file.  A file that something outside has cut is not
read, since touching a mapping beyond the end of its file kills the process.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.errors import StoreCorrupt
from cometmq.model.offsets import PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    from cometmq.store.base.disk import Mapping
    from cometmq.store.log.commit_log import CommitLog, MappedFile
    from cometmq.store.log.record_runs import RecordRuns
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues

__all__ = ["Span", "SpanWindows", "SpanWish"]

_LOG: Final = logging.getLogger("cometmq.store")
WINDOW_BYTES: Final = 64 << 20
"""Mapped pages that were touched count as memory of this process; few windows bound it."""
WINDOW_OVERLAP_BYTES: Final = 16 << 20
"""A window maps this much more, so that a record that begins in it ends in it.  Records longer than
a frame are never in a span."""
WINDOWS_MAX: Final = 4
BUFFERS_MAX: Final = 4
"""Buffers kept for the next spans."""


class SpanWish(NamedTuple):
    """A request for a span."""

    topic: str
    queue_id: int
    queue_offset: QueueOffset
    """Where the span begins."""
    end: int
    """Queue offset it must not pass."""
    confirmed: int
    """Physical offset its records must not pass."""
    max_count: int
    max_bytes: int
    head_bytes: int
    """Bytes to leave free at the front of the buffer."""
    has_sizes: bool
    """Whether the sizes of the records go in front of them."""


class Span(NamedTuple):
    """Records of a queue in one buffer: free bytes for a head, sizes if asked for, records."""

    data: bytearray
    start: int
    """Where the sizes, or else the records, begin in `data`."""
    end: int
    """Where the last record ends in `data`."""
    sizes_bytes: int
    """Length of the sizes, 4 bytes big-endian for each record; 0 without sizes."""
    record_count: int
    following: int
    """Queue offset behind the last examined unit."""
    offsets: list[int] | None = None
    """Queue offset of each record, where a filter chose among the units; else None."""


class _SpanWindow:
    __slots__ = ("file", "is_used", "mapping")

    def __init__(self, file: MappedFile, mapping: Mapping) -> None:
        self.file = file
        self.mapping = mapping
        self.is_used = True


class SpanWindows:
    """Windows on one log, units of its queues, and buffers for spans.  For any thread."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, runs: RecordRuns) -> None:
        self._log = log
        self._queues = queues
        self._runs = runs
        self._windows: dict[int, _SpanWindow] = {}
        # Guards the tables of windows and buffers; records are read without it.
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []
        self.mean_bytes = 256.0
        """Mean size of the last span's records, to estimate how many units fill a span."""

    def queue(self, wish: SpanWish) -> ConsumeQueue | None:
        """Return the wanted queue; None when it does not exist."""
        return self._queues.find(wish.topic, wish.queue_id)

    def units(self, queue: ConsumeQueue, first: int, count: int) -> bytes:
        """Return units of a queue, read from the disk if need be."""
        return self._queues.units(queue, first, count, may_block=True) or b""

    def bounds(self, confirmed: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Return the physical offsets between which records may be read, and damaged stretches."""
        return self._log.min_offset, confirmed, list(self._runs.damaged)

    def window(self, physical_offset: PhysicalOffset) -> tuple[Mapping, int] | None:
        """Return the window with a physical offset, and where it begins; None without a file.

        None too when something outside has cut the file.
        """
        with self._lock:
            file = self._log.file_at(physical_offset)
            if file is None:
                return None
            file_position = (physical_offset - file.start) // WINDOW_BYTES * WINDOW_BYTES
            start = file.start + file_position
            if file.file.size() < file.size:
                self._windows.pop(start, None)
                return None
            window = self._windows.pop(start, None)
            if window is None or window.file is not file:
                while len(self._windows) >= WINDOWS_MAX:
                    # Readers that still use it may finish: the last reference unmaps it.
                    del self._windows[next(iter(self._windows))]
                length = min(WINDOW_BYTES + WINDOW_OVERLAP_BYTES, file.size - file_position)
                try:
                    mapping = file.file.map_for_reading(file_position, length)
                except StoreCorrupt as error:
                    _LOG.warning("no span is read there: %s", error)
                    return None
                window = _SpanWindow(file, mapping)
            self._windows[start] = window
            window.is_used = True
            return window.mapping, start

    def buffer(self, length: int) -> bytearray:
        """Return a buffer of at least `length` bytes, if possible one that is no longer in use.

        New memory costs as much as the copy into it, since its pages are cleared first.
        """
        with self._lock:
            for number, buffer in enumerate(self._buffers):
                if len(buffer) >= length and _is_free(buffer):
                    return self._buffers.pop(number)
        return bytearray(length)

    def keep_buffer(self, data: bytearray) -> None:
        """Keep a span's buffer for reuse when the answer in it has been sent."""
        with self._lock:
            self._buffers.append(data)
            if len(self._buffers) > BUFFERS_MAX:
                del self._buffers[0]

    def drop_idle(self) -> bool:
        """Drop the windows that were not used since the last call, or whose file was removed.

        Returns whether a window remains.
        """
        with self._lock:
            for start, window in list(self._windows.items()):
                if (
                    not window.is_used
                    or self._log.file_at(PhysicalOffset(start)) is not window.file
                ):
                    del self._windows[start]
                window.is_used = False
            if not self._windows:
                self._buffers.clear()
            return bool(self._windows)

    def close(self) -> None:
        """Drop every window and buffer."""
        with self._lock:
            self._windows.clear()
            self._buffers.clear()


def _is_free(data: bytearray) -> bool:
    """Return whether no view of a buffer exists: only then its length can change."""
    try:
        data.append(0)
    except BufferError:
        return False
    del data[-1:]
    return True
