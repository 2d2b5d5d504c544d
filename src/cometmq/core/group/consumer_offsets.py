"""Consumer offsets of one broker: where each group continues in each queue.

The table answers QUERY_CONSUMER_OFFSET, takes UPDATE_CONSUMER_OFFSET, is saved as
``consumerOffset.json`` and delivers an operator's resets once.  It saves nothing itself: its owner
saves it when `revision` has grown.

The key is ``topic@group``, as in the file; the value is the *next* offset to consume.  A commit
overwrites the value always, also with a lower one (ConsumerOffsetManager of RocketMQ 5.4).  A
pending reset wins over commits until the group knows of it.  RocketMQ drops the reset when it sends
it; this table drops it when a pull shows that the answer arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import DataVersion

__all__ = ["ConsumerOffsetTable"]

_SEPARATOR = "@"


class _Reset:
    """An order to continue at an offset, and the peer that received it last."""

    __slots__ = ("consumer_offset", "delivered_to")

    def __init__(self, consumer_offset: ConsumerOffset) -> None:
        self.consumer_offset = consumer_offset
        self.delivered_to = ""


class ConsumerOffsetTable:
    """Offsets by ``topic@group`` and queue id.

    The data version grows once in `version_step` commits (consumerOffsetUpdateVersionStep).
    """

    def __init__(
        self,
        table: Mapping[str, Mapping[int, ConsumerOffset]] | None = None,
        version: DataVersion | None = None,
        *,
        version_step: int = 500,
    ) -> None:
        self._table: dict[str, dict[int, ConsumerOffset]] = {
            key: dict(queues) for key, queues in (table or {}).items()
        }
        self._resets: dict[str, dict[int, _Reset]] = {}
        self.version_step = version_step
        self._commits = 0
        self.version = version or DataVersion()
        self.revision = 0

    def all(self) -> Mapping[str, Mapping[int, ConsumerOffset]]:
        """Return the live table; callers only read it."""
        return self._table

    def commit(
        self, group: str, topic: str, queue_id: int, consumer_offset: ConsumerOffset, now_ms: int
    ) -> None:
        """Store the next offset to consume."""
        queues = self._table.get(topic + _SEPARATOR + group)
        if queues is None:
            queues = self._table[topic + _SEPARATOR + group] = {}
        if queues.get(queue_id) == consumer_offset:
            return
        queues[queue_id] = consumer_offset
        self.revision += 1
        self._commits += 1
        if self._commits % self.version_step == 0:
            self.version = self.version.next(now_ms)

    def query(self, group: str, topic: str, queue_id: int) -> ConsumerOffset | None:
        """Return the pending reset, else the stored offset, else None."""
        key = topic + _SEPARATOR + group
        if self._resets:
            pending = self._resets.get(key, {}).get(queue_id)
            if pending is not None:
                return pending.consumer_offset
        queues = self._table.get(key)
        return None if queues is None else queues.get(queue_id)

    def reset(
        self, group: str, topic: str, queue_id: int, consumer_offset: ConsumerOffset, now_ms: int
    ) -> None:
        """Set an offset for an operator; it wins over commits until the group knows of it."""
        self.commit(group, topic, queue_id, consumer_offset, now_ms)
        resets = self._resets.setdefault(topic + _SEPARATOR + group, {})
        resets[queue_id] = _Reset(consumer_offset)

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the queue has a reset that the group may not know yet."""
        if not self._resets:
            return False
        return queue_id in self._resets.get(topic + _SEPARATOR + group, {})

    def deliver_reset(
        self, group: str, topic: str, queue_id: int, pulled_offset: int, peer: str
    ) -> ConsumerOffset | None:
        """Return the offset that a pull must continue at, or None when no reset is pending.

        The first pull receives the reset.  A later pull ends it when it begins at the reset's
        offset, or comes from the same peer, which has read the answer.  Any other peer has not seen
        the reset and receives it too.
        """
        if not self._resets:
            return None
        resets = self._resets.get(topic + _SEPARATOR + group, {})
        pending = resets.get(queue_id)
        if pending is None:
            return None
        if pending.delivered_to and (
            pending.delivered_to == peer or pending.consumer_offset == pulled_offset
        ):
            del resets[queue_id]
            return None
        pending.delivered_to = peer
        return pending.consumer_offset

    def topics_of(self, group: str) -> list[str]:
        """List the topics in which the group has offsets."""
        suffix = _SEPARATOR + group
        return [key[: -len(suffix)] for key in self._table if key.endswith(suffix)]

    def groups_of(self, topic: str) -> list[str]:
        """List the groups that have offsets in the topic."""
        prefix = topic + _SEPARATOR
        return [key[len(prefix) :] for key in self._table if key.startswith(prefix)]

    def queues(self, group: str, topic: str) -> Mapping[int, ConsumerOffset]:
        """Return the offsets of one topic and group by queue id."""
        return self._table.get(topic + _SEPARATOR + group, {})

    def clone(self, source_group: str, target_group: str, topics: Iterable[str]) -> None:
        """Copy a group's offsets to another group."""
        for topic in topics:
            queues = self._table.get(topic + _SEPARATOR + source_group)
            if queues:
                self._table[topic + _SEPARATOR + target_group] = dict(queues)
                self.revision += 1

    def remove_topic(self, topic: str) -> None:
        """Remove every group's offsets in a deleted topic."""
        self._remove(lambda key: key.startswith(topic + _SEPARATOR))

    def remove_group(self, group: str) -> None:
        """Remove a deleted group's offsets."""
        self._remove(lambda key: key.endswith(_SEPARATOR + group))

    def _remove(self, matches: Callable[[str], bool]) -> None:
        for table in (self._table, self._resets):
            for key in [key for key in table if matches(key)]:
                del table[key]
                self.revision += 1
