"""What one Spark task reads: a range of queue offsets, or several small ranges.

The batch reader and the stream reader plan these partitions on the driver's host; `read_range`
turns one into record batches on an executor.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from cometmq.arrow.options import ScanReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.spark.live.options import LiveOptions

__all__ = ["QueueRange", "SmallRanges", "read_range"]

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """Offsets `start` up to `end` (exclusive) of one queue, for one task."""

    topic: str
    broker: str
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True)
class SmallRanges(InputPartition):
    """Ranges of several queues that one task reads one after the other."""

    ranges: tuple[QueueRange, ...]


def read_range(options: LiveOptions, partition: InputPartition) -> Iterator[Any]:
    """Record batches of a partition, on an executor.

    Raises:
        OffsetOutOfRange: messages were deleted and `failOnDataLoss` is true.
        ClientError, RemoteError: the broker does not answer in time or refuses.
    """
    if isinstance(partition, SmallRanges):
        for queue_range in partition.ranges:
            yield from read_range(options, queue_range)
    if not isinstance(partition, QueueRange):
        return
    from cometmq.arrow.live import QueueId
    from cometmq.arrow.live_span import read_span
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
