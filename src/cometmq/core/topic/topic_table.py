"""The topics of one broker: lookup, creation on demand, the topics of a first boot.

The table has `TopicConfig` values and their `DataVersion`, and creates missing topics.  It saves
and registers nothing itself: its owner does when `revision` has grown.

Automatic creation (TopicConfigManager of RocketMQ 5.4): the template topic the client names,
normally TBW102, must exist with the INHERIT bit.  The new topic gets the smaller of the queues
asked for and those of the template, and the template's permission without INHERIT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE
from cometmq.model.names import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    reply_topic,
)
from cometmq.model.topic import DataVersion, TopicConfig

__all__ = ["SCHEDULE_QUEUE_COUNT", "TopicTable", "system_topics"]

SCHEDULE_QUEUE_COUNT: Final = 18
"""Declared queues of SCHEDULE_TOPIC_XXXX; more levels than this still get their queues."""
_BENCHMARK_QUEUE_COUNT: Final = 1024
_READ_WRITE: Final = PERM_READ | PERM_WRITE


def system_topics(
    *,
    cluster: str,
    broker_name: str,
    default_queue_count: int = 8,
    revive_queue_count: int = 8,
    auto_create: bool = True,
    cluster_topic: bool = True,
    broker_topic: bool = True,
    trace_topic: str | None = None,
    timer: bool = True,
) -> list[TopicConfig]:
    """The topics that a broker creates at its first boot
    (docs/internals/store.md#topics-and-groups-at-first-boot).

    `trace_topic` is the name of the trace topic, or None when tracing is off.
    """
    inherit = _READ_WRITE | PERM_INHERIT

    def topic(name: str, queue_count: int = 1, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queue_count, queue_count, perm)

    topics = [
        topic(SELF_TEST_TOPIC),
        topic(BENCHMARK_TOPIC, _BENCHMARK_QUEUE_COUNT),
        topic(cluster, 16, inherit if cluster_topic else PERM_INHERIT),
        topic(broker_name, 1, inherit if broker_topic else PERM_INHERIT),
        topic(OFFSET_MOVED_TOPIC),
        topic(SCHEDULE_TOPIC, SCHEDULE_QUEUE_COUNT),
        topic(reply_topic(cluster)),
        topic(f"rmq_sys_REVIVE_LOG_{cluster}", revive_queue_count),
        topic(f"rmq_sys_SYNC_BROKER_MEMBER_{broker_name}", 1, PERM_INHERIT),
        topic(HALF_TOPIC),
        topic(OP_HALF_TOPIC),
    ]
    if auto_create:
        topics.append(topic(DEFAULT_TOPIC, default_queue_count, inherit))
    if trace_topic is not None:
        topics.append(topic(trace_topic))
    if timer:
        topics.append(topic(TIMER_TOPIC))
    return topics


class TopicTable:
    """Topics by name; every change moves `version` and `revision`."""

    def __init__(
        self,
        topics: Mapping[str, TopicConfig] | None = None,
        version: DataVersion | None = None,
    ) -> None:
        self._topics: dict[str, TopicConfig] = dict(topics or {})
        self._reserved: set[str] = set()
        self._made_at: dict[str, int] = {}
        self._changed_at: dict[str, int] = {}
        self.version = version or DataVersion()
        self.revision = 0

    def __contains__(self, topic: object) -> bool:
        return topic in self._topics

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, topic: str) -> TopicConfig | None:
        """The topic's configuration; None if it does not exist."""
        return self._topics.get(topic)

    def all(self) -> Mapping[str, TopicConfig]:
        """The live table; callers only read it."""
        return self._topics

    def is_reserved(self, topic: str) -> bool:
        """Whether this broker made the topic for itself (cluster, broker or reply topic)."""
        return topic in self._reserved

    def seed(self, topics: Iterable[TopicConfig], now_ms: int) -> None:
        """Add the system topics that are missing; existing ones keep their settings."""
        for config in topics:
            self._reserved.add(config.topic)
            if config.topic not in self._topics:
                self.put(config, now_ms)

    def touch(self, now_ms: int) -> None:
        """Raise the version without a change, so that name servers replace their copy."""
        self._changed(now_ms)

    def put(self, config: TopicConfig, now_ms: int) -> None:
        """Create or replace a topic."""
        is_new = config.topic not in self._topics
        self._topics[config.topic] = config
        self._changed(now_ms)
        self._changed_at[config.topic] = self.revision
        if is_new:
            self._made_at[config.topic] = self.revision

    def made_at(self, topic: str) -> int:
        """The revision at which a topic was created; 0 if it existed from the start."""
        return self._made_at.get(topic, 0)

    def changed_at(self, topic: str) -> int:
        """The revision of a topic's last change; 0 if it has not changed since the start."""
        return self._changed_at.get(topic, 0)

    def delete(self, topic: str, now_ms: int) -> bool:
        """Remove a topic; False when it did not exist."""
        if self._topics.pop(topic, None) is None:
            return False
        self._changed(now_ms)
        return True

    def create_from_template(
        self, topic: str, template: str, queue_count: int, now_ms: int
    ) -> TopicConfig | None:
        """Create `topic` by the template topic; None if the template does not allow it.

        An existing topic is returned as it is.
        """
        known = self._topics.get(topic)
        if known is not None:
            return known
        pattern = self._topics.get(template)
        if pattern is None or not pattern.perm & PERM_INHERIT:
            return None
        count = max(0, min(queue_count, pattern.write_queue_count))
        created = TopicConfig(
            topic,
            count,
            count,
            pattern.perm & ~PERM_INHERIT,
            topic_filter_type=pattern.topic_filter_type,
        )
        self.put(created, now_ms)
        return created

    def ensure(self, topic: str, queue_count: int, now_ms: int, perm: int = 6) -> TopicConfig:
        """A retry, dead-letter or other topic of the broker's own; it is created if missing."""
        known = self._topics.get(topic)
        if known is None:
            known = TopicConfig(topic, queue_count, queue_count, perm)
            self.put(known, now_ms)
        return known

    def _changed(self, now_ms: int) -> None:
        self.version = self.version.next(now_ms)
        self.revision += 1
