"""A comparison as text, as JSON, and as one HTML page with inline style and inline SVG.

On the page each row is a pair of bars, ours and the Java broker's, as long as their medians.  A
thin line shows the spread over the rounds.  Rows of different units have different scales.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any, Final

import msgspec

from bench.base.measure import Conditions, median_of
from bench.java.against import PAIRS_MIN, Check, Comparison, Estimate
from bench.suites.report import (
    GENERATOR_BOUND,
    conditions_text,
    disturbance_marks,
    legend,
    table,
)
from cometmq.page import document

__all__ = [
    "as_json",
    "as_page",
    "as_text",
    "bars",
    "check_text",
    "interval_text",
    "number_text",
    "spread_text",
    "summary",
]

FIGURES: Final = (
    "messages_rate",
    "p50_us",
    "p99_us",
    "p999_us",
    "server_cpu_s",
    "server_resident_kb",
    "server_anonymous_kb",
    "generator_cpu_s",
)


def number_text(value: float | None) -> str:
    """A figure with the digits that are significant."""
    if value is None:
        return "-"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def spread_text(values: list[float]) -> str:
    """The smallest and the largest figure."""
    if len(values) < 2:
        return ""
    return f"{number_text(min(values))}-{number_text(max(values))}"


def interval_text(estimate: Estimate | None, scale: float = 1.0) -> str:
    """The interval of a median, `4.62-5.31`, or a dash where there are too few pairs for one."""
    if estimate is None or estimate.interval is None:
        return "-"
    low, high = (number_text(edge * scale) for edge in estimate.interval)
    return f"{low}-{high}"


def check_text(check: Check) -> str:
    """`2.31 (2.10-2.44) >= 2 times better: met`."""
    sign = ">=" if check.is_at_least else "<="
    verdict = "met" if check.is_met else "MISSED"
    interval = interval_text(check.estimate)
    return f"{check.value:.2f} ({interval}) {sign} {check.bound:.3g} {check.text}: {verdict}"


def _ratio(one: Comparison) -> str:
    return "-" if one.ratio is None else f"{one.ratio.value:.2f}x"


def _target(one: Comparison) -> str:
    goal = one.spec.goal
    if goal.limit is not None:
        return f"<= {goal.limit:g} {one.spec.unit}"
    return "" if goal.ratio is None else f">= {goal.ratio:.3g}x"


def _verdict(one: Comparison) -> str:
    checks = one.checks()
    return ("met" if all(check.is_met for check in checks) else "MISSED") if checks else ""


def _generator_share(one: Comparison) -> tuple[float | None, float | None]:
    busy, seconds = one.medians("generator_cpu_s"), one.medians("seconds")
    ours, theirs = (
        b / s if b is not None and s else None for b, s in zip(busy, seconds, strict=True)
    )
    return ours, theirs


def _marks(one: Comparison) -> str:
    ours, theirs = _generator_share(one)
    text = "G" if ours is not None and ours > GENERATOR_BOUND else ""
    text += "g" if theirs is not None and theirs > GENERATOR_BOUND else ""
    return text + disturbance_marks(one.stolen_share, one.others_share)


def _two(values: tuple[float | None, float | None], scale: float = 1.0) -> tuple[str, str]:
    ours, theirs = (number_text(None if value is None else value / scale) for value in values)
    return ours, theirs


def _part(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:.1%}"


def _cost(
    figures: Callable[[Comparison], tuple[float | None, float | None]], scale: float = 1.0
) -> tuple[Callable[[Comparison], str], Callable[[Comparison], str]]:
    return (
        lambda one: _two(figures(one), scale)[0],
        lambda one: _two(figures(one), scale)[1],
    )


_P50 = _cost(lambda one: one.medians("p50_us"))
_P99 = _cost(lambda one: one.medians("p99_us"))
_CPU = _cost(Comparison.cpu_us_each)
_RESIDENT = _cost(lambda one: one.medians("server_resident_kb"), 1024)
_GENERATOR = _cost(_generator_share, 0.01)

RESULTS: Final[tuple[tuple[str, Callable[[Comparison], str]], ...]] = (
    ("load", lambda one: one.spec.name),
    (">ours", lambda one: number_text(median_of(list(one.ours)))),
    (">Java", lambda one: number_text(median_of(list(one.theirs)))),
    ("unit", lambda one: one.spec.unit),
    (">ratio", _ratio),
    (">interval", lambda one: interval_text(one.ratio)),
    ("target", _target),
    (">CPU us each", _CPU[0]),
    (">Java", _CPU[1]),
    (">part", lambda one: _part(one.cpu_share())),
    (">interval %", lambda one: interval_text(one.cpu_share(), 100)),
    (">pairs", lambda one: str(len(one.pair_ratios))),
    ("", _verdict),
    ("", _marks),
)

COSTS: Final[tuple[tuple[str, Callable[[Comparison], str]], ...]] = (
    ("load", lambda one: one.spec.name),
    (">spread of ours", lambda one: spread_text(one.ours)),
    (">Java", lambda one: spread_text(one.theirs)),
    (">p50 us", _P50[0]),
    (">Java", _P50[1]),
    (">p99 us", _P99[0]),
    (">Java", _P99[1]),
    (">part", lambda one: _part(one.p99_share())),
    (">interval %", lambda one: interval_text(one.p99_share(), 100)),
    (">resident MB", _RESIDENT[0]),
    (">Java", _RESIDENT[1]),
    (">generator %", _GENERATOR[0]),
    (">Java", _GENERATOR[1]),
    (">read back", lambda one: f"{sum(r.read_back for r in one.our_rounds):,}"),
    (">Java", lambda one: f"{sum(r.read_back for r in one.their_rounds):,}"),
)


def summary(comparisons: list[Comparison]) -> str:
    """The number of met targets among those that were measured."""
    checks = [check for one in comparisons for check in one.checks()]
    met = sum(check.is_met for check in checks)
    return f"{met} of {len(checks)} targets met"


def as_text(conditions: Conditions, comparisons: list[Comparison]) -> str:
    """The report for a person."""
    text = conditions_text(conditions)
    good = [one for one in comparisons if one.has_figures]
    rates = [one for one in good if one.spec.is_rate]
    if good:
        text += ["", *table(RESULTS, good)]
    if rates:
        text += ["", *table(COSTS, rates)]
    text += legend("".join(_marks(one) for one in good))
    checks = [(one, check) for one in good for check in one.checks()]
    if checks:
        text += ["", summary(comparisons)]
        text += [f"{one.spec.name.ljust(18)}  {check_text(check)}" for one, check in checks]
    text += [f"{one.spec.name}: {one.note}" for one in good if one.note]
    text += _few_pairs(rates)
    text += [""] if any(one.error for one in comparisons) else []
    text += _failures(comparisons)
    return "\n".join(text)


def _few_pairs(rates: list[Comparison]) -> list[str]:
    few = [one for one in rates if len(one.pair_ratios) < PAIRS_MIN]
    if not few:
        return []
    names = ", ".join(one.spec.name for one in few)
    return [f"fewer than {PAIRS_MIN} pairs, no result to cite (--rounds): {names}"]


def _failures(comparisons: list[Comparison]) -> list[str]:
    """A line for each reason with the names of its rows."""
    return [
        f"FAILED  {', '.join(one.spec.name for one in comparisons if one.error == why)}: {why}"
        for why in dict.fromkeys(one.error for one in comparisons if one.error)
    ]


def as_json(conditions: Conditions, comparisons: list[Comparison]) -> dict[str, Any]:
    """The report for a program: conditions, then every row with medians, spreads and rounds."""
    return {
        "conditions": conditions.as_dict(),
        "summary": summary(comparisons),
        "rows": [_row_json(one) for one in comparisons],
    }


def _row_json(one: Comparison) -> dict[str, Any]:
    cpu, generator = one.cpu_us_each(), _generator_share(one)
    return {
        "name": one.spec.name,
        "group": one.spec.group,
        "unit": one.spec.unit,
        "error": one.error or None,
        "note": one.note or None,
        "other": one.spec.other,
        "ratio": _estimate_json(one.ratio if one.has_figures else None),
        "cpu_share": _estimate_json(one.cpu_share()),
        "p99_share": _estimate_json(one.p99_share()),
        "pair_ratios": one.pair_ratios,
        "stolen_share": one.stolen_share,
        "others_share": one.others_share,
        "marks": _marks(one),
        "goal": msgspec.to_builtins(one.spec.goal),
        "checks": [
            {
                "text": check.text,
                **(_estimate_json(check.estimate) or {}),
                "bound": check.bound,
                "is_at_least": check.is_at_least,
                "met": check.is_met,
            }
            for check in one.checks()
        ],
        **{
            name: {
                "median": median_of(list(values)),
                "values": values,
                "cpu_us_each": cpu[side],
                "generator_share": generator[side],
                "medians": {figure: one.medians(figure)[side] for figure in FIGURES},
                "rounds": [msgspec.to_builtins(single) for single in rounds],
            }
            for side, (name, values, rounds) in enumerate(
                (("ours", one.ours, one.our_rounds), ("java", one.theirs, one.their_rounds))
            )
        },
    }


def _estimate_json(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"value": estimate.value, "interval": estimate.interval, "pairs": estimate.pairs}


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
    other = "Java" if one.spec.baseline is None else "few"
    sides = (("ours", "ours", one.ours), (other, "java", one.theirs))
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
    title = escape(f"{one.spec.name}: ours beside {one.spec.other}, {one.spec.unit}")
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
            pairs = f"{interval_text(one.ratio)}, {len(one.pair_ratios)} pairs"
            note = f"<br><small>{escape(one.note)}</small>" if one.note else ""
            text.append(
                f"<tr><td>{escape(one.spec.name)}<br><small>{escape(one.spec.unit)}</small></td>"
                f"<td>{bars(one)}{note}</td>"
                f"<td class='n'>{_ratio(one)}<br><small>{pairs}</small></td>"
                f"<td>{_checks(one)}</td></tr>"
            )
        text.append("</table>")
    return text


def _costs(comparisons: list[Comparison]) -> list[str]:
    heads = ("p50 us", "p99 us", "CPU us each", "resident MB")
    text = ["<h2>What it costs</h2><table><tr><th rowspan='2'>load</th>"]
    text += [f"<th class='n' colspan='2'>{head}</th>" for head in heads]
    text.append("</tr><tr>" + "<th class='n'>ours</th><th class='n'>Java</th>" * len(heads))
    text.append("</tr>")
    for one in comparisons:
        resident = one.medians("server_resident_kb")
        pairs = (
            one.medians("p50_us"),
            one.medians("p99_us"),
            one.cpu_us_each(),
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
        "spread. The ratio says how many times better CometMQ is, the median over pairs of "
        "neighbouring rounds; below it its 95 % interval.</p>",
        *_charts(good),
    ]
    if rates:
        text += _costs(rates)
    for one in comparisons:
        if one.error:
            name, why = escape(one.spec.name), escape(one.error)
            text.append(f"<p class='missed'>{name} failed: {why}</p>")
    text.append("<h2>Conditions</h2><table>")
    text += [
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in conditions.rows
    ]
    title = "CometMQ beside RocketMQ's Java broker"
    return document(title, [*text, "</table>"], style=STYLE)
