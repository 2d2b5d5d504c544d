"""Each report in a real browser without a network, light and dark; the manual's pictures."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pytest
from tests.browser import chromium
from tests.browser.pages import PAGES, RECORDED, RecordedRun
from tests.browser.screenshots import PICTURES, SCHEMES, SHOWN, digest

from cometmq.cli.demo.flights import dataset_path

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

needs_browser = pytest.mark.skipif(bool(chromium.MISSING), reason=chromium.MISSING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """One browser for all pages."""
    with chromium.open_browser() as running:
        yield running


def recorded(name: str) -> Any:
    """What the manual's pictures of a page show."""
    return json.loads(SHOWN.read_text(encoding="utf-8"))[name]


@needs_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(browser: Chrome, tmp_path: Path, name: str) -> None:
    """The figure beside the longest bar was cut off on a narrow screen."""
    path = PAGES[name]().write(tmp_path / f"{name}.html")
    with chromium.phone(browser):
        chromium.open_page(browser, path)
        assert chromium.shown(browser)["sections"]
        assert chromium.cut_off(browser) == []


@needs_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_page_draws_itself_and_is_what_the_manual_shows(
    browser: Chrome, tmp_path: Path, name: str
) -> None:
    """No error, no request but the file; marks, figures and texts as in the manual's pictures."""
    page = PAGES[name]()
    path = page.write(tmp_path / f"{name}.html")
    chromium.open_page(browser, path)
    assert chromium.requests(browser) == [path.as_uri()]
    seen = chromium.shown(browser)
    assert seen["answer"] == page.answer
    assert seen == recorded(name)["shows"], "the page has changed: run `make screenshots`"
    light = chromium.colours(browser)
    chromium.show(browser, "dark")
    dark = chromium.colours(browser)
    assert all(one != other for one, other in zip(light, dark, strict=True))
    assert chromium.shown(browser)["sections"] == seen["sections"]
    # The button overrules the system; a keyboard reaches it.
    browser.execute_script("document.querySelector('button.theme').focus()")
    chromium.press_enter(browser)
    assert chromium.colours(browser) == light
    assert chromium.log(browser, "browser") == []


@needs_browser
def test_marks_are_the_data(browser: Chrome, tmp_path: Path) -> None:
    """Each bar of the backlog has its queue's lag, in its place."""
    path = PAGES["backlog"]().write(tmp_path / "backlog.html")
    chromium.open_page(browser, path)
    queues = next(
        one
        for one in chromium.shown(browser)["sections"]
        if one["title"] == "Backlog in 8 of 10 queues"
    )
    lags = ["27,900", "1,700", "1,590", "1,500", "1,170", "920", "20", "10"]
    assert queues["bar_figures"] == lags
    assert queues["bars"] == len(lags)
    assert queues["bar_names"][0] == "Billing: Orders broker-a:2"
    lengths = chromium.bar_lengths(browser, "Backlog in 8 of 10 queues")
    assert lengths[1] / lengths[0] == pytest.approx(1_700 / 27_900, rel=0.02)


@needs_browser
def test_a_browser_without_scripts_shows_every_figure(browser: Chrome, tmp_path: Path) -> None:
    """Nothing is drawn then; answer and tables are there."""
    path = PAGES["trace"]().write(tmp_path / "trace.html")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(path.as_uri())
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    text = browser.find_element("tag name", "body").text
    assert "77% of it was the wait for retries" in text
    assert "order-7731" in text


@pytest.mark.parametrize("name", PAGES)
def test_the_record_is_of_todays_texts(name: str) -> None:
    """Also where no browser is: answer, key figures and titles are those of the pictures."""
    text = PAGES[name]().page()
    shows = recorded(name)["shows"]
    body = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    assert [html.unescape(one) for one in re.findall("<h1>(.*?)</h1>", body)] == [shows["answer"]]
    titles = [html.unescape(one) for one in re.findall("<h2>(.*?)</h2>", body)]
    assert titles == [section["title"] for section in shows["sections"]]
    figures = re.findall("<dt>([^<]*)</dt><dd>([^<]*)<small>([^<]*)</small>", body)
    assert {html.unescape(name): [value, *([html.unescape(note)] if note else [])]
            for name, value, note in figures} == shows["figures"]  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_pictures_are_those_of_the_record(name: str) -> None:
    """Nobody changed a picture without the record of what it shows, and each is small."""
    for scheme in SCHEMES:
        picture = (PICTURES / f"{name}-{scheme}.png").read_bytes()
        assert digest(picture) == recorded(name)["pictures"][scheme]
        assert len(picture) < 200_000


def test_recorded_flights_are_the_data() -> None:
    """The manual's delays, computed again from the dataset by other code."""
    facts = msgspec.json.decode(RECORDED.read_bytes(), type=RecordedRun).flights
    columns = ["carrier", "origin", "dest", "hour", "month", "dep_delay", "arr_delay"]
    flights = pd.read_csv(dataset_path(), usecols=columns)
    assert facts.count == len(flights)
    assert facts.cancelled == flights["dep_delay"].isna().sum()
    assert facts.late == (flights["dep_delay"] >= 15).sum()
    for hour, mean in flights.groupby("hour")["dep_delay"].mean().dropna().items():
        assert facts.by_hour[hour].departure == pytest.approx(mean)
    for carrier, mean in flights.groupby("carrier")["arr_delay"].mean().items():
        assert facts.by_carrier[carrier].arrival == pytest.approx(mean)
    routes = flights["origin"] + "-" + flights["dest"]
    for route, mean in flights["arr_delay"].groupby(routes).mean().dropna().items():
        assert facts.by_route[route].arrival == pytest.approx(mean)
