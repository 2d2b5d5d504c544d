"""Long work on Spark that is watched: a streaming query batch by batch, a batch job task by task.

Job: start a query, watch it, turn its end into a value or one clear error; tell how far a batch
job is.  It must not know what is done with a batch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import threading
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.errors import CometError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.progress import Progress

__all__ = [
    "Followed",
    "RowCounter",
    "counted",
    "follow",
    "in_one_sentence",
    "interruptible",
    "quiet_queries",
    "row_counter",
    "spark_sentence",
    "watching",
]

_QUERY_LOGS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_LOOK_EVERY_S: Final = 0.25
_TELL_EVERY_S: Final = 0.5


@dataclass(slots=True)
class Followed:
    """What a query's own progress told."""

    batches: dict[int, int] = field(default_factory=dict)
    """Rows read by batch id."""
    dropped_late: dict[int, int] = field(default_factory=dict)
    """Rows dropped behind the watermark, by batch id."""
    observed: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Observed metrics by batch id."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Next queue offset to read, by ``topic broker:queue``."""
    open_groups: int = 0
    """Groups that wait in the state for their watermark."""
    interrupted: bool = False

    def look(self, query: Any) -> None:
        """Take in the progress of late."""
        for one in query.recentProgress:
            number = int(one["batchId"])
            # An idle look at a batch tells zeros; they must not replace what it did.
            self.batches[number] = max(self.batches.get(number, 0), int(one["numInputRows"]))
            states = one["stateOperators"]
            dropped = sum(int(state["numRowsDroppedByWatermark"]) for state in states)
            self.dropped_late[number] = max(self.dropped_late.get(number, 0), dropped)
            self.open_groups = sum(int(state["numRowsTotal"]) for state in states)
            for source in one["sources"]:
                self.offsets.update(_queue_offsets(source["endOffset"]))
            for metrics in (one["observedMetrics"] or {}).values():
                values = metrics.asDict() if hasattr(metrics, "asDict") else dict(metrics)
                if any(values.values()):
                    self.observed[number] = values

    def tell(self, progress: Progress | None, counted: int = 0, tasks: str = "") -> None:
        """Rows and offsets for a person; ``counted`` rows are read, of a running batch too."""
        if progress is not None:
            rows = max(progress.rows, counted, sum(self.batches.values()))
            progress.update(rows, offsets=self.offsets, text=tasks)


