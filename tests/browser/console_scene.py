"""A console of a small shop, for the browser's tests and the manual's pictures.

`python -m tests.browser.console_scene` (part of `make screenshots`) takes the pictures anew.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.browser.chromium import emulate, open_browser, screenshot
from tests.browser.screenshots import SCHEMES, digest
from tests.consoles import threaded_console

import cometmq
import cometmq.sync
from cometmq.console.settings import ConsoleSettings
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

__all__ = ["PATHS", "PICTURES", "SHOWN", "console_of_a_shop", "seen"]

PICTURES: Final = Path(__file__).resolve().parents[2] / "docs" / "assets" / "console"
SHOWN: Final = PICTURES / "shown.json"
"""Page -> what its pictures show, and the digest of each picture."""
PATHS: Final = {
    "overview": "/",
    "topic": "/topics/Orders",
    "group": "/groups/billing?explain=1",
    "messages": "/messages?topic=Orders",
    "dead-letters": "/dead-letters/mail",
}
_HEIGHT: Final = 900
_SEEN_JS: Final = """
const texts = (selector) =>
  [...document.querySelectorAll(selector)].map((one) => one.textContent.trim());
return {
  heading: texts("h1")[0],
  sections: texts("h2").filter((text) => !/\\d/.test(text)),
  columns: texts("th"),
  figures: texts("dt"),
  fields: texts("form label").map((text) => text.split("\\n")[0].trim()),
  buttons: texts("button"),
};
"""
_ORDERS: Final = (
    ("new", 17, "41.20"),
    ("new", 4, "9.90"),
    ("paid", 17, "41.20"),
    ("new", 230, "120.00"),
    ("paid", 4, "9.90"),
    ("sent", 17, "41.20"),
)


@contextlib.contextmanager
def console_of_a_shop() -> Iterator[tuple[str, EmbeddedCluster]]:
    """A console's address, and its cluster: orders, a group that waits, a group with dead letters.

    The group `billing` has a member that works on its first message all the time.
    """
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(threaded_cluster({}))
        name_server = cluster.name_server_address
        with cometmq.sync.Admin(name_server=name_server) as admin:
            for topic in ("Orders", "Products"):
                admin.create_topic(topic, queue_count=2)
        with cometmq.sync.Producer("shop", name_server=name_server) as producer:
            for number, (state, customer, total) in enumerate(_ORDERS):
                body = json.dumps({"order": number, "customer": customer, "total": total})
                key = f"order-{number}"
                reason = {"reason": "no such address"}
                producer.send(
                    cometmq.Message("Orders", body.encode(), state, key, properties=reason)
                )
        _let_them_die(name_server)
        busy, done = threading.Event(), threading.Event()

        def handle(message: cometmq.ReceivedMessage) -> None:
            busy.set()
            done.wait()

        stack.enter_context(
            cometmq.sync.PushConsumer(
                "billing",
                {"Orders": "*"},
                handle,
                name_server=name_server,
                consume_from="first",
            )
        )
        stack.callback(done.set)
        assert busy.wait(60)
        settings = ConsoleSettings(name_server, hosts=frozenset({"127.0.0.1"}))
        yield stack.enter_context(threaded_console(settings)), cluster


def _let_them_die(name_server: str) -> None:
    died = threading.Semaphore(0)

    def handle(message: cometmq.ReceivedMessage) -> cometmq.DeadLetter:
        died.release()
        return cometmq.DeadLetter()

    with cometmq.sync.PushConsumer(
        "mail", {"Orders": "*"}, handle, name_server=name_server, consume_from="first"
    ):
        for _ in _ORDERS:
            assert died.acquire(timeout=60)


def seen(browser: Chrome) -> dict[str, Any]:
    """What a page has that does not change from run to run."""
    found: dict[str, Any] = browser.execute_script(_SEEN_JS)
    return found


def take_all() -> None:
    """Write each page's pictures, light and dark, and the record of what they show."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    record: dict[str, dict[str, Any]] = {}
    with console_of_a_shop() as (address, _), open_browser(is_offline=False) as browser:
        for name, path in PATHS.items():
            record[name] = {"pictures": {}}
            for scheme in SCHEMES:
                emulate(browser, scheme)
                browser.get(address + path)
                picture = screenshot(browser, _HEIGHT)
                (PICTURES / f"{name}-{scheme}.png").write_bytes(picture)
                record[name]["pictures"][scheme] = digest(picture)
            record[name]["shows"] = seen(browser)
    SHOWN.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    take_all()
