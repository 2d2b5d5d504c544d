"""A comparison as one HTML page that needs nothing beside itself: inline style, inline SVG.

Each row is a pair of bars, ours and the Java broker's, as long as their medians; the thin line is
the spread over the rounds. Rows of different units have scales of their own.
"""

from __future__ import annotations

from html import escape
from typing import Final

from bench.base.measure import Conditions, median_of
from bench.java.against import Comparison
from bench.java.against_report import check_text, number_text, spread_text, summary
from cometmq.page import document

__all__ = ["as_page", "bars"]

BAR_WIDTH: Final = 460
BAR_HEIGHT: Final = 16
LABEL_WIDTH: Final = 46
FIGURE_WIDTH: Final = 90

STYLE: Final = """
.ours { fill: #2563eb; } .java { fill: #9aa5b1; }
.spread { stroke: #1c2430; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) { .spread { stroke: #e6eaf0; } }
"""


def bars(one: Comparison) -> str:
    """The SVG of one row."""
    sides = (("ours", "ours", one.ours), ("Java", "java", one.theirs))
    longest = max(max(values) for _, _, values in sides) or 1.0
    height = 2 * (BAR_HEIGHT + 6)
    parts = []
    for place, (label, kind, values) in enumerate(sides):
        median = median_of(list(values)) or 0.0
        top = place * (BAR_HEIGHT + 6) + 2
        middle = top + BAR_HEIGHT / 2
        length = max(median / longest * BAR_WIDTH, 1.0)
        left, right = (
            LABEL_WIDTH + edge / longest * BAR_WIDTH for edge in (min(values), max(values))
        )
        parts.append(f'<text x="0" y="{middle + 4:.1f}">{label}</text>')
        parts.append(
            f'<rect class="{kind}" x="{LABEL_WIDTH}" y="{top}" width="{length:.1f}" '
            f'height="{BAR_HEIGHT}" rx="2"/>'
        )
        if len(values) > 1:
            parts.append(
                f'<line class="spread" x1="{left:.1f}" x2="{right:.1f}" '
                f'y1="{middle:.1f}" y2="{middle:.1f}"/>'
            )
        end = max(LABEL_WIDTH + length, right) + 6
        parts.append(f'<text x="{end:.1f}" y="{middle + 4:.1f}">{number_text(median)}</text>')
    width = LABEL_WIDTH + BAR_WIDTH + FIGURE_WIDTH
    title = escape(f"{one.spec.name}: ours beside Java, {one.spec.unit}")
    return (
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def _checks(one: Comparison) -> str:
    return "<br>".join(
        f'<span class="{"met" if check.is_met else "missed"}">{escape(check_text(check))}</span>'
        for check in one.checks()
    )


def _charts(comparisons: list[Comparison]) -> list[str]:
    text = []
    for group in dict.fromkeys(one.spec.group for one in comparisons):
        text.append(f"<h2>{escape(group[0].upper() + group[1:])}</h2><table>")
        text.append("<tr><th>load</th><th></th><th class='n'>ratio</th><th>targets</th></tr>")
        for one in (one for one in comparisons if one.spec.group == group):
            pairs = spread_text(one.pair_ratios)
            note = f"<br><small>{escape(one.note)}</small>" if one.note else ""
            text.append(
                f"<tr><td>{escape(one.spec.name)}<br><small>{escape(one.spec.unit)}</small></td>"
                f"<td>{bars(one)}{note}</td>"
                f"<td class='n'>{one.ratio or 0:.2f}x<br><small>{pairs}</small></td>"
                f"<td>{_checks(one)}</td></tr>"
            )
        text.append("</table>")
    return text


def _costs(comparisons: list[Comparison]) -> list[str]:
    heads = ("p50 us", "p99 us", "CPU s per million", "resident MB")
    text = ["<h2>What it costs</h2><table><tr><th rowspan='2'>load</th>"]
    text += [f"<th class='n' colspan='2'>{head}</th>" for head in heads]
    text.append("</tr><tr>" + "<th class='n'>ours</th><th class='n'>Java</th>" * len(heads))
    text.append("</tr>")
    for one in comparisons:
        resident = one.medians("server_resident_kb")
        pairs = (
            one.medians("p50_us"),
            one.medians("p99_us"),
            one.cpu_per_million(),
            tuple(None if kb is None else kb / 1024 for kb in resident),
        )
        cells = "".join(
            f"<td class='n'>{number_text(value)}</td>" for pair in pairs for value in pair
        )
        text.append(f"<tr><td>{escape(one.spec.name)}</td>{cells}</tr>")
    return [*text, "</table>"]


def as_page(conditions: Conditions, comparisons: list[Comparison]) -> str:
    """The whole page."""
    good = [one for one in comparisons if one.has_figures]
    rates = [one for one in good if one.spec.is_rate]
    text = [
        f"<p>{escape(summary(comparisons))}. Bars are medians over the rounds, thin lines their "
        "spread. The ratio says how many times better CometMQ is; below it that of each pair of "
        "neighbouring rounds.</p>",
        *_charts(good),
    ]
    if rates:
        text += _costs(rates)
    for one in comparisons:
        why = one.error or one.skipped
        if why:
            word = "failed" if one.error else "was skipped"
            text.append(f"<p class='missed'>{escape(one.spec.name)} {word}: {escape(why)}</p>")
    text.append("<h2>Conditions</h2><table>")
    text += [
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in conditions.rows
    ]
    title = "CometMQ beside RocketMQ's Java broker"
    return document(title, [*text, "</table>"], style=STYLE)
