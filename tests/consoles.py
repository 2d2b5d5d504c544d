"""A console over real sockets, and a visitor who fills in its forms."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from html import unescape
from typing import Any, Self

import httpx

from cometmq.console.server import ConsoleServer
from cometmq.console.settings import ConsoleSettings

__all__ = ["Visitor", "threaded_console"]


@contextlib.contextmanager
def threaded_console(settings: ConsoleSettings, **options: Any) -> Iterator[str]:
    """Run a console in a background thread; its address."""
    started = threading.Event()
    addresses: list[str] = []
    failures: list[BaseException] = []
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        server = ConsoleServer(settings, "127.0.0.1", 0, **options)
        await server.start()
        addresses.append(server.address.rstrip("/"))
        started.set()
        await stop.wait()
        await server.stop()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="console")
    thread.start()
    assert started.wait(30)
    try:
        if failures:
            raise failures[0]
        yield addresses[0]
    finally:
        if loops:
            with contextlib.suppress(RuntimeError):  # it ended by itself
                loops[0][0].call_soon_threadsafe(loops[0][1].set)
        thread.join(30)
        assert not thread.is_alive()
        assert failures == []


class Visitor:
    """A browser without a screen: it keeps cookies, follows links, and sends a page's forms."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = httpx.Client(base_url=address, follow_redirects=True, timeout=30, **options)
        self.page = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, path: str, status: int = 200) -> str:
        """Open a page."""
        return self._shown(self.client.get(path), status)

    def post(self, path: str, status: int = 200, **fields: Any) -> str:
        """Send the form of the page that is open."""
        tokens = re.findall(r'name="csrf" value="([0-9a-f]+)"', self.page)
        assert tokens, self.page
        return self._shown(self.client.post(path, data={"csrf": tokens[0], **fields}), status)

    def confirm(self, status: int = 200) -> str:
        """Send the form of the page that asks whether somebody is sure, as it is."""
        form = self.page[self.page.index('<form class="confirm"') :]
        path = re.findall(r'action="([^"]+)"', form)[0]
        fields: dict[str, list[str]] = {}
        for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form):
            fields.setdefault(name, []).append(unescape(value))
        return self._shown(self.client.post(unescape(path), data=fields), status)

    @property
    def note(self) -> str:
        """What the page says about the last order."""
        notes = re.findall(r'<p class="note" role="status">(.*?)</p>', self.page)
        return unescape(notes[0]) if notes else ""

    @property
    def title(self) -> str:
        """The page's heading."""
        return unescape(re.findall(r"<h1>(.*?)</h1>", self.page, re.S)[0])

    def _shown(self, answer: httpx.Response, status: int) -> str:
        assert answer.status_code == status, (answer.status_code, answer.text[-1500:])
        self.page = answer.text
        return self.page
