"""The SQL92 filters of all groups, and the bitmaps that speed them up.

The table registers filters from heartbeats, marks them dead when their consumers leave, makes the
bitmap of a message, and says from a bitmap whether a message may match.  It writes no file: its
owner saves it when `revision` has grown.  Times are arguments, in epoch ms.

A bitmap rules a message out only if the filter was registered before the message was stored.  So a
changed filter gets a new `born_ms`.  A group whose consumers leave and return with the same filter
keeps its `born_ms`, because messages get bits for dead filters too until `forget` drops these after
a day.  If the bitmap decides nothing, the filter itself does.

Source: ConsumerFilterManager, CommitLogDispatcherCalcBitMap and ExpressionMessageFilter of RocketMQ
5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from cometmq.codec.consume_queue import CqExtUnit
from cometmq.codec.properties import decode_properties, pick_properties, property_marks
from cometmq.core.filter.bloom_filter import BloomFilter
from cometmq.core.filter.consumer_filter import ConsumerFilter
from cometmq.core.filter.sql92.expression import compile_expression
from cometmq.core.filter.tag_filter import is_tag_type
from cometmq.errors import ExpressionIllegal
from cometmq.model.group import SubscriptionData

__all__ = ["FilterTable"]

_DEAD_BEFORE_LOAD_MS: Final = 30_000
"""Filters from a file have no consumers yet; they count as dead for this long."""

_NAMES_MAX: Final = 6
"""Up to this many properties are picked one by one; with more, all are decoded."""


class FilterTable:
    """Filters by topic and group."""

    def __init__(self, bloom: BloomFilter) -> None:
        self.bloom = bloom
        self.revision = 0
        """Grows with every change that must be saved."""
        self._topics: dict[str, dict[str, ConsumerFilter]] = {}
        self._by_topic: dict[str, tuple[ConsumerFilter, ...]] = {}
        """The same for worker threads: a topic's tuple is replaced, never changed."""

    def __iter__(self) -> Iterator[ConsumerFilter]:
        for groups in self._topics.values():
            yield from groups.values()

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Return a group's filter of a topic, dead or not."""
        return self._topics.get(topic, {}).get(group)

    def load(self, filters: Iterable[ConsumerFilter], now_ms: int) -> bool:
        """Replace all filters by those of a file, which count as dead.

        Return False, without a change, when the file was written under other settings of the Bloom
        filter: its bitmaps do not fit these.
        """
        topics: dict[str, dict[str, ConsumerFilter]] = {}
        for entry in filters:
            if not self.bloom.is_valid(entry.key):
                return False
            if entry.dead_ms == 0:
                entry.dead_ms = max(entry.born_ms, now_ms - _DEAD_BEFORE_LOAD_MS)
            topics.setdefault(entry.topic, {})[entry.group] = entry
        self._topics = topics
        self._changed()
        return True

    def register_group(
        self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> list[ExpressionIllegal]:
        """Register all subscriptions of a group's heartbeat; return the faults in them.

        A filter of a topic that is not among them is dead from now on.
        """
        faults: list[ExpressionIllegal] = []
        topics: set[str] = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if is_tag_type(subscription.expression_type):
                continue
            try:
                self.register(
                    subscription.topic,
                    group,
                    subscription.sub_string,
                    subscription.sub_version,
                    now_ms,
                    subscription.expression_type,
                )
            except ExpressionIllegal as error:
                faults.append(error)
        self._bury(
            [entry for entry in self if entry.group == group and entry.topic not in topics], now_ms
        )
        return faults

    def register(
        self,
        topic: str,
        group: str,
        text: str,
        client_version: int,
        now_ms: int,
        expression_type: str = "SQL92",
    ) -> bool:
        """Register a filter; False when it is an older version or the present, live one.

        Raises:
            ExpressionIllegal: the text is not a filter.  The group's previous filter is dropped, so
                that pulls fail instead of using a filter that is no longer wanted.
        """
        old = self.get(topic, group)
        if old is not None and client_version <= old.client_version:
            return client_version == old.client_version and self._revive(old)
        key = self.bloom.key(group, topic)
        if old is not None and (old.text, old.expression_type, old.key) == (
            text,
            expression_type,
            key,
        ):
            old.client_version = client_version
            self._revive(old)
            self.revision += 1
            return True
        groups = self._topics.setdefault(topic, {})
        try:
            expression = compile_expression(text)
        except ExpressionIllegal:
            if groups.pop(group, None) is not None:
                self._changed(topic)
            raise
        groups[group] = ConsumerFilter(
            topic,
            group,
            text,
            expression_type,
            client_version,
            born_ms=now_ms,
            key=key,
            expression=expression,
        )
        self._changed(topic)
        return True

    def unregister(self, group: str, now_ms: int) -> None:
        """Mark the filters of a group dead; its last consumer has left."""
        self._bury([entry for entry in self if entry.group == group], now_ms)

    def forget(self, now_ms: int, after_ms: int) -> int:
        """Drop the filters that have been dead for `after_ms`; return their number."""
        expired = [entry for entry in self if entry.is_dead and now_ms - entry.dead_ms >= after_ms]
        for entry in expired:
            del self._topics[entry.topic][entry.group]
        self._topics = {topic: groups for topic, groups in self._topics.items() if groups}
        if expired:
            self._changed()
        return len(expired)

    def _changed(self, topic: str | None = None) -> None:
        """Publish the changed filters of a topic, or of all topics, to worker threads."""
        self.revision += 1
        if topic is not None:
            self._by_topic[topic] = tuple(self._topics[topic].values())
        else:
            self._by_topic = {name: tuple(groups.values()) for name, groups in self._topics.items()}

    def is_filtered(self, topic: str) -> bool:
        """Whether a topic has filters, dead or not.  Safe in a worker thread."""
        return bool(self._by_topic.get(topic))

    def bitmap(self, topic: str, properties: Mapping[str, str]) -> bytes | None:
        """Make a message's bitmap; None for a topic without filters.  Safe in a worker thread."""
        filters = self._by_topic.get(topic)
        if not filters:
            return None
        bits = 0
        for entry in filters:
            if entry.expression is not None and entry.expression.matches(properties):
                bits |= entry.key.mask if entry.key is not None else 0
        return bits.to_bytes(self.bloom.bit_count // 8, "little")

    def bitmaps_of(self, topic: str) -> Callable[[bytes], bytes]:
        """Return a function from a property string to its bitmap under the present filters.

        Safe in a worker thread.  When the filters name few properties, it decodes only those.
        """
        filters = [
            (entry.expression.matches, entry.key.mask)
            for entry in self._by_topic.get(topic, ())
            if entry.expression is not None and entry.key is not None
        ]
        names = set().union(
            *[
                entry.expression.properties
                for entry in self._by_topic.get(topic, ())
                if entry.expression
            ]
        )
        wanted = property_marks(names) if len(names) <= _NAMES_MAX else []
        size = self.bloom.bit_count // 8

        def bitmap(raw: bytes) -> bytes:
            properties = pick_properties(raw, wanted) if wanted else decode_properties(raw)
            bits = 0
            for matches, mask in filters:
                if matches(properties):
                    bits |= mask
            return bits.to_bytes(size, "little")

        return bitmap

    def may_match(self, wanted: ConsumerFilter, unit: CqExtUnit | None) -> bool:
        """Whether a message may match, by its extension unit: perhaps, or certainly not."""
        if unit is None or wanted.key is None or not wanted.was_live_at(unit.store_time_ms):
            return True
        if wanted.expression is None:
            return True
        return self.bloom.is_hit(wanted.key, unit.bitmap)

    def _revive(self, entry: ConsumerFilter) -> bool:
        if not entry.is_dead:
            return False
        entry.dead_ms = 0
        self.revision += 1
        return True

    def _bury(self, filters: Iterable[ConsumerFilter], now_ms: int) -> None:
        for entry in filters:
            if not entry.is_dead:
                entry.dead_ms = now_ms
                self.revision += 1
