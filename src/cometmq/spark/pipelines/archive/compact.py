"""Small files of an archive into fewer, larger ones.

Job: choose what to merge, let executors merge it, commit.  Rows stay as they are, and every range
is compared with its checksum while it is copied.  It must not talk to a broker.

Whoever reads by the manifest sees the old files before the commit and the new ones after it.
Whoever reads the folders never sees a row twice: old files go before the new ones come into place.
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
    """Files of one date and topic that become one."""

    root: str
    run: str
    files: tuple[ArchiveFile, ...]
    places: tuple[str, ...]
    compression: str


@dataclass(slots=True)
class CompactResult:
    """What a compaction did."""

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
    """Merge files of less than half of ``rows_per_file`` where a date and topic has at least
    ``files_min`` of them.

    Raises:
        StoreCorrupt: a file is missing or its rows are not those that were archived; the archive
            stays as it was.
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
            some = tasks[begin : begin + 2 * slots]
            added = [file_of(document) for document in run_tasks(spark, merge, some)]
            removed = [file.path for task in some for file in task.files]
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
    """Files to be merged together."""
    small: dict[tuple[str, str], list[ArchiveFile]] = {}
    for file in files:
        if file.rows * 2 < rows_per_file:
            small.setdefault((file.date, file.topic), []).append(file)
    for some in small.values():
        if len(some) < max(2, files_min):
            continue
        group: list[ArchiveFile] = []
        rows = 0
        for file in sorted(some, key=lambda file: _order(file.ranges[0])):
            if group and rows + file.rows > rows_per_file:
                if len(group) > 1:
                    yield group
                group, rows = [], 0
            group.append(file)
            rows += file.rows
        if len(group) > 1:
            yield group


def _order(one: FileRange) -> tuple[str, int, int]:
    return one.broker, one.queue_id, one.start


def merge(task: CompactTask) -> dict[str, Any]:
    """Runs in an executor: write the one file, and tell what is in it."""
    first = task.files[0]
    parts: list[tuple[FileRange, Any]] = []
    for file, place in zip(task.files, task.places, strict=True):
        parts += rows_of_range(file, Path(place))
    parts.sort(key=lambda part: _order(part[0]))
    schema = parts[0][1].schema
    merged = DateFile(task.root, task.run, first.topic, first.date, schema, task.compression)
    try:
        before: FileRange | None = None
        for one, rows in parts:
            is_next = before is not None and _order(one) == (
                before.broker,
                before.queue_id,
                before.end,
            )
            if not is_next:
                merged.begin_range(QueueId(first.topic, one.broker, one.queue_id))
            for batch in rows.to_batches():
                merged.add(batch)
            before = one
        whole = merged.close()
    except BaseException:
        merged.discard()
        raise
    return asdict(replace(whole, json_failed=sum(file.json_failed for file in task.files)))


def rows_of_range(file: ArchiveFile, place: Path) -> list[tuple[FileRange, Any]]:
    """(range, its rows as a table) of a file, each compared with its checksum.

    Raises:
        StoreCorrupt: the file is missing, does not read, or holds other rows.
    """
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.read_table(place, partitioning=None)
    except FileNotFoundError:
        raise StoreCorrupt(f"{place} is missing, which holds {file.rows} rows") from None
    except (OSError, ArrowException) as error:
        raise StoreCorrupt(f"{place} does not read: {error}") from None
    if table.num_rows != file.rows:
        raise StoreCorrupt(f"{place} holds {table.num_rows} rows, the manifest says {file.rows}")
    found = []
    row = 0
    for one in file.ranges:
        part = table.slice(row, one.rows)
        row += one.rows
        checksum = Checksum()
        checksum.add(part)
        if checksum.text != one.checksum:
            raise StoreCorrupt(
                f"{place} holds other rows than were archived: offsets {one.start} to {one.end} of"
                f" {file.topic} {one.broker}:{one.queue_id} have checksum {checksum.text},"
                f" the manifest says {one.checksum}"
            )
        found.append((one, part))
    return found
