"""Bytes and sizes of stored messages by topic, from the units of their queues.

Every unit has the size of its record.  A worker adds up the units that are new since the last page,
so that a send pays nothing for these series.
"""

from __future__ import annotations

from typing import Final

from cometmq.core.base.exposition import Histogram
from cometmq.store.message_store import MessageStore

__all__ = ["MessageSizes"]

BOUNDS: Final = (1024, 4096, 524_288, 1_048_576, 2_097_152, 4_194_304)
"""RocketMQ's, in bytes."""


class MessageSizes:
    """Counts from its making on; `measure` in a worker, one call at a time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._ends = dict(self._queues())
        self.by_topic: dict[str, Histogram] = {}
        """Sizes of records; the total of a histogram is the topic's bytes."""

    def _queues(self) -> list[tuple[tuple[str, int], int]]:
        store = self._store
        return [
            ((topic, queue_id), store.max_queue_offset(topic, queue_id))
            for topic in store.topics()
            for queue_id in store.queues(topic)
        ]

    def measure(self) -> None:
        """Count what was stored since the last call; topics that are gone are forgotten."""
        queues = self._queues()
        topics = {topic for (topic, _), _ in queues}
        for gone in self.by_topic.keys() - topics:
            del self.by_topic[gone]
        for key, end in queues:
            first = self._ends.get(key, 0)
            if end < first:  # the topic was deleted and created again
                first = 0
            topic, queue_id = key
            if end > first:
                histogram = self.by_topic.get(topic)
                if histogram is None:
                    histogram = self.by_topic[topic] = Histogram(BOUNDS)
                counts, total = self._store.size_counts(topic, queue_id, first, end, BOUNDS)
                histogram.add_counts(counts, total)
        self._ends = dict(queues)
