"""Shorter lives of queue locks and sessions, so that they end within a simulation.

Clients renew a lock every 20 s, rely on it for 30 s, and brokers give it to another member after
60 s.  A client sends a heartbeat every 30 s, and a broker forgets one that is silent for 120 s.
Faults last seconds.  A run with `lives` 10 divides these times by 10: a partition then outlives a
lock, and with 30 a session too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Final
from unittest import mock

import cometmq.broker.broker as broker_module
import cometmq.client.consumer.orderly_consumer as orderly_module
import cometmq.client.queue.locks as locks_module
import cometmq.core.group.queue_locks as queue_locks_module
from cometmq.client.base.options import ClientOptions

__all__ = ["lock_life_ms", "session_life_ms", "shorter_lives"]

_HEARTBEAT_MS: Final = 30_000
_SESSION_MS: Final = 120_000
"""How long brokers keep a silent client by default (channelExpiredTimeout)."""

_TIMES: Final[tuple[tuple[ModuleType, str], ...]] = (
    (locks_module, "LOCK_STALE_S"),
    (orderly_module, "LOCK_INTERVAL_MS"),
    (queue_locks_module, "RELIED_ON_MS"),
    (queue_locks_module, "AHEAD_MS"),
    (broker_module, "EXPIRY_SCAN_MS"),
)


def lock_life_ms(lives: int) -> int:
    """Return how long a broker keeps a lock that is not renewed."""
    return queue_locks_module.LOCK_LIVE_MS // lives


def session_life_ms(lives: int) -> int:
    """Return how long a broker keeps a client from which it hears nothing."""
    return _SESSION_MS // lives


@contextmanager
def shorter_lives(lives: int) -> Iterator[None]:
    """Divide the times of queue locks and heartbeats by `lives` while the block runs."""
    begin = ClientOptions.__init__

    def begin_sooner(self: ClientOptions, *fields: Any, **named: Any) -> None:
        begin(self, *fields, **{"heartbeat_interval_ms": _HEARTBEAT_MS // lives} | named)

    with ExitStack() as stack:
        for module, name in _TIMES:
            usual = getattr(module, name)
            shorter = type(usual)(usual / lives)
            stack.enter_context(mock.patch.object(module, name, shorter))
        stack.enter_context(mock.patch.object(ClientOptions, "__init__", begin_sooner))
        yield
