r"""The text format of java.util.Properties, which RocketMQ's configuration files are written in.

    # comment          ! comment
    key=value          key: value          key value
    long=one line \
         in two        tab\tand \u00e9scapes

Source: the grammar in the documentation of `java.util.Properties.load(Reader)`, Java 17.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["format_properties", "merge_properties", "parse_properties"]

_KEY_AND_VALUE: Final = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the keys and values of a properties text; of equal keys the last wins."""
    result: dict[str, str] = {}
    pending = ""
    # Only these end a line: `str.splitlines` would also split at U+2028 and its like.
    for raw in re.split(r"\r\n|\r|\n", text):
        line = pending + raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        pending = ""
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending = line[:-1]
            continue
        _add(line, result)
    if pending:
        _add(pending, result)
    return result


def format_properties(properties: Mapping[str, str]) -> str:
    """Return `key=value` lines in key order, as RocketMQ's configuration queries answer."""
    return "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))


def merge_properties(text: str, changes: Mapping[str, str]) -> str:
    """Return `text` with new values for some keys; comments and all other lines stay.

    A new key comes last. A key that has several lines is written once.
    """
    unwritten = {key: f"{key}={_escape(value)}" for key, value in changes.items()}
    lines: list[str] = []
    block: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", text):
        block.append(raw)
        content = raw.lstrip(" \t\f")
        is_comment = len(block) == 1 and content[:1] in ("#", "!")
        if not is_comment and (len(content) - len(content.rstrip("\\"))) % 2:
            continue  # the next line continues this one
        keys = parse_properties("\n".join(block))
        key = next((key for key in keys if key in changes), None)
        if key is None:
            lines += block
        elif key in unwritten:
            lines.append(unwritten.pop(key))
        block = []
    lines += block
    while lines and not lines[-1]:
        lines.pop()
    return "".join(f"{line}\n" for line in [*lines, *unwritten.values()])


def _escape(value: str) -> str:
    """Return `value` as it is written after the equals sign, on one line."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return text.replace("\t", "\\t")


def _add(line: str, into: dict[str, str]) -> None:
    match = _KEY_AND_VALUE.match(line)
    assert match is not None, "every part of the pattern may be empty"
    key, value = (_ESCAPE.sub(_unescape, part) for part in match.groups())
    if key:
        into[key] = value.strip()


def _unescape(match: re.Match[str]) -> str:
    body = match.group(1)
    return chr(int(body[1:], 16)) if len(body) == 5 else _NAMED_ESCAPES.get(body, body)
