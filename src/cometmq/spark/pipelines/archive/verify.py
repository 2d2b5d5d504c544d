"""`archive verify`: compares manifest, files and source by counts, offsets and checksums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.arrow.live import QueueId
from cometmq.errors import StoreCorrupt
from cometmq.spark.pipelines.archive.checksum import CHECKED_COLUMNS, Checksum
from cometmq.spark.pipelines.archive.compact import rows_of_range
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, FileRange, Manifest
from cometmq.spark.pipelines.archive.tasks import run_tasks
from cometmq.spark.pipelines.archive.write import split_by_date

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.pipelines.archive.manifest import ArchiveState
    from cometmq.spark.pipelines.archive.source import ArchiveSource

__all__ = ["VerifyResult", "check_file", "check_ranges", "verify"]

_RANGES_PER_TASK_ROWS: Final = 500_000


@dataclass(slots=True)
class VerifyResult:
    """The counts of a verification, and one sentence per fault."""

    files: int = 0
    rows: int = 0
    compared_rows: int = 0
    """Rows whose checksum was compared with the source's."""
    expired_rows: int = 0
    """Rows whose range the source no longer holds completely."""
    unarchived_rows: int = 0
    """Offsets of the source after the archived ones; no fault."""
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _FileTask:
    file: ArchiveFile
    path: str


@dataclass(frozen=True)
class _RangeTask:
    source: ArchiveSource
    ranges: tuple[tuple[str, str, FileRange], ...]
    """(topic, date, range)."""


def verify(
    spark: Any,
    root: str | Path,
    source: ArchiveSource | None = None,
    *,
    topics: Iterable[str] | None = None,
    progress: RunProgress | None = None,
) -> VerifyResult:
    """Check an archive; with a source, also compare their messages.

    Raises:
        ConfigError: there is no archive.
        StoreCorrupt: the manifest itself is damaged.
        CometError: the source does not answer.
    """
    manifest = Manifest(root)
    state = manifest.read()
    wanted = None if topics is None else list(topics)
    files = state.files_of(wanted)
    result = VerifyResult(len(files), sum(file.rows for file in files))
    source_bounds = {} if source is None else _bounds(source, state, wanted)
    result.faults += _strays(manifest)
    result.faults += _offset_faults(state, wanted)
    if progress is not None:
        progress.update(0, total=result.rows * (1 if source is None else 2))
    slots = max(1, spark.sparkContext.defaultParallelism)
    tasks = [_FileTask(file, str(manifest.current_path(file))) for file in files]
    for begin in range(0, len(tasks), 4 * slots):
        round_tasks = tasks[begin : begin + 4 * slots]
        for faults in run_tasks(spark, check_file, round_tasks):
            result.faults += faults
        if progress is not None:
            progress.advance(sum(task.file.rows for task in round_tasks), text="files")
    if source is not None:
        _compare(spark, source, files, source_bounds, state, result, slots, progress)
    return result


def _bounds(
    source: ArchiveSource, state: ArchiveState, topics: list[str] | None
) -> dict[QueueId, tuple[int, int]]:
    chosen = sorted({queue.topic for queue in state.positions}) if topics is None else topics
    return source.bounds([queue for topic in chosen for queue in source.queues(topic)])


def _strays(manifest: Manifest) -> list[str]:
    committed = manifest.state.files
    paths = sorted(
        str(path.relative_to(manifest.root))
        for path in manifest.root.glob("date=*/topic=*/*.parquet")
    )
    return [f"{path} is in no commit" for path in paths if path not in committed]


def _offset_faults(state: ArchiveState, topics: list[str] | None) -> list[str]:
    """Faults of overlapping ranges, and of queues that lack more rows than their gaps explain."""
    ranges: dict[QueueId, list[tuple[int, int, str, int]]] = {}
    for file in state.files_of(topics):
        for part in file.ranges:
            queue = QueueId(file.topic, part.broker, part.queue_id)
            ranges.setdefault(queue, []).append((part.start, part.end, file.date, part.rows))
    missing: dict[str, int] = {}
    for gap in state.gaps:
        name = f"{gap['topic']} {gap['queue']}"
        missing[name] = missing.get(name, 0) + gap["expired"] + gap["corrupt"]
    faults = []
    for queue, parts in sorted(ranges.items()):
        last: dict[str, int] = {}
        for start, end, date, _ in sorted(parts):
            if start < last.get(date, 0):
                faults.append(f"{queue}: offset {start} of {date} is in two files")
            last[date] = max(end, last.get(date, 0))
        first = min(start for start, _, _, _ in parts)
        rows = sum(rows for _, _, _, rows in parts)
        lost = missing.get(f"{queue.topic} {queue.broker}:{queue.queue_id}", 0)
        expected = state.positions[queue] - first
        if not expected - lost <= rows <= expected:
            faults.append(
                f"{queue}: {rows} rows for offsets {first} to {state.positions[queue]},"
                f" {expected - rows} are missing, and the known gaps are {lost}"
            )
    return faults


