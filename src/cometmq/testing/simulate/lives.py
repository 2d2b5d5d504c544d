"""Shorter lives of queue locks, so that they end within a simulation.

Clients renew a lock every 20 s, rely on it for 30 s, and brokers give it to another member after
60 s.  Faults last seconds.  A run with `lives` 10 divides these times by 10: a partition then
outlives a lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

import cometmq.client.consumer.orderly_consumer as orderly_module
import cometmq.client.queue.locks as locks_module
import cometmq.core.group.queue_locks as queue_locks_module

__all__ = ["lock_life_ms", "shorter_lives"]

_TIMES: Final[tuple[tuple[ModuleType, str], ...]] = (
    (locks_module, "LOCK_STALE_S"),
    (orderly_module, "LOCK_INTERVAL_MS"),
    (queue_locks_module, "RELIED_ON_MS"),
    (queue_locks_module, "AHEAD_MS"),
)


def lock_life_ms(lives: int) -> int:
    """Return how long a broker keeps a lock that is not renewed."""
    return queue_locks_module.LOCK_LIVE_MS // lives


@contextmanager
def shorter_lives(lives: int) -> Iterator[None]:
    """Divide the times of queue locks by `lives` while the block runs."""
    usual = [(module, name, getattr(module, name)) for module, name in _TIMES]
    for module, name, value in usual:
        setattr(module, name, type(value)(value / lives))
    try:
        yield
    finally:
        for module, name, value in usual:
            setattr(module, name, value)
