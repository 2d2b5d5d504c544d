"""A list of work items run by the executors, one Spark task per item.

A CometError or OSError inside a task is raised on the driver with its text.  Any other exception
becomes Spark's error with a traceback.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import cometmq.errors
from cometmq.errors import CometError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["run_tasks"]


def run_tasks(
    spark: Any, work: Callable[[Any], Any], items: Sequence[Any], *, slots: int | None = None
) -> list[Any]:
    """``[work(item) for item in items]`` on the executors; results must be JSON values.

    Args:
        spark: a session.
        work: a function of an importable module.
        items: picklable.
        slots: the most Spark tasks; default one per item.

    Raises:
        CometError: the first error of a task; the other results are lost.
    """
    if not items:
        return []
    count = min(len(items), slots or len(items))
    numbers = spark.range(0, len(items), 1, count)
    rows = numbers.mapInArrow(partial(_run, work, list(items)), "id long, result string").collect()
    answers = {row["id"]: json.loads(row["result"]) for row in rows}
    for number in range(len(items)):
        _raise_if_failed(answers[number])
    return [answers[number]["value"] for number in range(len(items))]


def _run(work: Callable[[Any], Any], items: Sequence[Any], batches: Iterator[Any]) -> Iterator[Any]:
    """Run items by number in an executor's worker; results are JSON texts."""
    import pyarrow as pa

    for batch in batches:
        for number in batch.column(0).to_pylist():
            answer = json.dumps(_answer(work, items[number]))
            yield pa.RecordBatch.from_arrays(
                [pa.array([number], pa.int64()), pa.array([answer], pa.string())],
                names=["id", "result"],
            )


def _answer(work: Callable[[Any], Any], item: Any) -> dict[str, Any]:
    try:
        return {"value": work(item)}
    except (CometError, OSError) as error:
        return {"error": type(error).__name__, "text": str(error)}


def _raise_if_failed(answer: dict[str, Any]) -> None:
    if "error" not in answer:
        return
    kind = getattr(cometmq.errors, answer["error"], None)
    if not isinstance(kind, type) or not issubclass(kind, CometError):
        raise StoreError(answer["text"])  # an OSError: the disk
    if issubclass(kind, cometmq.errors.RemoteError):
        raise CometError(answer["text"])  # made of a code, not of a sentence
    raise kind(answer["text"])
