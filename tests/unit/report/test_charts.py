"""The kinds of charts: Plotly accepts them, and they hold what their callers passed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cometmq.report.charts import BARS_MAX, Chart, bars, columns, heatmap, lines


def figure(chart: Chart) -> Any:
    """The figure as the browser reads it, checked by Plotly."""
    return json.loads(chart.json())


def test_bars_have_their_values_and_room_for_their_figures() -> None:
    """In the given order; long labels are cut on the axis and whole when pointed at."""
    drawn = figure(bars([("a" * 60, 1_234.5), ("b", 0.0)], unit="ms", name="topic"))
    (trace,) = drawn["data"]
    assert trace["x"] == [1234.5, 0.0]
    assert trace["customdata"][0] == "a" * 60
    assert drawn["layout"]["yaxis"]["ticktext"][0] == "a" * 43 + "…"
    assert drawn["layout"]["margin"]["r"] > 7 * len("1,234")
    assert trace["marker"]["color"] == ["var(--strong)", "var(--quiet)"]


def test_bars_below_zero_have_room_on_the_left() -> None:
    """An early arrival's figure does not cover its name."""
    drawn = figure(bars([("late", 20.0), ("early", -10.0)]))
    assert drawn["layout"]["xaxis"]["range"][0] < -10


def test_two_labels_that_begin_alike_are_two_bars() -> None:
    """Cut labels may be equal; the bars are not one."""
    drawn = figure(bars([("x" * 50 + "1", 1.0), ("x" * 50 + "2", 2.0)]))
    assert len(set(drawn["data"][0]["y"])) == 2


def test_a_chart_shows_the_first_bars_and_its_table_all() -> None:
    """Beyond a limit bars are a wall."""
    chart = bars([(str(number), 1.0) for number in range(BARS_MAX + 5)])
    assert len(figure(chart)["data"][0]["x"]) == BARS_MAX
    assert len(chart.rows) == BARS_MAX + 5


def test_columns_of_several_series_are_stacked_and_named() -> None:
    """One series needs no legend, several do."""
    one = figure(columns(["5", "6"], {"min": [1.0, 2.0]}, strong=frozenset("6")))
    assert one["data"][0]["marker"]["color"] == ["var(--quiet)", "var(--strong)"]
    assert one["layout"]["showlegend"] is False
    chart = columns(["a"], {"upserts": [3.0], "deletes": [1.0]}, name="batch")
    two = figure(chart)
    assert (two["layout"]["barmode"], two["layout"]["showlegend"]) == ("stack", True)
    assert chart.rows == [{"batch": "a", "upserts": 3.0, "deletes": 1.0}]


def test_lines_differ_by_more_than_colour() -> None:
    """Dashes help who cannot tell the hues; times become dates."""
    chart = lines(
        {"one": [(1_700_000_000, 1), (1_700_000_060, 2)], "two": [(1_700_000_000, 3)]},
        x="time",
        y="messages",
        times=True,
    )
    drawn = figure(chart)
    assert {trace["line"]["dash"] for trace in drawn["data"]} == {"solid", "dash"}
    assert drawn["data"][0]["x"][0] == "2023-11-14 22:13:20.000"
    assert [trace["mode"] for trace in drawn["data"]] == ["lines", "markers"]
    assert chart.rows[2] == {"series": "two", "time": "2023-11-14 22:13:20.000", "messages": 3}


def test_heatmap_leaves_unknown_cells_empty() -> None:
    """None is not zero."""
    chart = heatmap(
        ["x", "y"], ["r"], [[1.0, None]], unit="min", across_name="to", down_name="from"
    )
    assert figure(chart)["data"][0]["z"] == [[1.0, None]]
    assert chart.rows == [{"from": "r", "x": 1.0, "y": None}]


@pytest.mark.parametrize("chart", [bars([]), columns([], {"n": []}), lines({}, x="x", y="y")])
def test_nothing_is_a_chart_too(chart: Chart) -> None:
    """An empty run draws an empty chart, and no error."""
    assert figure(chart)["layout"]["height"] > 0
