"""Times as people read them and scripts sort them."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["utc"]


def utc(time_ms: int) -> str:
    """Milliseconds since 1970 as an ISO time in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
