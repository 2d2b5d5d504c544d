"""Index hashes of the keys of messages, many at once.

Each hash comes with the physical offset and store time of its message.

A message has an entry for its UNIQ_KEY, one for each of its KEYS, and one for `T#` + TAGS (5.4),
in this order (``IndexService.buildIndex``).  The hash of `topic#` is computed once per topic; the
rest of many keys is hashed at once with numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.codec.index import index_key, index_tag_key
from cometmq.codec.java_hash import index_key_hash, java_hash
from cometmq.store.base.dispatch import index_keys_of
from cometmq.store.index.file import hash_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.base.results import IndexKeys
    from cometmq.store.log.reader import ScannedRecord

__all__ = ["KeyHasher", "PendingKeys", "key_texts", "record_key_texts"]

# Hashes remembered: of so many topics, and of so many tags of a topic.
_CACHE_MAX: Final = 1 << 15
_MASK: Final = 0xFFFFFFFF
_FIELDS: Final[tuple[Callable[[Any], Any], ...]] = tuple(itemgetter(place) for place in range(4))

Key = TypeVar("Key")

PendingKeys = tuple[str, int, int, "IndexKeys"]
"""topic, physical offset, store time, keys of a message that is not indexed yet."""


def key_texts(topic: str, keys: IndexKeys) -> list[str]:
    """Return the texts under which a message is indexed, in upstream's order."""
    uniq, names, tags = keys
    texts: list[str] = []
    if uniq is not None:
        texts.append(index_key(topic, uniq))
    if names:
        texts += [index_key(topic, name) for name in names.split(" ") if name]
    if tags:
        texts.append(index_tag_key(topic, tags))
    return texts


def record_key_texts(record: ScannedRecord) -> list[str]:
    """Return the texts under which a stored record is indexed."""
    keys = index_keys_of(record.properties)
    return [] if keys is None else key_texts(record.topic.decode("utf-8", "replace"), keys)


class KeyHasher:
    """Hashes batches; remembers topics and tags."""

    def __init__(self) -> None:
        self._prefixes: dict[str, int] = {}
        self._tag_hashes: dict[tuple[str, str], int] = {}

    def hash_batch(self, batch: list[PendingKeys]) -> tuple[Any, Any, Any]:
        """Return hash, physical offset and time of every entry of a batch, as arrays."""
        import numpy as np

        # Column by column: to transpose thousands of rows with zip makes an iterator for each.
        topics, offsets, times_ms, keys = [list(map(field, batch)) for field in _FIELDS]
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

        uniqs, texts, tags = [list(map(field, keys)) for field in _FIELDS[:3]]
        for column in (uniqs, texts, tags):
            if not all(column) and any(column):
                return None
        if texts[0] and " " in "".join(texts):
            return None
        topic = topics[0]
        is_one_topic = topics.count(topic) == len(topics)
        prefixes: int | list[int] = self._prefix(topic)
        if not is_one_topic:
            prefixes = _looked_up(self._prefixes, topics, self._prefix)
        columns: list[Any] = []
        if uniqs[0]:
            columns.append(hash_many(uniqs, prefixes))
        if texts[0]:
            columns.append(hash_many(texts, prefixes))
        if tags[0] and is_one_topic:
            ready = {one: self._tag_hash((topic, one)) for one in set(tags)}
            columns.append(np.array([ready[one] for one in tags], dtype=np.int64))
        elif tags[0]:
            pairs = list(zip(topics, tags, strict=True))
            hashes = _looked_up(self._tag_hashes, pairs, self._tag_hash)
            columns.append(np.array(hashes, dtype=np.int64))
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
                ready.append(self._tag_hash((topic, tags)))
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
            if len(self._prefixes) >= _CACHE_MAX:
                self._prefixes.clear()
            prefix = self._prefixes[topic] = java_hash(f"{topic}#") & _MASK
        return prefix

    def _tag_hash(self, key: tuple[str, str]) -> int:
        value = self._tag_hashes.get(key)
        if value is None:
            if len(self._tag_hashes) >= _CACHE_MAX:
                self._tag_hashes.clear()
            value = self._tag_hashes[key] = index_key_hash(index_tag_key(*key))
        return value


def _looked_up(known: dict[Key, int], keys: Sequence[Key], find: Callable[[Key], int]) -> list[int]:
    """What `find` gives for each key, and has put into `known` for all of them as a rule."""
    try:
        return list(map(known.__getitem__, keys))
    except KeyError:
        return list(map(find, keys))
