"""Clocks of tests: the simulator's, over virtual time, and the machine's, which a test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.net.env import SystemClock

__all__ = ["EPOCH_MS", "MovableClock", "VirtualClock"]

# 2023-11-14T22:13:20Z: a round number that is easy to recognise in a store file or a trace.
EPOCH_MS: Final = 1_700_000_000_000


class VirtualClock:
    """A `net.Clock` over a function that returns virtual seconds.

    `skew_ms` lets one node's wall clock run ahead of (or behind) the others, as real ones do;
    `drift` lets it run faster or slower from now on, by a share of the time that passes.
    """

    def __init__(self, time_s: Callable[[], float], *, skew_ms: int = 0) -> None:
        self._time_s = time_s
        self.skew_ms = skew_ms
        self._drift = 0.0
        self._drift_from_s = 0.0

    def now_ms(self) -> int:
        """Return this node's wall time in milliseconds since the Unix epoch."""
        now_s = self._time_s()
        drift_s = (now_s - self._drift_from_s) * self._drift if self._drift else 0.0
        return EPOCH_MS + int((now_s + drift_s) * 1000) + self.skew_ms

    @property
    def drift(self) -> float:
        """The share of passing time by which the wall clock gains."""
        return self._drift

    @drift.setter
    def drift(self, share: float) -> None:
        now_s = self._time_s()
        self.skew_ms += int((now_s - self._drift_from_s) * self._drift * 1000)
        self._drift, self._drift_from_s = share, now_s

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return self._time_s()


class MovableClock(SystemClock):
    """The machine's clock, ahead by what a test has let pass at once."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        """Return the wall time in milliseconds since the Unix epoch."""
        return super().now_ms() + self.ahead_ms
