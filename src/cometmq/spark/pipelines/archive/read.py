"""An archive, or a slice of it, as a DataFrame or as a list of files for other readers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.arrow.options import nearest
from cometmq.errors import ConfigError, StoreCorrupt
from cometmq.spark.pipelines.archive.manifest import Manifest

if TYPE_CHECKING:
    from cometmq.spark.pipelines.archive.manifest import ArchiveFile

__all__ = ["ArchiveSlice", "archive_files", "read_archive", "select_slice"]


@dataclass(frozen=True, slots=True)
class ArchiveSlice:
    """A choice of messages: all conditions must hold; None and empty ones hold always."""

    topics: tuple[str, ...] = ()
    starting_ms: int | None = None
    """Store time, inclusive, milliseconds since 1970."""
    ending_ms: int | None = None
    """Store time, exclusive."""
    keys: tuple[str, ...] = ()
    """Messages with one of these keys."""
    tags: tuple[str, ...] = ()
    where: str | None = None
    """A predicate in Spark's SQL over the archive's columns."""

    def check(self) -> None:
        """Check the order of the times.

        Raises:
            ConfigError: the start is after the end.
        """
        start, end = self.starting_ms, self.ending_ms
        if start is not None and end is not None and start > end:
            raise ConfigError(
                f"the slice begins at {_time(start)}, after its end {_time(end)}: swap the two"
            )


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(" ", "seconds")


def archive_files(root: str | Path, slice_: ArchiveSlice | None = None) -> list[Path]:
    """The committed files of an archive, for pyarrow, Polars or DuckDB: absolute paths.

    With a slice, only the files whose topic and times can hold its messages.

    Raises:
        ConfigError: there is no archive, or it does not hold a topic.
        StoreCorrupt: the manifest is damaged.
    """
    manifest = Manifest(root)
    manifest.read()
    return [manifest.current_path(file) for file in _chosen(manifest, slice_ or ArchiveSlice())]


def read_archive(spark: Any, root: str | Path, slice_: ArchiveSlice | None = None) -> Any:
    """A DataFrame over an archive: its columns, the JSON columns, ``date`` and ``topic``.

    Raises:
        ConfigError: there is no archive, it does not hold a topic, or Spark refuses the predicate.
        StoreCorrupt: the manifest is damaged or a file is missing.
    """
    from pyspark.sql import functions as sql
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import DateType, StringType, StructType

    manifest = Manifest(root)
    manifest.read()
    wanted = slice_ or ArchiveSlice()
    wanted.check()
    files = _chosen(manifest, wanted)
    missing = [file for file in files if not manifest.current_path(file).exists()]
    if missing:
        raise StoreCorrupt(
            f"{len(missing)} files of the archive {manifest.root} are missing, the first is"
            f" {missing[0].path}; 'cometmq pipeline archive verify' lists them"
        )
    inner = from_arrow_schema(_schema_of(manifest, files))
    whole = StructType([*inner.fields]).add("date", DateType()).add("topic", StringType())
    moved = [str(manifest.root / f.path) for f in files if (manifest.root / f.path).exists()]
    frame = spark.createDataFrame([], whole)
    if moved:
        frame = spark.read.schema(whole).option("basePath", str(manifest.root)).parquet(*moved)
    for file in files:
        path = manifest.current_path(file)
        if path != manifest.root / file.path:
            part = spark.read.schema(inner).parquet(str(path))
            part = part.withColumn("date", sql.lit(file.date).cast("date"))
            frame = frame.unionByName(part.withColumn("topic", sql.lit(file.topic)))
    return select_slice(frame, wanted)


def select_slice(frame: Any, slice_: ArchiveSlice) -> Any:
    """The messages of a DataFrame (archive, topic or store) that a slice chooses.

    Raises:
        ConfigError: Spark refuses the predicate.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as sql

    chosen = frame
    if slice_.topics:
        chosen = chosen.where(sql.col("topic").isin(*slice_.topics))
    if slice_.starting_ms is not None:
        start = sql.timestamp_millis(sql.lit(slice_.starting_ms))
        chosen = chosen.where(sql.col("storeTimestamp") >= start)
    if slice_.ending_ms is not None:
        end = sql.timestamp_millis(sql.lit(slice_.ending_ms))
        chosen = chosen.where(sql.col("storeTimestamp") < end)
    if slice_.keys:
        wanted = sql.array(*[sql.lit(key) for key in slice_.keys])
        chosen = chosen.where(sql.arrays_overlap(sql.split("keys", " "), wanted))
    if slice_.tags:
        chosen = chosen.where(sql.col("tags").isin(*slice_.tags))
    if slice_.where:
        try:
            chosen = chosen.where(slice_.where)
        except (AnalysisException, ParseException) as error:
            first = str(error).strip().splitlines()[0]
            raise ConfigError(f"the predicate {slice_.where!r} is refused: {first}") from None
    return chosen


def _chosen(manifest: Manifest, slice_: ArchiveSlice) -> list[ArchiveFile]:
    topics = {file.topic for file in manifest.state.files.values()}
    for topic in slice_.topics:
        if topic not in topics:
            raise ConfigError(
                f"the archive {manifest.root} holds no topic {topic!r}, but {len(topics)} others"
                f"{nearest(topic, topics)}"
            )
    chosen = []
    for file in manifest.state.files_of(slice_.topics or None):
        first = min(part.first_store_ms for part in file.ranges)
        last = max(part.last_store_ms for part in file.ranges)
        if slice_.starting_ms is not None and last < slice_.starting_ms:
            continue
        if slice_.ending_ms is not None and first >= slice_.ending_ms:
            continue
        chosen.append(file)
    return chosen


def _schema_of(manifest: Manifest, files: list[ArchiveFile]) -> Any:
    """The Arrow schema of the files; all files have the same."""
    from pyarrow import ArrowInvalid, parquet

    from cometmq.spark.pipelines.archive.write import archive_schema

    if not files:
        return archive_schema()
    path = manifest.current_path(files[0])
    try:
        return parquet.read_schema(path)
    except (OSError, ArrowInvalid) as error:
        raise StoreCorrupt(f"{path} is no Parquet file any more: {error}") from None
