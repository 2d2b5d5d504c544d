"""Pages of metrics: escapes, the bound of a family, histograms."""

from cometmq.core.base.exposition import Histogram, MetricsText


def test_labels_are_escaped_and_numbers_exact() -> None:
    """Backslash, quote and line end; whole numbers stay whole."""
    page = MetricsText({"node": 'a"b\\c\nd'}, 10)
    page.value("x", "gauge", "Help.", 2**53 + 1, {"le": "y"})
    page.value("z", "gauge", "Help.", 0.25)
    text = page.encode().decode()
    assert 'x{node="a\\"b\\\\c\\nd",le="y"} 9007199254740993\n' in text
    assert "# HELP x Help.\n# TYPE x gauge\n" in text
    assert text.splitlines()[5].endswith(" 0.25")


def test_a_family_has_a_bound_and_says_what_it_left_out() -> None:
    """Other families are whole."""
    page = MetricsText({}, 2)
    family = page.family("many", "gauge", "Help.")
    for number in range(5):
        family.add(number, {"n": str(number)})
    page.value("one", "gauge", "Help.", 1)
    lines = page.encode().decode().splitlines()
    assert [line for line in lines if line.startswith("many")] == [
        'many{n="0"} 0',
        'many{n="1"} 1',
    ]
    assert "one{} 1" in lines
    assert lines[-1] == "cometmq_metrics_left_out{} 3"


def test_a_histogram_counts_up_to_each_bound() -> None:
    """A value on a bound belongs to it; buckets are cumulative."""
    histogram = Histogram((1, 2.5))
    for value in (0, 1, 1.5, 2.5, 9):
        histogram.add(value)
    page = MetricsText({}, 10)
    page.histogram("h", "Help.", histogram)
    lines = page.encode().decode().splitlines()
    assert lines[2:7] == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="2.5"} 4',
        'h_bucket{le="+Inf"} 5',
        "h_sum{} 14",
        "h_count{} 5",
    ]
