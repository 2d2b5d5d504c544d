"""A streaming query that is followed batch by batch to its end or to an interrupt."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import CometError, ConfigError
from cometmq.spark.base.reach import Reach
from cometmq.spark.pipelines.base.spark_errors import spark_sentence
from cometmq.spark.pipelines.base.watching import running_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from pyspark.sql import DataFrame

    from cometmq.spark.base.progress import RunProgress
    from cometmq.spark.base.reach import Extent
    from cometmq.spark.pipelines.base.watching import RowCounter

__all__ = ["Followed", "committed_offsets", "follow"]

_LOGGER: Final = logging.getLogger(__name__)
#: Spark 4.3 gives the process of a streaming source 10 s to connect, and no setting changes that.
#: On a busy machine it may need longer.  The query has then read nothing, so it can simply start
#: again from its checkpoint.
_NO_WORKER: Final = "Python worker failed to connect back"
_STARTS_MAX: Final = 4
_POLL_EVERY_S: Final = 0.25


@dataclass(slots=True)
class Followed:
    """What a query has reported about its progress."""

    batches: dict[int, int] = field(default_factory=dict)
    """Rows read by batch id."""
    dropped_late: dict[int, int] = field(default_factory=dict)
    """Rows dropped as later than the watermark, by batch id."""
    observed: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Observed metrics by batch id."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Next queue offset to read, by ``topic broker:queue``."""
    begins: dict[str, int] = field(default_factory=dict)
    """Offset of each queue when the run began, or when the queue first appeared."""
    latest: dict[str, int] = field(default_factory=dict)
    """Ends of the queues, as the source last reported them."""
    open_groups: int = 0
    """Groups in the state that wait for their watermark."""
    interrupted: bool = False

    def read_progress(self, query: Any) -> None:
        """Take over the query's recent progress reports."""
        for report in query.recentProgress:
            number = int(report["batchId"])
            # An idle trigger reports zeros for the last batch; they must not replace its figures.
            self.batches[number] = max(self.batches.get(number, 0), int(report["numInputRows"]))
            states = report["stateOperators"]
            dropped = sum(int(state["numRowsDroppedByWatermark"]) for state in states)
            self.dropped_late[number] = max(self.dropped_late.get(number, 0), dropped)
            self.open_groups = sum(int(state["numRowsTotal"]) for state in states)
            for source in report["sources"]:
                for name, position in _queue_offsets(source.get("startOffset")).items():
                    if name not in self.offsets:
                        self.begins.setdefault(name, position)
                self.offsets.update(_queue_offsets(source["endOffset"]))
                self.latest.update(_queue_offsets(source.get("latestOffset")))
            for metrics in (report["observedMetrics"] or {}).values():
                values = metrics.asDict() if hasattr(metrics, "asDict") else dict(metrics)
                if any(values.values()):
                    self.observed[number] = values

    def show(self, progress: RunProgress | None, counted: int = 0, tasks: str = "") -> None:
        """Update the progress line; ``counted`` includes the rows of the running batch."""
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
    """The offsets at which a stream continues, by ``topic broker:queue``, from its checkpoint.

    In Spark's layout ``commits/N`` exists once batch N is done, and ``offsets/N`` holds the ends of
    the batch: two lines of Spark, then one line per source.  The result is empty for a fresh
    stream and for a checkpoint on another file system.
    """
    folder = Path(checkpoint)
    offsets: dict[str, int] = {}
    try:
        done = max(int(path.name) for path in (folder / "commits").iterdir() if path.name.isdigit())
        for line in (folder / "offsets" / str(done)).read_text().splitlines()[2:]:
            offsets.update(_queue_offsets(line))
    except (OSError, ValueError):
        return {}
    return offsets


