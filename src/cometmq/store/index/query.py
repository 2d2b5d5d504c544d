"""Queries by key: the loop reads what is in memory, a worker reads the files.

A query searches index files, entries that are not written yet, and messages that are not indexed
yet.  It writes nothing, so it is answered on a full disk too, and the loop waits for nothing.

Files are searched from the newest to the oldest (``IndexService.queryOffset``).  The slot table of
the newest file may be in memory, where it may change while a worker reads it; so the loop looks up
the head of the key's chain, and the worker follows the chain.  Written entries never change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.codec.index import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    IndexHeader,
    entry_position,
    index_key,
    index_tag_key,
)
from cometmq.codec.java_hash import index_key_hash
from cometmq.store.base.results import QueryResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.index.file import FileWrite, IndexFile
    from cometmq.store.index.keys import PendingKeys

__all__ = ["IndexQuery", "Unwritten"]

Unwritten = tuple["IndexFile", "FileWrite", int]
"""File, position and bytes that are not in it yet, physical offset of the first message."""

_TAGS: Final = "T"
_EMPTY: Final = IndexHeader(0, 0, 0, 0, 0, 1)


class _Place(NamedTuple):
    """One file, as it was when the query began."""

    file: IndexFile
    header: IndexHeader
    newest: int | None
    """Number of the newest entry in the key's bucket; None: read it from the file."""


class IndexQuery:
    """A query for one key."""

    def __init__(
        self, topic: str, key: str, index_type: str, max_count: int, begin_ms: int, end_ms: int
    ) -> None:
        self._topic = topic
        self._key = key
        self._is_of_tags = index_type == _TAGS
        self._max_count = max_count
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        text = index_tag_key(topic, key) if self._is_of_tags else index_key(topic, key)
        self._hash = index_key_hash(text)
        self._unwritten: list[Unwritten] = []

    def plan(
        self,
        pending: Sequence[PendingKeys],
        files: Sequence[IndexFile],
        unwritten: list[Unwritten],
    ) -> Callable[[], QueryResult]:
        """Return, on the loop and without a read, what a worker calls for the answer.

        `pending` must be a copy, `unwritten` the list from which what was written is taken away.
        """
        self._unwritten = unwritten
        places = [_Place(file, file.header, file.newest(self._hash)) for file in reversed(files)]
        return lambda: self._run(pending, places)

    def _run(self, pending: Sequence[PendingKeys], places: Sequence[_Place]) -> QueryResult:
        found = self._waiting(pending, places[0].header.begin_timestamp_ms if places else 0)
        waiting = set(found)
        for place in places:
            if len(found) >= self._max_count:
                break
            if place.file.is_in_time(self._begin_ms, self._end_ms):
                self._follow(place, found, waiting)
            if place.header.begin_timestamp_ms < self._begin_ms:
                break
        last = places[0].header if places else _EMPTY
        updated_ms, updated_offset = last.end_timestamp_ms, last.end_physical_offset
        if pending:
            _, updated_offset, updated_ms, _ = pending[-1]
        return QueryResult(sorted(found), updated_ms, updated_offset)

    def _waiting(self, pending: Sequence[PendingKeys], first_ms: int) -> list[int]:
        """Return offsets of messages with the key that are not indexed yet, newest first."""
        found: list[int] = []
        if not first_ms and pending:
            first_ms = pending[0][2]
        for topic, physical_offset, store_ms, (uniq, names, tags) in reversed(pending):
            if len(found) >= self._max_count:
                break
            if topic != self._topic:
                continue
            # An entry knows whole seconds after the file's first one.
            time_ms = store_ms - (store_ms - first_ms) % 1000
            if not self._begin_ms <= time_ms <= self._end_ms:
                continue
            if self._is_of_tags:
                is_wanted = tags == self._key
            else:
                is_wanted = uniq == self._key or (names is not None and self._is_among(names))
            if is_wanted:
                found.append(physical_offset)
        return found

    def _is_among(self, names: str) -> bool:
        """Return whether one of the KEYS has the wanted hash, as their entries will have it."""
        key = self._key
        return any(
            name == key or index_key_hash(index_key(self._topic, name)) == self._hash
            for name in names.split(" ")
            if name
        )

    def _follow(self, place: _Place, found: list[int], waiting: set[int]) -> None:
        """Add the key's log offsets in one file, newest first (``selectPhyOffset``)."""
        header, number = place.header, place.newest
        if number is None:
            number = place.file.newest_in_file(self._hash)
            # Entries that were added since the query began are counted here.
            header = place.file.header
        if not 0 < number <= header.index_count:
            return
        while len(found) < self._max_count:
            raw = self._entry(place.file, number)
            if len(raw) < INDEX_ENTRY_BYTES:
                return
            entry_hash, physical_offset, delta, previous = INDEX_ENTRY.unpack(raw)
            if delta < 0:
                return
            time_ms = header.begin_timestamp_ms + delta * 1000
            is_meant = entry_hash == self._hash and self._begin_ms <= time_ms <= self._end_ms
            # What waited when the query began may have been indexed since.
            if is_meant and physical_offset not in waiting:
                found.append(physical_offset)
            # A chain leads to ever older entries; anything else is damage and would never end.
            if not 0 < previous < number or time_ms < self._begin_ms:
                return
            number = previous

    def _entry(self, file: IndexFile, number: int) -> bytes:
        """Return the bytes of an entry, from memory or else from the file."""
        position = entry_position(number, file.slot_count)
        for of, (start, data), _ in list(self._unwritten):
            if (
                of is file
                and start <= position
                and position + INDEX_ENTRY_BYTES <= start + len(data)
            ):
                return data[position - start : position - start + INDEX_ENTRY_BYTES]
        return file.file.read(position, INDEX_ENTRY_BYTES)
