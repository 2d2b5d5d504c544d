"""How values are written on pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from cometmq.listings.times import utc

__all__ = ["FILTERS"]


def _cell(value: Any) -> str:
    """A value of a row, as the command line prints it on a terminal."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return str(value)


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "cell": _cell,
    "is_figure": _is_figure,
    "utc": utc,
}
"""The filters of the templates."""
