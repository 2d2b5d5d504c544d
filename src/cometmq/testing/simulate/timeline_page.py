"""The time line of a simulation as a page: a lane for each machine and for each message.

The page needs no network.  Spans without an event are drawn short, so that a second between two
crashes is not lost in a minute of rest; the axis has the true times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.page import document
from cometmq.testing.simulate.timeline import (
    named_messages,
    of_machines,
    of_messages,
    plan_words,
)

if TYPE_CHECKING:
    from cometmq.testing.simulate.run import Report
    from cometmq.testing.simulation import Event

__all__ = ["page", "write_page"]

_LEFT, _WIDTH, _LANE = 170, 1_000, 22
_TICKS: Final = 10
_SPAN_MAX_S: Final = 1.0
"""A longer span without an event is drawn as long as this one."""
_MESSAGES_MAX: Final = 80
_MARKS: Final = {
    "made": "c5",
    "acknowledged": "c0",
    "visible": "c3",
    "handler begins": "c1",
    "handled": "c2",
}
"""The colour of each step of a message; others, which are rare, are red."""
_STYLE: Final = """
pre { background: #8881; padding: .6rem; white-space: pre-wrap; overflow-wrap: anywhere; }
line.up { stroke-width: 6; } line.pause { stroke-width: 6; }
.named { font-weight: 700; }
"""


def write_page(report: Report, folder: Path) -> Path:
    """Write the page of a failing plan into a folder, which is made; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{report.plan.seed}.html"
    path.write_text(page(report), encoding="utf-8")
    return path


def page(report: Report) -> str:
    """Return the page of one simulation."""
    messages = of_messages(report)
    named = [name for name in named_messages(report) if name in messages]
    shown = list(messages)[:_MESSAGES_MAX]
    parts = [
        f"<p class='missed'>{escape(report.failure or 'every promise was kept')}</p>",
        "<h2>The plan</h2><ul>",
        *(f"<li>{escape(line)}</li>" for line in plan_words(report)),
        "</ul><p>This command replays it:</p>",
        f"<pre>{escape(report.plan.command())}</pre>",
        "<h2>Time line</h2>",
        _legend(),
        f"<div class='wide'>{_drawing(report, {name: messages[name] for name in shown})}</div>",
    ]
    if len(messages) > len(shown):
        parts.append(f"<p><small>{len(messages) - len(shown)} messages are not drawn.</small></p>")
    for node, events in of_machines(report).items():
        parts += _table(node or "the cluster", events, is_open=False)
    for name in shown:
        parts += _table(f"message {name}", messages[name], is_open=name in named)
    return document(f"Seed {report.plan.seed}", parts, style=_STYLE)


class _Axis:
    """Maps virtual seconds to places on the drawing."""

    def __init__(self, times_s: Iterable[float]) -> None:
        self.times_s = sorted({0.0, *times_s})
        self._drawn = [0.0]
        for before, now in zip(self.times_s, self.times_s[1:], strict=False):
            self._drawn.append(self._drawn[-1] + min(now - before, _SPAN_MAX_S))

    def x(self, at_s: float) -> float:
        """Return the place of an event's time."""
        number = max(0, bisect_right(self.times_s, at_s) - 1)
        return _LEFT + self._drawn[number] / max(self._drawn[-1], 1e-9) * (_WIDTH - _LEFT - 20)

    def ticks(self) -> Iterator[float]:
        """Yield the times that the axis names, at equal distances on the drawing."""
        for number in range(_TICKS + 1):
            wanted = self._drawn[-1] * number / _TICKS
            yield self.times_s[bisect_right(self._drawn, wanted + 1e-9) - 1]


def _drawing(report: Report, messages: dict[str, list[Event]]) -> str:
    machines = of_machines(report)
    axis = _Axis([*(event.at_s for event in report.events), report.virtual_s])
    height = (len(machines) + len(messages) + 2) * _LANE
    parts = [
        f"<svg viewBox='0 0 {_WIDTH} {height}' role='img' aria-label='time line of each machine "
        "and each message'>"
    ]
    for at_s in axis.ticks():
        x = axis.x(at_s)
        parts.append(
            f"<line class='axis' x1='{x:.1f}' y1='{_LANE}' x2='{x:.1f}' y2='{height}' "
            f"stroke-opacity='.3'/>"
            f"<text x='{x:.1f}' y='14' text-anchor='middle'>{at_s:.2f} s</text>"
        )
    end = axis.x(report.virtual_s)
    parts.append(f"<line class='c4' x1='{end:.1f}' y1='{_LANE}' x2='{end:.1f}' y2='{height}'/>")
    y = _LANE
    for node, events in machines.items():
        y += _LANE
        parts.append(_name(node or "faults", y, is_named=False))
        if node:
            parts += _life(events, axis, report.virtual_s, y)
        parts += [_mark(event, "c4", axis, y) for event in events if _is_marked(event)]
    named = named_messages(report)
    for name, events in messages.items():
        y += _LANE
        parts.append(_name(name, y, is_named=name in named))
        parts += [_mark(event, _MARKS.get(event.kind, "c4"), axis, y) for event in events]
    return "\n".join([*parts, "</svg>"])


def _is_marked(event: Event) -> bool:
    return event.kind in ("crash", "fault", "faults end", "not started", "stop failed")


def _life(events: list[Event], axis: _Axis, end_s: float, y: int) -> Iterator[str]:
    """Draw when a machine ran, and when it stood still."""
    since, colour = 0.0, "c2"
    for event in events:
        if event.kind not in ("crash", "restart", "pause", "goes on"):
            continue
        if colour:
            yield _span(since, event.at_s, colour, axis, y)
        since = event.at_s
        if event.kind == "goes on" and not colour:
            continue  # it crashed while it stood still
        colour = {"crash": "", "restart": "c2", "pause": "c1", "goes on": "c2"}[event.kind]
    if colour:
        yield _span(since, end_s, colour, axis, y)


def _span(begin_s: float, end_s: float, colour: str, axis: _Axis, y: int) -> str:
    kind = "pause" if colour == "c1" else "up"
    return (
        f"<line class='{kind} {colour}' x1='{axis.x(begin_s):.1f}' y1='{y}' "
        f"x2='{axis.x(end_s):.1f}' y2='{y}'/>"
    )


def _name(name: str, y: int, *, is_named: bool) -> str:
    style = " class='named'" if is_named else ""
    return f"<text x='0' y='{y + 4}'{style}>{escape(name)}</text>"


def _mark(event: Event, colour: str, axis: _Axis, y: int) -> str:
    return (
        f"<circle class='{colour}' cx='{axis.x(event.at_s):.1f}' cy='{y}' r='4'>"
        f"<title>{escape(_sentence(event))}</title></circle>"
    )


def _sentence(event: Event) -> str:
    where = f" ({event.node})" if event.node else ""
    return f"{event.at_s:.3f} s: {event.kind}{where} {event.detail}".rstrip()


def _legend() -> str:
    steps = [*_MARKS.items(), ("anything else", "c4")]
    dots = "".join(
        f"<span><svg width='12' height='12' style='min-width:0'><circle class='{colour}' cx='6' "
        f"cy='6' r='4'/></svg> {what}</span> &nbsp; "
        for what, colour in steps
    )
    return (
        f"<p>{dots}</p><p>A machine's line is green while it runs and amber while it stands still. "
        "The red line is where the run ended.</p>"
    )


def _table(name: str, events: list[Event], *, is_open: bool) -> Iterator[str]:
    yield f"<details{' open' if is_open else ''}><summary>{escape(name)}</summary><table>"
    yield "<tr><th class='n'>seconds</th><th>what</th><th>machine</th><th></th></tr>"
    for event in events:
        yield (
            f"<tr><td class='n'>{event.at_s:.3f}</td><td>{escape(event.kind)}</td>"
            f"<td>{escape(event.node)}</td><td>{escape(event.detail)}</td></tr>"
        )
    yield "</table></details>"
