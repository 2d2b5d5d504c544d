"""Differences of a broker's tables, which are JSON objects: what the state journal has of them.

A file is an object of tables, and a table an object of entries.  A patch has the tables that have
changed, with the entries that have changed; null removes an entry.  What is no table is replaced.
(A JSON merge patch, RFC 7386, goes on inside entries, and so cannot set a null there.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

__all__ = ["JsonObject", "difference", "patched", "pieces"]

JsonObject = dict[str, Any]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> JsonObject:
    """Return the patch that makes the second file from the first one."""
    patch: JsonObject = {name: None for name in before if name not in after}
    for name, table in after.items():
        known = before.get(name)
        if known == table and name in before:
            continue
        if isinstance(known, dict) and isinstance(table, dict):
            changes: JsonObject = {key: None for key in known if key not in table}
            changes |= {key: entry for key, entry in table.items() if known.get(key) != entry}
            patch[name] = changes
        else:
            patch[name] = table
    return patch


def patched(
    before: Mapping[str, Any], patch: Mapping[str, Any], *, keeps_removals: bool = False
) -> JsonObject:
    """Return a file with a patch applied.

    Args:
        keeps_removals: the first object is a patch too, and the result is one that does both.
    """
    result = dict(before)
    for name, changes in patch.items():
        if isinstance(changes, dict):
            known = result.get(name)
            table = {**known, **changes} if isinstance(known, dict) else dict(changes)
            if not keeps_removals:
                table = {key: entry for key, entry in table.items() if entry is not None}
            result[name] = table
        elif changes is None and not keeps_removals:
            result.pop(name, None)
        else:
            result[name] = changes
    return result


def pieces(patch: Mapping[str, Any], bytes_max: int) -> Iterator[JsonObject]:
    """Split a patch into patches of about a size, which do the same one after the other."""
    piece: JsonObject = {}
    size = 0
    for name, table in patch.items():
        if not isinstance(table, dict):
            piece[name] = table
            size += len(msgspec.json.encode(table))
            continue
        piece[name] = {}
        for key, entry in table.items():
            entry_bytes = len(key) + len(msgspec.json.encode(entry))
            if size and size + entry_bytes > bytes_max:
                yield piece
                piece, size = {name: {}}, 0
            piece[name][key] = entry
            size += entry_bytes
    yield piece
