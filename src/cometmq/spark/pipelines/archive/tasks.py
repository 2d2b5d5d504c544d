"""Work lists run by the executors, one Spark task per item.

Job: `run_tasks`: a list of picklable items and a function of a module, results as plain values.
Nothing passes through a table of rows and nothing is shared but what is pickled.  It must not know
what the work is.

A CometError or OSError inside a task comes back as what it was, with its text, and is raised on
the driver: one sentence for a person.  Anything else is Spark's own error with its traceback.
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
    """``[work(item) for item in items]`` on the executors; results are what JSON can say.

    Args:
        spark: a session.
        work: a function of an importable module.
        items: picklable.
        slots: Spark tasks at most; by default one per item.

    Raises:
        CometError: the first that a task met; no other result is given then.
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
    """Runs in an executor's worker: numbers in, results as JSON out."""
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
