"""Hashes the keys of many messages at once, for the index.

A message has an index entry for its UNIQ_KEY, one for each of its KEYS, and one for `T#` + TAGS
(5.4), in this order (``IndexService.buildIndex``).  The hash of the prefix `topic#` is computed
once for each topic; the keys behind it are hashed together with numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from cometmq import native
from cometmq.codec.index import index_key, index_tag_key
from cometmq.codec.java_hash import index_key_hash, java_hash
from cometmq.native import PendingKeys, PendingRun
from cometmq.store.base.dispatch import index_keys_of
from cometmq.store.index.file import hash_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.store.base.results import IndexKeys
    from cometmq.store.log.reader import ScannedRecord

__all__ = ["KeyHasher", "PendingItem", "item_entries", "key_texts", "record_key_texts"]

# Hashes in each cache: of topics, and of pairs of topic and tags.
_CACHE_MAX: Final = 1 << 15
_MASK: Final = 0xFFFFFFFF
_FIELDS: Final[tuple[Callable[[Any], Any], ...]] = tuple(itemgetter(index) for index in range(4))

Key = TypeVar("Key")

PendingItem = PendingKeys | PendingRun
"""A message that is not indexed yet, or a run of them.

Recovery with the native core has the hashes of a message's keys, 4 bytes each, in place of keys."""


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


def item_entries(item: PendingItem) -> list[tuple[int, int]]:
    """Return hash and physical offset of each entry of a message or run, in upstream's order."""
    topic, first_offset, _, keys = item
    if not isinstance(keys, bytes):
        assert isinstance(topic, str)
        return [(index_key_hash(text), first_offset) for text in key_texts(topic, keys)]
    numbers = memoryview(keys).cast("I").tolist()
    if isinstance(topic, str):
        return [(key_hash, first_offset) for key_hash in numbers]
    distances = numbers[1::2]
    return [
        (key_hash, first_offset + distance)
        for key_hash, distance in zip(numbers[::2], distances, strict=True)
    ]


def record_key_texts(record: ScannedRecord) -> list[str]:
    """Return the texts under which a stored record is indexed."""
    keys = index_keys_of(record.properties)
    return [] if keys is None else key_texts(record.topic.decode("utf-8", "replace"), keys)


class KeyHasher:
    """Hashes the keys of batches of messages; caches the hashes of topics and tags."""

    def __init__(self) -> None:
        self._prefixes: dict[str, int] = {}
        self._tag_hashes: dict[tuple[str, str], int] = {}

    def hash_batch(self, batch: Sequence[PendingItem]) -> tuple[Any, Any, Any]:
        """Return three arrays: hash, physical offset and store time of every entry of a batch."""
        import numpy as np

        if native.hash_keys is not None:
            columns = native.hash_keys(batch)
            hashes, offsets, times_ms = (np.frombuffer(item, dtype=np.int64) for item in columns)
            return hashes, offsets, times_ms
        # Only the native core, which is not there, gives hashes.
        return self._hash_in_python(cast("list[tuple[str, int, int, IndexKeys]]", batch))

    def _hash_in_python(self, batch: list[tuple[str, int, int, IndexKeys]]) -> tuple[Any, Any, Any]:
        import numpy as np

        # Column by column: zip would make an iterator for each of thousands of rows.
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
        """Return the hashes of the UNIQ_KEYs, of the KEYS and of the TAGS, one array each.

        This needs messages that all have the same kinds of keys, and at most one of the KEYS, as in
        the usual batch of one producer; then no entry is handled one by one.  Return None for other
        messages.
        """
        import numpy as np

        uniqs, texts, tags = [list(map(field, keys)) for field in _FIELDS[:3]]
        for column in (uniqs, texts, tags):
            if not all(column) and any(column):
                return None
        # An empty UNIQ_KEY has an entry, as in Java, and empty KEYS have none.
        if "" in uniqs or (texts[0] and " " in "".join(texts)):
            return None
        topic = topics[0]
        is_one_topic = topics.count(topic) == len(topics)
        prefixes: int | list[int] = self._prefix(topic)
        if not is_one_topic:
            prefixes = _cached_values(self._prefixes, topics, self._prefix)
        columns: list[Any] = []
        if uniqs[0]:
            columns.append(hash_many(uniqs, prefixes))
        if texts[0]:
            columns.append(hash_many(texts, prefixes))
        if tags[0] and is_one_topic:
            hash_of = {text: self._tag_hash((topic, text)) for text in set(tags)}
            columns.append(np.array([hash_of[text] for text in tags], dtype=np.int64))
        elif tags[0]:
            pairs = list(zip(topics, tags, strict=True))
            hashes = _cached_values(self._tag_hashes, pairs, self._tag_hash)
            columns.append(np.array(hashes, dtype=np.int64))
        return columns

    def _hash_mixed(self, batch: list[tuple[str, int, int, IndexKeys]]) -> tuple[Any, Any, Any]:
        """As `hash_batch`, entry by entry, for messages with different kinds of keys."""
        import numpy as np

        texts: list[str] = []
        prefixes: list[int] = []
        text_entries: list[int] = []
        """By text: the number of its entry."""
        hashes: list[int] = []
        offsets: list[int] = []
        times_ms: list[int] = []
        for topic, physical_offset, store_ms, (uniq, keys, tags) in batch:
            prefix = self._prefix(topic)
            message_keys = [key for key in keys.split(" ") if key] if keys else []
            if uniq is not None:
                message_keys.insert(0, uniq)
            for key in message_keys:
                texts.append(key)
                prefixes.append(prefix)
                text_entries.append(len(hashes))
                hashes.append(0)
                offsets.append(physical_offset)
                times_ms.append(store_ms)
            if tags:
                hashes.append(self._tag_hash((topic, tags)))
                offsets.append(physical_offset)
                times_ms.append(store_ms)
        entry_hashes = np.array(hashes, dtype=np.int64)
        if texts:
            entry_hashes[text_entries] = hash_many(texts, prefixes)
        return (
            entry_hashes,
            np.array(offsets, dtype=np.int64),
            np.array(times_ms, dtype=np.int64),
        )

    def _prefix(self, topic: str) -> int:
        """Return the unsigned hash of `topic#`."""
        prefix = self._prefixes.get(topic)
        if prefix is None:
            if len(self._prefixes) >= _CACHE_MAX:
                self._prefixes.clear()
            prefix = self._prefixes[topic] = java_hash(f"{topic}#") & _MASK
        return prefix

    def _tag_hash(self, key: tuple[str, str]) -> int:
        """Return the index hash of tags, given topic and tags."""
        value = self._tag_hashes.get(key)
        if value is None:
            if len(self._tag_hashes) >= _CACHE_MAX:
                self._tag_hashes.clear()
            value = self._tag_hashes[key] = index_key_hash(index_tag_key(*key))
        return value


def _cached_values(
    cache: dict[Key, int], keys: Sequence[Key], compute: Callable[[Key], int]
) -> list[int]:
    """Return the value of each key: from the cache if it has all of them, else by `compute`."""
    try:
        return list(map(cache.__getitem__, keys))
    except KeyError:
        return list(map(compute, keys))
