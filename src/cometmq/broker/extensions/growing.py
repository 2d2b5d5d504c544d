"""Growing topics at one broker: which sends by message group belong here, and which have moved.

It holds the growth of each topic that has one, refuses sends that belong to another queue, marks a
bucket as moved when all consumers have read its messages, and removes the queues that the new
layout does not have.  ``core.extensions.growing`` makes the decisions.

A mark is durable before anybody learns of it: a refused producer asks by GET_TOPIC_CONFIG, which is
answered after topics.json is written (``admin.topics_and_groups``).

A half message of a group is stored where the group is at home.  Its bucket stays there until the
transaction is ended and the committed message is consumed.  For transactions that were open before
this broker began to drain a queue, neither queue nor group is known: all buckets wait for them.

A delayed message, or the commit of a transaction without a group, may come to a queue that was
removed meanwhile.  Such a queue can be read again until all its messages are consumed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.codec.properties import decode_properties
from cometmq.core.extensions.growing import (
    ALL_MOVED,
    GROUP_FIELD,
    Growth,
    Phase,
    QueueDrain,
    StoreDecision,
    bucket_of,
    consumed_offset,
    decide_store,
    parse_group_field,
    takes_mixed_batch,
)
from cometmq.core.transaction.open_transactions import OpenHalves
from cometmq.errors import ConfigError, ResponseCode
from cometmq.model import properties as prop
from cometmq.model.topic import TopicConfig
from cometmq.wire.command.command import RemotingCommand

__all__ = ["GrowingTopics"]

log = logging.getLogger("cometmq.broker")

DRAIN_INTERVAL_S: Final = 0.5
"""Consumers commit every few seconds, so a shorter interval finds nothing new."""
CLIENTS_BACK_S: Final = 35.0
"""So long after a start every client that runs has sent its heartbeat (every 30 s)."""
CLIENTS_COME_S: Final = 65.0
"""So long after a topic came to this broker its consumers have found it: they ask for routes every
30 s, and send a new broker a heartbeat within another 30."""
LATE_INTERVAL_S: Final = 2.0
"""Queues that were removed get a late message rarely."""


class GrowingTopics:
    """The growths of one broker; the send path reads `topics` as the set of growing topics.

    `halves` are the open transactions of the broker.
    """

    def __init__(self, state: BrokerState, halves: OpenHalves) -> None:
        self._state = state
        self._halves = halves
        self._open: dict[tuple[str, int], dict[int, int]] = {}
        """Topic and queue -> queue offset of an open half message -> the bucket that waits."""
        self._unknown: dict[str, list[int]] = {}
        """Topic -> queue offsets of half messages that were open before the drain began."""
        self._drains: dict[tuple[str, int], QueueDrain] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._clients_back_s = 0.0
        self._young_until_s: dict[str, float] = {}
        self._new_until_s: dict[str, float] = {}
        """Topic -> until when its consumers may not have found it at this broker."""
        self.topics: dict[str, Growth] = {}

    # -- life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Go on with the growths that the loaded topics have."""
        if self._state.store.max_physical_offset > self._state.store.min_physical_offset:
            self._clients_back_s = asyncio.get_running_loop().time() + CLIENTS_BACK_S
        for config in list(self._state.topics.all().values()):
            self._new_until_s[config.topic] = 0.0
            self.topic_changed(config)

    def stop(self) -> None:
        """End the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def topic_changed(self, config: TopicConfig) -> None:
        """Take the growth of a topic that was created or changed."""
        if config.topic not in self._new_until_s:
            self._new_until_s[config.topic] = asyncio.get_running_loop().time() + CLIENTS_COME_S
        try:
            growth = Growth.from_attributes(config.attributes, self._broker_name)
        except ConfigError as error:
            log.warning("topic %s does not grow: %s", config.topic, error)
            growth = None
        if growth is None:
            self.topic_deleted(config.topic)
            return
        before = self.topics.get(config.topic)
        self.topics[config.topic] = growth
        if before is None and not growth.old.count_of(self._broker_name):
            until_s = asyncio.get_running_loop().time() + CLIENTS_COME_S
            self._young_until_s[config.topic] = until_s
        if before is None or before.epoch != growth.epoch:
            self._forget_drains(config.topic)
        if growth.phase is not Phase.PREPARED:
            if config.topic not in self._unknown:
                self._unknown[config.topic] = self._halves.offsets_for(config.topic)
            for queue_id in growth.unmoved_queues_of(self._broker_name):
                if (config.topic, queue_id) not in self._drains:
                    self._begin_drain(config.topic, queue_id)
            self._go_on_soon()

    def _begin_drain(self, topic: str, queue_id: int) -> None:
        """Begin to drain a queue: every bucket waits for the messages that the queue holds now."""
        end = self._state.store.end_of_queue(topic, queue_id)
        self._drains[topic, queue_id] = QueueDrain(end)

    def topic_deleted(self, topic: str) -> None:
        """Forget the growth of a topic that was deleted or no longer grows."""
        if topic not in self._state.topics:
            self._new_until_s.pop(topic, None)
        self.topics.pop(topic, None)
        self._young_until_s.pop(topic, None)
        self._forget_drains(topic)

    def _forget_drains(self, topic: str) -> None:
        self._unknown.pop(topic, None)
        for key in [key for key in self._drains if key[0] == topic]:
            del self._drains[key]
            self._open.pop(key, None)

    @property
    def _broker_name(self) -> str:
        return self._state.config.broker_name

    # -- sends ----------------------------------------------------------------------------

    def check(
        self, topic: str, queue_id: int, request: RemotingCommand
    ) -> Callable[[], None] | None:
        """Refuse a send that belongs elsewhere; return what to call once it is stored, if anything.

        Raises:
            Refusal: with GROUP_MOVED, after which the producer asks where the group is.
        """
        growth = self.topics.get(topic)
        text = request.ext_fields.get(GROUP_FIELD)
        if growth is None or not text:
            return None
        try:
            epoch, group_hash = parse_group_field(text)
        except ConfigError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        queue = (self._broker_name, queue_id)
        if group_hash is None:
            if takes_mixed_batch(growth, queue, epoch):
                return None
            raise self._moved_refusal(growth, topic, queue_id)
        verdict = decide_store(growth, queue, epoch, group_hash)
        if verdict is StoreDecision.STORE:
            return None
        if verdict is StoreDecision.STORE_AND_NOTE:
            bucket = bucket_of(group_hash)
            properties = request.ext_fields.get("i") or request.ext_fields.get("properties") or ""
            is_half = decode_properties(properties).get(prop.TRANSACTION_PREPARED) == "true"
            note = self._note_half if is_half else self._note
            return lambda: note(topic, queue_id, bucket)
        if verdict is StoreDecision.WAIT:
            raise Refusal(
                ResponseCode.GROUP_MOVED,
                f"the message group moves from queue {queue_id} of topic {topic} at "
                f"{self._broker_name} as soon as {self._who_is_behind(topic, queue_id)}; send it "
                "again until then",
            )
        raise self._moved_refusal(growth, topic, queue_id)

    def _moved_refusal(self, growth: Growth, topic: str, queue_id: int) -> Refusal:
        return Refusal(
            ResponseCode.GROUP_MOVED,
            f"the message group is not at home in queue {queue_id} of topic {topic} at "
            f"{self._broker_name}: growth {growth.epoch} led from {growth.old} to {growth.new}; "
            "read the topic's attributes (GET_TOPIC_CONFIG) and send it to its home",
        )

    def _note(self, topic: str, queue_id: int, bucket: int) -> None:
        drain = self._drains.get((topic, queue_id))
        if drain is not None:
            drain.note(bucket, self._state.store.end_of_queue(topic, queue_id))

    def _note_half(self, topic: str, queue_id: int, bucket: int) -> None:
        half = self._halves.last()
        if half is not None and (topic, queue_id) in self._drains:
            self._open.setdefault((topic, queue_id), {})[half.queue_offset] = bucket

    def _note_ended(self, topic: str, queue_ids: list[int]) -> None:
        """Let buckets wait for the messages that ended transactions have committed."""
        unknown = self._unknown.get(topic, [])
        still_open = [offset for offset in unknown if self._halves.find(offset) is not None]
        if len(still_open) != len(unknown):
            self._unknown[topic] = still_open
            for queue_id in queue_ids:
                self._begin_drain(topic, queue_id)
        for queue_id in queue_ids:
            waiting = self._open.get((topic, queue_id), {})
            for half_offset, bucket in list(waiting.items()):
                if self._halves.find(half_offset) is None:
                    del waiting[half_offset]
                    self._note(topic, queue_id, bucket)

    # -- moving ---------------------------------------------------------------------------

    def _go_on_soon(self, pause_s: float = DRAIN_INTERVAL_S) -> None:
        if self._timer is not None and pause_s == DRAIN_INTERVAL_S:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        for topic in list(self.topics):
            self.move_on(topic)
        if any(self._has_work(topic, growth) for topic, growth in self.topics.items()):
            self._go_on_soon()
        elif any(self._removed_queues(topic, growth) for topic, growth in self.topics.items()):
            self._go_on_soon(LATE_INTERVAL_S)

    def _has_work(self, topic: str, growth: Growth) -> bool:
        if growth.phase is Phase.PREPARED:
            return False
        config = self._state.topics.get(topic)
        new_count = growth.new.count_of(self._broker_name)
        return bool(growth.unmoved_queues_of(self._broker_name)) or (
            config is not None and config.read_queue_count > new_count
        )

    def _removed_queues(self, topic: str, growth: Growth) -> list[int]:
        """Queues with files in the store that the new layout does not have."""
        new_count = growth.new.count_of(self._broker_name)
        return [queue_id for queue_id in self._state.store.queues(topic) if queue_id >= new_count]

    def move_on(self, topic: str) -> None:
        """Mark the buckets that have drained, and remove the queues that have."""
        growth = self.topics[topic]
        config = self._state.topics.get(topic)
        if config is None or growth.phase is Phase.PREPARED:
            return  # nothing moves yet, and no queue is being drained
        if not (self._has_work(topic, growth) or self._removed_queues(topic, growth)):
            return
        grown = growth
        queue_ids = growth.unmoved_queues_of(self._broker_name)
        self._note_ended(topic, queue_ids)
        if queue_ids and self._unknown.get(topic):
            return
        for queue_id in queue_ids:
            drain = self._drains[topic, queue_id]
            moved = growth.moved.get((self._broker_name, queue_id), 0)
            for bucket in self._open.get((topic, queue_id), {}).values():
                moved |= 1 << bucket
            bits = drain.drained(self._consumed(topic, queue_id), moved)
            if bits:
                grown = grown.marked(self._broker_name, queue_id, bits)
        read_count = self._queues_to_read(config, grown)
        if grown is growth and read_count == config.read_queue_count:
            return
        for queue_id in growth.unmoved_queues_of(self._broker_name):
            if grown.moved.get((self._broker_name, queue_id)) == ALL_MOVED:
                log.info("topic %s: every message group of queue %d has moved", topic, queue_id)
        attributes = {**config.attributes, **grown.to_attributes(self._broker_name)}
        changed = replace(config, attributes=attributes, read_queue_count=read_count)
        self._state.topics.put(changed, self._state.env.clock.now_ms())
        self._state.topic_changed(changed)

    def _queues_to_read(self, config: TopicConfig, growth: Growth) -> int:
        """Return the number of queues to read: a removed queue counts until it is consumed."""
        new_count = growth.new.count_of(self._broker_name)
        count = config.read_queue_count
        if growth.phase is Phase.PREPARED or growth.unmoved_queues_of(self._broker_name):
            return count
        for queue_id in self._removed_queues(config.topic, growth):
            if queue_id >= count and self._is_unseen(config.topic, queue_id):
                log.info("topic %s: a late message came to queue %d", config.topic, queue_id)
                count = queue_id + 1
        while count > new_count:
            end = self._state.store.end_of_queue(config.topic, count - 1)
            if self._consumed(config.topic, count - 1) < end:
                break
            count -= 1
        if count < config.read_queue_count:
            log.info("topic %s: %d queues remain to be read", config.topic, count)
        return count

    def _is_unseen(self, topic: str, queue_id: int) -> bool:
        """Whether the newest message of a queue is one that no group has passed."""
        seen = [own for own in self._offsets(topic, queue_id).values() if own is not None]
        return max(seen, default=0) < self._state.store.end_of_queue(topic, queue_id)

    def _consumed(self, topic: str, queue_id: int) -> int:
        store = self._state.store
        offsets: list[int | None] = list(self._offsets(topic, queue_id).values())
        now_s = asyncio.get_running_loop().time()
        if now_s < self._young_until_s.get(topic, 0.0):
            # Groups that read the topic at other brokers have not come to this one yet.
            offsets.append(None)
        elif not offsets and now_s < max(self._clients_back_s, self._new_until_s.get(topic, 0.0)):
            # A group may have read before this start and its offset did not come to disk in time,
            # or it has not yet found a topic that was made a moment ago.
            offsets.append(None)
        return consumed_offset(
            offsets,
            store.min_queue_offset(topic, queue_id),
            store.end_of_queue(topic, queue_id),
        )

    def _offsets(self, topic: str, queue_id: int) -> dict[str, int | None]:
        """Return the offset of each group that has one in the topic, or was online.

        A group whose members all died before they committed has none, and yet may have read.
        """
        state = self._state
        groups = {*state.offsets.groups_of(topic), *state.shares.groups_on(topic)}
        return {name: state.offsets.query(name, topic, queue_id) for name in sorted(groups)}

    def _who_is_behind(self, topic: str, queue_id: int) -> str:
        end = self._state.store.end_of_queue(topic, queue_id)
        first = self._state.store.min_queue_offset(topic, queue_id)
        behind = [
            f"{name} has consumed {end - max(own or 0, first)} messages more"
            for name, own in self._offsets(topic, queue_id).items()
            if max(own or 0, first) < end
        ]
        return " and ".join(behind) or "that is on disk"
