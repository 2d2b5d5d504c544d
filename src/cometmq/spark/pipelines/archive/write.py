"""Spans of queues into Parquet files: an executor's part of an archive, without Spark.

A task reads its spans, divides rows by date (UTC, of the store time) and writes one file per date.
Files are written below `_temporary`; only the driver's commit makes them part of the archive.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from cometmq.arrow.columns import TYPES
from cometmq.arrow.live import QueueId
from cometmq.arrow.options import COLUMNS
from cometmq.errors import StoreError
from cometmq.spark.pipelines.archive.checksum import Checksum
from cometmq.spark.pipelines.archive.json_values import parse_bodies
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, FileRange, folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.spark.pipelines.archive.source import ArchiveSource

__all__ = [
    "ARCHIVE_COLUMNS",
    "DateFile",
    "WriteTask",
    "archive_schema",
    "is_compressible",
    "split_by_date",
    "write",
]

#: The topic is the folder's name, as Spark, DuckDB, Polars and pyarrow read partitioned folders.
ARCHIVE_COLUMNS: Final = tuple(name for name in COLUMNS if name != "topic")
_DICTIONARY: Final = ["broker", "tags", "bornHost", "storeHost", "queueId", "sysFlag"]
_DICTIONARY.append("reconsumeTimes")
#: Numbers that grow slowly: their differences take fewer bytes, and less time to compress.
_STEADY: Final = ["queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp"]
#: The columns as Parquet names them.
_PATHS: Final = tuple(
    path
    for name in ARCHIVE_COLUMNS
    for path in (
        ("properties.key_value.key", "properties.key_value.value")
        if name == "properties"
        else (name,)
    )
)
#: Columns whose least and greatest values help readers to skip row groups.
_WITH_STATISTICS: Final = [
    path for path in _PATHS if path not in {"body", "msgId"} and not path.startswith("properties")
]
_PROBE_BYTES: Final = 1 << 18
#: Compression is used if it makes a sample smaller than this part of its size.
_COMPRESSED_PART_MAX: Final = 0.95
_GROUP_ROWS: Final = 262_144
_GROUP_BYTES: Final = 128 << 20
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class WriteTask:
    """The input of one task: spans (queue, start, end) of one topic."""

    root: str
    run: str
    source: ArchiveSource
    spans: tuple[tuple[QueueId, int, int], ...]
    mode: str
    compression: str
    json_schema: Any = None
    """A pyarrow schema with the columns' names, or None."""
    json_prefix: str = ""


def archive_schema(json_schema: Any = None, json_prefix: str = "") -> Any:
    """The Arrow schema of an archive's files."""
    fields = [pa.field(name, TYPES[name]) for name in ARCHIVE_COLUMNS]
    for field in json_schema or ():
        fields.append(pa.field(json_prefix + field.name, field.type))
    return pa.schema(fields)


def write(task: WriteTask) -> dict[str, Any]:
    """Write a task's files.

    Returns:
        ``files``: `ArchiveFile` as dictionaries; ``gaps``: spans that lack rows, with the counts
        of expired and of corrupt (left out) records.

    Raises:
        CometError: the source failed; no file of the task remains.
    """
    topic = task.spans[0][0].topic
    open_files: dict[str, DateFile] = {}
    gaps = []
    with ExitStack() as undo:
        undo.callback(_discard_all, open_files)
        for queue, start, end in task.spans:
            for file in open_files.values():
                file.begin_range(queue)
            batches, report = task.source.batches(queue, start, end, ARCHIVE_COLUMNS, task.mode)
            for batch in batches:
                for date, part in split_by_date(batch):
                    if date not in open_files:
                        open_files[date] = _open_file(task, topic, date)
                        open_files[date].begin_range(queue)
                    open_files[date].add(part)
            if report.expired or report.dropped:
                gaps.append(
                    {
                        "topic": queue.topic,
                        "queue": f"{queue.broker}:{queue.queue_id}",
                        "start": start,
                        "end": end,
                        "expired": report.expired,
                        "corrupt": report.dropped,
                    }
                )
        files = [asdict(file.close()) for _, file in sorted(open_files.items())]
        undo.pop_all()
    return {"files": files, "gaps": gaps}


def _discard_all(files: dict[str, DateFile]) -> None:
    for file in files.values():
        file.discard()


def _open_file(task: WriteTask, topic: str, date: str) -> DateFile:
    schema = archive_schema(task.json_schema, task.json_prefix)
    return DateFile(task.root, task.run, topic, date, schema, task.compression, task.json_schema)


def split_by_date(batch: Any) -> Iterator[tuple[str, Any]]:
    """(date, its rows) of a batch; nearly always one."""
    stored = batch.column(batch.schema.get_field_index("storeTimestamp"))
    days = stored.cast("int64").fill_null(0).to_numpy(zero_copy_only=False) // (_DAY_MS * 1000)
    if not len(days):
        return
    first = int(days[0])
    if (days == first).all():
        yield _date_text(first), batch
        return
    for day in np.unique(days):
        yield _date_text(int(day)), batch.filter(pa.array(days == day))


