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
from typing import Final

from cometmq.model.names import TOOLS_GROUP
from cometmq.model.offsets import ConsumerOffset
from cometmq.model.topic import DataVersion

__all__ = ["ENDS_KEPT_MS", "ConsumerOffsetTable"]

_SEPARATOR = "@"
ENDS_KEPT_MS: Final = 120_000
"""So long after a loss members may come back that know lost messages: a broker forgets clients
after this time."""


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
        self._ends: Mapping[tuple[str, int], ConsumerOffset] | None = None
        """The queues' ends after a loss, as long as members may know more."""
        self._ends_until_ms = 0
        self._pullers: dict[tuple[str, str, int], dict[str, None]] = {}
        """By group and queue: the peers that have pulled since the loss, the last one last."""
        self._sent_back: dict[tuple[str, str, int, str], ConsumerOffset] = {}
        """By group, queue and peer: where a broadcasting member goes on that may know lost
        messages."""
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

    def begin_again(self, ends: Mapping[tuple[str, int], ConsumerOffset], now_ms: int) -> int:
        """Let all groups go on from their offsets, where queues may have lost their last messages.

        The next messages get the queue offsets of the lost ones.  A member that has gone past them
        would pass over the new ones, so the offset is a reset: it wins over what members know.
        For two minutes a group is reset again when a member that has not pulled since shows that it
        knows more, and only the member that pulled from a queue last may commit there.

        Args:
            ends: the end of each queue, by topic and queue id; no group goes on behind it.

        Returns in how many queues groups have an offset, each group counted.
        """
        self._ends, self._ends_until_ms = ends, now_ms + ENDS_KEPT_MS
        self._pullers.clear()
        self._sent_back.clear()
        count = 0
        for key, queues in list(self._table.items()):
            topic, _, group = key.partition(_SEPARATOR)
            for queue_id, consumer_offset in list(queues.items()):
                end = ends.get((topic, queue_id), ConsumerOffset(0))
                self.reset(group, topic, queue_id, min(consumer_offset, end), now_ms)
                count += 1
        return count

    @property
    def is_after_loss(self) -> bool:
        """Whether members may come back that know lost messages, so that each pull is noted."""
        return self._ends is not None

    def note_pull(
        self,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        peer: str,
        now_ms: int,
        *,
        is_broadcast: bool = False,
    ) -> None:
        """Note from where a member pulls, before anything else is done with the pull.

        Tools read single messages and scan whole queues; they own none, and go where they like.

        Args:
            is_broadcast: whether each member has offsets of its own.  The group has none then, and
                what one member knows is no reason to move the others.
        """
        if self._ends is not None and group != TOOLS_GROUP:
            if is_broadcast:
                self._note_alone((group, topic, queue_id, peer), queue_offset, now_ms)
            else:
                self._note_known(group, topic, queue_id, queue_offset, peer, now_ms, is_pull=True)
            pullers = self._pullers.setdefault((group, topic, queue_id), {})
            pullers.pop(peer, None)
            pullers[peer] = None

    def may_commit(
        self, group: str, topic: str, queue_id: int, consumer_offset: int, peer: str, now_ms: int
    ) -> bool:
        """Return whether a member's commit counts: it knows of every reset and of every loss."""
        if self._ends is not None:
            self._note_known(group, topic, queue_id, consumer_offset, peer, now_ms)
            pullers = self._pullers.get((group, topic, queue_id))
            if pullers and next(reversed(pullers)) != peer:
                return False
        return not self.has_reset(group, topic, queue_id)

    def _note_known(
        self,
        group: str,
        topic: str,
        queue_id: int,
        consumer_offset: int,
        peer: str,
        now_ms: int,
        *,
        is_pull: bool = False,
    ) -> None:
        """Reset a group whose member knows more than the queue has kept and the group committed."""
        if self._ends is None or now_ms >= self._ends_until_ms:
            self._end_of_loss()
            return
        end = self._ends.get((topic, queue_id), ConsumerOffset(0))
        is_new = peer not in self._pullers.get((group, topic, queue_id), ())
        if not is_new or consumer_offset <= end:
            return
        committed = self.query(group, topic, queue_id)
        if committed is None:
            self.reset(group, topic, queue_id, end, now_ms)
        elif is_pull and consumer_offset > committed:
            # Another member has taken the group's reset, and the queue went back to this one.
            self.reset(group, topic, queue_id, committed, now_ms)

    def _note_alone(self, key: tuple[str, str, int, str], queue_offset: int, now_ms: int) -> None:
        """Send one member back that knows more than the queue has kept."""
        if self._ends is None or now_ms >= self._ends_until_ms:
            self._end_of_loss()
            return
        group, topic, queue_id, peer = key
        end = self._ends.get((topic, queue_id), ConsumerOffset(0))
        if queue_offset > end and peer not in self._pullers.get((group, topic, queue_id), ()):
            self._sent_back[key] = end

    def _end_of_loss(self) -> None:
        """Forget the loss: no member knows of it any more."""
        self._ends = None
        self._pullers.clear()
        self._sent_back.clear()

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
        if self._sent_back:
            back = self._sent_back.pop((group, topic, queue_id, peer), None)
            if back is not None:
                return back
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
            if not resets:
                del self._resets[topic + _SEPARATOR + group]
            return None
        pending.delivered_to = peer
        return pending.consumer_offset

    def pending_resets(self) -> dict[str, list[int]]:
        """Return the queues with a reset that the group may not know yet, by ``topic@group``."""
        return {key: list(resets) for key, resets in self._resets.items()}

    def restore_resets(self, pending: Mapping[str, Iterable[int]]) -> None:
        """Take the resets of a broker's life before, whose offsets the table has."""
        for key, queue_ids in pending.items():
            present = self._table.get(key, {})
            self._resets[key] = {q: _Reset(present[q]) for q in queue_ids if q in present}

    def take_resets(self, group: str, topic: str) -> dict[int, ConsumerOffset]:
        """Return the pending resets of a group in a topic, and end them."""
        if not self._resets:
            return {}
        resets = self._resets.pop(topic + _SEPARATOR + group, {})
        return {queue_id: pending.consumer_offset for queue_id, pending in resets.items()}

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

    def remove(self, group: str, topic: str) -> None:
        """Remove a group's offsets in one topic."""
        key = topic + _SEPARATOR + group
        self._remove(lambda stored: stored == key)

    def remove_group(self, group: str) -> None:
        """Remove a deleted group's offsets."""
        self._remove(lambda key: key.endswith(_SEPARATOR + group))

    def _remove(self, matches: Callable[[str], bool]) -> None:
        for table in (self._table, self._resets):
            for key in [key for key in table if matches(key)]:
                del table[key]
                self.revision += 1
