"""The kinds of charts of a report, as Plotly figures in the page's colours.

A colour is named as the style names it (``var(--c0)``): the page puts in the value for a light or
a dark screen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

from cometmq.extras import require

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BARS_MAX", "Chart", "bars", "columns", "heatmap", "lines", "stacked_bars"]

#: A chart with more bars is a wall; the table below it has them all.
BARS_MAX: Final = 40
_LABEL_CHARACTERS: Final = 44
#: What fits below an axis in half the page's width.
_AXIS_CHARACTERS: Final = 64
_SERIES_COLOURS: Final = tuple(f"var(--c{number})" for number in range(6))
_STRONG: Final = "var(--strong)"
_QUIET: Final = "var(--quiet)"
_HEAT: Final = tuple((step / 4, f"var(--h{step})") for step in range(5))


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure in Plotly's form, and its figures as rows of a table."""

    figure: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def height(self) -> int:
        """Pixels."""
        height: int = self.figure["layout"]["height"]
        return height

    def json(self) -> str:
        """Check the figure and return it as JSON.

        Raises:
            ConfigError: Plotly is not installed.
        """
        require("report", "a report with charts")
        import plotly.graph_objects as go

        text: str = go.Figure(self.figure).to_json()
        return text


def bars(
    values: Sequence[tuple[str, float]],
    *,
    unit: str = "",
    name: str = "name",
    strong: frozenset[str] | None = None,
    digits: int = 0,
) -> Chart:
    """A horizontal bar per (label, value), in the given order.

    Args:
        name: heading of the labels in the table.
        strong: the labels that stand out; None for the first.
        digits: after the decimal point.
    """
    rows = [{name: label, unit or "value": round(value, digits)} for label, value in values]
    shown = list(values)[:BARS_MAX]
    marked = frozenset(label for label, _ in shown[:1]) if strong is None else strong
    places = list(range(len(shown)))
    figures = [value for _, value in shown]
    texts = [f"{value:,.{digits}f}" for value in figures]
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": figures,
        "y": places,
        "width": 0.68,
        "marker": {"color": [_STRONG if label in marked else _QUIET for label, _ in shown]},
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "textfont": {"color": "var(--ink)"},
        "customdata": [_plain(label) for label, _ in shown],
        "hovertemplate": f"%{{customdata}}<br>%{{x:,.{digits}f}} {_plain(unit)}<extra></extra>",
    }
    # Outside the longest bars stand their figures: on the right in the margin.
    top, bottom = max([*figures, 0]), min([*figures, 0])
    room = (top - bottom or 1) * 0.14
    layout = _layout(
        26 * max(len(shown), 1) + 30,
        xaxis={
            "visible": False,
            "range": [bottom - (room if bottom else 0), top + (0 if top else room)],
            "fixedrange": True,
            "zeroline": False,
        },
        yaxis=_label_axis([label for label, _ in shown]),
        dragmode=False,
        margin={"l": 4, "r": _room_for(texts), "t": 4, "b": 8, "pad": 6},
    )
    return Chart({"data": [trace], "layout": layout}, rows)


def stacked_bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    unit: str,
    name: str = "name",
) -> Chart:
    """A horizontal bar per label, made of a part per series; the whole stands at its end."""
    rows = [
        {name: label, **{one: values[place] for one, values in series.items()}}
        for place, label in enumerate(labels)
    ]
    shown = list(labels)[:BARS_MAX]
    places = list(range(len(shown)))
    wholes = [sum(values[place] for values in series.values()) for place in places]
    texts = [f"{whole:,.0f}" for whole in wholes]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _plain(one),
            "x": list(values)[:BARS_MAX],
            "y": places,
            "width": 0.68,
            "marker": {"color": _SERIES_COLOURS[number % len(_SERIES_COLOURS)]},
            "customdata": [_plain(label) for label in shown],
            "hovertemplate": f"%{{customdata}}<br>%{{x:,}} {_plain(unit)}<extra>%{{fullData.name}}"
            "</extra>",
        }
        for number, (one, values) in enumerate(series.items())
    ]
    layout = _layout(
        26 * max(len(shown), 1) + 60,
        barmode="stack",
        showlegend=True,
        xaxis={
            "visible": False,
            "range": [0, max([*wholes, 0]) or 1],
            "fixedrange": True,
        },
        yaxis=_label_axis(shown),
        annotations=[
            {
                "x": whole,
                "y": place,
                "text": text,
                "showarrow": False,
                "xanchor": "left",
                "xshift": 4,
                "font": {"color": "var(--ink)"},
            }
            for place, whole, text in zip(places, wholes, texts, strict=True)
        ],
        dragmode=False,
        margin={"l": 4, "r": _room_for(texts), "t": 34, "b": 8, "pad": 6},
    )
    return Chart({"data": traces, "layout": layout}, rows)


