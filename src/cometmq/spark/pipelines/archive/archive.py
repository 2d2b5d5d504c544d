"""`archive`: topics to partitioned Parquet files, exactly once.

A run archives the messages that are stored when it begins, commit by commit.  Executors write the
files; rows never pass the driver.  A commit holds the files of some tasks and the next offset of
each of their queues, so the next run continues where the last commit of a killed run ended.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.arrow.options import COLUMNS, nearest
from cometmq.errors import ConfigError, StoreError
from cometmq.spark.pipelines.archive.json_values import prefixed
from cometmq.spark.pipelines.archive.manifest import Manifest, file_of
from cometmq.spark.pipelines.archive.tasks import run_tasks
from cometmq.spark.pipelines.archive.write import WriteTask, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cometmq.arrow.live import QueueId
    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.pipelines.archive.manifest import ArchiveState
    from cometmq.spark.pipelines.archive.source import ArchiveSource

__all__ = ["ArchiveOptions", "ArchiveResult", "archive", "check_folder"]

ROWS_PER_FILE: Final = 500_000
_ROWS_PER_TASK_MIN: Final = 20_000
_COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")
Span = tuple["QueueId", int, int]


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The options of an archive run."""

    rows_per_file: int = ROWS_PER_FILE
    compression: str = "zstd"
    mode: str = "FAILFAST"
    """FAILFAST stops at a record that does not decode; DROPMALFORMED drops and counts it."""
    json_schema: str | None = None
    """Columns to extract from JSON bodies, ``carrier string, distance bigint``."""
    json_prefix: str = ""
    allow_gaps: bool = False
    """Continue although messages expired unarchived; the manifest records the gap."""

    def check(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one is wrong.
        """
        if self.rows_per_file < 1:
            raise ConfigError(f"rows_per_file is {self.rows_per_file}; it must be positive")
        if self.compression not in _COMPRESSIONS:
            raise ConfigError(
                f"compression {self.compression!r} is unknown: one of {', '.join(_COMPRESSIONS)}"
                f"{nearest(self.compression, _COMPRESSIONS)}"
            )
        if self.mode not in {"FAILFAST", "DROPMALFORMED"}:
            raise ConfigError(f"mode {self.mode!r} is unknown: FAILFAST or DROPMALFORMED")


@dataclass(slots=True)
class ArchiveResult:
    """The result of one run."""

    root: str
    rows: int = 0
    files: int = 0
    body_bytes: int = 0
    size_bytes: int = 0
    commits: int = 0
    json_failed: int = 0
    corrupt: int = 0
    expired: int = 0
    version: int = 0
    rows_by_topic: dict[str, int] = field(default_factory=dict)
    rows_by_date: dict[str, int] = field(default_factory=dict)
    positions: dict[QueueId, int] = field(default_factory=dict)


def archive(
    spark: Any,
    source: ArchiveSource,
    root: str | Path,
    topics: Iterable[str] | None = None,
    options: ArchiveOptions | None = None,
    *,
    now_ms: Callable[[], int],
    progress: RunProgress | None = None,
    on_point: Callable[[str], None] = lambda name: None,
) -> ArchiveResult:
    """Archive the stored messages that the archive at ``root`` does not hold yet.

    Args:
        spark: a session (`cometmq.spark.session`).
        source: `ClusterSource` or `DirectorySource`.
        root: a folder that driver and executors see under the same path.
        topics: default all except the system's.
        now_ms: the clock for the commits' times.
        on_point: called with the name of each step, for tests.

    Raises:
        ConfigError: an option is wrong, or the folder holds something else.
        NoRoute, ConnectFailed: the source has no such topic or does not answer.
        StoreError: messages expired unarchived, the source is another cluster, or the archive is
            locked or damaged.
    """
    options = ArchiveOptions() if options is None else options
    options.check()
    chosen = list(dict.fromkeys(source.topics() if topics is None else topics))
    queues = [queue for topic in chosen for queue in source.queues(topic)]
    bounds = source.bounds(queues)
    json_schema = _json_schema(spark, options)
    manifest = Manifest(root)
    check_folder(root)
    with manifest:
        settings = _settings(options)
        _check_settings(manifest.state, settings)
        todo, gaps = _todo(manifest.state, bounds, options)
        total = sum(end - start for _, start, end in todo)
        if progress is not None:
            progress.update(0, total=total, text="planning")
        result = ArchiveResult(str(manifest.root))
        slots = max(1, spark.sparkContext.defaultParallelism)
        run = uuid.uuid4().hex[:16]
        tasks = [
            WriteTask(
                str(manifest.root),
                run,
                source,
                spans,
                options.mode,
                options.compression,
                json_schema,
                options.json_prefix,
            )
            for spans in _packed(todo, options.rows_per_file, slots)
        ]
        manifest.staging(run)
        first_settings = settings if not manifest.state.version else None
        for begin in range(0, len(tasks), 2 * slots):
            round_tasks = tasks[begin : begin + 2 * slots]
            _run_commit(
                spark, manifest, round_tasks, gaps, first_settings, result, now_ms, on_point
            )
            gaps, first_settings = [], None
            if progress is not None:
                offsets = {str(queue): at for queue, at in result.positions.items()}
                progress.update(_rows(tasks[: begin + len(round_tasks)]), offsets=offsets)
        if gaps or first_settings is not None:
            manifest.commit(now_ms=now_ms(), gaps=gaps, settings=first_settings)
        result.version = manifest.state.version
        return result


def check_folder(root: str | Path) -> None:
    """Check that a folder is empty, new or an archive.

    Raises:
        ConfigError: it holds other things.
    """
    manifest = Manifest(root)
    if not manifest.exists and manifest.root.exists() and any(manifest.root.iterdir()):
        raise ConfigError(
            f"{manifest.root} is neither an archive nor empty; give a folder of its own"
        )


def _rows(tasks: list[WriteTask]) -> int:
    return sum(end - start for task in tasks for _, start, end in task.spans)


def _run_commit(
    spark: Any,
    manifest: Manifest,
    tasks: list[WriteTask],
    gaps: list[dict[str, Any]],
    settings: dict[str, Any] | None,
    result: ArchiveResult,
    now_ms: Callable[[], int],
    on_point: Callable[[str], None],
) -> None:
    """Let executors write the tasks' files, then commit the files."""
    on_point("before-tasks")
    answers = run_tasks(spark, write, tasks)
    on_point("files-written")
    files = [file_of(document) for answer in answers for document in answer["files"]]
    all_gaps = [*gaps, *(gap for answer in answers for gap in answer["gaps"])]
    positions: dict[QueueId, int] = {}
    for task in tasks:
        for queue, _, end in task.spans:
            positions[queue] = max(end, positions.get(queue, 0))
    manifest.commit(
        now_ms=now_ms(),
        add=files,
        positions=positions,
        gaps=all_gaps,
        settings=settings,
        on_point=on_point,
    )
    result.commits += 1
    result.positions.update(positions)
    for gap in all_gaps:
        result.expired += gap["expired"]
        result.corrupt += gap["corrupt"]
    for file in files:
        result.files += 1
        result.rows += file.rows
        result.size_bytes += file.size_bytes
        result.json_failed += file.json_failed
        result.rows_by_topic[file.topic] = result.rows_by_topic.get(file.topic, 0) + file.rows
        result.rows_by_date[file.date] = result.rows_by_date.get(file.date, 0) + file.rows


def _todo(
    state: ArchiveState, bounds: dict[QueueId, tuple[int, int]], options: ArchiveOptions
) -> tuple[list[Span], list[dict[str, Any]]]:
    """(spans to archive, gaps of messages that expired unarchived)."""
    todo: list[Span] = []
    gaps: list[dict[str, Any]] = []
    for queue, (first, end) in bounds.items():
        done = state.positions.get(queue)
        start = first if done is None else max(done, first)
        if done is not None and done > end:
            raise StoreError(
                f"{queue} ends at offset {end}, but {done} messages of it are archived: the topic"
                " was created again, or this is another cluster. Archive it to another folder"
            )
        if done is not None and done < first:
            if not options.allow_gaps:
                raise StoreError(
                    f"{queue} is archived up to offset {done} and now begins at {first}:"
                    f" {first - done} messages expired before they were archived."
                    " --allow-gaps continues and records the gap in the manifest"
                )
            gaps.append(
                {
                    "topic": queue.topic,
                    "queue": f"{queue.broker}:{queue.queue_id}",
                    "start": done,
                    "end": first,
                    "expired": first - done,
                    "corrupt": 0,
                }
            )
        if start < end:
            todo.append((queue, start, end))
    return todo, gaps


def _packed(todo: list[Span], rows_per_file: int, slots: int) -> list[tuple[Span, ...]]:
    """The spans of each task: about a file's rows of one topic, with a task for every slot."""
    total = sum(end - start for _, start, end in todo)
    target = min(rows_per_file, max(_ROWS_PER_TASK_MIN, -(-total // slots)))
    packed: list[tuple[Span, ...]] = []
    room, spans = target, list[Span]()
    for queue, begin, end in todo:
        if spans and spans[0][0].topic != queue.topic:
            packed.append(tuple(spans))
            room, spans = target, []
        start = begin
        while start < end:
            stop = min(end, start + room)
            spans.append((queue, start, stop))
            room -= stop - start
            start = stop
            if room <= 0:
                packed.append(tuple(spans))
                room, spans = target, []
    if spans:
        packed.append(tuple(spans))
    return packed


def _settings(options: ArchiveOptions) -> dict[str, Any]:
    """The settings that must not change during the archive's life."""
    return {"json_schema": options.json_schema, "json_prefix": options.json_prefix}


def _check_settings(state: ArchiveState, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        before = state.settings.get(name, value)
        if before != value:
            raise ConfigError(
                f"this archive was made with {name} {before!r}, not {value!r}: its columns stay"
                " as they are. Leave the option as it was, or archive to another folder"
            )


def _json_schema(spark: Any, options: ArchiveOptions) -> Any:
    """The pyarrow schema of the JSON columns; None without them."""
    if options.json_schema is None:
        return None
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        struct = StructType.fromDDL(options.json_schema)
        assert isinstance(struct, StructType)
        schema = to_arrow_schema(struct, timezone="UTC")
    except (PySparkException, ValueError, TypeError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"JSON schema {options.json_schema!r} is not one: {first}. Write columns as in SQL,"
            " 'carrier string, distance bigint'"
        ) from None
    prefixed(schema, options.json_prefix, (*COLUMNS, "date"))
    return schema
