"""`format("cometmq")`: topics of a running cluster as DataFrames, and DataFrames into topics.

Here are the data source, which Spark creates per `load()` or `save()`, and its batch reader.
`stream_source` reads streams, `sink` writes.
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
    """The data source; Spark creates one on the driver's host."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """All columns, with `_corrupt_record` in mode PERMISSIVE; a user's schema selects."""
        is_permissive = str(self.options.get("mode", "")).strip().upper() == "PERMISSIVE"
        return schema_text(ALL_COLUMNS if is_permissive else COLUMNS)

    def reader(self, schema: StructType) -> LiveReader:
        """A batch reader.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        columns = chosen_columns(schema, ALL_COLUMNS)
        return LiveReader(LiveOptions.parse(self.options, columns, is_stream=False))

    def streamReader(self, schema: StructType) -> LiveStreamReader:  # noqa: N802 - Spark's name
        """A stream reader.

        Raises:
            ConfigError: an option or a column is wrong.
        """
        from cometmq.spark.live.stream_source import LiveStreamReader

        columns = chosen_columns(schema, ALL_COLUMNS)
        return LiveStreamReader(LiveOptions.parse(self.options, columns, is_stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A batch writer.  Raises as `batch_writer`."""
        from cometmq.spark.live.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """A stream writer.  Raises as `stream_writer`."""
        from cometmq.spark.live.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)


class LiveReader(DataSourceReader):
    """Plans partitions on the driver's host, once per loaded DataFrame; reads on the executors."""

    def __init__(self, options: LiveOptions) -> None:
        self._options = options

    def partitions(self) -> list[QueueRange]:
        """At least one per queue with messages; the offsets are fixed here.

        Raises:
            NoRoute: a topic or queue does not exist.
            OffsetOutOfRange: an offset is beyond its queue's end, or deleted.
            ClientError, RemoteError: the cluster does not answer or refuses.
        """
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
        """Record batches of one partition; none for an empty plan."""
        return read_range(self._options, partition)
