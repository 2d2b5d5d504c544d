"""The builder of a report: one HTML file that needs neither network nor other files.

A page states its question, answers it in one sentence, and shows the key figures; then come charts
and tables, and at the end the conditions of the run.  Plotly draws the charts in the browser from
code that the page carries.  Each chart has its figures as a table, for screen readers and for
browsers without scripts.  Every text is escaped here; callers pass plain text.
"""

from __future__ import annotations

import base64
import gzip
import os
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.extras import require
from cometmq.report.texts import number_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cometmq.report.charts import Chart

__all__ = ["ROWS_MAX", "ReportPage"]

#: A table shows this many rows and counts the others.
ROWS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    text: str
    chart: Chart | None
    rows: Sequence[Mapping[str, Any]] | None
    half: bool

    def html(self) -> str:
        mark = " class='half'" if self.half else ""
        parts = [f"<section{mark}><h2>{escape(self.title)}</h2>"]
        if self.text:
            parts.append(f"<p>{escape(self.text)}</p>")
        if self.chart is not None:
            parts.append(_chart(self.chart, self.title, has_table=bool(self.rows)))
        if self.rows is not None:
            parts.append(_table(self.rows, self.title))
        return "".join([*parts, "</section>"])


class ReportPage:
    """A page that grows part by part; `write` saves it.

    Args:
        question: what the reader wants to know.
        answer: the answer in one sentence, with its figures.
        lead: what the page is made from, in a sentence or two.
        faults: what is wrong, a sentence each.
    """

    def __init__(
        self, question: str, answer: str, lead: str = "", faults: Sequence[str] = ()
    ) -> None:
        self.question = question
        self.answer = answer
        self.lead = lead
        self.faults = list(faults)
        self._advice: list[str] = []
        self._figures: list[tuple[str, str, str]] = []
        self._sections: list[_Section] = []
        self._conditions: dict[str, str] = {}

    def advise(self, text: str) -> None:
        """Add a sentence below the answer that says what to do."""
        self._advice.append(text)

    def figure(self, name: str, value: Any, note: str = "") -> None:
        """Add a key figure; numbers get their separators here."""
        self._figures.append((name, _cell(value), note))

    def section(
        self,
        title: str,
        text: str = "",
        *,
        chart: Chart | None = None,
        rows: Sequence[Mapping[str, Any]] | None = None,
        half: bool = False,
    ) -> None:
        """Add a section: its finding as the title, then a chart, a table or both.

        Args:
            text: how to read it.
            rows: mappings with equal keys, a table; those beyond `ROWS_MAX` are counted.  It
                holds the chart's figures; without it they stand in a table of their own.
            half: stand beside the next section on a wide screen.
        """
        self._sections.append(_Section(title, text, chart, rows, half))

    def condition(self, name: str, value: Any) -> None:
        """Add a condition of the run to the page's foot: command, source, time."""
        self._conditions[name] = _cell(value)

    def page(self) -> str:
        """The page as text.

        Raises:
            ConfigError: the page has charts and Plotly is not installed.
        """
        head = [
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            "<meta name='viewport' content='width=device-width, initial-scale=1'>",
            f"<title>{escape(self.answer)}</title><style>{_own('style.css')}</style></head><body>",
            f"<header><div><p class='question'>{escape(self.question)}</p>",
            f"<h1>{escape(self.answer)}</h1></div>",
            "<button type='button' class='theme' hidden></button></header>",
        ]
        if self.lead:
            head.append(f"<p class='lead'>{escape(self.lead)}</p>")
        for kind, texts in (("fault", self.faults), ("advice", self._advice)):
            if texts:
                lines = "".join(f"<p>{escape(text)}</p>" for text in texts)
                head.append(f"<div class='{kind}'>{lines}</div>")
        if self._figures:
            figures = "".join(
                f"<div><dt>{escape(name)}</dt><dd>{escape(value)}"
                f"<small>{escape(note)}</small></dd></div>"
                for name, value, note in self._figures
            )
            head.append(f"<dl class='figures'>{figures}</dl>")
        foot = "".join(
            f"<div><dt>{escape(name)}</dt><dd class='{escape(name)}'>{escape(value)}</dd></div>"
            for name, value in self._conditions.items()
        )
        tail = [f"<footer><dl>{foot}</dl></footer>"] if foot else []
        if any(section.chart is not None for section in self._sections):
            tail.append(f"<script type='text/plain' id='plotly'>{_packed_plotly()}</script>")
        sections = [section.html() for section in self._sections]
        tail.append(f"<script>{_own('script.js')}</script></body></html>")
        return "\n".join([*head, "<main>", *sections, "</main>", *tail, ""])

    def write(self, path: str | Path) -> Path:
        """Write the page atomically and return its absolute path.

        Raises:
            ConfigError: the page has charts and Plotly is not installed.
            OSError: the file cannot be written.
        """
        text = self.page()
        target = Path(path).absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
        return target


def _own(name: str) -> str:
    return resources.files("cometmq.report").joinpath(name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _packed_plotly() -> str:
    """Plotly's JavaScript, compressed to less than half its size, as text.

    Raises:
        ConfigError: it is not installed.
    """
    require("report", "a report with charts")
    code = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    return base64.b64encode(gzip.compress(code, 9, mtime=0)).decode("ascii")


def _chart(chart: Chart, title: str, *, has_table: bool) -> str:
    # "<" would end the script element early.
    figure = chart.json().replace("<", "\\u003c")
    details = (
        ""
        if has_table
        else f"<details><summary>Figures of this chart</summary>{_table(chart.rows, title)}"
        "</details>"
    )
    return (
        f"<figure><div class='plot' role='img' aria-label='{escape(title)}. The table below has"
        f" the figures.' style='height:{chart.height}px'></div>"
        f"<script type='application/json'>{figure}</script>"
        f"{details}</figure>"
    )


def _table(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    if not rows:
        return "<p>None.</p>"
    names = list(rows[0])
    marks = [" class='n'" if _is_numeric(row[name] for row in rows) else "" for name in names]
    head = "".join(
        f"<th scope='col'{mark}>{escape(name.replace('_', ' '))}</th>"
        for name, mark in zip(names, marks, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{mark}>{escape(_cell(row[name]))}</td>"
            for name, mark in zip(names, marks, strict=True)
        )
        + "</tr>"
        for row in rows[:ROWS_MAX]
    )
    others = len(rows) - ROWS_MAX
    more = f"<p class='more'>and {others:,} more</p>" if others > 0 else ""
    return (
        f"<div class='wide' tabindex='0' role='region' aria-label='{escape(title)}'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


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
