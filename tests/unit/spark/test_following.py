"""What is read out of a query's progress and out of Spark's errors."""

from __future__ import annotations

import io
from typing import Any

import pytest

from cometmq.spark.pipelines.following import Followed, interruptible, spark_sentence
from cometmq.spark.progress import Progress


class Query:
    """A query with this progress, as PySpark hands it out."""

    def __init__(self, *progress: dict[str, Any]) -> None:
        self.recentProgress = progress


def told(batch: int, rows: int, dropped: int = 0, offset_text: str | None = None) -> dict[str, Any]:
    """One progress event."""
    state = {"numRowsDroppedByWatermark": dropped, "numRowsTotal": 7}
    return {
        "batchId": batch,
        "numInputRows": rows,
        "stateOperators": [state],
        "sources": [{"endOffset": offset_text}],
        "observedMetrics": {},
    }


def test_progress_adds_up_and_an_idle_look_changes_nothing() -> None:
    """Seen twice it counts once; zeros of an idle trigger do not hide what the batch did."""
    followed = Followed()
    offsets = '{"T": {"broker-a:0": 70, "broker-a:1": 5}}'
    followed.look(Query(told(0, 10), told(1, 20, 3, offsets)))
    followed.look(Query(told(1, 20, 3), told(1, 0), told(2, 5)))
    assert sum(followed.batches.values()) == 35
    assert sum(followed.dropped_late.values()) == 3
    assert followed.open_groups == 7
    progress = Progress("cdc", stream=io.StringIO())
    followed.tell(progress)
    assert progress.rows == 35
    assert progress.offsets == {"T broker-a:0": 70, "T broker-a:1": 5}
    assert "2 queues, T broker-a:0 at 70" in progress.line()


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"a": 1}', '{"logOffset": 3}'])
def test_offsets_of_other_sources_are_left_alone(text: str | None) -> None:
    """File sources and their kind have offsets of their own."""
    followed = Followed()
    followed.look(Query(told(0, 1, 0, text)))
    assert followed.offsets == {}


def test_one_line_out_of_many() -> None:
    """Our own words where a worker said them, else Spark's first line."""
    worker = "PythonException: Traceback\n  File x\ncometmq.errors.NoRoute: no such topic T\n at"
    assert spark_sentence(RuntimeError(worker)) == "no such topic T"
    assert spark_sentence(RuntimeError("\n[CAST] wrong\n at org.apache")) == "[CAST] wrong"
    assert spark_sentence(RuntimeError()) == "RuntimeError()"


def test_an_interrupt_is_told_as_one() -> None:
    """Whatever tidying up met after it; an error without one stays what it is."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            raise KeyboardInterrupt
        finally:
            raise ValueError("the answer of another call")
    with pytest.raises(ValueError, match="by itself"), interruptible():
        raise ValueError("by itself")
