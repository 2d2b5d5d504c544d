"""A pipeline's report: one self-contained HTML page with facts, tables and SVG charts.

Every text is escaped here; callers pass plain text.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.page import COLOURS, document
from cometmq.spark.base.progress import number_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cometmq.spark.base.progress import RunProgress, Summary

__all__ = ["HtmlReport"]

_WIDTH: Final = 760
_LABEL_WIDTH: Final = 190
#: The widest character of the style's 12 px font.
_CHARACTER_WIDTH: Final = 8
_BAR_HEIGHT: Final = 18
_PLOT_HEIGHT: Final = 200
_MARGIN: Final = 56
#: A table shows this many rows and counts the others.
ROWS_MAX: Final = 500
_LABEL_CHARACTERS: Final = 28


class HtmlReport:
    """A page that grows part by part; `write` saves it."""

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self._parts: list[str] = []
        if lead:
            self.text(lead)

    # -- words ---------------------------------------------------------------------------

    def heading(self, text: str) -> None:
        """Add a heading."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, *, kind: str = "") -> None:
        """Add a paragraph; ``kind`` is ``met`` (good), ``missed`` (wrong) or empty."""
        attribute = f" class='{escape(kind)}'" if kind else ""
        self._parts.append(f"<p{attribute}>{escape(text)}</p>")

    def summary(self, summary: Summary) -> None:
        """Add a summary: its faults, and its facts as a table."""
        rows = [line.partition("  ") for line in summary.as_text().splitlines()]
        for fault in summary.faults:
            self.text(fault, kind="missed")
        facts = [(name, value.strip()) for name, _, value in rows if not name.startswith("WRONG")]
        self.facts(facts)

    def facts(self, pairs: Iterable[tuple[str, Any]] | Mapping[str, Any]) -> None:
        """Add a table of names and values."""
        items = pairs.items() if hasattr(pairs, "items") else pairs
        rows = "".join(
            f"<tr><th>{escape(str(name))}</th><td>{escape(_cell(value))}</td></tr>"
            for name, value in items
        )
        self._parts.append(f"<div class='wide'><table>{rows}</table></div>")

    def table(self, rows: Sequence[Mapping[str, Any]], *, rows_max: int = ROWS_MAX) -> None:
        """Add a table of mappings with equal keys; rows beyond ``rows_max`` are counted."""
        if not rows:
            self.text("None.")
            return
        headings = list(rows[0])
        numeric = [_is_numeric(row[name] for row in rows) for name in headings]
        marks = [" class='n'" if right else "" for right in numeric]
        lines = ["<div class='wide'><table><tr>"]
        lines += [
            f"<th{mark}>{escape(name.replace('_', ' '))}</th>"
            for name, mark in zip(headings, marks, strict=True)
        ]
        lines.append("</tr>")
        for row in rows[:rows_max]:
            cells = "".join(
                f"<td{mark}>{escape(_cell(row[name]))}</td>"
                for name, mark in zip(headings, marks, strict=True)
            )
            lines.append(f"<tr>{cells}</tr>")
        lines.append("</table></div>")
        if len(rows) > rows_max:
            lines.append(f"<p><small>and {len(rows) - rows_max:,} more</small></p>")
        self._parts.append("".join(lines))

    # -- charts --------------------------------------------------------------------------

    def bar_chart(self, title: str, values: Iterable[tuple[str, float]], *, unit: str = "") -> None:
        """Add one bar per (label, value), in the given order; no value is negative."""
        rows = list(values)[:ROWS_MAX]
        longest = max((value for _, value in rows), default=0) or 1
        figures = [f"{number_text(value)} {unit}".rstrip() for _, value in rows]
        room = _WIDTH - _LABEL_WIDTH - 12 - _CHARACTER_WIDTH * max(map(len, figures), default=0)
        parts = []
        for number, (label, value) in enumerate(rows):
            top = number * (_BAR_HEIGHT + 6) + 2
            middle = top + _BAR_HEIGHT / 2 + 4
            length = max(value / longest * room, 1.0 if value else 0.0)
            shown = (
                label if len(label) <= _LABEL_CHARACTERS else label[: _LABEL_CHARACTERS - 1] + "…"
            )
            figure = escape(figures[number])
            parts.append(
                f'<text x="{_LABEL_WIDTH - 6}" y="{middle:.1f}" text-anchor="end">'
                f"{escape(shown)}<title>{escape(label)}</title></text>"
                f'<rect class="c0" x="{_LABEL_WIDTH}" y="{top}" width="{length:.1f}"'
                f' height="{_BAR_HEIGHT}" rx="2"/>'
                f'<text x="{_LABEL_WIDTH + length + 6:.1f}" y="{middle:.1f}">{figure}</text>'
            )
        self._svg(title, max(1, len(rows)) * (_BAR_HEIGHT + 6) + 4, parts)

    def line_chart(
        self,
        title: str,
        series: Mapping[str, Sequence[tuple[float, float]]],
        *,
        x_unit: str = "",
        y_unit: str = "",
        x_times: bool = False,
    ) -> None:
        """Add a line per name through (x, y) points; with ``x_times`` x is seconds since 1970."""
        points = [point for line in series.values() for point in line]
        if not points:
            self.text(f"{title}: no points.")
            return
        first_x, last_x = min(x for x, _ in points), max(x for x, _ in points)
        top = max(0.0, *(y for _, y in points)) or 1.0
        bottom = min(0.0, *(y for _, y in points))
        wide, high = _WIDTH - 2 * _MARGIN, _PLOT_HEIGHT

        def at(x: float, y: float) -> str:
            across = (x - first_x) / (last_x - first_x) if last_x > first_x else 0.5
            up = (y - bottom) / (top - bottom)
            return f"{_MARGIN + across * wide:.1f},{10 + (1 - up) * high:.1f}"

        base = 10 + high
        parts = [
            f'<line class="axis" x1="{_MARGIN}" x2="{_MARGIN + wide}" y1="{base}" y2="{base}"/>',
            f'<line class="axis" x1="{_MARGIN}" x2="{_MARGIN}" y1="10" y2="{base}"/>',
            _label(_MARGIN - 6, 20, number_text(top), "end"),
            _label(_MARGIN - 6, base, number_text(bottom), "end"),
        ]
        ends: list[tuple[float, float, str]] = [
            (_MARGIN, first_x, "start"),
            (_MARGIN + wide, last_x, "end"),
        ]
        if first_x == last_x:
            ends = [(_MARGIN + wide / 2, first_x, "middle")]
        parts += [
            _label(x, base + 18, _x_text(value, x_unit, is_time=x_times), anchor)
            for x, value, anchor in ends
        ]
        for number, (name, line) in enumerate(series.items()):
            colour = COLOURS[number % len(COLOURS)]
            if len(line) == 1:
                across, up = at(*line[0]).split(",")
                parts.append(f'<circle class="{colour}" cx="{across}" cy="{up}" r="3"/>')
            coordinates = " ".join(at(x, y) for x, y in line)
            parts.append(
                f'<polyline class="{colour}" points="{coordinates}"><title>{escape(name)}</title>'
                "</polyline>"
            )
            if len(series) > 1:
                y = base + 36 + 16 * number
                parts.append(
                    f'<rect class="{colour}" x="{_MARGIN}" y="{y - 9}" width="10" height="10"/>'
                    + _label(_MARGIN + 16, y, name, "start")
                )
        legend = 16 * len(series) + 12 if len(series) > 1 else 0
        self._svg(title + (f", {y_unit}" if y_unit else ""), base + 26 + legend, parts)

    def rate_chart(self, progress: RunProgress) -> None:
        """Rows per second over the run, from what `Progress` sampled."""
        samples = progress.samples
        if len(samples) < 2:
            return
        step = max(1, len(samples) // 100)
        thinned = [*samples[:-1:step], samples[-1]]
        points = [
            (late, (rows - before) / (late - early))
            for (early, before), (late, rows) in pairwise(thinned)
            if late > early
        ]
        self.line_chart("Rate", {"rows": points}, x_unit="s", y_unit="rows per second")

    def _svg(self, title: str, height: float, parts: list[str]) -> None:
        self._parts.append(
            f"<h3>{escape(title)}</h3><div class='wide'>"
            f'<svg role="img" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}"'
            f' height="{height:.0f}"><title>{escape(title)}</title>{"".join(parts)}</svg></div>'
        )

    # -- the page ------------------------------------------------------------------------

    def page(self) -> str:
        """The page as text."""
        return document(self.title, self._parts)

    def write(self, path: str | Path) -> Path:
        """Write the page atomically and return its absolute path.

        Raises:
            OSError: the file cannot be written.
        """
        target = Path(path).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.write_text(self.page(), encoding="utf-8")
        draft.replace(target)
        return target


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x_text(value: float, unit: str, *, is_time: bool) -> str:
    if is_time:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{number_text(value)} {unit}".rstrip()


def _is_numeric(values: Iterable[Any]) -> bool:
    """Whether all non-empty cells of a column are numbers."""
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in present
    )


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number_text(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
