"""Long spans of one queue: MiBs of its records, gathered from mapped log files by a worker.

Job: windows on the log for reading, which stretch of a queue fits a limit, and the span as one
buffer.  It must not run on the event loop (it reads cold bytes and waits for them), repair, or go
past what readers may see: the caller says where that ends.  numpy is imported by the first span, so
that a broker nobody reads in bulk stays small; every heavy step of it leaves other threads running.

A span ends before the first unit that is none or does not lead to its record; when that is the
very first there is no span, and the caller reads in the ordinary way, which knows how to repair.

Windows are mapped for reading only and go when nobody used them for a while (`drop_idle`) or
retention took their file.  A file that was cut from outside is not read: touching a mapping beyond
its file's end kills the process.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.codec.consume_queue import CQ_UNIT_BYTES
from cometmq.errors import StoreCorrupt
from cometmq.model.offsets import PhysicalOffset, QueueOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.codec.cq_ext import BitmapHint
    from cometmq.codec.properties import Needle
    from cometmq.store.base.disk import Mapping
    from cometmq.store.log.commit_log import CommitLog, MappedFile
    from cometmq.store.log.record_runs import RecordRuns
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues

__all__ = ["Span", "SpanReader", "SpanWish"]

_LOG: Final = logging.getLogger("cometmq.store")
WINDOW_BYTES: Final = 64 << 20
"""Pages touched count as this process' memory while they are mapped: four windows are a bound."""
WINDOW_OVERLAP_BYTES: Final = 16 << 20
"""A record that begins in a window ends in it; longer ones than a frame are never in a span."""
WINDOWS_MAX: Final = 4
BUFFERS_MAX: Final = 4
"""Buffers kept for the next spans."""


class SpanWish(NamedTuple):
    """Which records are wanted, and the room to leave around them."""

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
    """Room in front."""
    has_sizes: bool


class Span(NamedTuple):
    """Records of a queue, in one buffer: room for a head, their sizes if wanted, the records."""

    data: bytearray
    start: int
    """Where the sizes, or else the records, begin in `data`."""
    end: int
    """Where the last record ends in `data`."""
    sizes_bytes: int
    """Length of the sizes: 4 bytes big-endian of each record; 0 when not wanted."""
    record_count: int
    following: int
    """Queue offset behind the last examined unit."""
    offsets: list[int] | None = None
    """Queue offset of each record, where a filter chose them."""


class _SpanWindow:
    __slots__ = ("file", "is_used", "mapping")

    def __init__(self, file: MappedFile, mapping: Mapping) -> None:
        self.file = file
        self.mapping = mapping
        self.is_used = True


class SpanReader:
    """Reads spans out of one log."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        runs: RecordRuns,
        may_match: Callable[[ConsumeQueue, bytes, BitmapHint], Sequence[int]] | None = None,
    ) -> None:
        """`may_match` says in a worker which units' messages may match, by their bitmaps."""
        self._log = log
        self._queues = queues
        self._runs = runs
        self._may_match = may_match
        self._windows: dict[int, _SpanWindow] = {}
        # Held for moments; the reading itself is not guarded.
        self._lock = threading.Lock()
        self._buffers: list[bytearray] = []
        self.mean_bytes = 256.0
        """Size of recent records: how many units are worth reading."""

    def read(self, wish: SpanWish, codes: frozenset[int] | None) -> Span | None:
        """Return the span.  Blocks: for workers.

        `codes` are the tags codes that are wanted; codes that are addresses of extension units
        pass.  None when there is no such queue or its first unit is not sound.
        """
        from cometmq.store.read.span_gather import gather_span

        return gather_span(self, wish, codes)

    def read_matching(
        self,
        wish: SpanWish,
        match: Callable[[memoryview], bool],
        hint: BitmapHint | None,
        needles: tuple[Needle, ...],
        *,
        let_go: Callable[[], None],
    ) -> Span | None:
        """As `read`, of the records that match; see `MessageStore.get` for what tells them.

        `let_go` is called every few hundred records, so that other threads get their turn.  The
        number of examined messages is bounded; a span without records says how far they reach.
        """
        from cometmq.store.read.span_filter import Sieve, filter_span
        from cometmq.store.read.span_gather import gather_span

        by_bitmap = self._may_match if hint is not None else None

        def may_match(queue: ConsumeQueue, raw: bytes) -> Sequence[int]:
            if by_bitmap is None or hint is None:
                return range(len(raw) // CQ_UNIT_BYTES)
            return by_bitmap(queue, raw, hint)

        def gather(first: int, last: int, byte_count: int) -> Span | None:
            part = wish._replace(
                queue_offset=QueueOffset(first),
                end=last,
                max_count=last - first,
                max_bytes=byte_count,
                head_bytes=0,
                has_sizes=True,
            )
            return gather_span(self, part, None, may_match)

        sieve = Sieve(match, needles, wish.max_count, wish.max_bytes, let_go)
        return filter_span(self, gather, wish, sieve)

    def queue(self, wish: SpanWish) -> ConsumeQueue | None:
        """Return the wanted queue; None when it does not exist."""
        return self._queues.find(wish.topic, wish.queue_id)

    def units(self, queue: ConsumeQueue, first: int, count: int) -> bytes:
        """Return units of a queue, read from the disk if need be."""
        return self._queues.units(queue, first, count, may_block=True) or b""

    def bounds(self, confirmed: int) -> tuple[int, int, list[tuple[int, int]]]:
        """Return the physical offsets between which records may be read, and the damage there."""
        return self._log.min_offset, confirmed, list(self._runs.damaged)

    def window(self, physical_offset: PhysicalOffset) -> tuple[Mapping, int] | None:
        """Mapped bytes around a physical offset and where they begin; None without a sound file."""
        with self._lock:
            file = self._log.file_at(physical_offset)
            if file is None:
                return None
            place = (physical_offset - file.start) // WINDOW_BYTES * WINDOW_BYTES
            start = file.start + place
            if file.file.size() < file.size:
                self._windows.pop(start, None)
                return None
            found = self._windows.pop(start, None)
            if found is None or found.file is not file:
                while len(self._windows) >= WINDOWS_MAX:
                    # Readers that hold it may finish: it is unmapped with its last reference.
                    del self._windows[next(iter(self._windows))]
                length = min(WINDOW_BYTES + WINDOW_OVERLAP_BYTES, file.size - place)
                try:
                    mapping = file.file.map_for_reading(place, length)
                except StoreCorrupt as error:
                    _LOG.warning("no span is read there: %s", error)
                    return None
                found = _SpanWindow(file, mapping)
            self._windows[start] = found
            found.is_used = True
            return found.mapping, start

    def buffer(self, length: int) -> bytearray:
        """Return a buffer of at least `length` bytes, if possible one whose answer has left.

        Fresh memory of MiBs costs as much as the copy into it, since its pages are cleared first.
        """
        with self._lock:
            for place, kept in enumerate(self._buffers):
                if len(kept) >= length and _is_free(kept):
                    return self._buffers.pop(place)
        return bytearray(length)

    def keep_buffer(self, data: bytearray) -> None:
        """Keep a span's buffer for reuse once the answer in it has left."""
        with self._lock:
            self._buffers.append(data)
            if len(self._buffers) > BUFFERS_MAX:
                del self._buffers[0]

    def drop_idle(self) -> bool:
        """Drop windows that were not used since the last call, or whose file is gone.

        Returns whether there are others.
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
    """Return whether no view of it exists: only then its length can change."""
    try:
        data.append(0)
    except BufferError:
        return False
    del data[-1:]
    return True
