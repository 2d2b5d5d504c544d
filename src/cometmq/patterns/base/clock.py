"""The wall clock, which every pattern takes as an argument."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

__all__ = ["Clock", "now_ms"]

Clock: TypeAlias = Callable[[], int]
"""Returns milliseconds since 1970."""


def now_ms() -> int:
    """Milliseconds since 1970."""
    return int(datetime.now(UTC).timestamp() * 1000)
