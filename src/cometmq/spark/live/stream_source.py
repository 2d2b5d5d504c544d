"""The stream reader of `format("cometmq")`: moves offsets forward, micro-batch by micro-batch.

It keeps no state that must survive: after a restart Spark returns only the offsets of the
checkpoint.

Spark does not save a stream's first offsets before it has planned a batch.  So the first batch of
a fresh query is an empty anchor that saves them; without it a crash in the first batch could lose
messages of a stream that began at `latest`.

An idle query asks for the latest offsets a hundred times a second, so they are cached for
`offsetsCacheMs`.

When Spark asks for messages after some offsets, its sink has committed everything before them.
At this moment the reader commits them to the consumer group of `groupId`; no listener is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cometmq.arrow.live import LiveCluster, QueueId
from cometmq.errors import NoRoute
from cometmq.spark.live.queue_offsets import Offsets, from_json, limited, split, to_json
from cometmq.spark.live.queues import (
    Bounds,
    cluster_of,
    find_queues,
    mirror,
    report_loss,
    resolve_start,
)
from cometmq.spark.live.ranges import QueueRange, SmallRanges, read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cometmq.spark.live.options import LiveOptions

__all__ = ["LiveStreamReader"]

#: Answers are cached at least this many times as long as it took to get them.
_PATIENCE: Final = 5
#: The list of queues is cached this many times as long as their ends.
_QUEUES_PATIENCE: Final = 10
#: At most this many rows are one task, from however many queues: a task costs more than they do.
_TOGETHER_ROWS: Final = 500


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in a separate process beside the driver; `read` runs on executors."""

    def __init__(self, options: LiveOptions) -> None:
        self._options = options
        self._first: Offsets | None = None
        self._is_anchor_due = False
        self._cached: Bounds = {}
        self._cached_until_s = 0.0
        self._queues: list[QueueId] = []
        self._queues_until_s = 0.0
        self._target: Bounds | None = None
        self._mirrored: dict[tuple[str, str, int], int] = {}

    # -- offsets ----------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """The first offsets of a query without a checkpoint.

        Raises:
            NoRoute, OffsetOutOfRange, ClientError, RemoteError: see `resolve_start`.
        """
        if self._first is None:
            starts = resolve_start(self._cluster(), self._options, self._bounds())
            self._first = to_json(starts)
            self._is_anchor_due = True
        return self._first

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """The end of the next micro-batch; `start` itself when there is nothing new.

        Raises:
            NoRoute: a queue no longer exists and `failOnDataLoss` is true.
            OffsetOutOfRange: messages were lost and `failOnDataLoss` is true.
        """
        self._mirror(start)
        if self._is_anchor_due:
            return start
        bounds = self._bounds() if self._target is None else self._target
        begun = self._begun(start, bounds)
        ends = dict(begun)
        for queue, (low, high) in bounds.items():
            if begun[queue] > high:
                report_loss(self._options, queue, begun[queue], high)
            begun[queue] = min(max(begun[queue], low), high)
            ends[queue] = high
        if isinstance(limit, ReadMaxRows):
            ends = limited(begun, ends, limit.max_rows)
        started = from_json(start)
        # A new queue without a message would change the offsets and so cause an empty batch.
        moved = {
            queue: end
            for queue, end in ends.items()
            if tuple(queue) in started or end > begun[queue]
        }
        following = to_json(moved)
        return start if following == start else following

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """The last known ends of the queues, for the query's progress."""
        return to_json({queue: high for queue, (_, high) in self._cached.items()}) or None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`."""
        rows = self._options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Freeze the ends of the queues: later messages belong to the next run."""
        self._cached_until_s = self._queues_until_s = 0.0
        self._target = dict(self._bounds())

    # -- batches ----------------------------------------------------------------------------

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The ranges between two offsets; the same whenever Spark asks again.

        Raises:
            NoRoute, OffsetOutOfRange: messages were lost and `failOnDataLoss` is true.
        """
        is_first, self._is_anchor_due = self._is_anchor_due, False
        ends = {QueueId(*name): value for name, value in from_json(end).items()}
        starts = from_json(start)
        fresh = [queue for queue in ends if tuple(queue) not in starts]
        bounds = self._fresh_bounds([queue for queue in ends if starts.get(queue) != ends[queue]])
        ranges = []
        for queue, last in ends.items():
            if queue in fresh:
                first = bounds[queue][0] if queue in bounds else 0
            else:
                first = starts[queue.topic, queue.broker, queue.queue_id]
            if first == last:
                continue
            if first > last:
                # A repeated anchor sees later ends than it saved.  Otherwise the queue is not the
                # one that was read before, and latestOffset has reported that.
                if not is_first:
                    report_loss(self._options, queue, first, last)
                continue
            ranges.append((queue, self._checked(queue, first, last, bounds), last))
        parts = [
            QueueRange(*queue, first, last)
            for queue, first, last in split(ranges, self._options.parts_min)
        ]
        count = sum(part.end - part.start for part in parts)
        if self._options.parts_min is None and len(parts) > 1 and count <= _TOGETHER_ROWS:
            return [SmallRanges(tuple(parts))]
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Record batches of one partition."""
        return read_range(self._options, partition)

    def commit(self, end: Offsets) -> None:
        """Do nothing: `latestOffset` commits to the group."""

    def stop(self) -> None:
        """Do nothing: Spark ends the process."""

    def __getstate__(self) -> dict[str, Any]:
        """The options are all that executors need."""
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- requests -----------------------------------------------------------------------------

    def _cluster(self) -> LiveCluster:
        return cluster_of(self._options.connection)

    def _bounds(self) -> Bounds:
        """First offset and end of each queue, not much older than `offsetsCacheMs`.

        The list of queues is refreshed less often, and everything is cached longer where requests
        take long: a pattern may match a thousand topics.
        """
        cluster = self._cluster()
        asked_at_s = cluster.now_s()
        if asked_at_s < self._cached_until_s:
            return self._cached
        if asked_at_s >= self._queues_until_s:
            self._queues = find_queues(cluster, self._options)
        listed_at_s = cluster.now_s()
        try:
            self._cached = cluster.bounds(self._queues)
        except NoRoute:
            # A queue was deleted after it was listed.
            self._queues = find_queues(cluster, self._options)
            self._cached = cluster.bounds(self._queues)
        now_s = cluster.now_s()
        cached_s = self._options.cache_ms / 1000
        if cached_s:
            self._cached_until_s = now_s + max(cached_s, _PATIENCE * (now_s - listed_at_s))
            if asked_at_s >= self._queues_until_s:
                longer_s = max(_QUEUES_PATIENCE * cached_s, _PATIENCE * (listed_at_s - asked_at_s))
                self._queues_until_s = now_s + longer_s
        return self._cached

    def _fresh_bounds(self, queues: list[QueueId]) -> Bounds:
        try:
            return self._cluster().bounds(queues) if queues else {}
        except NoRoute:
            if self._options.is_loss_fatal:
                raise
            existing = set(find_queues(self._cluster(), self._options))
            return self._cluster().bounds([queue for queue in queues if queue in existing])

    def _begun(self, start: Offsets, bounds: Bounds) -> dict[QueueId, int]:
        """The position of each queue: from `start`; of a new queue its first message."""
        begun = {QueueId(*name): value for name, value in from_json(start).items()}
        missing = [queue for queue in begun if queue not in bounds] if self._target is None else []
        if missing and self._options.is_loss_fatal:
            raise NoRoute(
                f"{missing[0]} was read up to offset {begun[missing[0]]} and no longer exists;"
                " option failOnDataLoss=false goes on without it"
            )
        for queue, (low, _) in bounds.items():
            begun.setdefault(queue, low)
        return begun

    def _checked(self, queue: QueueId, first: int, last: int, bounds: Bounds) -> int:
        """The first offset of a range that still exists; reports deleted messages."""
        if queue not in bounds:
            report_loss(self._options, queue, first, last)
            return last
        low, high = bounds[queue]
        if last > high:
            report_loss(self._options, queue, last, high)
            return last
        if first < low:
            report_loss(self._options, queue, first, min(low, last))
            return min(low, last)
        return first

    def _mirror(self, done: Offsets) -> None:
        """Commit to the group the offsets that Spark has finished."""
        group = self._options.group
        if group is None:
            return
        offsets = from_json(done)
        moved = {
            QueueId(*name): value
            for name, value in offsets.items()
            if self._mirrored.get(name) != value
        }
        if moved:
            mirror(self._cluster(), group, moved)
            self._mirrored.update(offsets)
