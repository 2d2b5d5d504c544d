"""Long work on Spark that is watched: a streaming query batch by batch, a batch job task by task.

Job: start a query, watch it, turn its end into a value or one clear error; tell how far a batch
job is.  It must not know what is done with a batch.
"""

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
#: Spark 4.3 gives a streaming source's process 10 s to connect, which no setting changes; on a
#: machine that is busy it may need longer.  Nothing was read then, so a new start is a restart
#: from the checkpoint like any other.
_NO_WORKER: Final = "Python worker failed to connect back"
_STARTS_MAX: Final = 4
_LOOK_EVERY_S: Final = 0.25


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

    def tell(self, progress: RunProgress | None, counted: int = 0, tasks: str = "") -> None:
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
        tasks = running_tasks(frame.sparkSession) or ""
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
