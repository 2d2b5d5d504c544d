"""The samples that every server shows: its connections, their limits, and refused requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.core.base.exposition import MetricsText
from cometmq.net.limits import LIMIT_NAMES
from cometmq.net.loop_lag import LoopLag
from cometmq.net.server import RemotingServer

if TYPE_CHECKING:
    from cometmq.server.access.guard import AccessGuard

__all__ = ["server_samples"]


def server_samples(
    page: MetricsText, server: RemotingServer, guard: AccessGuard | None, lag: LoopLag
) -> None:
    """Write them; each counter begins with 0."""
    page.value("cometmq_connections", "gauge", "Open connections.", len(server.connections))
    limits = page.family(
        "cometmq_connection_limits_total",
        "counter",
        "Connections that were refused, cut or made to wait, by limit.",
    )
    for name in LIMIT_NAMES:
        limits.add(server.limiter.counts[name], {"limit": name})
    refused = page.family(
        "cometmq_access_refused_total",
        "counter",
        "Requests that access control refused, by the part that refused them.",
    )
    if guard is not None:
        for step in ("authentication", "authorization"):
            refused.add(guard.refused[step], {"step": step})
    page.histogram(
        "cometmq_event_loop_lag_seconds",
        "How late the event loop runs a timer, once a second.",
        lag.histogram,
    )
