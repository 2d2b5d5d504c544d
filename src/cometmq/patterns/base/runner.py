"""Runs the passes of a pattern in the background, and waits between them."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["Runner"]

log = logging.getLogger("cometmq.patterns")

STOP_S: Final = 10.0


class Runner:
    """Calls `run_once` until `stop`; ``async with`` starts and stops it.

    A pass that had work is followed by the next one at once, any other after `_wait_ms`, or when
    `_wake` is set.

    Args:
        title: of this runner, for the log.
        poll_ms: the longest wait between two passes.
    """

    _full_count = 1
    """A pass of so many rows is followed by the next one at once."""

    def __init__(self, title: str, poll_ms: int) -> None:
        self._title = title
        self._poll_ms = poll_ms
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def run_once(self) -> int:
        """One pass: how many rows it had."""
        raise AssertionError("a subclass implements run_once")

    async def _wait_ms(self) -> int:
        """How long to wait after a pass that had little work."""
        return self._poll_ms

    def _background(self) -> Coroutine[Any, Any, None] | None:
        """What runs beside the passes, such as a listener that sets `_wake`."""
        return None

    async def start(self) -> None:
        """Begin in the background."""
        self._is_stopping = False
        self._tasks = [asyncio.create_task(self.run())]
        beside = self._background()
        if beside is not None:
            self._tasks.append(asyncio.create_task(beside))

    async def stop(self) -> None:
        """Wait for the pass under way, at most 10 s."""
        self._is_stopping = True
        self._wake.set()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Run passes until `stop`; an error, such as one of the database, is logged."""
        while not self._is_stopping:
            self._wake.clear()
            wait_ms = self._poll_ms
            try:
                if await self.run_once() >= self._full_count:
                    continue
                wait_ms = await self._wait_ms()
            except Exception as error:
                log.warning("%s: %s; next try in %d ms", self._title, error, wait_ms)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wait()

    async def _wait(self) -> None:
        if not self._is_stopping:
            await self._wake.wait()
