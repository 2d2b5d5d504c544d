"""The console in a real browser: light and dark, keyboard, live figures, the manual's pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.browser import chromium
from tests.browser.console_scene import PATHS, PICTURES, SHOWN, console_of_a_shop, seen
from tests.browser.screenshots import SCHEMES, digest

import cometmq
import cometmq.sync
from cometmq.testing.cluster import EmbeddedCluster

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = pytest.mark.timeout(180)
needs_browser = pytest.mark.skipif(bool(chromium.MISSING), reason=chromium.MISSING)
EVIL = "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'x'\">"


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[str, EmbeddedCluster]]:
    """One console for all tests."""
    with console_of_a_shop() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """One browser for all tests, which may reach this machine."""
    with chromium.open_browser(is_offline=False) as running:
        yield running


@needs_browser
@pytest.mark.parametrize("name", PATHS)
def test_a_page_is_what_the_manual_shows(
    browser: Chrome, scene: tuple[str, EmbeddedCluster], name: str
) -> None:
    """No error, no request but to the console; columns, fields and buttons as in the pictures."""
    address, _ = scene
    chromium.log(browser, "browser")
    chromium.log(browser, "performance")
    colours = set()
    for scheme in SCHEMES:
        chromium.emulate(browser, scheme)
        browser.get(address + PATHS[name])
        colours.add(chromium.colours(browser)[0])
    assert len(colours) == len(SCHEMES)
    record = json.loads(SHOWN.read_text(encoding="utf-8"))[name]
    assert seen(browser) == record["shows"], "the page has changed: run `make screenshots`"
    assert chromium.log(browser, "browser") == []
    asked = chromium.requests(browser)
    assert address + PATHS[name] in asked
    assert all(each.startswith(f"{address}/") for each in asked), asked


@needs_browser
@pytest.mark.parametrize("path", PATHS.values())
def test_a_page_fits_a_phone(
    browser: Chrome, scene: tuple[str, EmbeddedCluster], path: str
) -> None:
    """Wide tables scroll by themselves; the page does not."""
    address, _ = scene
    with chromium.phone(browser):
        browser.get(address + path)
        assert not browser.execute_script(
            "return document.documentElement.scrollWidth > innerWidth"
        )


@needs_browser
def test_a_keyboard_is_enough(browser: Chrome, scene: tuple[str, EmbeddedCluster]) -> None:
    """The first stop skips to the content; / goes to the search, Enter sends it; forms too."""
    from selenium.webdriver.common.keys import Keys

    address, _ = scene
    browser.get(f"{address}/topics")
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "content"
    browser.switch_to.active_element.send_keys("/")
    browser.switch_to.active_element.send_keys("prod", Keys.ENTER)
    _wait(browser, "return location.search.includes('q=prod')")
    assert browser.execute_script(
        "return [...document.querySelectorAll('tbody tr td:first-child')].map((one) =>"
        " one.textContent)"
    ) == ["Products"]
    browser.get(f"{address}/topics/Products")
    browser.execute_script("document.querySelector('textarea[name=body]').focus()")
    browser.switch_to.active_element.send_keys("tried by keyboard", *[Keys.TAB] * 6, Keys.ENTER)
    _wait(browser, "return !!document.querySelector('.note')")
    assert "Sent " in browser.execute_script("return document.querySelector('.note').textContent")


@needs_browser
def test_figures_come_by_themselves(browser: Chrome, scene: tuple[str, EmbeddedCluster]) -> None:
    """A message that somebody sends shows on the open page; what has the focus is left alone."""
    address, cluster = scene
    with cometmq.sync.Admin(name_server=cluster.name_server_address) as admin:
        admin.create_topic("Live", queue_count=1)
    browser.get(f"{address}/topics/Live")
    stored = "return document.querySelector('#queues td:last-child').textContent"
    assert browser.execute_script(stored) == "0"
    with cometmq.sync.Producer("p", name_server=cluster.name_server_address) as producer:
        producer.send(cometmq.Message("Live", b"x"))
        _wait(browser, f"{stored} === '1'")
        browser.execute_script(
            "const cell = document.querySelector('#queues td:last-child');"
            "cell.tabIndex = -1; cell.focus();"
        )
        before = browser.execute_script("return document.documentElement.dataset.renewed")
        producer.send(cometmq.Message("Live", b"x"))
        _wait(browser, f"return document.documentElement.dataset.renewed > {before} + 1")
        assert browser.execute_script(stored) == "1"
        browser.execute_script("document.activeElement.blur()")
        _wait(browser, f"{stored} === '2'")


@needs_browser
def test_what_a_message_says_is_text(browser: Chrome, scene: tuple[str, EmbeddedCluster]) -> None:
    """Markup in a body and in a property is shown, and does nothing."""
    address, cluster = scene
    with cometmq.sync.Producer("p", name_server=cluster.name_server_address) as producer:
        message = cometmq.Message("Evil", EVIL.encode(), properties={"p": EVIL}, keys="evil")
        message_id = producer.send(message).message_id
    chromium.log(browser, "browser")
    browser.get(f"{address}/message?topic=Evil&id={message_id}")
    assert browser.title == f"{message_id} · CometMQ"
    assert browser.execute_script("return document.querySelector('pre.body').textContent") == EVIL
    browser.get(f"{address}/messages?topic=Evil")
    assert browser.title == "Messages · CometMQ"
    assert chromium.log(browser, "browser") == []


def test_pictures_are_those_of_the_record() -> None:
    """Each picture is the one that was taken when its page showed what the record says."""
    record = json.loads(SHOWN.read_text(encoding="utf-8"))
    assert record.keys() == PATHS.keys()
    for name, page in record.items():
        for scheme, fingerprint in page["pictures"].items():
            picture = (PICTURES / f"{name}-{scheme}.png").read_bytes()
            assert digest(picture) == fingerprint, f"{name}-{scheme}: run `make screenshots`"


def _wait(browser: Chrome, condition: str) -> None:
    """Wait until a script returns true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(condition))
