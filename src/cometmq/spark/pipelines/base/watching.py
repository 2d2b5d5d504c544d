"""Progress of a batch job: rows that its workers have counted, and finished tasks."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.spark.base.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.base.reach import Extent

__all__ = ["RowCounter", "counted", "row_counter", "running_tasks", "watching"]

_TELL_EVERY_S: Final = 0.5


class RowCounter(Protocol):
    """Counts rows in Spark's workers: PySpark's accumulator."""

    @property
    def value(self) -> int:
        """What has been counted; asked on the driver only."""
        ...

    def add(self, term: int) -> None:
        """So many more."""
        ...


def row_counter(spark: SparkSession) -> RowCounter:
    """A counter for workers to add to; a worker's count arrives when its task ends."""
    return spark.sparkContext.accumulator(0)


def counted(frame: DataFrame, counter: RowCounter) -> DataFrame:
    """The same rows, counted as workers pass them on: about a microsecond for a narrow one."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    return frame.mapInArrow(count, frame.schema)


class _StageRows:
    """Rows that stages have read from their source, as Spark itself counts them.

    For work whose rows pass no worker of ours: it costs them nothing.  What a later stage reads
    again, from a cache, is not more than the first has read.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self._seen: set[int] = set()

    @property
    def value(self) -> int:
        """Of the stage that has read most."""
        context = self._spark.sparkContext
        try:
            self._seen.update(context.statusTracker().getActiveStageIds())
            store = context._jsc.sc().statusStore()
            rows = [int(store.lastStageAttempt(one).inputRecords()) for one in self._seen]
        except Exception:
            # The session ends, or a stage has left the store: the next look tells more.
            return 0
        return max(rows, default=0)


def running_tasks(spark: SparkSession) -> str | None:
    """``3 of 8 tasks`` of what runs now, empty when nothing does; None when the session is gone."""
    tracker = spark.sparkContext.statusTracker()
    try:
        stages = [tracker.getStageInfo(one) for one in tracker.getActiveStageIds()]
    except Exception:
        # The session ends while we look: there is nothing left to tell.
        return None
    known = [one for one in stages if one is not None]
    done = sum(one.numCompletedTasks for one in known)
    total = sum(one.numTasks for one in known)
    return f"{done} of {total} tasks" if total else ""


@contextlib.contextmanager
def watching(
    spark: SparkSession,
    progress: RunProgress,
    extents: Sequence[Extent] = (),
    *,
    by_stages: bool = False,
) -> Iterator[list[RowCounter]]:
    """Tell every half second what the counters that come out have counted, and the tasks done.

    One counter per input, one at least; ``extents`` say what the inputs hold.  A worker's count
    arrives when its task ends.  With ``by_stages`` Spark's own count of one input's rows is told.
    """
    counters = [row_counter(spark) for _ in extents] or [row_counter(spark)]
    counts: list[_StageRows | RowCounter] = [_StageRows(spark)] if by_stages else [*counters]
    progress.reaches = [
        Reach(extent.ranges, partial(getattr, count, "value"))
        for extent, count in zip(extents, counts, strict=False)
        if extent.ranges
    ]
    over = threading.Event()

    def look() -> None:
        while not over.wait(_TELL_EVERY_S):
            text = running_tasks(spark)
            if text is None:
                return
            progress.update(max(progress.rows, _sum(counts)), text=text)

    thread = threading.Thread(target=look, name="pipeline-progress", daemon=True)
    thread.start()
    try:
        yield counters
    finally:
        over.set()
        thread.join()
    progress.update(max(progress.rows, _sum(counts)))
    progress.finish()


def _sum(counts: Sequence[_StageRows | RowCounter]) -> int:
    return sum(one.value for one in counts)
