"""Who filters what: the SQL92 filters of all groups, and the bitmaps that speed them up.

Job: register filters from heartbeats, let them go when consumers do, make the bitmap of a message
and say from a bitmap whether a message may match.  It must not keep files (`revision` tells the
owner that there is something to write) and knows no clock: times are arguments, epoch ms.

Theory: a bitmap says "no" about a message only when the filter had been registered before the
message was stored.  So a group whose filter changes begins anew (`born_ms` moves), one whose
consumers went and came back with the same filter does not: bitmaps are made for dead filters too,
until they are forgotten after a day.  "Perhaps" is always safe; the filter itself decides then.

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
"""Filters of a file have no consumers yet; they count as gone since then."""

_NAMES_MAX: Final = 6
"""Up to so many properties are looked up one by one."""


class FilterTable:
    """Filters by topic and group."""

    __slots__ = ("_by_topic", "_topics", "bloom", "revision")

    def __init__(self, bloom: BloomFilter) -> None:
        self.bloom = bloom
        self.revision = 0
        """Moves with every change of what is kept."""
        self._topics: dict[str, dict[str, ConsumerFilter]] = {}
        self._by_topic: dict[str, tuple[ConsumerFilter, ...]] = {}
        """The same to be read by workers: a topic's filters are replaced, never changed."""

    def __iter__(self) -> Iterator[ConsumerFilter]:
        for groups in self._topics.values():
            yield from groups.values()

    def get(self, topic: str, group: str) -> ConsumerFilter | None:
        """Give a group's filter of a topic, dead or not."""
        return self._topics.get(topic, {}).get(group)

    def load(self, filters: Iterable[ConsumerFilter], now_ms: int) -> bool:
        """Take over a file's filters, all of them dead; replaces what was there.

        False, and nothing is taken over, when the file was written under other settings of the
        Bloom filter: its bitmaps do not fit these.
        """
        topics: dict[str, dict[str, ConsumerFilter]] = {}
        for one in filters:
            if not self.bloom.is_valid(one.key):
                return False
            if one.dead_ms == 0:
                one.dead_ms = max(one.born_ms, now_ms - _DEAD_BEFORE_LOAD_MS)
            topics.setdefault(one.topic, {})[one.group] = one
        self._topics = topics
        self._changed()
        return True

    def register_group(
        self, group: str, subscriptions: Iterable[SubscriptionData], now_ms: int
    ) -> list[ExpressionIllegal]:
        """Take a heartbeat's subscriptions, all of the group's; returns what is wrong with them.

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
        self._bury([one for one in self if one.group == group and one.topic not in topics], now_ms)
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
        """Register a filter; False when it is an older version, or the one that is there.

        Raises:
            ExpressionIllegal: it is none. The group's older one is forgotten, so that a pull says
                so instead of filtering by what is not wanted any more.
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
        """Note that the last consumer of a group went."""
        self._bury([one for one in self if one.group == group], now_ms)

    def forget(self, now_ms: int, after_ms: int) -> int:
        """Drop what has been dead for so long; returns how many."""
        gone = [one for one in self if one.is_dead and now_ms - one.dead_ms >= after_ms]
        for one in gone:
            del self._topics[one.topic][one.group]
        self._topics = {topic: groups for topic, groups in self._topics.items() if groups}
        if gone:
            self._changed()
        return len(gone)

    def _changed(self, topic: str | None = None) -> None:
        """There are other filters of a topic, or of any."""
        self.revision += 1
        if topic is not None:
            self._by_topic[topic] = tuple(self._topics[topic].values())
        else:
            self._by_topic = {name: tuple(groups.values()) for name, groups in self._topics.items()}

    def is_filtered(self, topic: str) -> bool:
        """Say whether anybody, dead or not, filters a topic. Safe in a worker."""
        return bool(self._by_topic.get(topic))

    def bitmap(self, topic: str, properties: Mapping[str, str]) -> bytes | None:
        """Make the bitmap of a message; None where nobody filters its topic. Safe in a worker."""
        filters = self._by_topic.get(topic)
        if not filters:
            return None
        bits = 0
        for one in filters:
            if one.expression is not None and one.expression.matches(properties):
                bits |= one.key.mask if one.key is not None else 0
        return bits.to_bytes(self.bloom.bit_count // 8, "little")

    def bitmaps_of(self, topic: str) -> Callable[[bytes], bytes]:
        """Make what gives the bitmap of a property string, by the filters of now.

        Safe in a worker.  Where few properties matter the others are not decoded.
        """
        filters = [
            (one.expression.matches, one.key.mask)
            for one in self._by_topic.get(topic, ())
            if one.expression is not None and one.key is not None
        ]
        names = set().union(
            *[one.expression.properties for one in self._by_topic.get(topic, ()) if one.expression]
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
        """Say from an extension unit whether a message may match: perhaps, or a certain no."""
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
