"""A streaming query that hands batch after batch to a function, until it is done or stopped.

Job: start it, watch it, turn its end into a value or one clear error.  It must not know what is
done with a batch.
"""

from __future__ import annotations

import contextlib
import logging
import re
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import CometError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

__all__ = ["Followed", "follow", "in_one_sentence", "spark_sentence"]

_LOOK_EVERY_S: Final = 1


@dataclass(slots=True)
class Followed:
    """What a query's own progress told."""

    batches: dict[int, int] = field(default_factory=dict)
    """Rows read by batch id."""
    dropped_late: dict[int, int] = field(default_factory=dict)
    """Rows dropped behind the watermark, by batch id."""
    observed: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Observed metrics by batch id."""
    open_groups: int = 0
    """Groups that wait in the state for their watermark."""
    interrupted: bool = False

    def look(self, query: Any) -> None:
        """Take in the progress of late."""
        for one in query.recentProgress:
            number = int(one["batchId"])
            self.batches[number] = int(one["numInputRows"])
            states = one["stateOperators"]
            self.dropped_late[number] = sum(int(s["numRowsDroppedByWatermark"]) for s in states)
            self.open_groups = sum(int(s["numRowsTotal"]) for s in states)
            for metrics in (one["observedMetrics"] or {}).values():
                values = metrics.asDict() if hasattr(metrics, "asDict") else dict(metrics)
                # A batch without data shows zeros; it must not hide those it repeats.
                if any(values.values()):
                    self.observed[number] = values


def follow(
    frame: DataFrame,
    take: Callable[[DataFrame, str, int], None],
    *,
    checkpoint: str,
    once: bool,
    every: str = "5 seconds",
    on_rows: Callable[[int], None] | None = None,
) -> Followed:
    """Call ``take(batch, stream, batch_id)`` for each batch of ``frame``.

    ``stream`` stays the same as long as the checkpoint lives, and a batch that a crash left
    undecided comes again under its old id: both together name a batch for ever.

    Args:
        checkpoint: a directory that outlives the run.
        once: read what is there now and end; otherwise go on until Ctrl-C.
        every: how often a batch may begin.
        on_rows: called about once a second with the rows read so far.

    Raises what ``take`` raised, or ConfigError with the query's own reason.
    """
    raised: list[BaseException] = []

    def guarded(batch: DataFrame, batch_id: int) -> None:
        stream = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        try:
            take(batch, str(stream), batch_id)
        except BaseException as error:
            raised.append(error)
            raise

    writer = frame.writeStream.foreachBatch(guarded).option("checkpointLocation", checkpoint)
    trigger = {"availableNow": True} if once else {"processingTime": every}
    result = Followed()
    query = writer.trigger(**trigger).start()
    try:
        while not query.awaitTermination(_LOOK_EVERY_S):
            result.look(query)
            if on_rows is not None:
                on_rows(sum(result.batches.values()))
    except KeyboardInterrupt:
        result.interrupted = True
        query.stop()
    except Exception as error:
        for one in raised:
            if isinstance(one, CometError):
                raise one from None
        cause = raised[0] if raised else error
        raise ConfigError(f"the stream ended: {spark_sentence(cause)}") from None
    result.look(query)
    if on_rows is not None:
        on_rows(sum(result.batches.values()))
    return result


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
def in_one_sentence() -> Iterator[None]:
    """Turn Spark's exceptions into a ConfigError of one line, and keep its own log of them off.

    Errors of ours pass as they are.
    """
    from pyspark.errors import PySparkException

    # py4j ships no types; what it raises is an exception of the JVM that PySpark did not know.
    jvm_error: type[Exception] = import_module("py4j.protocol").Py4JError

    # PySpark writes every refused query as a page of JSON on stderr before it raises.
    log = logging.getLogger("SQLQueryContextLogger")
    was_off, log.disabled = log.disabled, True
    try:
        yield
    except (PySparkException, jvm_error) as error:
        raise ConfigError(f"Spark could not do it: {spark_sentence(error)}") from None
    finally:
        log.disabled = was_off
