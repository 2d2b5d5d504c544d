"""What a pipeline needs of a Spark session, run in this process: the work without the JVM.

`run_tasks` asks a session for a range of numbers and a function over Arrow batches; that is all
there is here.  The same pipelines run on real Spark in tests/spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa


class LocalSpark:
    """`range(...).mapInArrow(...).collect()` in a loop."""

    defaultParallelism = 2  # noqa: N815 - Spark's name

    @property
    def sparkContext(self) -> LocalSpark:  # noqa: N802 - Spark's name
        """Itself."""
        return self

    def range(self, start: int, end: int, step: int, parts: int) -> _Numbers:
        """Numbers, one partition each."""
        assert (step, parts) == (1, end - start)
        return _Numbers(list(range(start, end)))


class _Numbers:
    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers
        self._work: Callable[[Iterator[Any]], Iterator[Any]] | None = None

    def mapInArrow(  # noqa: N802 - Spark's name
        self, work: Callable[[Iterator[Any]], Iterator[Any]], schema: str
    ) -> _Numbers:
        """Remember the work; the schema is what `run_tasks` writes."""
        assert schema == "id long, result string"
        self._work = work
        return self

    def collect(self) -> list[dict[str, Any]]:
        """Do it, one partition after the other."""
        assert self._work is not None
        rows: list[dict[str, Any]] = []
        for number in self._numbers:
            batch = pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], names=["id"])
            for answer in self._work(iter([batch])):
                rows += answer.to_pylist()
        return rows
