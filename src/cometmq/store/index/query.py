"""Queries by key over index files, entries not written yet and messages not indexed yet.

A query has two steps: `plan` runs on the loop and copies what may change; a worker then searches.
A query writes nothing, so it is answered on a full disk too.

Files are searched from the newest to the oldest (``IndexService.queryOffset``).  The slot table of
the newest file may be in memory, and may change while the worker searches.  So the loop reads the
slot of the key's bucket, and the worker follows the chain of entries from there.  Entries never
change.
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
from cometmq.store.index.keys import item_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.store.base.results import IndexKeys
    from cometmq.store.index.file import FileWrite, IndexFile
    from cometmq.store.index.keys import PendingItem

__all__ = ["IndexQuery", "Unwritten"]

Unwritten = tuple["IndexFile", "FileWrite", int]
"""A write that waits for a worker: file, position and bytes, physical offset of the first message.

The bytes are entries, or the head of the file."""

_TAGS: Final = "T"
_EMPTY: Final = IndexHeader(0, 0, 0, 0, 0, 1)


class _FileSnapshot(NamedTuple):
    """An index file as it was when the query began."""

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
        pending: Sequence[PendingItem],
        files: Sequence[IndexFile],
        unwritten: list[Unwritten],
    ) -> Callable[[], QueryResult]:
        """Return a function that runs the query, for a worker; call this on the loop.

        Args:
            pending: a copy of the messages that are not indexed yet.
            files: oldest first.
            unwritten: the live list; a write leaves it when a worker has done it.
        """
        self._unwritten = unwritten
        snapshots = [
            _FileSnapshot(file, file.header, file.newest(self._hash)) for file in reversed(files)
        ]
        return lambda: self._run(pending, snapshots)

    def _run(
        self, pending: Sequence[PendingItem], snapshots: Sequence[_FileSnapshot]
    ) -> QueryResult:
        offsets = self._pending_offsets(
            pending, snapshots[0].header.begin_timestamp_ms if snapshots else 0
        )
        pending_offsets = set(offsets)
        for snapshot in snapshots:
            if len(offsets) >= self._max_count:
                break
            if snapshot.file.is_in_time(self._begin_ms, self._end_ms):
                self._follow(snapshot, offsets, pending_offsets)
            if snapshot.header.begin_timestamp_ms < self._begin_ms:
                break
        newest = snapshots[0].header if snapshots else _EMPTY
        updated_ms, updated_offset = newest.end_timestamp_ms, newest.end_physical_offset
        if pending:
            topic, updated_offset, updated_ms, _ = pending[-1]
            if isinstance(topic, int):
                updated_offset = max(offset for _, offset in item_entries(pending[-1]))
        return QueryResult(sorted(offsets), updated_ms, updated_offset)

    def _pending_offsets(self, pending: Sequence[PendingItem], first_ms: int) -> list[int]:
        """Return the offsets of messages with the key that are not indexed yet, newest first.

        Args:
            pending: oldest first.
            first_ms: time of the first entry of the newest file, 0 without a file.
        """
        offsets: list[int] = []
        if not first_ms and pending:
            first_ms = pending[0][2]
        for item in reversed(pending):
            topic, physical_offset, store_ms, keys = item
            if len(offsets) >= self._max_count:
                break
            if isinstance(topic, str) and topic != self._topic:
                continue
            # An entry states its time in whole seconds after the file's first one.
            time_ms = store_ms - (store_ms - first_ms) % 1000
            if not self._begin_ms <= time_ms <= self._end_ms:
                continue
            if isinstance(topic, int):
                entries = reversed(item_entries(item))
                with_key = [offset for key_hash, offset in entries if key_hash == self._hash]
                # A message may have the key twice.
                offsets += list(dict.fromkeys(with_key))[: self._max_count - len(offsets)]
            elif self._has_key(keys):
                offsets.append(physical_offset)
        return offsets

    def _has_key(self, keys: IndexKeys | bytes) -> bool:
        """Return whether a message with these keys, or with these hashes of keys, is wanted."""
        if isinstance(keys, bytes):
            return self._hash in memoryview(keys).cast("I")
        uniq, names, tags = keys
        if self._is_of_tags:
            return tags == self._key
        return uniq == self._key or (names is not None and self._is_among(names))

    def _is_among(self, names: str) -> bool:
        """Return whether the key is one of these KEYS, or has the hash of one."""
        key = self._key
        return any(
            name == key or index_key_hash(index_key(self._topic, name)) == self._hash
            for name in names.split(" ")
            if name
        )

    def _follow(
        self, snapshot: _FileSnapshot, offsets: list[int], pending_offsets: set[int]
    ) -> None:
        """Append to `offsets` those of the key in one file, newest first (``selectPhyOffset``)."""
        header, number = snapshot.header, snapshot.newest
        if number is None:
            number = snapshot.file.newest_in_file(self._hash)
            # The present head also counts entries that were added since the query began.
            header = snapshot.file.header
        if not 0 < number <= header.index_count:
            return
        while len(offsets) < self._max_count:
            raw = self._entry(snapshot.file, number)
            if len(raw) < INDEX_ENTRY_BYTES:
                return
            entry_hash, physical_offset, delta, previous = INDEX_ENTRY.unpack(raw)
            if delta < 0:
                return
            time_ms = header.begin_timestamp_ms + delta * 1000
            is_match = entry_hash == self._hash and self._begin_ms <= time_ms <= self._end_ms
            # A message that was pending when the query began may have been indexed since.
            if is_match and physical_offset not in pending_offsets:
                offsets.append(physical_offset)
            # Each entry leads to an older one; a damaged chain could be a circle.
            if not 0 < previous < number or time_ms < self._begin_ms:
                return
            number = previous

    def _entry(self, file: IndexFile, number: int) -> bytes:
        """Return the bytes of an entry: from a write that waits, or else from the file."""
        position = entry_position(number, file.slot_count)
        for unwritten_file, (start, data), _ in list(self._unwritten):
            if (
                unwritten_file is file
                and start <= position
                and position + INDEX_ENTRY_BYTES <= start + len(data)
            ):
                return data[position - start : position - start + INDEX_ENTRY_BYTES]
        return file.file.read(position, INDEX_ENTRY_BYTES)
