"""Numbers and durations as a person reads them."""

from __future__ import annotations

__all__ = ["duration_text", "number_text"]


def number_text(value: float | None) -> str:
    """``12,345`` or ``0.25``; ``-`` where there is none."""
    if value is None:
        return "-"
    if isinstance(value, int) or value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.2f}"


def duration_text(seconds: float) -> str:
    """``0.8 s``, ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
