"""A store directory divided into spans of about equal bytes, which processes read in parallel.

Spans of queues are planned from the queues' lengths and the sizes in a sample of their units.
Spans of the log begin at the first sound record after their mark and end where the next span
begins.  Both are fixed when they are planned: messages that a broker writes later belong to the
next scan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cometmq.arrow.columns import schema_of
from cometmq.arrow.store_files import LogView, QueueFiles
from cometmq.arrow.store_scan import StoreScan, chosen_queues, next_record
from cometmq.codec.consume_queue import PRE_BLANK_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.arrow.options import ScanOptions, ScanReport

__all__ = ["LogSpan", "QueueSpan", "Span", "plan_spans", "read_spans"]

_SAMPLES: Final = 16
_SAMPLE_UNITS: Final = 64
_RECORD_BYTES_GUESS: Final = 300


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """Queue offsets `queue.start` to `queue.end` (exclusive) of one queue."""

    queue: QueueFiles
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The records of one log file that begin in these physical offsets."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the log in this span."""
        return self.end - self.start


Span = QueueSpan | LogSpan


def plan_spans(
    path: str | Path, options: ScanOptions, *, parts: int, part_bytes_max: int
) -> list[list[Span]]:
    """The spans of each part: about `parts` parts or a multiple of it.

    No part is much larger than `part_bytes_max`.

    Raises:
        StoreError: as for `cometmq.arrow.scan`.
    """
    log = LogView(Path(path))
    whole: list[Span]
    if options.topic is None:
        whole = _log_spans(log)
    else:
        whole = [
            QueueSpan(replace(queue, start=start, end=end), _queue_bytes(queue, start, end))
            for queue, start, end in chosen_queues(log.root, options.topic, options)
            if start < end
        ]
    total = sum(span.size_bytes for span in whole)
    rounds = max(1, -(-total // (parts * part_bytes_max)))
    count = parts * rounds
    rows = sum(span.queue.end - span.queue.start for span in whole if isinstance(span, QueueSpan))
    if whole and rows >= len(whole) * count * options.batch_rows:
        return _layers(whole, count)
    target = max(1, -(-total // count))
    return _packed(
        [piece for span in whole for piece in _cut(span, max(1, round(span.size_bytes / target)))],
        target,
    )


def read_spans(
    path: str | Path, spans: list[Span], options: ScanOptions, report: ScanReport
) -> Iterator[Any]:
    """The record batches of one part, as `cometmq.arrow.scan` returns them.

    Raises:
        StoreError: as for `cometmq.arrow.scan`.
    """
    log = LogView(Path(path))
    scan = StoreScan(log, options, report, schema_of(options.columns))

    def batches() -> Iterator[Any]:
        for span in spans:
            if isinstance(span, QueueSpan):
                yield from scan.queue_batches([(span.queue, span.queue.start, span.queue.end)])
            else:
                yield from _log_batches(scan, span)

    return scan.counted(batches())


def _log_batches(scan: StoreScan, span: LogSpan) -> Iterator[Any]:
    for number, file in enumerate(scan.log.files):
        if not file.start <= span.start < file.end:
            continue
        begin = span.start - file.start
        first = next_record(file, begin) if begin else 0
        until = min(span.end - file.start, file.size)
        if first is not None and first < until:
            yield from scan.file_batches(file, first, until, is_last=scan.is_last(number))


def _log_spans(log: LogView) -> list[Span]:
    """One span per log file, up to the end of its data."""
    spans: list[Span] = []
    for file in log.files:
        end = _data_end(file)
        if end:
            spans.append(LogSpan(file.start, file.start + end))
    return spans


def _data_end(file: Any) -> int:
    """A file position after which nothing is written, exact to a block or two."""
    low, high = 0, file.size
    while high - low > 1 << 20:
        middle = (low + high) // 2
        if file.has_data(middle):
            low = middle
        else:
            high = middle
    return high if file.has_data(low) else 0


def _queue_bytes(queue: QueueFiles, start: int, end: int) -> int:
    """About how many bytes of log these queue offsets point to."""
    step = max(1, (end - start) // _SAMPLES)
    sizes = np.concatenate(
        [
            queue.units(first, min(first + _SAMPLE_UNITS, end))["size"]
            for first in range(start, end, step)
        ]
    )
    sizes = sizes[(sizes > 0) & (sizes != PRE_BLANK_SIZE)]
    mean = float(sizes.mean()) if len(sizes) else _RECORD_BYTES_GUESS
    return max(1, int(mean * (end - start)))


def _layers(spans: list[Span], count: int) -> list[list[Span]]:
    """`count` parts, each with one piece of every queue.

    Queues are mostly written at the same time, so pieces with the same number lie in the same
    region of the log.  A process then maps one region of the log; a process that reads a whole
    queue maps all of it.
    """
    layers: list[list[Span]] = [[] for _ in range(count)]
    for span in spans:
        for layer, piece in zip(layers, _cut(span, count), strict=False):
            layer.append(piece)
    return [layer for layer in layers if layer]


def _cut(span: Span, count: int) -> list[Span]:
    """A span in `count` pieces, fewer if a queue has fewer records."""
    if count == 1:
        return [span]
    if isinstance(span, LogSpan):
        start, end = span.start, span.end
    else:
        start, end = span.queue.start, span.queue.end
    marks = [start + (end - start) * number // count for number in range(count + 1)]
    if isinstance(span, LogSpan):
        return [LogSpan(low, high) for low, high in pairwise(marks)]
    return [
        QueueSpan(replace(span.queue, start=low, end=high), span.size_bytes // count)
        for low, high in pairwise(marks)
        if low < high
    ]


def _packed(spans: list[Span], target: int) -> list[list[Span]]:
    """Parts of about `target` bytes, spans in their order."""
    parts: list[list[Span]] = []
    filled = target
    for span in spans:
        if filled + span.size_bytes // 2 >= target:
            parts.append([])
            filled = 0
        parts[-1].append(span)
        filled += span.size_bytes
    return parts
