"""Bodies of messages as commands print them: text as text, other bytes as base64."""

import base64
import re
import sys
from typing import Final

__all__ = ["body_text", "print_body"]

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def body_text(body: bytes, bytes_max: int | None = None) -> str:
    """The body for a person, or the beginning of a long one; a terminal obeys no byte of it."""
    shown = body[:bytes_max]
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        is_cut = len(shown) < len(body) and error.start > len(shown) - 4
        if not is_cut:
            return f"({len(body):,} bytes, no text; base64: {base64.b64encode(shown).decode()})"
        text = shown[: error.start].decode()
    return _CONTROL.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def print_body(body: bytes) -> None:
    """Print a body as a line: as it is into a file or a pipe, `body_text` on a terminal."""
    if sys.stdout.isatty():
        print(body_text(body))
    else:
        sys.stdout.buffer.write(body + b"\n")
