"""The event loop of the synchronous clients: one daemon thread per process.

It runs consumers, heartbeats and route refreshes.  Ordinary requests use a blocking socket in the
caller's thread instead.  A forked child has none of its parent's threads, so it makes a new loop on
first use.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from cometmq.client.base import fork
from cometmq.errors import ClientClosed
from cometmq.net.loop import run

__all__ = ["BackgroundLoop", "background"]

T = TypeVar("T")
START_TIMEOUT_S = 30.0


class BackgroundLoop:
    """An event loop in a thread of its own.

    Raises:
        ClientClosed: the thread did not start the loop within 30 s.
    """

    def __init__(self) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=lambda: run(_serve(started)), name="cometmq-background", daemon=True
        )
        self._thread.start()
        try:
            self._loop = started.result(START_TIMEOUT_S)
        except TimeoutError:
            raise ClientClosed("the background event loop did not start") from None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            ClientClosed: called on the loop itself, where waiting would never end.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientClosed(
                "a blocking call inside an async handler of the synchronous face would wait for "
                "itself; use a plain function as the handler, or the asyncio clients"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop, without waiting for it."""
        self._loop.call_soon_threadsafe(callback, *args)


async def _serve(started: "Future[asyncio.AbstractEventLoop]") -> None:
    loop = asyncio.get_running_loop()
    started.set_result(loop)
    # It ends with the process: consumers may start at any time, and an idle loop is cheap.
    await loop.create_future()


class _Home:
    """The loop of this process."""

    def __init__(self) -> None:
        self.loop: BackgroundLoop | None = None
        self.lock = threading.Lock()
        fork.register(self)

    def after_fork(self) -> None:
        """Forget the loop of the parent, whose thread does not exist here."""
        fork.keep_forever(self.loop)
        self.loop = None
        self.lock = threading.Lock()


_home = _Home()


def background() -> BackgroundLoop:
    """The background loop of this process, started on first use."""
    with _home.lock:
        if _home.loop is None:
            _home.loop = BackgroundLoop()
        return _home.loop
