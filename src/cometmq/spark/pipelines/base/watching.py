"""Progress of a batch job: the rows that its workers count, and its finished tasks."""

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

_UPDATE_EVERY_S: Final = 0.5


class RowCounter(Protocol):
    """Counts rows in Spark's workers: PySpark's accumulator."""

    @property
    def value(self) -> int:
        """The count; only for the driver."""
        ...

    def add(self, term: int) -> None:
        """Add to the count."""
        ...


def row_counter(spark: SparkSession) -> RowCounter:
    """A counter for workers; a worker's count reaches the driver when its task ends."""
    return spark.sparkContext.accumulator(0)


def counted(frame: DataFrame, counter: RowCounter) -> DataFrame:
    """The same rows, counted by the workers; about a microsecond for a narrow row."""

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            counter.add(batch.num_rows)
            yield batch

    return frame.mapInArrow(count, frame.schema)


class _StageRows:
    """Rows that stages have read from their source, as Spark counts them.

    For jobs whose rows pass no Python worker of ours; the count costs nothing.  A later stage that
    reads rows again from a cache reads no more than the first stage.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Any = spark
        self._seen: set[int] = set()

    @property
    def value(self) -> int:
        """The rows of the stage that has read the most."""
        context = self._spark.sparkContext
        try:
            self._seen.update(context.statusTracker().getActiveStageIds())
            store = context._jsc.sc().statusStore()
            rows = [int(store.lastStageAttempt(stage).inputRecords()) for stage in self._seen]
        except Exception:
            # The session ends, or Spark has dropped a stage: the next poll knows more.
            return 0
        return max(rows, default=0)


def running_tasks(spark: SparkSession) -> str | None:
    """``3 of 8 tasks`` of the running stages, empty if none runs; None if the session has ended."""
    tracker = spark.sparkContext.statusTracker()
    try:
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    except Exception:
        # The session ended during the call.
        return None
    running = [stage for stage in stages if stage is not None]
    done = sum(stage.numCompletedTasks for stage in running)
    total = sum(stage.numTasks for stage in running)
    return f"{done} of {total} tasks" if total else ""


@contextlib.contextmanager
def watching(
    spark: SparkSession,
    progress: RunProgress,
    extents: Sequence[Extent] = (),
    *,
    by_stages: bool = False,
) -> Iterator[list[RowCounter]]:
    """Show counted rows and finished tasks every half second; yields one counter per input.

    There is at least one counter.  ``extents`` say what the inputs hold.  With ``by_stages`` the
    rows are those that Spark counts for one input.
    """
    counters = [row_counter(spark) for _ in extents] or [row_counter(spark)]
    counts: list[_StageRows | RowCounter] = [_StageRows(spark)] if by_stages else [*counters]
    progress.reaches = [
        Reach(extent.ranges, partial(getattr, count, "value"))
        for extent, count in zip(extents, counts, strict=False)
        if extent.ranges
    ]
    over = threading.Event()

    def poll() -> None:
        while not over.wait(_UPDATE_EVERY_S):
            text = running_tasks(spark)
            if text is None:
                return
            progress.update(max(progress.rows, _sum(counts)), text=text)

    thread = threading.Thread(target=poll, name="pipeline-progress", daemon=True)
    thread.start()
    try:
        yield counters
    finally:
        over.set()
        thread.join()
    progress.update(max(progress.rows, _sum(counts)))
    progress.finish()


def _sum(counts: Sequence[_StageRows | RowCounter]) -> int:
    return sum(count.value for count in counts)
