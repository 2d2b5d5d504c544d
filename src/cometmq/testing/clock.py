"""The simulator's clock: wall time and monotonic time, both read from the loop's virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["EPOCH_MS", "VirtualClock"]

# 2023-11-14T22:13:20Z: a round number that is easy to recognise in a store file or a trace.
EPOCH_MS: Final = 1_700_000_000_000


class VirtualClock:
    """A `net.Clock` over a function that returns virtual seconds.

    `skew_ms` lets one node's wall clock run ahead of (or behind) the others, as real ones do.
    """

    def __init__(self, time_s: Callable[[], float], *, skew_ms: int = 0) -> None:
        self._time_s = time_s
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Return this node's wall time in milliseconds since the Unix epoch."""
        return EPOCH_MS + int(self._time_s() * 1000) + self.skew_ms

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return self._time_s()