def columns(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    unit: str = "",
    name: str = "name",
    strong: frozenset[str] = frozenset(),
    digits: int = 0,
    height: int = 280,
) -> Chart:
    """A column per label; several series are stacked.

    Args:
        name: what the labels are, the axis's title and the table's heading.
        strong: the labels that stand out, in a chart of one series.
    """
    rows = [
        {name: label, **{one: round(values[place], digits) for one, values in series.items()}}
        for place, label in enumerate(labels)
    ]
    places = list(range(len(labels)))
    is_single = len(series) == 1
    is_labelled = is_single and len(labels) <= 24
    traces = []
    for number, (one, values) in enumerate(series.items()):
        shade: Any = _SERIES_COLOURS[number % len(_SERIES_COLOURS)]
        if is_single:
            shade = [_STRONG if not strong or label in strong else _QUIET for label in labels]
        trace = {
            "type": "bar",
            "name": _plain(one),
            "x": places,
            "y": list(values),
            "width": 0.82,
            "marker": {"color": shade},
            "customdata": [_plain(label) for label in labels],
            "hovertemplate": f"%{{customdata}}<br>%{{y:,.{digits}f}} {_plain(unit or one)}"
            + ("<extra></extra>" if is_single else f"<extra>{_plain(one)}</extra>"),
        }
        if is_labelled:
            trace |= {
                "text": [f"{value:,.{digits}f}" for value in values],
                "textposition": "outside",
                "cliponaxis": False,
                "textfont": {"color": "var(--ink)", "size": 12},
            }
        traces.append(trace)
    longest = max(map(len, labels), default=1)
    step = max(1, math.ceil(len(labels) * (longest + 1) / _AXIS_CHARACTERS))
    layout = _layout(
        height,
        barmode="stack",
        showlegend=not is_single,
        xaxis=_axis(
            title=name,
            tickmode="array",
            tickvals=places[::step],
            ticktext=[_short(label) for label in labels[::step]],
            showgrid=False,
            fixedrange=True,
        ),
        yaxis=_axis(title=unit, fixedrange=True, rangemode="tozero", visible=not is_labelled),
        dragmode=False,
        margin={"l": 4, "r": 8, "t": 28, "b": 44, "pad": 4},
    )
    return Chart({"data": traces, "layout": layout}, rows)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    times: bool = False,
    log: bool = False,
    steps: bool = False,
    percent: bool = False,
    digits: int = 0,
    height: int = 320,
) -> Chart:
    """A line per name through (x, y) points.

    Args:
        x, y: the axes' titles.
        times: x is seconds since 1970.
        log: x has a logarithmic axis.
        steps: a point's y holds until the next point.
        percent: y is a share of 1.
    """
    rows = [
        {"series": one, x: _time(at) if times else at, y: value}
        for one, points in series.items()
        for at, value in points
    ]
    form = ".0%" if percent else f",.{digits}f"
    traces = [
        {
            "type": "scatter",
            "mode": "lines" if len(points) > 1 else "markers",
            "name": _plain(one),
            "x": [_time(at) if times else at for at, _ in points],
            "y": [value for _, value in points],
            "line": {
                "color": _SERIES_COLOURS[number % len(_SERIES_COLOURS)],
                "width": 2.5,
                "shape": "hv" if steps else "linear",
                # Not by colour alone.
                "dash": ("solid", "dash", "dot", "dashdot")[number % 4],
            },
            "hovertemplate": f"%{{y:{form}}}",
        }
        for number, (one, points) in enumerate(series.items())
    ]
    layout = _layout(
        height,
        showlegend=len(series) > 1,
        hovermode="x unified",
        xaxis=_axis(
            title=x,
            type="log" if log else "date" if times else "linear",
            showgrid=log,
            **({"dtick": 1, "minor": {"ticks": "", "showgrid": False}} if log else {}),
        ),
        yaxis=_axis(title=y, fixedrange=True, rangemode="tozero", tickformat=form),
        margin={"l": 4, "r": 16, "t": 34 if len(series) > 1 else 12, "b": 44, "pad": 4},
    )
    return Chart({"data": traces, "layout": layout}, rows)


