"""The progress of consumer groups: the requests behind topicStatus and consumerProgress.

Serves GET_TOPIC_STATS_INFO (202), GET_CONSUME_STATS (208), QUERY_CONSUME_TIME_SPAN (303),
QUERY_CORRECTION_OFFSET (308), CLONE_GROUP_OFFSET (314) and GET_BROKER_CONSUME_STATS (317).  Store
times are read from records, so a worker reads them.

Source: AdminBrokerProcessor and ConsumerOffsetManager of RocketMQ 5.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker, refusing
from cometmq.broker.base.store_failure import answer_saved
from cometmq.errors import CometError, ResponseCode
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.admin import (
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    TopicStats,
    encode_consume_stats,
    encode_topic_stats,
)
from cometmq.wire.body.stats import (
    QueueTimeSpan,
    encode_broker_consume_stats,
    encode_correction_offsets,
    encode_time_spans,
)
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import (
    CloneGroupOffsetHeader,
    ConsumeStatsHeader,
    CorrectionOffsetHeader,
    IsOrderHeader,
    TopicHeader,
)
from cometmq.wire.header.headers import TopicGroupHeader

__all__ = ["ProgressProcessor"]

_NEVER: Final = 2**63 - 1
"""The answer of 308 for a queue in which the compared group is behind all others."""


class ProgressProcessor:
    """The processors of codes 202, 208, 303, 308, 314 and 317."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        table: dict[int, Handler] = {
            Code.GET_TOPIC_STATS_INFO: self.topic_stats,
            Code.GET_CONSUME_STATS: self.consume_stats,
            Code.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            Code.QUERY_CORRECTION_OFFSET: self.correction_offsets,
            Code.CLONE_GROUP_OFFSET: self.clone_offsets,
            Code.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
        }
        return {code: refusing(handler) for code, handler in table.items()}

    # -- one topic ------------------------------------------------------------------------

    def topic_stats(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve GET_TOPIC_STATS_INFO (202): the range of each queue and its newest message.

        Raises:
            Refusal: the topic does not exist.
        """
        topic = self._topic(TopicHeader.from_command(request).topic)
        store, name = self._state.store, topic.topic
        count = max(topic.write_queue_count, topic.read_queue_count)
        ranges = [
            (store.min_queue_offset(name, number), store.max_queue_offset(name, number))
            for number in range(count)
        ]

        def read() -> dict[MessageQueue, TopicOffset]:
            return {
                self._queue(name, number): TopicOffset(
                    first, end, store.store_time_at(name, number, end - 1) if end else 0
                )
                for number, (first, end) in enumerate(ranges)
            }

        def finish(offsets: dict[MessageQueue, TopicOffset]) -> bytes:
            stats = TopicStats(offsets, self._state.stats.put_tps(name))
            return answer(request, body=encode_topic_stats(stats))

        in_worker(self._state, request, connection, read, finish)

    def _topic(self, name: str) -> TopicConfig:
        topic = self._state.topics.get(name)
        if topic is None:
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return topic

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._state.config.broker_name, queue_id)

    # -- groups ---------------------------------------------------------------------------

    def consume_stats(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve GET_CONSUME_STATS (208); the answer for an unknown group has no queues."""
        header = ConsumeStatsHeader.from_command(request)
        group = header.consumer_group
        listed = [name for name in (header.topic_list or "").split(";") if name]
        if not listed:
            named = [header.topic] if header.topic and header.topic.strip() else None
            owned = self._state.offsets.topics_of(group) if named is None else named
            listed = self._subscribed(group, owned)
        topics = self._existing(listed)
        tps = sum(self._state.stats.get_tps(topic.topic, group) for topic in topics)
        in_worker(
            self._state,
            request,
            connection,
            lambda: _progress(self._state, group, topics),
            lambda queues: answer(request, body=encode_consume_stats(ConsumeStats(queues, tps))),
        )

    def broker_consume_stats(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve GET_BROKER_CONSUME_STATS (317): 208 of every group, one item per topic."""
        state = self._state
        is_order = IsOrderHeader.from_command(request).is_order
        owned: dict[str, list[str]] = {group: [] for group in state.groups.all()}
        for key in state.offsets.all():
            topic, _, group = key.partition("@")
            if group in owned:
                owned[group].append(topic)
        wanted = {
            group: [
                (state.stats.get_tps(topic.topic, group), topic)
                for topic in self._existing(self._subscribed(group, topics))
                if topic.order or not is_order
            ]
            for group, topics in owned.items()
        }

        def read() -> bytes:
            return encode_broker_consume_stats(
                state.address,
                {
                    group: [
                        ConsumeStats(_progress(state, group, (topic,)), tps) for tps, topic in items
                    ]
                    for group, items in wanted.items()
                },
            )

        in_worker(state, request, connection, read, lambda body: answer(request, body=body))

    def _subscribed(self, group: str, topics: list[str]) -> list[str]:
        """Leave out topics that the members of a group, if there are any, do not subscribe to."""
        online = self._state.consumers.get(group)
        if online is None or not online.subscriptions:
            return topics
        return [name for name in topics if name in online.subscriptions]

    def _existing(self, names: Iterable[str]) -> list[TopicConfig]:
        topics = [self._state.topics.get(name) for name in dict.fromkeys(names)]
        return [topic for topic in topics if topic is not None]

    def time_spans(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve QUERY_CONSUME_TIME_SPAN (303): the times of each queue and of what is consumed.

        Raises:
            Refusal: the topic does not exist.
        """
        header = TopicGroupHeader.from_command(request)
        topic = self._topic(header.topic)
        store, name = self._state.store, topic.topic
        stored_offsets = [
            (self._queue(name, queue_id), self._state.offsets.query(header.group, name, queue_id))
            for queue_id in range(topic.write_queue_count)
        ]

        def read() -> list[QueueTimeSpan]:
            spans = []
            for queue, stored in stored_offsets:
                number, consumed = queue.queue_id, -1 if stored is None else stored
                end = store.max_queue_offset(name, number)
                oldest_ms = store.earliest_store_time(name, number)
                at_ms = store.store_time_at(name, number, consumed - 1)
                delay_ms = 0
                if max(0, consumed) < end:
                    delay_ms = now_ms - store.store_time_at(name, number, max(0, consumed))
                spans.append(
                    QueueTimeSpan(
                        queue,
                        oldest_ms,
                        store.store_time_at(name, number, end - 1),
                        at_ms if consumed > 0 else oldest_ms,
                        delay_ms,
                    )
                )
            return spans

        in_worker(
            self._state,
            request,
            connection,
            read,
            lambda spans: answer(request, body=encode_time_spans(spans)),
        )

    # -- offsets --------------------------------------------------------------------------

    def correction_offsets(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes:
        """Serve QUERY_CORRECTION_OFFSET (308): each queue's smallest offset of any group.

        A queue in which the compared group is behind that gets the largest number there is.
        `filterGroups` are excluded from the comparison (Java drops their offsets for good).
        """
        header = CorrectionOffsetHeader.from_command(request)
        offsets, store = self._state.offsets, self._state.store
        excluded = set((header.filter_groups or "").split(","))
        least: dict[int, int] = {}
        for group in offsets.groups_of(header.topic):
            if group in excluded:
                continue
            for queue_id, consumed in offsets.queues(group, header.topic).items():
                if consumed >= store.min_queue_offset(header.topic, queue_id):
                    least[queue_id] = min(consumed, least.get(queue_id, _NEVER))
        for queue_id, consumed in offsets.queues(header.compare_group, header.topic).items():
            if least.get(queue_id, _NEVER) > consumed:
                least[queue_id] = _NEVER
        return answer(request, body=encode_correction_offsets(least))

    def clone_offsets(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve CLONE_GROUP_OFFSET (314) for one topic, or for all topics of the group."""
        header = CloneGroupOffsetHeader.from_command(request)
        offsets = self._state.offsets
        topics = [header.topic] if header.topic else offsets.topics_of(header.src_group)
        names = [topic.topic for topic in self._existing(topics)]
        online = self._state.consumers.get(header.src_group)
        if not header.offline and online is not None and online.subscriptions:
            names = [name for name in names if name in online.subscriptions]
        offsets.clone(header.src_group, header.dest_group, names)
        frame = answer(request)
        if request.is_oneway:
            return frame
        self._state.when_offsets_saved(
            partial(answer_saved, self._state, request, connection, frame)
        )
        return None


def _progress(
    state: BrokerState, group: str, topics: Iterable[TopicConfig]
) -> dict[MessageQueue, OffsetWrapper]:
    """Give a group's offset in each queue, and when the last message it consumed was stored.

    Runs in a worker: it asks tables that the loop changes once per queue, and never iterates them.
    """
    store, offsets, broker_name = state.store, state.offsets, state.config.broker_name
    progress = {}
    for topic in topics:
        name = topic.topic
        for queue_id in range(topic.read_queue_count):
            consumed = max(0, offsets.query(group, name, queue_id) or 0)
            pulled = state.stats.pulled_offset(name, group, queue_id)
            try:
                at_ms = store.store_time_at(name, queue_id, consumed - 1)
            except CometError:  # a damaged record has no time; the offsets are right nevertheless
                at_ms = 0
            progress[MessageQueue(name, broker_name, queue_id)] = OffsetWrapper(
                store.max_queue_offset(name, queue_id),
                consumed,
                max(consumed, pulled),
                max(0, at_ms),
            )
    return progress
