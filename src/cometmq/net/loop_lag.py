"""How late the event loop runs a timer, measured once a second."""

import asyncio
from typing import Final

from cometmq.core.base.exposition import Histogram

__all__ = ["LoopLag"]

CHECK_S: Final = 1.0


class LoopLag:
    """The lateness of a timer in seconds, as a histogram; `start()`, `stop()`."""

    def __init__(self) -> None:
        self.histogram = Histogram((0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5))
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure."""
        self._check(None)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, due: float | None) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if due is not None:
            self.histogram.add(max(0.0, now - due))
        self._timer = loop.call_at(now + CHECK_S, self._check, now + CHECK_S)
