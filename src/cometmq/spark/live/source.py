"""`format("cometmq")`: topics of a running cluster as DataFrames, and DataFrames into topics.

Job: the data source that Spark makes per `load()` or `save()`, and the batch reader: offsets
resolved once, partitions by queue, Arrow batches per partition.  Streams are in `stream_source`,
writing in `sink`.  It must not decode; `cometmq.arrow` does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from cometmq.arrow.options import ALL_COLUMNS, COLUMNS, ScanReport
from cometmq.spark.base.columns import chosen_columns, schema_text
from cometmq.spark.live.options import FORMAT, LiveOptions
from cometmq.spark.live.queue_offsets import split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from cometmq.spark.live.stream_source import LiveStreamReader

__all__ = ["LiveReader", "LiveSource", "QueueRange", "SmallRanges", "read_range"]

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """Offsets `start` up to `end` (exclusive) of one queue: what one task reads."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True)
class SmallRanges(InputPartition):
    """Ranges of several queues that one task reads one after the other."""

    ranges: tuple[QueueRange, ...]


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


def read_range(options: LiveOptions, partition: InputPartition) -> Iterator[Any]:
    """Record batches of one range of a queue or some, on whatever executor this is."""
    if isinstance(partition, SmallRanges):
        for one in partition.ranges:
            yield from read_range(options, one)
    if not isinstance(partition, QueueRange):
        return
    from cometmq.arrow.live import QueueId, read_span
    from cometmq.spark.live.queues import cluster_of

    report = ScanReport()
    queue = QueueId(partition.topic, partition.broker, partition.queue_id)
    yield from read_span(
        cluster_of(options.connection),
        queue,
        partition.start,
        partition.end,
        options.scan,
        report,
        skip_expired=not options.is_loss_fatal,
    )
    if report.expired:
        _LOGGER.warning(
            "%s: %d messages were deleted before they were read; skipped, as failOnDataLoss is"
            " false",
            queue,
            report.expired,
        )
    if report.corrupt:
        _LOGGER.warning("%s: %d records do not decode", queue, report.corrupt)