def _queue_offsets(text: str | None) -> dict[str, int]:
    """Offsets of our source (``{"T": {"broker-a:0": 7}}``); empty for those of other sources."""
    try:
        topics = json.loads(text or "")
        return {
            f"{topic} {queue}": int(position)
            for topic, queues in topics.items()
            for queue, position in queues.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def follow(
    frame: DataFrame,
    take: Callable[[DataFrame, str, int], None],
    *,
    checkpoint: str,
    once: bool,
    every: str = "5 seconds",
    progress: RunProgress | None = None,
    counter: RowCounter | None = None,
    extents: Sequence[Extent] = (),
) -> Followed:
    """Call ``take(batch, stream, batch_id)`` for each batch of ``frame``.

    ``stream`` stays the same as long as the checkpoint exists, and a batch that a crash left
    undecided is repeated under its old id: both together identify a batch.

    Args:
        checkpoint: a directory that outlives the run.
        once: read the messages that exist now and end.  Otherwise continue until Ctrl-C, which
            lets the running batch finish; a second Ctrl-C does not wait.
        every: the shortest time between two batches.
        progress: updated some times a second with rows and offsets.
        counter: the counter that ``take`` gives to workers, so that rows are shown within a
            batch; without it they are shown when a batch is done.
        extents: what the inputs hold, for offsets and, if all inputs have ranges, the remaining
            time.

    Raises:
        CometError: the error that ``take`` raised.
        ConfigError: the query ended for another reason, which the text gives.
    """
    taking = _Taking(take)
    trigger = {"availableNow": True} if once else {"processingTime": every}

    def start() -> Any:
        writer = frame.writeStream.foreachBatch(taking).option("checkpointLocation", checkpoint)
        return writer.trigger(**trigger).start()

    result = Followed(begins=committed_offsets(checkpoint))
    if progress is not None and any(extent.ranges for extent in extents):
        ranges = {name: ends for extent in extents for name, ends in extent.ranges.items()}
        rows = None if counter is None else partial(getattr, counter, "value")
        progress.reaches = [Reach(ranges, rows)]
        progress.total = 0 if all(extent.ranges for extent in extents) else None

    def show(query: Any) -> None:
        result.read_progress(query)
        tasks = running_tasks(frame.sparkSession) or ""
        result.show(progress, 0 if counter is None else counter.value, tasks)

    with _interrupts() as interrupted:
        number, query = 1, start()
        while True:
            try:
                result.interrupted = _watch(query, show, taking, interrupted)
                break
            except Exception as error:
                # After `close` the query may end because one more batch was refused: no fault.
                result.interrupted = taking.is_closed
                if result.interrupted:
                    break
                if taking.raised or number == _STARTS_MAX or _NO_WORKER not in str(error):
                    raise _query_error(taking.raised, error) from None
                result.read_progress(query)
                number += 1
                _LOGGER.warning(
                    "the source's process did not start within the 10 s that Spark waits for it:"
                    " the stream continues from its checkpoint, start %d of %d",
                    number,
                    _STARTS_MAX,
                )
                query = start()
    result.read_progress(query)
    result.show(progress)
    return result


def _watch(
    query: Any, show: Callable[[Any], None], taking: _Taking, interrupted: threading.Event
) -> bool:
    """Wait for the query's end; True if an interrupt stopped it between two batches."""
    is_stopped = False
    while not query.awaitTermination(_POLL_EVERY_S):
        show(query)
        if interrupted.is_set() and taking.close(_POLL_EVERY_S):
            is_stopped = True
            query.stop()
    return is_stopped


class _Taking:
    """Passes batches on, one at a time, until it is closed between two of them.

    Stopping a query during a batch cancels the batch's job, and Spark 4.3 matches the error with a
    pattern that overflows the stack of the query's thread.  So a query is only stopped between two
    batches.
    """

    def __init__(self, take: Callable[[DataFrame, str, int], None]) -> None:
        self.raised: list[BaseException] = []
        self._take = take
        self._lock = threading.Lock()
        self.is_closed = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        with self._lock:
            if self.is_closed:
                # A return would make Spark commit the batch.
                raise ConfigError("this run ends: the next one takes the batch")
            stream = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            try:
                self._take(batch, str(stream), batch_id)
            except BaseException as error:
                self.raised.append(error)
                raise

    def close(self, timeout_s: float) -> bool:
        """Refuse further batches; False if a batch still runs after the timeout."""
        if not self._lock.acquire(timeout=timeout_s):
            return False
        self.is_closed = True
        self._lock.release()
        return True


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one has the previous handler.

    PySpark's own handler cancels the running jobs and raises amid an answer of the JVM, after
    which the session can neither read the table nor make the summary.
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


def _query_error(raised: list[BaseException], error: Exception) -> CometError:
    """The reason of a query's end in one sentence; our own error unchanged."""
    for reason in raised:
        if isinstance(reason, CometError):
            return reason
    return ConfigError(f"the stream ended: {spark_sentence(raised[0] if raised else error)}")