def _queue_offsets(text: str | None) -> dict[str, int]:
    """Of our source's ``{"T": {"broker-a:0": 7}}``; nothing of other sources' offsets."""
    try:
        topics = json.loads(text or "")
        return {
            f"{topic} {queue}": int(place)
            for topic, queues in topics.items()
            for queue, place in queues.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


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


def _tasks(spark: SparkSession) -> str | None:
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
def watching(spark: SparkSession, progress: Progress) -> Iterator[RowCounter]:
    """Tell every half second what the counter that comes out has counted, and the tasks done.

    A worker's count arrives when its task ends.
    """
    counter = row_counter(spark)
    over = threading.Event()

    def look() -> None:
        while not over.wait(_TELL_EVERY_S):
            text = _tasks(spark)
            if text is None:
                return
            progress.update(max(progress.rows, counter.value), text=text)

    thread = threading.Thread(target=look, name="pipeline-progress", daemon=True)
    thread.start()
    try:
        yield counter
    finally:
        over.set()
        thread.join()


def follow(
    frame: DataFrame,
    take: Callable[[DataFrame, str, int], None],
    *,
    checkpoint: str,
    once: bool,
    every: str = "5 seconds",
    progress: Progress | None = None,
    counter: RowCounter | None = None,
) -> Followed:
    """Call ``take(batch, stream, batch_id)`` for each batch of ``frame``.

    ``stream`` stays the same as long as the checkpoint lives, and a batch that a crash left
    undecided comes again under its old id: both together name a batch for ever.

    Args:
        checkpoint: a directory that outlives the run.
        once: read what is there now and end; otherwise go on until Ctrl-C, which lets a batch
            that runs finish; a second one does not wait.
        every: how often a batch may begin.
        progress: told some times a second how many rows were read, and up to where.
        counter: what ``take`` lets workers count, so that rows move within a batch; without it
            they move when a batch is done, which may be the only one.

    Raises what ``take`` raised, or ConfigError with the query's own reason.
    """
    taking = _Taking(take)
    writer = frame.writeStream.foreachBatch(taking).option("checkpointLocation", checkpoint)
    trigger = {"availableNow": True} if once else {"processingTime": every}
    result = Followed()

    def tell() -> None:
        result.look(query)
        tasks = _tasks(frame.sparkSession) or ""
        result.tell(progress, 0 if counter is None else counter.value, tasks)

    with _interrupts() as interrupted:
        query: Any = writer.trigger(**trigger).start()
        try:
            while not query.awaitTermination(_LOOK_EVERY_S):
                tell()
                if interrupted.is_set() and taking.close(_LOOK_EVERY_S):
                    result.interrupted = True
                    query.stop()
        except Exception as error:
            # Closed, it may have ended by the refusal of one more batch: that is no fault.
            if not result.interrupted:
                raise _as_told(taking.raised, error) from None
    result.look(query)
    result.tell(progress)
    return result


class _Taking:
    """Hands batches on, one at a time, until it is closed between two of them.

    A job that is cancelled fails its batch, and Spark 4.3 looks at that error with a pattern that
    overflows the stack of the query's thread, on a thousand lines.  So a query is not stopped
    while one runs.
    """

    def __init__(self, take: Callable[[DataFrame, str, int], None]) -> None:
        self.raised: list[BaseException] = []
        self._take = take
        self._lock = threading.Lock()
        self._is_closed = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._lock:
            if self._is_closed:
                # Returning would let Spark note the batch as done.
                raise ConfigError("this run ends: the batch is left to the next one")
            stream = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            try:
                self._take(batch, str(stream), batch_id)
            except BaseException as error:
                self.raised.append(error)
                raise

    def close(self, timeout_s: float) -> bool:
        """Take no more batches; False when one still runs after the time."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        self._is_closed = True
        self._lock.release()
        return True


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one does what it did before.

    PySpark's own handler cancels the running jobs and raises in the middle of an answer of the
    JVM, after which neither the table nor the summary can be asked for.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _as_told(raised: list[BaseException], error: Exception) -> CometError:
    """What ended a query, in one sentence; an error of ours as it is."""
    for one in raised:
        if isinstance(one, CometError):
            return one
    return ConfigError(f"the stream ended: {spark_sentence(raised[0] if raised else error)}")


def spark_sentence(error: BaseException) -> str:
    """The one line out of Spark's many that says what is wrong."""
    text = str(error)
    # An error of ours that crossed a worker: its own words stand behind the class's name.
    ours = re.search(r"cometmq\.errors\.\w+: (.+)", text)
    if ours is not None:
        return ours[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else repr(error)


@contextlib.contextmanager
def quiet_queries() -> Iterator[None]:
    """Keep PySpark from writing a refused query as a page of JSON on stderr before it raises."""
    from pyspark.logger import PySparkLogger

    # Made by PySpark's own hand: an ordinary logger of that name would not take its arguments.
    logs: list[logging.Logger] = [PySparkLogger.getLogger(name) for name in _QUERY_LOGS]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was_disabled in zip(logs, before, strict=True):
            log.disabled = was_disabled


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let a Ctrl-C be one: not the error that tidying up met after it.

    The interrupt ends a call of the JVM in the middle, and whatever is called then, on the way
    out, gets an answer that is not its own.
    """
    try:
        yield
    except Exception as error:
        before: BaseException | None = error
        while before is not None:
            if isinstance(before, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            before = before.__context__
        raise


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Turn Spark's exceptions into a ConfigError of one line; errors of ours pass as they are."""
    from pyspark.errors import PySparkException

    # py4j ships no types; what it raises is an exception of the JVM that PySpark did not know.
    jvm_error: type[Exception] = import_module("py4j.protocol").Py4JError
    try:
        with interruptible(), quiet_queries():
            yield
    except (PySparkException, jvm_error) as error:
        raise ConfigError(f"Spark could not do it: {spark_sentence(error)}") from None
