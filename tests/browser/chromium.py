"""Debian's Chromium, driven by Selenium: opens a page and reads what it drew."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

__all__ = [
    "MISSING",
    "bar_lengths",
    "colours",
    "cut_off",
    "emulate",
    "log",
    "open_browser",
    "open_page",
    "phone",
    "press_enter",
    "requests",
    "screenshot",
    "show",
    "shown",
]

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER: Final = shutil.which("chromedriver")
MISSING: Final = (
    ""
    if CHROMIUM and DRIVER
    else "Chromium and its driver are not installed: apt-get install chromium chromium-driver"
)
WIDTH: Final = 1200
_HEIGHT: Final = 900
#: Quiet and alone: no update, no sync, no sandbox (containers run as root).
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    f"--window-size={WIDTH},{_HEIGHT}",
)
_PHONE_WIDTH: Final = 390
_CUT_OFF_JS: Final = """
const cut = [...document.querySelectorAll(".plot")].flatMap((plot) =>
  [...plot.querySelectorAll(".bartext, .annotation-text")]
    .filter((one) => one.getBoundingClientRect().right > plot.getBoundingClientRect().right + 0.5)
    .map((one) => one.textContent));
return document.documentElement.scrollWidth > innerWidth ? [...cut, "the page"] : cut;
"""
_SHOWN_JS: Final = """
const texts = (root, selector) =>
  [...root.querySelectorAll(selector)].map((one) => one.textContent);
return {
  title: document.title,
  question: texts(document, ".question")[0],
  answer: texts(document, "h1")[0],
  faults: texts(document, ".fault p"),
  advice: texts(document, ".advice p"),
  figures: Object.fromEntries([...document.querySelectorAll(".figures div")].map((one) =>
    [one.querySelector("dt").textContent, one.querySelector("dd").innerText.split("\\n")])),
  sections: [...document.querySelectorAll("section")].map((one) => ({
    title: texts(one, "h2")[0],
    bars: one.querySelectorAll(".barlayer .point path").length,
    bar_figures: texts(one, ".bartext, .annotation-text"),
    bar_names: one.querySelector(".barlayer .point") ? texts(one, ".ytick text, .xtick text") : [],
    cells: one.querySelectorAll(".heatmap-label").length,
    lines: one.querySelectorAll(".scatterlayer .js-line").length,
    legend: texts(one, ".legendtext"),
    rows: one.querySelectorAll("tbody tr").length,
  })),
};
"""
_COLOURS_JS: Final = """
const style = getComputedStyle(document.body);
const bar = document.querySelector(".barlayer .point path");
return [style.backgroundColor, style.color, bar ? getComputedStyle(bar).fill : ""];
"""


@contextmanager
def open_browser(*, is_offline: bool = True) -> Iterator[Chrome]:
    """A browser without any network; or one that reaches this machine's servers."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    assert CHROMIUM is not None
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=ChromeService(DRIVER))
    try:
        if is_offline:
            browser.execute_cdp_cmd(
                "Network.emulateNetworkConditions",
                {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
            )
        _size(browser, WIDTH)
        yield browser
    finally:
        browser.quit()


@contextmanager
def phone(browser: Chrome) -> Iterator[None]:
    """A screen as narrow as a phone's."""
    _size(browser, _PHONE_WIDTH)
    try:
        yield
    finally:
        _size(browser, WIDTH)


def cut_off(browser: Chrome) -> list[str]:
    """The figures beside bars that reach beyond their chart, and the page if it is too wide."""
    found: list[str] = browser.execute_script(_CUT_OFF_JS)
    return found


def _size(browser: Chrome, width: int) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": _HEIGHT, "deviceScaleFactor": 1, "mobile": False},
    )


def open_page(browser: Chrome, path: Path, scheme: str = "light") -> None:
    """Load a page and wait until it has drawn its charts."""
    emulate(browser, scheme)
    log(browser, "browser")
    log(browser, "performance")
    browser.get(path.as_uri())
    drawn = browser.execute_async_script(
        "const done = arguments[0], root = document.documentElement;"
        "const look = () => root.dataset.drawn ? done(root.dataset.drawn)"
        " : requestAnimationFrame(look); look();"
    )
    assert drawn == "yes", log(browser, "browser")


def emulate(browser: Chrome, scheme: str) -> None:
    """Let the system prefer a colour scheme."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def show(browser: Chrome, scheme: str) -> None:
    """Change the system's colour scheme under the open page and wait for its new drawing."""
    before = colours(browser)[2]
    emulate(browser, scheme)
    _wait_for_colour(browser, before)


def shown(browser: Chrome) -> dict[str, Any]:
    """What the page shows: its texts, and how many marks each chart has."""
    found: dict[str, Any] = browser.execute_script(_SHOWN_JS)
    return found


def colours(browser: Chrome) -> list[str]:
    """Background and text of the page, fill of its first bar."""
    found: list[str] = browser.execute_script(_COLOURS_JS)
    return found


def log(browser: Chrome, kind: str) -> list[dict[str, Any]]:
    """The entries of one of the browser's logs since the last call."""
    entries: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def requests(browser: Chrome) -> list[str]:
    """The addresses that the page asked for since it was opened, but for data it has itself."""
    messages = [json.loads(entry["message"])["message"] for entry in log(browser, "performance")]
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
        and not message["params"]["request"]["url"].startswith("data:")
    ]


def screenshot(browser: Chrome, height: int, scale: float = 0.8) -> bytes:
    """The page's upper part as PNG."""
    whole = browser.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": min(height, whole), "scale": scale}
    taken = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    return base64.b64decode(taken["data"])


def press_enter(browser: Chrome) -> None:
    """Press Enter where the focus is, and wait for the next drawing."""
    from selenium.webdriver.common.keys import Keys

    before = colours(browser)[2]
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    _wait_for_colour(browser, before)


def bar_lengths(browser: Chrome, title: str) -> list[float]:
    """The lengths in pixels of the bars in the section whose title contains a text."""
    lengths: list[float] = browser.execute_script(
        "const section = [...document.querySelectorAll('section')].find((one) =>"
        " one.querySelector('h2').textContent.includes(arguments[0]));"
        "return [...section.querySelectorAll('.barlayer .point path')].map((one) =>"
        " one.getBBox().width);",
        title,
    )
    return lengths


def _wait_for_colour(browser: Chrome, before: str) -> None:
    browser.execute_async_script(
        "const [before, done] = arguments;"
        "const bar = () => document.querySelector('.barlayer .point path');"
        "const look = () => bar() && getComputedStyle(bar()).fill !== before ? done()"
        " : requestAnimationFrame(look); look();",
        before,
    )
