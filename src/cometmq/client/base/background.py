"""The event loop of the synchronous clients: one daemon thread per process.

It runs consumers, heartbeats and route refreshes.  Ordinary requests use a blocking socket in the
caller's thread instead.  A forked child has none of its parent's threads, so the loop is made anew
there on first use.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cometmq.client.base import fork
from cometmq.errors import ClientClosed
from cometmq.net.loop import run

__all__ = ["BackgroundLoop", "background"]

T = TypeVar("T")
START_TIMEOUT_S = 30.0


class BackgroundLoop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._main, name="cometmq-background", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S) or self._loop is None:
            raise ClientClosed("the background event loop did not start")

    def _main(self) -> None:
        run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        # It ends with the process: consumers may start at any time, and an idle loop is cheap.
        await self._loop.create_future()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Raises:
            ClientClosed: called on the loop itself, where waiting would never end.
        """
        assert self._loop is not None
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
        assert self._loop is not None
        self._loop.call_soon_threadsafe(callback, *args)


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
