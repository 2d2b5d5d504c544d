"""`format("cometmq")`: topics of a running cluster as DataFrames, and DataFrames into topics.

Job: the data source that Spark makes per `load()` or `save()`, and the batch reader: offsets
resolved once, partitions by queue, Arrow batches per partition.  Streams are in `stream_source`,
writing in `sink`.  It must not decode; `cometmq.arrow` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.arrow.options import ALL_COLUMNS, COLUMNS
from cometmq.spark.base.columns import chosen_columns, schema_text
from cometmq.spark.live.options import FORMAT, LiveOptions
from cometmq.spark.live.queue_offsets import split
from cometmq.spark.live.ranges import QueueRange, read_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from cometmq.spark.live.stream_source import LiveStreamReader

__all__ = ["LiveReader", "LiveSource"]


class LiveSource(DataSource):
    """The format; Spark makes one on the driver's host and asks it for readers and writers."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return FORMAT

    def schema(self) -> str:
        """All columns, the one of damage where the mode is PERMISSIVE; a user's schema selects."""
        is_permissive = str(self.options.get("mode", "")).strip().upper() == "PERMISSIVE"
        return schema_text(ALL_COLUMNS if is_permissive else COLUMNS)

    def reader(self, schema: StructType) -> LiveReader:
        """A batch read."""
        columns = chosen_columns(schema, ALL_COLUMNS)
        return LiveReader(LiveOptions.parse(self.options, columns, is_stream=False))

    def streamReader(self, schema: StructType) -> LiveStreamReader:  # noqa: N802 - Spark's name
        """A streaming read."""
        from cometmq.spark.live.stream_source import LiveStreamReader

        columns = chosen_columns(schema, ALL_COLUMNS)
        return LiveStreamReader(LiveOptions.parse(self.options, columns, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from cometmq.spark.live.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """A streaming write."""
        from cometmq.spark.live.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


class LiveReader(DataSourceReader):
    """Plans on the driver's host, once per loaded DataFrame; reads on the executors."""

    def __init__(self, options: LiveOptions) -> None:
        self._options = options

    def partitions(self) -> list[QueueRange]:
        """One per queue that has something, or more; offsets are fixed here."""
        from cometmq.spark.live.queues import cluster_of, find_queues, resolve_end, resolve_start

        options = self._options
        cluster = cluster_of(options.connection)
        bounds = cluster.bounds(find_queues(cluster, options))
        starts = resolve_start(cluster, options, bounds)
        ends = resolve_end(cluster, options, bounds)
        ranges = [(queue, starts[queue], ends[queue]) for queue in bounds]
        return [
            QueueRange(*queue, start, end) for queue, start, end in split(ranges, options.parts_min)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one partition; an empty plan gives none."""
        return read_range(self._options, partition)
