"""Growing topics at one broker: which sends by message group belong here, and what has moved.

Job: hold the growth of each topic that has one, refuse sends that belong elsewhere, mark buckets
as moved when all consumers have had them, and let queues that are to go vanish.  It must not
decide (``core.growing`` does) and must not put messages.

A mark is durable before anybody learns of it: GET_TOPIC_CONFIG answers after topics.json is
written (``admin.get_topic``), and a refused producer asks that.

A half message of a group is stored where the group is at home, and its bucket stays there until the
transaction is ended and what it committed is consumed.  Of transactions that were open already when
this broker began to look, neither queue nor group is known: all buckets wait for them.

A delayed message, or the commit of a transaction without a group, may come to a queue that has
vanished meanwhile.  A queue whose newest messages no group has passed is readable again until they
are consumed.
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
)
from cometmq.core.transaction.open_transactions import OpenHalves
from cometmq.errors import ConfigError, ResponseCode
from cometmq.model import properties as prop
from cometmq.model.topic import TopicConfig
from cometmq.wire.command.command import RemotingCommand

__all__ = ["GrowingTopics"]

log = logging.getLogger("cometmq.broker")

LOOK_INTERVAL_S: Final = 0.5
"""Consumers commit every few seconds; looking more often finds nothing new."""
CLIENTS_BACK_S: Final = 35.0
"""After a start: every client that runs has sent its heartbeat (every 30 s) by then."""
CLIENTS_COME_S: Final = 65.0
"""After a topic has come to this broker: consumers look for routes every 30 s, and send the brokers
they find a heartbeat within another 30."""
GONE_INTERVAL_S: Final = 2.0
"""Queues that have vanished get a late message rarely."""


class GrowingTopics:
    """The growths of one broker; `topics` is live, and read by the hot path as a set of names."""

    __slots__ = (
        "_clients_back_s",
        "_drains",
        "_halves",
        "_new_until_s",
        "_open",
        "_state",
        "_timer",
        "_unknown",
        "_young_until_s",
        "topics",
    )

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._halves = OpenHalves()
        self._open: dict[tuple[str, int], dict[int, int]] = {}
        """By queue: places of half messages that a bucket waits for, and the bucket."""
        self._unknown: dict[str, list[int]] = {}
        """By topic: places of those that were open before."""
        self._drains: dict[tuple[str, int], QueueDrain] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._clients_back_s = 0.0
        self._young_until_s: dict[str, float] = {}
        self._new_until_s: dict[str, float] = {}
        """By topic: until when its consumers may not have found it at this broker."""
        self.topics: dict[str, Growth] = {}

    # -- life -----------------------------------------------------------------------------

    def start(self, halves: OpenHalves) -> None:
        """Take up what the topics of the last run say."""
        self._halves = halves
        self._unknown.clear()
        if self._state.store.max_physical_offset > self._state.store.min_physical_offset:
            self._clients_back_s = asyncio.get_running_loop().time() + CLIENTS_BACK_S
        for config in list(self._state.topics.all().values()):
            self._new_until_s[config.topic] = 0.0
            self.topic_changed(config)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def topic_changed(self, config: TopicConfig) -> None:
        """A topic was created or changed."""
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
            self._look_soon()

    def _begin_drain(self, topic: str, queue_id: int) -> None:
        """Begin to drain a queue: every bucket waits for the messages it holds now."""
        end = self._state.store.end_of_queue(topic, queue_id)
        self._drains[topic, queue_id] = QueueDrain(end)

    def topic_deleted(self, topic: str) -> None:
        """A topic is gone, or has no growth any more."""
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
        """Refuse a send that belongs elsewhere; give what is to be called once it is stored.

        Raises:
            Refusal: with GROUP_MOVED, after which the producer looks where the group is.
        """
        growth = self.topics.get(topic)
        text = request.ext_fields.get(GROUP_FIELD)
        if growth is None or not text:
            return None
        try:
            epoch, group_hash = parse_group_field(text)
        except ConfigError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        verdict = decide_store(growth, (self._broker_name, queue_id), epoch, group_hash)
        if verdict is StoreDecision.STORE:
            return None
        if verdict is StoreDecision.STORE_AND_NOTE:
            assert group_hash is not None
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
        raise Refusal(
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
        """What ended transactions committed lies before the end of its queue now."""
        unknown = self._unknown.get(topic, [])
        left = [place for place in unknown if self._halves.find(place) is not None]
        if len(left) != len(unknown):
            self._unknown[topic] = left
            for queue_id in queue_ids:
                self._begin_drain(topic, queue_id)
        for queue_id in queue_ids:
            waiting = self._open.get((topic, queue_id), {})
            for place, bucket in list(waiting.items()):
                if self._halves.find(place) is None:
                    del waiting[place]
                    self._note(topic, queue_id, bucket)

    # -- moving ---------------------------------------------------------------------------

    def _look_soon(self, pause_s: float = LOOK_INTERVAL_S) -> None:
        if self._timer is not None and pause_s == LOOK_INTERVAL_S:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _look(self) -> None:
        self._timer = None
        for topic in list(self.topics):
            self.look_at(topic)
        if any(self._has_work(topic, growth) for topic, growth in self.topics.items()):
            self._look_soon()
        elif any(self._gone(topic, growth) for topic, growth in self.topics.items()):
            self._look_soon(GONE_INTERVAL_S)

    def _has_work(self, topic: str, growth: Growth) -> bool:
        if growth.phase is Phase.PREPARED:
            return False
        config = self._state.topics.get(topic)
        new_count = growth.new.count_of(self._broker_name)
        return bool(growth.unmoved_queues_of(self._broker_name)) or (
            config is not None and config.read_queue_count > new_count
        )

    def _gone(self, topic: str, growth: Growth) -> list[int]:
        """Queues that are not in the new layout and have had messages."""
        new_count = growth.new.count_of(self._broker_name)
        return [queue_id for queue_id in self._state.store.queues(topic) if queue_id >= new_count]

    def look_at(self, topic: str) -> None:
        """Mark what has drained, and let drained queues vanish."""
        growth = self.topics[topic]
        config = self._state.topics.get(topic)
        if config is None or growth.phase is Phase.PREPARED:
            return  # nothing moves, and of no queue is it known up to where it has to be consumed
        if not (self._has_work(topic, growth) or self._gone(topic, growth)):
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
        """The number of queues to read: those that are to go stay until they are consumed."""
        new_count = growth.new.count_of(self._broker_name)
        count = config.read_queue_count
        if growth.phase is Phase.PREPARED or growth.unmoved_queues_of(self._broker_name):
            return count
        for queue_id in self._gone(config.topic, growth):
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
            # A group may have read before this start, too short for its offset to be on disk, or
            # has not found a topic that was made a moment ago.
            offsets.append(None)
        return consumed_offset(
            offsets,
            store.min_queue_offset(topic, queue_id),
            store.end_of_queue(topic, queue_id),
        )

    def _offsets(self, topic: str, queue_id: int) -> dict[str, int | None]:
        """The offset of each group that counts: it has one in the topic, or was online.

        One whose members all died before they committed has none, and may have read all the same.
        """
        state = self._state
        groups = {*state.offsets.groups_of(topic), *state.consumers.seen_on(topic)}
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
