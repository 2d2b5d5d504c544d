"""How far a run is in its inputs, in queue offsets.

A batch job reports the rows that its workers have read: each row of a topic, a store or an archive
is one offset.  A stream and a replay report the next offset of each queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Extent", "Ranges", "Reach"]

Ranges = dict[str, tuple[int, int]]
"""``Orders broker-a:0`` to the first queue offset and the offset after the last."""
_TOPICS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Extent:
    """How much an input holds."""

    rows: int | None = None
    """None where a count would take long."""
    ranges: Ranges = field(default_factory=dict)
    """By queue; empty for inputs without offsets (Parquet, JSON, Delta, JDBC)."""


class Reach:
    """The ranges of one input, and how many of their offsets the run has passed.

    Args:
        ranges: the ranges to read, as far as they are known; `extend` adds to them.
        rows: returns the rows read so far; None where `move` sets positions.
    """

    def __init__(self, ranges: Mapping[str, tuple[int, int]], rows: Callable[[], int] | None):
        self._ranges: Ranges = dict(ranges)
        self._at: dict[str, int] = {}
        self._is_over = False
        self.rows = rows

    @property
    def total(self) -> int:
        """The number of offsets in all ranges."""
        return sum(end - begin for begin, end in self._ranges.values())

    @property
    def passed(self) -> int:
        """The number of offsets already read."""
        if self._is_over:
            return self.total
        moved = 0
        for name, at in self._at.items():
            begin, end = self._ranges.get(name, (at, at))
            moved += min(max(at, begin), end) - begin
        return min(self.total, max(moved, 0 if self.rows is None else self.rows()))

    def include(self, name: str, begin: int, end: int) -> None:
        """Widen a queue's range to include these offsets."""
        before = self._ranges.get(name, (begin, end))
        self._ranges[name] = (min(begin, before[0]), max(end, before[1]))

    def begin(self, starts: Mapping[str, int]) -> None:
        """Set where the run begins in each queue; earlier offsets do not count."""
        for name, start in starts.items():
            _, end = self._ranges.get(name, (start, start))
            self._ranges[name] = (start, max(start, end))

    def extend(self, ends: Mapping[str, int]) -> None:
        """Move the ends of queues forward; a new queue begins at 0."""
        for name, end in ends.items():
            begin, before = self._ranges.get(name, (0, 0))
            self._ranges[name] = (begin, max(before, end))

    def move(self, positions: Mapping[str, int]) -> None:
        """Set the next offset to read of each queue."""
        self._at.update(positions)

    def finish(self) -> None:
        """Count all offsets as read, also those without a row (expired, corrupt, filtered)."""
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
        """``Orders: 1,200 of 4,000 in 8 queues``, a line per topic, up to a limit.

        A row count is one for all topics; then there is one line for all of them.
        """
        topics: dict[str, list[str]] = {}
        for name in self._ranges:
            topics.setdefault(_topic(name), []).append(name)
        if len(topics) > 1 and self.rows is not None and not self._is_over:
            text = self.text().removeprefix("offsets ")
            return [text]
        lines = []
        for topic, names in sorted(topics.items())[:_TOPICS_SHOWN]:
            part = Reach({name: self._ranges[name] for name in names}, self.rows)
            part._at = {name: at for name, at in self._at.items() if name in names}
            part._is_over = self._is_over
            lines.append(f"{topic}: {part.passed:,} of {part.total:,} in {_queues(len(names))}")
        if len(topics) > _TOPICS_SHOWN:
            lines.append(f"and {len(topics) - _TOPICS_SHOWN} more topics")
        return lines


def _topic(name: str) -> str:
    return name.rpartition(" ")[0]


def _queues(count: int) -> str:
    return "1 queue" if count == 1 else f"{count:,} queues"