def heatmap(
    across: Sequence[str],
    down: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    unit: str,
    across_name: str,
    down_name: str,
    digits: int = 0,
    row_height: int = 26,
) -> Chart:
    """A cell per (row of ``down``, column of ``across``); None stays empty."""
    rows = [
        {down_name: label, **dict(zip(across, line, strict=True))}
        for label, line in zip(down, values, strict=True)
    ]
    trace = {
        "type": "heatmap",
        "x": list(range(len(across))),
        "y": list(range(len(down))),
        "z": [list(line) for line in values],
        "colorscale": [list(step) for step in _HEAT],
        "zmin": 0,
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "texttemplate": f"%{{z:.{digits}f}}",
        "textfont": {"size": 11},
        "customdata": [[[_plain(one), _plain(other)] for one in across] for other in down],
        "hovertemplate": f"{_plain(across_name)} %{{customdata[0]}}, {_plain(down_name)} "
        f"%{{customdata[1]}}<br>%{{z:,.{digits}f}} {_plain(unit)}<extra></extra>",
        "showscale": False,
    }
    layout = _layout(
        row_height * len(down) + 64,
        xaxis=_axis(
            title=across_name,
            tickmode="array",
            tickvals=list(range(len(across))),
            ticktext=[_short(one) for one in across],
            showgrid=False,
            fixedrange=True,
        ),
        yaxis=_axis(
            tickmode="array",
            tickvals=list(range(len(down))),
            ticktext=[_short(one) for one in down],
            showgrid=False,
            fixedrange=True,
            autorange="reversed",
        ),
        dragmode=False,
        margin={"l": 4, "r": 8, "t": 4, "b": 44, "pad": 4},
    )
    return Chart({"data": [trace], "layout": layout}, rows)


def _room_for(texts: Sequence[str]) -> int:
    """Pixels for the longest of these figures beside its bar, on a screen of any width."""
    return 16 + 8 * max(map(len, texts), default=0)


def _layout(height: int, **settings: Any) -> dict[str, Any]:
    layout: dict[str, Any] = {
        "template": {},
        "height": height,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {
            "family": "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', "
            "sans-serif",
            "size": 13,
            "color": "var(--muted)",
        },
        "margin": {"l": 4, "r": 8, "t": 4, "b": 8, "pad": 6},
        "showlegend": False,
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"color": "var(--ink)"},
        },
        "hoverlabel": {
            "bgcolor": "var(--panel)",
            "bordercolor": "var(--line)",
            "font": {"color": "var(--ink)", "size": 13},
            "align": "left",
        },
    }
    return layout | settings


def _axis(*, title: str = "", **settings: Any) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "title": {"text": _plain(title), "standoff": 8, "font": {"size": 12}},
        "automargin": True,
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "zeroline": False,
        "ticks": "",
    }
    return axis | settings


def _label_axis(labels: Sequence[str]) -> dict[str, Any]:
    """A vertical axis with a name per bar, the first at the top."""
    return {
        "autorange": "reversed",
        "tickmode": "array",
        "tickvals": list(range(len(labels))),
        "ticktext": [_short(label) for label in labels],
        "fixedrange": True,
        "ticks": "",
        "showgrid": False,
        "automargin": True,
        "zeroline": False,
    }


def _plain(text: str) -> str:
    """Plotly reads some HTML in its texts; this text has none."""
    return escape(text, quote=False)


def _short(label: str) -> str:
    if len(label) > _LABEL_CHARACTERS:
        label = label[: _LABEL_CHARACTERS - 1] + "…"
    return _plain(label)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "milliseconds").split("+")[0]
