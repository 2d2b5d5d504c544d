"""How far a run is in its inputs, in queue offsets.

Job: ranges of queue offsets by topic and queue, how much of them is passed, and both in words.  It
must not know Spark or ask a broker.

A batch job is told by the rows its workers have read: each row of a topic, a store or an archive is
one offset.  A stream and a replay are told by the next offset of each queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Extent", "Ranges", "Reach"]

Ranges = dict[str, tuple[int, int]]
"""``Orders broker-a:0`` to the first queue offset and the one behind the last."""
_TOPICS_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Extent:
    """What an input holds."""

    rows: int | None = None
    """None where nobody can tell quickly."""
    ranges: Ranges = field(default_factory=dict)
    """By queue; empty for inputs without offsets (Parquet, JSON, Delta, JDBC)."""


class Reach:
    """The ranges of one input and how much of them is passed.

    Args:
        ranges: what is read, as far as it is known; `extend` adds to it.
        rows: how many rows were read so far; None where `move` tells positions.
    """

    __slots__ = ("_at", "_is_over", "_ranges", "rows")

    def __init__(self, ranges: Mapping[str, tuple[int, int]], rows: Callable[[], int] | None):
        self._ranges: Ranges = dict(ranges)
        self._at: dict[str, int] = {}
        self._is_over = False
        self.rows = rows

    @property
    def total(self) -> int:
        """Offsets in all ranges."""
        return sum(end - begin for begin, end in self._ranges.values())

    @property
    def passed(self) -> int:
        """Offsets that lie behind."""
        if self._is_over:
            return self.total
        moved = 0
        for name, at in self._at.items():
            begin, end = self._ranges.get(name, (at, at))
            moved += min(max(at, begin), end) - begin
        return min(self.total, max(moved, 0 if self.rows is None else self.rows()))

    def include(self, name: str, begin: int, end: int) -> None:
        """A queue is read between two offsets, beside what is known of it."""
        before = self._ranges.get(name, (begin, end))
        self._ranges[name] = (min(begin, before[0]), max(end, before[1]))

    def begin(self, starts: Mapping[str, int]) -> None:
        """A run goes on from here in each queue; what lies before is no part of it."""
        for name, start in starts.items():
            _, end = self._ranges.get(name, (start, start))
            self._ranges[name] = (start, max(start, end))

    def extend(self, ends: Mapping[str, int]) -> None:
        """Queues have grown; one that is new begins at 0."""
        for name, end in ends.items():
            begin, before = self._ranges.get(name, (0, 0))
            self._ranges[name] = (begin, max(before, end))

    def move(self, positions: Mapping[str, int]) -> None:
        """Next offset to read by queue; a position before a range is its begin."""
        self._at.update(positions)

    def finish(self) -> None:
        """Everything was read, also where an offset had no row (expired, corrupt, filtered)."""
        self._is_over = True

    def text(self) -> str:
        """``offsets 1,200 of 4,000 in 8 queues of Orders``; empty without a queue."""
        if not self._ranges:
            return ""
        topics = sorted({_topic(name) for name in self._ranges})
        where = topics[0] if len(topics) == 1 else f"{len(topics)} topics"
        return (
            f"offsets {self.passed:,} of {self.total:,} in {_queues(len(self._ranges))} of {where}"
        )

    def by_topic(self) -> list[str]:
        """``Orders: 1,200 of 4,000 in 8 queues``, a line per topic; a few of many.

        Where only rows are known they are of all topics: then one line for all of them.
        """
        topics: dict[str, list[str]] = {}
        for name in self._ranges:
            topics.setdefault(_topic(name), []).append(name)
        if len(topics) > 1 and self.rows is not None and not self._is_over:
            text = self.text().removeprefix("offsets ")
            return [text]
        told = []
        for topic, names in sorted(topics.items())[:_TOPICS_TOLD]:
            part = Reach({name: self._ranges[name] for name in names}, self.rows)
            part._at = {name: at for name, at in self._at.items() if name in names}
            part._is_over = self._is_over
            told.append(f"{topic}: {part.passed:,} of {part.total:,} in {_queues(len(names))}")
        if len(topics) > _TOPICS_TOLD:
            told.append(f"and {len(topics) - _TOPICS_TOLD} topics more")
        return told


def _topic(name: str) -> str:
    return name.rpartition(" ")[0]


def _queues(count: int) -> str:
    return "1 queue" if count == 1 else f"{count:,} queues"
