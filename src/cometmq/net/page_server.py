"""Serves text pages over HTTP/1.1 to GET and HEAD: metrics and health checks.

`PageServer` takes whole requests and answers each with one page.  A page may take several turns of
the loop to build, so that a large one holds up nobody.  Everything about HTTP is h11's.

A connection that asks too much (a head above 8 KiB, a body, silence for a minute, a hundred
connections) is refused or closed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, cast

import h11

from cometmq.net.env import Environment
from cometmq.net.network import Listener

__all__ = ["Page", "PageServer", "health_page"]

log = logging.getLogger("cometmq.net")

HEAD_BYTES_MAX: Final = 8 * 1024
CONNECTIONS_MAX: Final = 100
SILENCE_S_MAX: Final = 60.0

Page: TypeAlias = tuple[int, str, bytes]
"""Status, content type and content."""

Build: TypeAlias = Callable[[Callable[[Page], None]], None]
"""Calls its argument with the page, at once or later, on the loop."""


def health_page(reasons: list[str]) -> Page:
    """The page of a health check: 200, or 503 with the reasons why not."""
    text = "\n".join(reasons or ["ok"]) + "\n"
    return 503 if reasons else 200, "text/plain; charset=utf-8", text.encode()


class PageServer:
    """A server of the pages at some paths.

    Args:
        pages: what builds the page of each path.
    """

    def __init__(self, env: Environment, pages: Mapping[str, Build]) -> None:
        self._env = env
        self._pages = pages
        self._listener: Listener | None = None
        self._connections: set[_Connection] = set()

    async def listen(self, host: str, port: int) -> int:
        """Listen on ``host:port`` (0: any free port) and return the bound port.

        Raises:
            ConnectFailed: the port cannot be bound.
        """
        self._listener = await self._env.network.listen(host, port, lambda: _Connection(self))
        return self._listener.port

    def close(self) -> None:
        """Stop listening, and close every connection."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.end()

    def opened(self, connection: "_Connection") -> bool:
        """Note a connection; False if there are too many."""
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections.add(connection)
        return True

    def lost(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def build(self, path: str, done: Callable[[Page], None]) -> None:
        """Call `done` with the page at a path."""
        build = self._pages.get(path)
        if build is None:
            known = ", ".join(sorted(self._pages))
            done((404, "text/plain; charset=utf-8", f"no such page; there are {known}\n".encode()))
            return
        build(done)


class _Connection(asyncio.Protocol):
    """One client's connection; it gets one page after the other."""

    def __init__(self, server: PageServer) -> None:
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._is_building = False
        self._is_head = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.opened(self):
            self.end()
            return
        self._listen()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._silence is not None:
            self._silence.cancel()
        self._server.lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError:
            self.end()
            return
        self._advance()

    def end(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _listen(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(SILENCE_S_MAX, self.end)

    def _advance(self) -> None:
        """Handle what has arrived, up to the next page that takes time."""
        while not self._is_building and self._transport is not None:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, str(error))
                return
            if isinstance(event, h11.Request):
                if event.method not in (b"GET", b"HEAD"):
                    self._refuse(405, "only GET and HEAD are served here")
                    return
                self._is_building = True
                path = event.target.partition(b"?")[0].decode("latin-1")
                self._is_head = event.method == b"HEAD"
                self._server.build(path, self._answer)
            elif isinstance(event, h11.Data):
                self._refuse(413, "a request has no body here")
                return
            elif event is h11.PAUSED:
                self._http.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed):
                self.end()
                return
            elif event is h11.NEED_DATA:
                return

    def _answer(self, page: Page) -> None:
        self._is_building = False
        if self._transport is None:
            return
        status, kind, content = page
        self._listen()
        self._send(status, kind, content, is_head=self._is_head)
        if self._http.our_state is h11.MUST_CLOSE:
            self.end()
        else:
            self._advance()

    def _refuse(self, status: int, text: str) -> None:
        """Answer with an error, if HTTP still allows one, and close."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(status, "text/plain; charset=utf-8", f"{text}\n".encode(), closes=True)
        self.end()

    def _send(
        self, status: int, kind: str, content: bytes, *, is_head: bool = False, closes: bool = False
    ) -> None:
        headers = [
            ("content-type", kind),
            ("content-length", str(len(content))),
            ("cache-control", "no-store"),
        ]
        if closes:
            headers.append(("connection", "close"))
        events: list[h11.Event] = [h11.Response(status_code=status, headers=headers)]
        if content and not is_head:
            events.append(h11.Data(data=content))
        events.append(h11.EndOfMessage())
        assert self._transport is not None
        self._transport.write(b"".join(self._http.send(event) or b"" for event in events))
