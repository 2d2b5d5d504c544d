"""The frame and style of our HTML reports: a self-contained page for light and dark screens."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["COLOURS", "document"]

#: The style's colour classes for SVG; readable on white and on black.
COLOURS: Final = ("c0", "c1", "c2", "c3", "c4", "c5")

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem;
       color: #1c2430; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #dde3ea;
         vertical-align: middle; overflow-wrap: break-word; max-width: 26rem; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; } .wide > svg { min-width: 40rem; }
svg text { font: 12px system-ui, sans-serif; fill: #1c2430; }
.c0 { fill: #2563eb; stroke: #2563eb; } .c1 { fill: #d97706; stroke: #d97706; }
.c2 { fill: #059669; stroke: #059669; } .c3 { fill: #c026d3; stroke: #c026d3; }
.c4 { fill: #dc2626; stroke: #dc2626; } .c5 { fill: #9aa5b1; stroke: #9aa5b1; }
rect.c0, rect.c1, rect.c2, rect.c3, rect.c4, rect.c5 { stroke: none; }
polyline { fill: none !important; stroke-width: 2; }
.axis { stroke: #9aa5b1; stroke-width: 1; }
.met { color: #15803d; } .missed { color: #b91c1c; font-weight: 600; }
small { color: #5b6673; }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #e6eaf0; } th, td { border-color: #303846; }
  svg text { fill: #e6eaf0; } small { color: #a3adba; }
  .met { color: #4ade80; } .missed { color: #f87171; }
  .c0 { fill: #60a5fa; stroke: #60a5fa; } .c1 { fill: #fbbf24; stroke: #fbbf24; }
  .c2 { fill: #34d399; stroke: #34d399; } .c3 { fill: #e879f9; stroke: #e879f9; }
  .c4 { fill: #f87171; stroke: #f87171; }
}
"""


def document(title: str, parts: Iterable[str], *, style: str = "") -> str:
    """A whole HTML page around the parts; the title is escaped, the parts are not."""
    head = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head><body>\n"
        f"<h1>{escape(title)}</h1>"
    )
    return "\n".join([head, *parts, "</body></html>", ""])
