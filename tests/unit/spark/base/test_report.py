"""The report's page: whole, by itself, and with every text escaped."""

import re
from pathlib import Path
from xml.etree import ElementTree

from cometmq.spark.base.progress import RunProgress, Summary
from cometmq.spark.base.report import ROWS_MAX, HtmlReport


def filled() -> HtmlReport:
    """A report with one of each part."""
    report = HtmlReport("Archive of <Flights>", "All & sundry.")
    report.heading("Rows")
    report.table([{"topic": "A<b>", "rows": 1_234, "is_good": True, "queues": [1, 2]}])
    report.bar_chart("By topic", [("A<b>", 1_234), ("a name that is far too long to show", 0)])
    report.line_chart("Rate", {"x": [(0, 1), (1, 5)], "y": [(0.5, 2)]}, x_unit="s", y_unit="rows")
    report.line_chart("Stored", {"x": [(1_700_000_000, 1)]}, x_times=True)
    report.line_chart("Nothing", {})
    report.facts({"source": "a & b"})
    return report


def test_page_needs_nothing_beside_itself() -> None:
    """No link, no script, no font from elsewhere; light and dark."""
    page = filled().page()
    assert not re.search(r"https?://|src=|href=|@import|url\(|<script", page)
    assert "prefers-color-scheme: dark" in page


def test_texts_are_escaped() -> None:
    """What users named does not become markup."""
    page = filled().page()
    assert "A&lt;b&gt;" in page
    assert "<b>" not in page
    assert "a &amp; b" in page


def test_charts_are_sound_drawings() -> None:
    """Each SVG parses, has a title, and its bars are as long as their values say."""
    page = filled().page()
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        assert ElementTree.fromstring(drawing).find("title") is not None
    widths = [float(width) for width in re.findall(r'<rect class="c0"[^>]* width="([\d.]+)"', page)]
    assert widths[0] > 400
    assert widths[1] == 0
    assert "2023-11-14 22:13:20" in page


def test_no_figure_is_cut_and_no_number_stands_left() -> None:
    """A chart has room for its longest figure; a column of numbers may lack some."""
    report = HtmlReport("Room")
    report.bar_chart("Lag", [("a", 123_456_789_012), ("b", 1)], unit="messages")
    report.table([{"drains_in_s": None, "none": None}, {"drains_in_s": 4.5, "none": None}])
    page = report.page()
    drawing = re.findall(r"<svg.*?</svg>", page, re.DOTALL)[0]
    (width,) = re.findall(r'viewBox="0 0 (\d+) ', drawing)
    texts = re.findall(r'<text x="([\d.]+)" y="[\d.]+">([^<]+)</text>', drawing)
    assert [text for _, text in texts] == ["123,456,789,012 messages", "1 messages"]
    assert all(float(x) + 7 * len(text) <= int(width) for x, text in texts)
    assert "<th class='n'>drains in s</th><th>none</th>" in page


def test_long_tables_are_cut_and_counted() -> None:
    """A page with a million rows helps nobody."""
    report = HtmlReport("Long")
    report.table([{"row": number} for number in range(ROWS_MAX + 7)])
    page = report.page()
    assert page.count("<tr>") == ROWS_MAX + 1
    assert "and 7 more" in page


def test_summary_and_rate_are_shown(tmp_path: Path) -> None:
    """Facts and faults of a summary, and the rate that progress sampled; written whole."""
    progress = RunProgress("archive", quiet=True, now=iter(range(100)).__next__)
    for _ in range(5):
        progress.advance(1_000)
    report = HtmlReport("Run")
    report.summary(Summary("archive", {"rows": 5_000}, ["a file is missing"]))
    report.rate_chart(progress)
    path = report.write(tmp_path / "deep" / "run.html")
    page = path.read_text(encoding="utf-8")
    assert "class='missed'>a file is missing" in page
    assert "<td>5,000</td>" in page
    assert "<polyline" in page
    assert [entry.name for entry in path.parent.iterdir()] == ["run.html"]
