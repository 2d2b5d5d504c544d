"""The streaming half of `format("cometmq")`.

Job: offsets forward, micro-batch by micro-batch, from what the brokers say and what Spark
remembers.  It must not read messages (`live_source.read_range` does) or keep anything that Spark
does not hand back: after a restart only the checkpoint is left.

Three things shape it.  Spark does not keep a stream's first offsets until a batch is planned, so
the first batch of a fresh query is empty: an anchor that makes them durable, or a crash in it
could lose messages of a stream that began at `latest`.  An idle query asks a hundred times a
second, so answers are believed for `offsetsCacheMs`.  And when Spark asks what is new behind some
offsets, everything before them has been committed by its sink: that is when the consumer group
of `groupId` is told, which no listener has to be registered for.
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

#: Answers are believed this many times as long as it took to get them.
_PATIENCE: Final = 5
#: And the list of queues this many times as long as their ends.
_QUEUES_PATIENCE: Final = 10
#: So few rows are one task, however many queues they lie in: a task costs more than they do.
_TOGETHER_ROWS: Final = 500


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One per query, in a process of its own beside the driver; `read` runs on executors."""

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
        """Where a query without a checkpoint begins."""
        if self._first is None:
            starts = resolve_start(self._cluster(), self._options, self._bounds())
            self._first = to_json(starts)
            self._is_anchor_due = True
        return self._first

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Up to where the next micro-batch reads; `start` itself when there is nothing new."""
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
        known = from_json(start)
        # A new queue without a message would change the offsets, and so begin an empty batch.
        kept = {
            queue: end for queue, end in ends.items() if tuple(queue) in known or end > begun[queue]
        }
        following = to_json(kept)
        return start if following == start else following

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """The ends of the queues as last seen, for the query's progress."""
        return to_json({queue: high for queue, (_, high) in self._cached.items()}) or None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`."""
        rows = self._options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Freeze what is there: later messages belong to the next run."""
        self._cached_until_s = self._queues_until_s = 0.0
        self._target = dict(self._bounds())

    # -- batches ----------------------------------------------------------------------------

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """The ranges between two offsets; the same ones whenever Spark asks again."""
        is_first, self._is_anchor_due = self._is_anchor_due, False
        ends = {QueueId(*name): value for name, value in from_json(end).items()}
        known = from_json(start)
        fresh = [queue for queue in ends if tuple(queue) not in known]
        bounds = self._fresh_bounds([queue for queue in ends if known.get(queue) != ends[queue]])
        ranges = []
        for queue, last in ends.items():
            if queue in fresh:
                first = bounds[queue][0] if queue in bounds else 0
            else:
                first = known[queue.topic, queue.broker, queue.queue_id]
            if first == last:
                continue
            if first > last:
                # An anchor run again sees later ends than it wrote down; otherwise the queue is
                # not the one that was read, which latestOffset has reported.
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
        """Nothing: `latestOffset` has already told the group."""

    def stop(self) -> None:
        """Nothing: Spark ends the process."""

    def __getstate__(self) -> dict[str, Any]:
        """Executors need the options only."""
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- asking -----------------------------------------------------------------------------

    def _cluster(self) -> LiveCluster:
        return cluster_of(self._options.connection)

    def _bounds(self) -> Bounds:
        """First offset and end of each queue there is, not much older than `offsetsCacheMs`.

        Which queues there are is asked less often, and all of it is believed for longer where
        asking takes long: a pattern may match a thousand topics.
        """
        cluster = self._cluster()
        asked_at_s = cluster.now_s()
        if asked_at_s < self._cached_until_s:
            return self._cached
        if asked_at_s >= self._queues_until_s:
            self._queues = find_queues(cluster, self._options)
        found_at_s = cluster.now_s()
        try:
            self._cached = cluster.bounds(self._queues)
        except NoRoute:
            # One of them went since they were listed.
            self._queues = find_queues(cluster, self._options)
            self._cached = cluster.bounds(self._queues)
        now_s = cluster.now_s()
        believed_s = self._options.cache_ms / 1000
        if believed_s:
            self._cached_until_s = now_s + max(believed_s, _PATIENCE * (now_s - found_at_s))
            if asked_at_s >= self._queues_until_s:
                longer_s = max(_QUEUES_PATIENCE * believed_s, _PATIENCE * (found_at_s - asked_at_s))
                self._queues_until_s = now_s + longer_s
        return self._cached

    def _fresh_bounds(self, queues: list[QueueId]) -> Bounds:
        try:
            return self._cluster().bounds(queues) if queues else {}
        except NoRoute:
            if self._options.is_loss_fatal:
                raise
            there = set(find_queues(self._cluster(), self._options))
            return self._cluster().bounds([queue for queue in queues if queue in there])

    def _begun(self, start: Offsets, bounds: Bounds) -> dict[QueueId, int]:
        """Where each queue stands: those of `start`, and new ones at their first message."""
        known = from_json(start)
        begun = {QueueId(*name): value for name, value in known.items()}
        gone = [queue for queue in begun if queue not in bounds] if self._target is None else []
        if gone and self._options.is_loss_fatal:
            raise NoRoute(
                f"{gone[0]} was read up to offset {begun[gone[0]]} and is not there any more;"
                " option failOnDataLoss=false goes on without it"
            )
        for queue, (low, _) in bounds.items():
            begun.setdefault(queue, low)
        return begun

    def _checked(self, queue: QueueId, first: int, last: int, bounds: Bounds) -> int:
        """Where to begin, when retention may have been faster."""
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
        """Tell the group what Spark has finished."""
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
