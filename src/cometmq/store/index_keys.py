"""Index hashes of the keys of messages, many at once.

Job: turn what waits to be indexed into hashes with their offsets and times.  It must not know
files.

A message has an entry for its UNIQ_KEY, one for each of its KEYS, and one for `T#` + TAGS (5.4),
in this order (``IndexService.buildIndex``).  The hash of `topic#` is computed once per topic; the
rest of many keys at once with numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.codec.index import index_key, index_tag_key
from cometmq.codec.java_hash import index_key_hash, java_hash
from cometmq.store.index_file import hash_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.results import IndexKeys

__all__ = ["KeyHasher", "PendingKeys", "key_texts"]

_PREFIX_CACHE_MAX: Final = 4096
_MASK: Final = 0xFFFFFFFF

PendingKeys = tuple[str, int, int, "IndexKeys"]
"""topic, physical offset, store time, keys of a message that is not indexed yet."""


def key_texts(topic: str, keys: IndexKeys) -> list[str]:
    """The texts under which a message is found, in upstream's order."""
    uniq, names, tags = keys
    texts: list[str] = []
    if uniq is not None:
        texts.append(index_key(topic, uniq))
    if names:
        texts += [index_key(topic, name) for name in names.split(" ") if name]
    if tags:
        texts.append(index_tag_key(topic, tags))
    return texts


class KeyHasher:
    """Hashes batches; remembers topics and tags."""

    def __init__(self) -> None:
        self._prefixes: dict[str, int] = {}
        self._tag_hashes: dict[tuple[str, str], int] = {}

    def hash_batch(self, batch: list[PendingKeys]) -> tuple[Any, Any, Any]:
        """Hash of every entry of a batch, and its offset and time, as arrays."""
        import numpy as np

        topics, offsets, times_ms, keys = zip(*batch, strict=True)
        columns = self._columns(topics, keys)
        if columns is None:
            return self._hash_mixed(batch)
        entry_count = len(columns)
        hashes = np.column_stack(columns).ravel() if columns else np.empty(0, dtype=np.int64)
        return (
            hashes,
            np.repeat(np.array(offsets, dtype=np.int64), entry_count),
            np.repeat(np.array(times_ms, dtype=np.int64), entry_count),
        )

    def _columns(self, topics: Sequence[str], keys: Sequence[IndexKeys]) -> list[Any] | None:
        """Hashes of the UNIQ_KEYs, of the KEYS and of the TAGS where all messages are alike.

        None when some have an entry of a kind and others not, or several keys: the usual batch
        of one producer is alike, and then no entry is touched one by one.
        """
        import numpy as np

        uniqs, texts, tags = zip(*keys, strict=True)
        for column in (uniqs, texts, tags):
            if not all(column) and any(column):
                return None
        if texts[0] and " " in "".join(texts):
            return None
        prefixes: int | list[int] = self._prefix(topics[0])
        if len(set(topics)) > 1:
            prefixes = [self._prefix(topic) for topic in topics]
        columns: list[Any] = []
        if uniqs[0]:
            columns.append(hash_many(uniqs, prefixes))
        if texts[0]:
            columns.append(hash_many(texts, prefixes))
        if tags[0]:
            pairs = list(zip(topics, tags, strict=True))
            known = {pair: self._tag_hash(*pair) for pair in set(pairs)}
            columns.append(np.array([known[pair] for pair in pairs], dtype=np.int64))
        return columns

    def _hash_mixed(self, batch: list[PendingKeys]) -> tuple[Any, Any, Any]:
        """As `_hash_batch`, entry by entry."""
        import numpy as np

        texts: list[str] = []
        prefixes: list[int] = []
        places: list[int] = []
        ready: list[int] = []
        offsets: list[int] = []
        times_ms: list[int] = []
        for topic, physical_offset, store_ms, (uniq, keys, tags) in batch:
            prefix = self._prefix(topic)
            found = [key for key in keys.split(" ") if key] if keys else []
            if uniq is not None:
                found.insert(0, uniq)
            for key in found:
                texts.append(key)
                prefixes.append(prefix)
                places.append(len(ready))
                ready.append(0)
                offsets.append(physical_offset)
                times_ms.append(store_ms)
            if tags:
                ready.append(self._tag_hash(topic, tags))
                offsets.append(physical_offset)
                times_ms.append(store_ms)
        hashes = np.array(ready, dtype=np.int64)
        if texts:
            hashes[places] = hash_many(texts, prefixes)
        return (
            hashes,
            np.array(offsets, dtype=np.int64),
            np.array(times_ms, dtype=np.int64),
        )

    def _prefix(self, topic: str) -> int:
        prefix = self._prefixes.get(topic)
        if prefix is None:
            if len(self._prefixes) >= _PREFIX_CACHE_MAX:
                self._prefixes.clear()
            prefix = self._prefixes[topic] = java_hash(f"{topic}#") & _MASK
        return prefix

    def _tag_hash(self, topic: str, tags: str) -> int:
        key = (topic, tags)
        value = self._tag_hashes.get(key)
        if value is None:
            if len(self._tag_hashes) >= _PREFIX_CACHE_MAX:
                self._tag_hashes.clear()
            value = self._tag_hashes[key] = index_key_hash(index_tag_key(topic, tags))
        return value