def check_file(task: _FileTask) -> list[str]:
    """Check a file in an executor: its bytes and the checksums of its ranges."""
    path = Path(task.path)
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return [f"{task.file.path} is missing, which holds {task.file.rows} rows"]
    faults = []
    if digest != task.file.sha256:
        faults.append(
            f"{task.file.path} was changed: {path.stat().st_size} bytes with SHA-256"
            f" {digest[:16]}..., the manifest says {task.file.size_bytes} with"
            f" {task.file.sha256[:16]}..."
        )
    try:
        rows_of_range(task.file, path)
    except StoreCorrupt as error:
        faults.append(str(error))
    return faults


def _compare(
    spark: Any,
    source: ArchiveSource,
    files: list[ArchiveFile],
    source_bounds: dict[QueueId, tuple[int, int]],
    state: ArchiveState,
    result: VerifyResult,
    slots: int,
    progress: RunProgress | None,
) -> None:
    """Read the archived ranges that the source still holds again, and compare."""
    for queue, (_, end) in sorted(source_bounds.items()):
        position = state.positions.get(queue, 0)
        result.unarchived_rows += max(0, end - max(position, source_bounds[queue][0]))
        if position > end:
            result.faults.append(
                f"{queue}: archived up to offset {position}, but the source ends at {end}"
            )
    chosen: list[tuple[str, str, FileRange]] = []
    for file in files:
        for part in file.ranges:
            bounds = source_bounds.get(QueueId(file.topic, part.broker, part.queue_id))
            if bounds is None:
                result.faults.append(
                    f"{file.topic}@{part.broker}:{part.queue_id}: the source has no such queue"
                )
            elif part.start < bounds[0] or part.end > bounds[1]:
                result.expired_rows += part.rows
            else:
                chosen.append((file.topic, file.date, part))
    tasks = [_RangeTask(source, ranges) for ranges in _packed(chosen)]
    for begin in range(0, len(tasks), 2 * slots):
        round_tasks = tasks[begin : begin + 2 * slots]
        for faults in run_tasks(spark, check_ranges, round_tasks):
            result.faults += faults
        rows = sum(part.rows for task in round_tasks for _, _, part in task.ranges)
        result.compared_rows += rows
        if progress is not None:
            progress.advance(rows, text="compared with the source")


def _packed(
    ranges: list[tuple[str, str, FileRange]],
) -> list[tuple[tuple[str, str, FileRange], ...]]:
    packed: list[list[tuple[str, str, FileRange]]] = []
    room = 0
    for part in ranges:
        if room <= 0:
            packed.append([])
            room = _RANGES_PER_TASK_ROWS
        packed[-1].append(part)
        room -= part[2].rows
    return [tuple(task_ranges) for task_ranges in packed]


def check_ranges(task: _RangeTask) -> list[str]:
    """Compare ranges with the source in an executor, by count and checksum.

    Raises:
        CometError: the source does not answer.
    """
    faults = []
    for topic, date, part in task.ranges:
        queue = QueueId(topic, part.broker, part.queue_id)
        checksum = Checksum()
        batches, _ = task.source.batches(
            queue, part.start, part.end, CHECKED_COLUMNS, "DROPMALFORMED"
        )
        for batch in batches:
            for day, rows in split_by_date(batch):
                if day == date:
                    checksum.add(rows)
        if checksum.rows != part.rows:
            faults.append(
                f"{queue}: offsets {part.start} to {part.end} of {date} are {part.rows} rows in the"
                f" archive and {checksum.rows} in the source"
            )
        elif checksum.text != part.checksum:
            faults.append(
                f"{queue}: offsets {part.start} to {part.end} of {date} differ from the source:"
                f" checksum {part.checksum} in the archive, {checksum.text} there"
            )
    return faults
