"""The builder's page: whole, by itself, with every text escaped and every figure in a table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cometmq import extras
from cometmq.errors import ConfigError
from cometmq.report.charts import bars
from cometmq.report.page import ROWS_MAX, ReportPage

NASTY = "A<b>$x</script>"


def filled() -> ReportPage:
    """A report with each kind of part, and names that are markup."""
    report = ReportPage(
        f"Where is {NASTY}?", f"In {NASTY}, 1,234 of it", "All & sundry.", ["a < b"]
    )
    report.advise("Look at <b>.")
    report.figure("Rows", 1_234, "of <all>")
    report.section("One", "text", chart=bars([(NASTY, 5.0)]), rows=[{"na<me": NASTY, "n": 7}])
    report.condition("command", "cometmq pipeline <x>")
    return report


def text_of(page: str) -> str:
    """The page without what it brings: Plotly, its style and its script."""
    return re.sub(r"<script type='text/plain'.*?</script>|<style>.*?</style>", "", page, flags=re.S)


def test_page_needs_nothing_beside_itself() -> None:
    """No link, no font, no script from elsewhere."""
    page = text_of(filled().page())
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)


def test_page_is_smaller_than_two_mebibytes() -> None:
    """Plotly travels compressed."""
    assert len(filled().page()) < 2 * 1024 * 1024


def test_page_without_charts_brings_no_drawing_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of words and tables is small, and needs no extra."""
    monkeypatch.setitem(extras.EXTRAS, "report", ("no_such_module",))
    report = ReportPage("What?", "Nothing")
    report.section("Rows", rows=[{"a": 1}])
    assert len(report.page()) < 20_000


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A chart without Plotly: the error has the line that installs it, and no file is left."""
    monkeypatch.setitem(extras.EXTRAS, "report", ("no_such_module",))
    with pytest.raises(ConfigError, match=r"pip install 'cometmq\[report\]'"):
        filled().write(tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_names_do_not_become_markup() -> None:
    """Names of topics and keys come from others; neither HTML nor Plotly may read them as tags."""
    page = text_of(filled().page())
    assert "<b>" not in page
    assert "x</script>" not in page
    assert "A&lt;b&gt;$x&lt;/script&gt;" in page
    drawn = re.search(r"<script type='application/json'>(.*?)</script>", page)
    assert drawn is not None
    # Plotly shows &lt; as a character.
    assert json.loads(drawn[1])["data"][0]["customdata"] == ["A&lt;b&gt;$x&lt;/script&gt;"]


def test_answer_comes_first() -> None:
    """Question, answer, what is wrong, what to do, key figures, sections, conditions."""
    page = text_of(filled().page())
    order = ["class='question'", "<h1>", "class='fault'", "class='advice'", "class='figures'"]
    order += ["<h2>One", "class='command'"]
    places = [page.index(part) for part in order]
    assert places == sorted(places)


def test_a_table_stands_under_each_chart() -> None:
    """Who cannot see the chart reads its figures."""
    page = text_of(filled().page())
    assert page.count("class='plot' role='img' aria-label='One.") == 1
    assert "</script></figure><div class='wide' tabindex='0' role='region'" in page
    report = ReportPage("?", "!")
    report.section("Alone", chart=bars([("a", 1.0)]))
    assert "<summary>Figures of this chart</summary><div class='wide' tabindex='0'" in report.page()


def test_numbers_stand_right_also_beside_gaps() -> None:
    """A column of numbers may lack some; a column of nothing is no column of numbers."""
    report = ReportPage("?", "!")
    report.section(
        "T", rows=[{"drains_in_s": None, "none": None}, {"drains_in_s": 4.5, "none": None}]
    )
    assert "<th scope='col' class='n'>drains in s</th><th scope='col'>none</th>" in report.page()


def test_long_tables_are_cut_and_counted() -> None:
    """A page with a million rows helps nobody."""
    report = ReportPage("?", "!")
    report.section("Long", rows=[{"row": number} for number in range(ROWS_MAX + 7)])
    page = report.page()
    assert page.count("<tr>") == ROWS_MAX + 1
    assert "and 7 more" in page


def test_write_is_whole(tmp_path: Path) -> None:
    """The folder is made, and no draft stays."""
    path = filled().write(tmp_path / "deep" / "run.html")
    assert path.read_text(encoding="utf-8") == filled().page()
    assert [entry.name for entry in path.parent.iterdir()] == ["run.html"]


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG between two colours such as #1a2027."""

    def luminance(colour: str) -> float:
        shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [
            share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
            for share in shares
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_readable(scheme: int) -> None:
    """Text has 4.5:1 on both backgrounds, marks have 3:1."""
    style = re.search(r"<style>(.*?)</style>", filled().page(), re.DOTALL)
    assert style is not None
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", style[1])
    colours = {name: (light, dark)[scheme] for name, light, dark in pairs}
    for name in ("ink", "muted", "good", "bad"):
        assert contrast(colours[name], colours["bg"]) >= 4.5, name
        assert contrast(colours[name], colours["panel"]) >= 4.5, name
    for name in ("strong", "quiet", *(f"c{number}" for number in range(6))):
        assert contrast(colours[name], colours["bg"]) >= 3, name
