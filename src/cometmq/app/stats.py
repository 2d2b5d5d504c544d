"""Counts and latencies of one handler, cheap enough for every message.

A latency falls into a bucket an eighth of its size wide, so a quantile is at most 12.5 % too high,
and no single latency is stored.
"""

import threading
from dataclasses import dataclass
from typing import Final

__all__ = ["HandlerMeter", "HandlerStats"]

_SHIFT: Final = 7
"""A bucket is at least 2**7 ns wide."""
_STEPS: Final = 8
"""Buckets per doubling."""
_BUCKET_COUNT: Final = 40 * _STEPS


@dataclass(frozen=True, slots=True)
class HandlerStats:
    """What a handler did since its registration."""

    name: str
    """The function's qualified name."""
    group: str
    """The consumer group."""
    topic: str
    """The topic."""
    messages: int
    """Messages whose handler has ended, failed ones and repeated ones included."""
    retries: int
    """Messages that were not at their first try."""
    failures: int
    """Messages that come again."""
    dead_letters: int
    """Messages that the handler gave up, those with a schema error included."""
    schema_errors: int
    """Messages whose body is not the value that the handler asks for."""
    in_work: int
    """Messages inside the handler now."""
    latency_p50_ms: float
    """Half of the calls took at most this long."""
    latency_p99_ms: float
    """99 % of the calls took at most this long."""
    latency_max_ms: float
    """The longest call."""
    lag: int
    """Messages in the assigned queues that are not consumed yet, as of each queue's last pull."""


class HandlerMeter:
    """Counts for one handler; threads take `lock` around each change."""

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKET_COUNT
        self.lock = threading.Lock()
        self.in_work = self.messages = self.retries = self.failures = 0
        self.dead_letters = self.schema_errors = 0

    def record(self, count: int, latency_ns: int, retries: int) -> None:
        """Count messages whose handler has ended; HOT."""
        scaled = latency_ns >> _SHIFT
        if scaled < _STEPS:
            index = scaled
        else:
            # The leading bit chooses the doubling, the three bits behind it the step in it.
            exponent = scaled.bit_length() - 4
            index = exponent * _STEPS + (scaled >> exponent)
            if index >= _BUCKET_COUNT:
                index = _BUCKET_COUNT - 1
        self._buckets[index] += 1
        self.in_work -= count
        self.messages += count
        if retries:
            self.retries += retries

    def failed(self, count: int, dead_letters: int, schema_errors: int) -> None:
        """Count messages that were not consumed."""
        self.failures += count
        self.dead_letters += dead_letters
        self.schema_errors += schema_errors

    def quantile_ms(self, share: float) -> float:
        """The latency that this share of the calls did not exceed; 0 before the first call.

        A day and a half is the largest.
        """
        buckets = self._buckets.copy()
        wanted = share * sum(buckets)
        seen = 0
        for index, count in enumerate(buckets):
            seen += count
            if count and seen >= wanted:
                return _upper_ns(index) / 1e6
        return 0.0

    def snapshot(self, name: str, group: str, topic: str, lag: int) -> HandlerStats:
        """The counts as they are now."""
        return HandlerStats(
            name=name,
            group=group,
            topic=topic,
            messages=self.messages,
            retries=self.retries,
            failures=self.failures,
            dead_letters=self.dead_letters,
            schema_errors=self.schema_errors,
            in_work=self.in_work,
            latency_p50_ms=self.quantile_ms(0.5),
            latency_p99_ms=self.quantile_ms(0.99),
            latency_max_ms=self.quantile_ms(1.0),
            lag=lag,
        )


def _upper_ns(index: int) -> int:
    """The end of a bucket."""
    if index < 2 * _STEPS:
        return (index + 1) << _SHIFT
    exponent, step = divmod(index, _STEPS)
    return (step + _STEPS + 1) << (exponent - 1 + _SHIFT)
