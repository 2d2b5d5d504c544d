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
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cometmq.errors import CometError, ConfigError
from cometmq.spark.base.reach import Reach

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.base.progress import Progress
    from cometmq.spark.pipelines.base.extents import Extent

__all__ = [
    "Followed",
    "RowCounter",
    "committed_offsets",
    "counted",
    "follow",
    "in_one_sentence",
    "interruptible",
    "quiet_queries",
    "row_counter",
    "spark_sentence",
    "watching",
]

_LOGGER: Final = logging.getLogger(__name__)
#: Spark 4.3 gives a streaming source's process 10 s to connect, which no setting changes; on a
#: machine that is busy it may need longer.  Nothing was read then, so a new start is a restart
#: from the checkpoint like any other.
_NO_WORKER: Final = "Python worker failed to connect back"
_STARTS_MAX: Final = 4
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
    begins: dict[str, int] = field(default_factory=dict)
    """Where each queue stood when the run began; a queue that came later where it was met."""
    latest: dict[str, int] = field(default_factory=dict)
    """Ends of the queues, as the source last saw them."""
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
                for name, place in _queue_offsets(source.get("startOffset")).items():
                    if name not in self.offsets:
                        self.begins.setdefault(name, place)
                self.offsets.update(_queue_offsets(source["endOffset"]))
                self.latest.update(_queue_offsets(source.get("latestOffset")))
            for metrics in (one["observedMetrics"] or {}).values():
                values = metrics.asDict() if hasattr(metrics, "asDict") else dict(metrics)
                if any(values.values()):
                    self.observed[number] = values

    def tell(self, progress: Progress | None, counted: int = 0, tasks: str = "") -> None:
        """Rows and offsets for a person; ``counted`` rows are read, of a running batch too."""
        if progress is None:
            return
        rows = max(progress.rows, counted, sum(self.batches.values()))
        total = progress.total
        for reach in progress.reaches:
            reach.begin(self.begins)
            reach.extend(self.latest)
            reach.extend(self.offsets)
            reach.move(self.offsets)
            total = None if total is None else max(rows, reach.total)
        progress.update(rows, total=total, offsets=self.offsets, text=tasks)


def committed_offsets(checkpoint: str) -> dict[str, int]:
    """Where a stream goes on, by ``topic broker:queue``, from the checkpoint it left.

    Spark's layout: ``commits/N`` says that batch N is done, ``offsets/N`` up to where it read, one
    line per source behind two of Spark's own.  Empty for a fresh stream, and for a checkpoint on
    another file system, which nobody asks for the sake of a line of progress.
    """
    folder = Path(checkpoint)
    found: dict[str, int] = {}
    try:
        done = max(int(one.name) for one in (folder / "commits").iterdir() if one.name.isdigit())
        for line in (folder / "offsets" / str(done)).read_text().splitlines()[2:]:
            found.update(_queue_offsets(line))
    except (OSError, ValueError):
        return {}
    return found


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
def watching(
    spark: SparkSession,
    progress: Progress,
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
            text = _tasks(spark)
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


def follow(
    frame: DataFrame,
    take: Callable[[DataFrame, str, int], None],
    *,
    checkpoint: str,
    once: bool,
    every: str = "5 seconds",
    progress: Progress | None = None,
    counter: RowCounter | None = None,
    extents: Sequence[Extent] = (),
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
        extents: what the inputs hold, for offsets and, when all of them have some, time left.

    Raises what ``take`` raised, or ConfigError with the query's own reason.
    """
    taking = _Taking(take)
    trigger = {"availableNow": True} if once else {"processingTime": every}

    def start() -> Any:
        writer = frame.writeStream.foreachBatch(taking).option("checkpointLocation", checkpoint)
        return writer.trigger(**trigger).start()

    result = Followed(begins=committed_offsets(checkpoint))
    if progress is not None and any(one.ranges for one in extents):
        ranges = {name: ends for one in extents for name, ends in one.ranges.items()}
        rows = None if counter is None else partial(getattr, counter, "value")
        progress.reaches = [Reach(ranges, rows)]
        progress.total = 0 if all(one.ranges for one in extents) else None

    def tell(query: Any) -> None:
        result.look(query)
        tasks = _tasks(frame.sparkSession) or ""
        result.tell(progress, 0 if counter is None else counter.value, tasks)

    with _interrupts() as interrupted:
        number, query = 1, start()
        while True:
            try:
                result.interrupted = _watch(query, tell, taking, interrupted)
                break
            except Exception as error:
                # What was closed may have ended by the refusal of one more batch: no fault.
                result.interrupted = taking.is_closed
                if result.interrupted:
                    break
                if taking.raised or number == _STARTS_MAX or _NO_WORKER not in str(error):
                    raise _as_told(taking.raised, error) from None
                result.look(query)
                number += 1
                _LOGGER.warning(
                    "the source's process did not start within the 10 s that Spark waits for it:"
                    " the stream goes on from its checkpoint, start %d of %d",
                    number,
                    _STARTS_MAX,
                )
                query = start()
    result.look(query)
    result.tell(progress)
    return result


def _watch(
    query: Any, tell: Callable[[Any], None], taking: _Taking, interrupted: threading.Event
) -> bool:
    """Until the query ends by itself, or by an interrupt between two batches: then True."""
    is_stopped = False
    while not query.awaitTermination(_LOOK_EVERY_S):
        tell(query)
        if interrupted.is_set() and taking.close(_LOOK_EVERY_S):
            is_stopped = True
            query.stop()
    return is_stopped


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
        self.is_closed = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._lock:
            if self.is_closed:
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
        self.is_closed = True
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
    if not lines:
        return repr(error)
    if not lines[0].startswith("An error occurred while calling"):
        return lines[0]
    # The words of py4j alone: what was thrown follows, and behind all of its frames what caused it.
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    if not causes:
        return lines[0]
    return _JAVA_NAME.sub("", causes[-1].removeprefix("Caused by").removeprefix(": "))


_JAVA_NAME: Final = re.compile(r"^(?:[a-z][\w]*\.)+[A-Z][\w.$]*: ")


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
        sentence = spark_sentence(error)
        is_ours = "cometmq.errors." in str(error)
        raise ConfigError(sentence if is_ours else f"Spark could not do it: {sentence}") from None
