"""A message's body for people: as text, as JSON, or as the bytes in hexadecimal."""

from __future__ import annotations

import codecs
import json
from typing import Final, NamedTuple

__all__ = ["BODY_KINDS", "BodyView", "view_body"]

BODY_KINDS: Final = ("text", "json", "hex")
SHOWN_BYTES: Final = 64 * 1024
_LINE_BYTES: Final = 16


class BodyView(NamedTuple):
    """A shown body: its kind, its text, and how many bytes are not shown."""

    kind: str
    text: str
    hidden_bytes: int


def view_body(body: bytes, kind: str = "") -> BodyView:
    """The body as ``kind``; without one as JSON or text if it is that, else in hexadecimal.

    A body that is not what was asked for is shown in hexadecimal.
    """
    shown = body[:SHOWN_BYTES]
    hidden = len(body) - len(shown)
    if kind != "hex":
        text = _text(shown, is_whole=not hidden)
        if not kind and text is not None and "\0" in text:
            text = None
        if text is not None and kind in ("", "json") and not hidden:
            try:
                value = json.loads(text)
                return BodyView("json", json.dumps(value, indent=2, ensure_ascii=False), 0)
            except (ValueError, RecursionError):
                pass
        if text is not None and kind != "json":
            return BodyView("text", text, hidden)
    return BodyView("hex", _hex(shown), hidden)


def _text(body: bytes, *, is_whole: bool) -> str | None:
    """The text of a body or of its beginning, which may end within a letter; None for no text."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(body, final=is_whole)
    except UnicodeDecodeError:
        return None


def _hex(body: bytes) -> str:
    lines = []
    for begin in range(0, len(body), _LINE_BYTES):
        part = body[begin : begin + _LINE_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<{_LINE_BYTES * 3}} {letters}")
    return "\n".join(lines)
