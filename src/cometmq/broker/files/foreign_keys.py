"""Keys of a configuration file that are not ours: kept from the read, put back at each write.

Job: remember what a JSON file says beyond what this version models, at its top level and in the
entries of its table, and add it to what is written.  It must not interpret any of it, and never
changes a key of ours.

A topic or group that is gone when the file is written takes its foreign keys with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cometmq.errors import CodecError
from cometmq.wire.command.fastjson import loads_object

__all__ = ["ForeignKeys"]


class ForeignKeys:
    """What one file has beyond ours.

    Args:
        top: our keys at the top level.
        table: the key of those whose value maps names to objects, "" where there is none.
        entry: our keys in these objects.
    """

    __slots__ = ("_entries", "_entry", "_table", "_top", "_tops")

    def __init__(self, top: Iterable[str], table: str = "", entry: Iterable[str] = ()) -> None:
        self._top = frozenset(top)
        self._table = table
        self._entry = frozenset(entry)
        self._tops: dict[str, Any] = {}
        self._entries: dict[str, dict[str, Any]] = {}

    def remember(self, raw: bytes) -> None:
        """Take the foreign keys of a file that was read; of one that does not decode, none."""
        try:
            data = loads_object(raw, "configuration file")
        except CodecError:
            return
        self._tops = {str(key): data[key] for key in data if str(key) not in self._top}
        table = data.get(self._table)
        self._entries = {}
        for name, value in table.items() if isinstance(table, dict) else ():
            if isinstance(value, dict):
                found = {str(key): value[key] for key in value if str(key) not in self._entry}
                if found:
                    self._entries[str(name)] = found

    def add_to(self, raw: bytes) -> bytes:
        """Give the encoded file with the foreign keys in it."""
        if not self._tops and not self._entries:
            return raw
        data: dict[str, Any] = msgspec.json.decode(raw)
        table: Mapping[str, Any] = data.get(self._table) or {}
        for name in list(self._entries):
            if name in table:
                table[name].update(self._entries[name])
            else:
                del self._entries[name]
        return msgspec.json.encode({**self._tops, **data})
