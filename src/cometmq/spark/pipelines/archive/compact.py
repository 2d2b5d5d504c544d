"""Merges small files of an archive into larger ones.

Rows stay the same: each range is compared with its checksum while executors copy it.  A reader of
the manifest sees the old files before the commit and the new files after it.  A reader of the
folders never sees a row twice: old files are deleted before new ones are moved into place.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.arrow.live import QueueId
from cometmq.errors import StoreCorrupt
from cometmq.spark.pipelines.archive.checksum import Checksum
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, Manifest, file_of
from cometmq.spark.pipelines.archive.tasks import run_tasks
from cometmq.spark.pipelines.archive.write import DateFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.pipelines.archive.manifest import FileRange

__all__ = ["CompactResult", "CompactTask", "compact", "merge", "rows_of_range"]


@dataclass(frozen=True)
class CompactTask:
    """Files of one date and topic to merge."""

    root: str
    run: str
    files: tuple[ArchiveFile, ...]
    paths: tuple[str, ...]
    compression: str


@dataclass(slots=True)
class CompactResult:
    """The result of a compaction."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    version: int = 0


def compact(
    spark: Any,
    root: str | Path,
    *,
    rows_per_file: int,
    now_ms: Callable[[], int],
    files_min: int = 2,
    compression: str = "zstd",
    progress: RunProgress | None = None,
    on_point: Callable[[str], None] = lambda name: None,
) -> CompactResult:
    """Merge files of less than half of ``rows_per_file``.

    This happens where a date and topic has at least ``files_min`` such files.

    Raises:
        ConfigError: there is no archive.
        StoreLocked: another process writes the archive.
        StoreCorrupt: a file is missing, or its rows are not the archived ones; the archive is
            unchanged.
    """
    with Manifest(root) as manifest:
        run = uuid.uuid4().hex[:16]
        manifest.staging(run)
        tasks = [
            CompactTask(
                str(manifest.root),
                run,
                tuple(files),
                tuple(str(manifest.current_path(file)) for file in files),
                compression,
            )
            for files in _groups(manifest.state.files_of(), rows_per_file, files_min)
        ]
        result = CompactResult(version=manifest.state.version)
        if not tasks:
            return result
        if progress is not None:
            progress.update(0, total=sum(f.rows for task in tasks for f in task.files))
        slots = max(1, spark.sparkContext.defaultParallelism)
        for begin in range(0, len(tasks), 2 * slots):
            round_tasks = tasks[begin : begin + 2 * slots]
            added = [file_of(document) for document in run_tasks(spark, merge, round_tasks)]
            removed = [file.path for task in round_tasks for file in task.files]
            manifest.commit(now_ms=now_ms(), add=added, remove=removed, on_point=on_point)
            result.files_before += len(removed)
            result.files_after += len(added)
            result.rows += sum(file.rows for file in added)
            if progress is not None:
                progress.update(result.rows)
        result.version = manifest.state.version
        return result


def _groups(
    files: list[ArchiveFile], rows_per_file: int, files_min: int
) -> Iterator[list[ArchiveFile]]:
    """Groups of files to merge."""
    small: dict[tuple[str, str], list[ArchiveFile]] = {}
    for file in files:
        if file.rows * 2 < rows_per_file:
            small.setdefault((file.date, file.topic), []).append(file)
    for files_of_folder in small.values():
        if len(files_of_folder) < max(2, files_min):
            continue
        group: list[ArchiveFile] = []
        rows = 0
        for file in sorted(files_of_folder, key=lambda file: _order(file.ranges[0])):
            if group and rows + file.rows > rows_per_file:
                if len(group) > 1:
                    yield group
                group, rows = [], 0
            group.append(file)
            rows += file.rows
        if len(group) > 1:
            yield group


def _order(file_range: FileRange) -> tuple[str, int, int]:
    return file_range.broker, file_range.queue_id, file_range.start


def merge(task: CompactTask) -> dict[str, Any]:
    """Merge a task's files into one, in an executor; returns the file's description.

    Raises:
        StoreCorrupt: a file is missing, or its rows are not the archived ones.
    """
    first = task.files[0]
    parts: list[tuple[FileRange, Any]] = []
    for file, path in zip(task.files, task.paths, strict=True):
        parts += rows_of_range(file, Path(path))
    parts.sort(key=lambda part: _order(part[0]))
    schema = parts[0][1].schema
    merged = DateFile(task.root, task.run, first.topic, first.date, schema, task.compression)
    try:
        before: FileRange | None = None
        for file_range, rows in parts:
            is_next = before is not None and _order(file_range) == (
                before.broker,
                before.queue_id,
                before.end,
            )
            if not is_next:
                merged.begin_range(QueueId(first.topic, file_range.broker, file_range.queue_id))
            for batch in rows.to_batches():
                merged.add(batch)
            before = file_range
        whole = merged.close()
    except BaseException:
        merged.discard()
        raise
    return asdict(replace(whole, json_failed=sum(file.json_failed for file in task.files)))


def rows_of_range(file: ArchiveFile, path: Path) -> list[tuple[FileRange, Any]]:
    """(range, its rows as a table) of each range of a file, compared with its checksum.

    Raises:
        StoreCorrupt: the file is missing, does not read, or holds other rows.
    """
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.read_table(path, partitioning=None)
    except FileNotFoundError:
        raise StoreCorrupt(f"{path} is missing, which holds {file.rows} rows") from None
    except (OSError, ArrowException) as error:
        raise StoreCorrupt(f"{path} does not read: {error}") from None
    if table.num_rows != file.rows:
        raise StoreCorrupt(f"{path} holds {table.num_rows} rows, the manifest says {file.rows}")
    parts = []
    row = 0
    for file_range in file.ranges:
        part = table.slice(row, file_range.rows)
        row += file_range.rows
        checksum = Checksum()
        checksum.add(part)
        if checksum.text != file_range.checksum:
            raise StoreCorrupt(
                f"{path} holds other rows than were archived: offsets {file_range.start} to"
                f" {file_range.end} of {file.topic} {file_range.broker}:{file_range.queue_id} have"
                f" checksum {checksum.text},"
                f" the manifest says {file_range.checksum}"
            )
        parts.append((file_range, part))
    return parts
