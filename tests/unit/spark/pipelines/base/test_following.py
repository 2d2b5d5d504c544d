"""What is read out of a query's progress and out of Spark's errors."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.spark.base.progress import RunProgress
from cometmq.spark.base.reach import Reach
from cometmq.spark.pipelines.base.following import Followed, committed_offsets
from cometmq.spark.pipelines.base.spark_errors import interruptible, spark_sentence


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
    followed.read_progress(Query(told(0, 10), told(1, 20, 3, offsets)))
    followed.read_progress(Query(told(1, 20, 3), told(1, 0), told(2, 5)))
    assert sum(followed.batches.values()) == 35
    assert sum(followed.dropped_late.values()) == 3
    assert followed.open_groups == 7
    progress = RunProgress("cdc", stream=io.StringIO())
    followed.show(progress)
    assert progress.rows == 35
    assert progress.offsets == {"T broker-a:0": 70, "T broker-a:1": 5}
    assert "2 queues, T broker-a:0 at 70" in progress.line()


def test_a_stream_tells_offsets_and_what_is_left() -> None:
    """From where the run began to the ends the source has seen; rows of a running batch count."""
    events = [
        told(3, 0, 0, '{"T": {"broker-a:0": 40}}'),
        told(4, 30, 0, '{"T": {"broker-a:0": 70, "broker-a:1": 5}}'),
    ]
    events[0]["sources"][0]["startOffset"] = '{"T": {"broker-a:0": 40}}'
    events[1]["sources"][0]["startOffset"] = '{"T": {"broker-a:0": 40}}'
    events[1]["sources"][0]["latestOffset"] = '{"T": {"broker-a:0": 140, "broker-a:1": 5}}'
    followed = Followed()
    progress = RunProgress("cdc", total=0, quiet=True)
    counted = [0]
    progress.reaches = [Reach({"T broker-a:0": (0, 90)}, lambda: counted[0])]
    followed.read_progress(Query(*events))
    followed.show(progress)
    assert (progress.rows, progress.total) == (30, 105)
    assert progress.reaches[0].text() == "offsets 35 of 105 in 2 queues of T"
    counted[0] = 80
    followed.show(progress, counted[0])
    assert progress.reaches[0].text() == "offsets 80 of 105 in 2 queues of T"
    without = RunProgress("reconcile", quiet=True)
    without.reaches = [Reach({}, None)]
    followed.show(without)
    assert without.total is None


def test_a_checkpoint_tells_where_its_stream_goes_on(tmp_path: Path) -> None:
    """Up to where its last finished batch read; a planned one is read again."""
    assert committed_offsets(str(tmp_path)) == {}
    assert committed_offsets("s3a://bucket/checkpoint") == {}
    for number, place in ((2, 70), (3, 90), (10, 110), (11, 200)):
        (tmp_path / "offsets").mkdir(exist_ok=True)
        offsets = json.dumps({"T": {"a:0": place}})
        lines = ["v1", '{"batchWatermarkMs":0}', offsets, '{"logOffset":3}']
        (tmp_path / "offsets" / str(number)).write_text("\n".join(lines))
    (tmp_path / "commits").mkdir()
    for name in ("2", "3", "10", ".11.crc"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    assert committed_offsets(str(tmp_path)) == {"T a:0": 110}


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"a": 1}', '{"logOffset": 3}'])
def test_offsets_of_other_sources_are_left_alone(text: str | None) -> None:
    """File sources and their kind have offsets of their own."""
    followed = Followed()
    followed.read_progress(Query(told(0, 1, 0, text)))
    assert followed.offsets == {}


def test_one_line_out_of_many() -> None:
    """Our own words where a worker said them, else Spark's first line."""
    worker = "PythonException: Traceback\n  File x\ncometmq.errors.NoRoute: no such topic T\n at"
    assert spark_sentence(RuntimeError(worker)) == "no such topic T"
    assert spark_sentence(RuntimeError("\n[CAST] wrong\n at org.apache")) == "[CAST] wrong"
    assert spark_sentence(RuntimeError()) == "RuntimeError()"
    py4j = (
        "An error occurred while calling o85.load.\n: org.apache.spark.SparkException: [FAILED] x\n"
        "\tat org.apache.X.f(X.scala:1)\nCaused by: java.lang.RuntimeException: a.parquet is not"
        " a Parquet file\n\t... 3 more"
    )
    assert spark_sentence(RuntimeError(py4j)) == "a.parquet is not a Parquet file"
    assert spark_sentence(RuntimeError(py4j.partition("\n\tat")[0])) == "[FAILED] x"
    assert (
        spark_sentence(RuntimeError(py4j.partition("\n")[0]))
        == "An error occurred while calling o85.load."
    )


def test_an_interrupt_is_told_as_one() -> None:
    """Whatever tidying up met after it; an error without one stays what it is."""
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            raise KeyboardInterrupt
        finally:
            raise ValueError("the answer of another call")
    with pytest.raises(ValueError, match="by itself"), interruptible():
        raise ValueError("by itself")
