"""The progress line of a running pipeline, and the summary at its end.

Rows, offsets, rate and remaining time go to stderr: one line that is rewritten on a terminal, a
line every ten seconds elsewhere.  stdout belongs to the caller's data.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TextIO

from cometmq.report.texts import duration_text, number_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import TracebackType

    from cometmq.spark.base.reach import Reach

__all__ = ["RunProgress", "Summary"]

#: Seconds between lines where there is no terminal.
PLAIN_EVERY_S: Final = 10.0
TERMINAL_EVERY_S: Final = 0.2
#: The rate covers this time: long enough to be steady, short enough to be current.
RATE_OVER_S: Final = 10.0
_COLUMNS: Final = (160, 24)
"""Assumed size of a terminal that does not report its own."""
_SAMPLES_MAX: Final = 2_000


class RunProgress:
    """Counts and shows the rows of a run; a context manager that clears its line at the end.

    Args:
        name: the pipeline, a word or two: ``archive``.
        total: expected rows, where known; `update` may set it later.
        quiet: write nothing, but count and sample.
        stream: where lines go; default stderr.
        now: seconds of a monotonic clock.
    """

    def __init__(
        self,
        name: str,
        *,
        total: int | None = None,
        quiet: bool = False,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.total = total
        self.rows = 0
        self.offsets: dict[str, int] = {}
        self.reaches: list[Reach] = []
        """How far the run is in each input that has queue offsets."""
        self.samples: list[tuple[float, int]] = [(0.0, 0)]
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._now = now
        self._begin = now()
        self._recent: deque[tuple[float, int]] = deque([(self._begin, 0)])
        self._is_terminal = self._stream.isatty()
        self._shown_at = self._begin
        self._text = ""
        self._width = 0

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return self._now() - self._begin

    @property
    def rate(self) -> float:
        """Current rows per second; 0 before the first row."""
        then, rows = self._recent[0]
        passed = self._now() - then
        return (self.rows - rows) / passed if passed > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the total at the current rate; None where unknown."""
        if self.total is None or self.rate <= 0:
            return None
        return max(0, self.total - self.rows) / self.rate

    def update(
        self,
        rows: int,
        *,
        total: int | None = None,
        offsets: Mapping[str, int] | None = None,
        text: str = "",
    ) -> None:
        """Set the rows done so far.

        Args:
            offsets: next queue offset by queue.
            text: the current step, shown at the end of the line.
        """
        now = self._now()
        self.rows = rows
        if total is not None:
            self.total = total
        if offsets:
            self.offsets.update(offsets)
        self._text = text
        self._recent.append((now, rows))
        while len(self._recent) > 2 and self._recent[0][0] < now - RATE_OVER_S:
            self._recent.popleft()
        self._sample(now)
        every = TERMINAL_EVERY_S if self._is_terminal else PLAIN_EVERY_S
        if not self._quiet and now - self._shown_at >= every:
            self._shown_at = now
            self._show()

    def advance(self, rows: int, *, text: str = "") -> None:
        """Add rows that are done."""
        self.update(self.rows + rows, text=text)

    def line(self) -> str:
        """The current progress line."""
        total = "" if self.total is None else f" of {self.total:,}"
        parts = [f"{self.name}: {self.rows:,}{total} rows", f"{self.rate:,.0f}/s"]
        if self.total:
            parts.append(f"{min(1.0, self.rows / self.total):.0%}")
        if self.remaining_s is not None:
            parts.append(f"{duration_text(self.remaining_s)} left")
        parts += [text for text in (reach.text() for reach in self.reaches) if text]
        if self._text:
            parts.append(self._text)
        elif self.offsets and not self.reaches:
            queue = max(self.offsets, key=lambda name: self.offsets[name])
            parts.append(f"{len(self.offsets)} queues, {queue} at {self.offsets[queue]:,}")
        return ", ".join(parts)

    def reach_facts(self) -> dict[str, list[str]]:
        """``offsets`` for a summary, a line per topic; empty where no input has queue offsets."""
        lines = [line for reach in self.reaches for line in reach.by_topic()]
        return {"offsets": lines} if lines else {}

    def finish(self) -> None:
        """Mark all inputs as read to their ends."""
        for reach in self.reaches:
            reach.finish()

    def close(self) -> None:
        """Clear the line on a terminal."""
        if self._width and not self._quiet:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _show(self) -> None:
        line = self.line()
        if not self._is_terminal:
            self._stream.write(line + "\n")
        else:
            line = line[: shutil.get_terminal_size(_COLUMNS).columns - 1]
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        self._stream.flush()

    def _sample(self, now: float) -> None:
        self.samples.append((now - self._begin, self.rows))
        if len(self.samples) > _SAMPLES_MAX:
            # Keep every other sample, which is enough for a chart, and the last.
            self.samples = [*self.samples[:-1:2], self.samples[-1]]


@dataclass(slots=True)
class Summary:
    """The result of a pipeline: facts in display order, and one sentence per fault."""

    pipeline: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Name to value; a name is words joined by ``_`` with the unit last (``body_bytes``)."""
    faults: list[str] = field(default_factory=list)
    report_path: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether there is no fault: exit code 0, otherwise 1."""
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return {
            "pipeline": self.pipeline,
            "is_good": self.is_good,
            **self.facts,
            "faults": self.faults,
            "report": self.report_path,
        }

    def facts_as_text(self, *, without: Collection[str] = ()) -> list[tuple[str, str]]:
        """Name and value of each fact, but for some."""
        return [
            (name.replace("_", " "), _value(name, value))
            for name, value in self.facts.items()
            if name not in without
        ]

    def as_text(self) -> str:
        """The summary as aligned lines, followed by the faults."""
        rows = self.facts_as_text()
        if self.report_path is not None:
            rows.append(("report", self.report_path))
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"{name.ljust(width)}  {value}" for name, value in rows]
        lines += [f"WRONG: {fault}" for fault in self.faults]
        return "\n".join(lines)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return duration_text(value) if name.endswith("seconds") else number_text(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