def is_compressible(bodies: Any, compression: str) -> bool:
    """Whether a sample of the bodies shrinks; encrypted or compressed ones would only cost time."""
    if compression == "none":
        return False
    _, offsets, data = bodies.buffers()
    if data is None:
        return False
    bounds = np.frombuffer(offsets, np.int32)[bodies.offset : bodies.offset + len(bodies) + 1]
    begin = int(bounds[0])
    sample = data[begin : min(int(bounds[-1]), begin + _PROBE_BYTES)]
    packed = pa.Codec(compression).compress(sample)
    return bool(packed.size < _COMPRESSED_PART_MAX * sample.size)


def _date_text(day: int) -> str:
    return str(np.datetime64(day, "D"))


class DateFile:
    """A growing Parquet file; `begin_range` separates its ranges."""

    def __init__(
        self,
        root: str,
        run: str,
        topic: str,
        date: str,
        schema: Any,
        compression: str,
        json_schema: Any = None,
    ) -> None:
        self._topic = topic
        self._date = date
        # Unique per attempt: Spark may run a task twice, even at the same time.
        name = f"{run}-{uuid.uuid4().hex[:12]}.parquet"
        self._staged = f"_temporary/{run}/{name}"
        self._path = f"{folder_of(date, topic)}/{name}"
        self._file = Path(root) / self._staged
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._json_schema = json_schema
        self._compression = compression
        self._writer: Any = None
        self._waiting: list[Any] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._ranges: list[FileRange] = []
        self._queue: QueueId | None = None
        self._checksum = Checksum()
        self._first = self._last = 0
        self._rows = 0
        self.json_failed = 0

    def begin_range(self, queue: QueueId) -> None:
        """Begin a range: the following rows belong to this queue."""
        self._end_range()
        self._queue = queue

    def add(self, batch: Any) -> None:
        """Add rows to the current range, by queue offset."""
        offsets = batch.column(batch.schema.get_field_index("queueOffset"))
        if not self._checksum.rows:
            self._first = offsets[0].as_py()
        self._last = offsets[-1].as_py()
        self._checksum.add(batch)
        self._rows += batch.num_rows
        self._waiting.append(self._with_json(batch))
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def _with_json(self, batch: Any) -> Any:
        if self._json_schema is None:
            return batch
        bodies = batch.column(batch.schema.get_field_index("body"))
        columns, failed = parse_bodies(bodies, self._json_schema)
        self.json_failed += failed
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self._schema)

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, schema=self._schema)
            if self._writer is None:
                self._writer = self._open(self._waiting[0])
            self._writer.write_table(table, row_group_size=_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def _open(self, first: Any) -> Any:
        """A writer that compresses bodies only if those of the first rows shrink."""
        name = self._compression
        compression: Any = name
        level: Any = 1 if name == "zstd" else None
        statistics: Any = True
        # Bodies with JSON columns beside them are text.
        if set(self._schema.names) <= set(ARCHIVE_COLUMNS):
            bodies = first.column(first.schema.get_field_index("body"))
            if not is_compressible(bodies, name):
                compression = dict.fromkeys(_PATHS, name) | {"body": "none"}
                level = level and {path: level for path in _PATHS if path != "body"}
            statistics = _WITH_STATISTICS
        return parquet.ParquetWriter(
            self._file,
            self._schema,
            compression=compression,
            compression_level=level,
            use_dictionary=_DICTIONARY,
            write_statistics=statistics,
            column_encoding=dict.fromkeys(_STEADY, "DELTA_BINARY_PACKED"),
        )

    def _end_range(self) -> None:
        checksum, queue = self._checksum, self._queue
        if queue is not None and checksum.rows:
            self._ranges.append(
                FileRange(
                    broker=queue.broker,
                    queue_id=queue.queue_id,
                    start=self._first,
                    end=self._last + 1,
                    rows=checksum.rows,
                    checksum=checksum.text,
                    first_store_ms=(checksum.first_us or 0) // 1000,
                    last_store_ms=(checksum.last_us or 0) // 1000,
                )
            )
        self._checksum = Checksum()

    def close(self) -> ArchiveFile:
        """End the file, make it durable and describe it.

        Raises:
            StoreError: the file would have no row.
        """
        self._end_range()
        self._flush()
        if self._writer is None:
            raise StoreError(f"{self._file} would hold no row")
        self._writer.close()
        with self._file.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            size = file.seek(0, os.SEEK_END)
        return ArchiveFile(
            path=self._path,
            staged=self._staged,
            topic=self._topic,
            date=self._date,
            rows=self._rows,
            size_bytes=size,
            sha256=digest,
            ranges=tuple(self._ranges),
            json_failed=self.json_failed,
        )

    def discard(self) -> None:
        """Delete the file."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._file.unlink(missing_ok=True)
