"""Which groups may skip messages, and how far their members have read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cometmq.model import MessageQueue
from cometmq.model.group import ConsumeType
from cometmq.model.names import is_system_topic, retry_topic
from cometmq.wire.extensions.backlog import SkippedView

if TYPE_CHECKING:
    from cometmq.broker.base.state import BrokerState
    from cometmq.core.group.skipped_ranges import SkippedRange

__all__ = [
    "obstacle",
    "queues_of",
    "retry_ends",
    "skipped_view",
    "unfinished",
    "unhanded",
    "unread",
]


def obstacle(state: BrokerState, group: str) -> str | None:
    """Return why a group cannot skip messages now; None if it can."""
    online = state.consumers.get(group)
    if online is None:
        return "no member is online, so its kind is not known"
    if online.is_broadcast:
        return "it is broadcasting: each member keeps its own offsets"
    if online.consume_type is not ConsumeType.CONSUME_PASSIVELY:
        return "its members pull by themselves and read no retry topic, to which copies go"
    if state.shares.is_split(group):
        return "its members want different messages"
    if any(retry_topic(group) not in wishes for wishes in online.wishes.values()):
        return "a member reads no retry topic, to which copies go"
    return None


def queues_of(state: BrokerState, group: str, topic: str | None = None) -> Iterator[MessageQueue]:
    """Yield the queues of this broker that a group reads without an order.

    Members that consume in order lock their queues.
    """
    online = state.consumers.get(group)
    now_ms, broker_name = state.env.clock.now_ms(), state.config.broker_name
    for name in [] if online is None else list(online.subscriptions):
        config = state.topics.get(name)
        is_other = topic is not None and name != topic
        if is_other or config is None or name == retry_topic(group) or is_system_topic(name):
            continue
        for queue_id in range(config.read_queue_count):
            queue = MessageQueue(name, broker_name, queue_id)
            if state.queue_locks.owner(group, queue, now_ms) is None:
                yield queue


def unread(state: BrokerState, group: str, queue: MessageQueue) -> tuple[int, int] | None:
    """Return the range of messages that no member has got.

    None where no member has pulled since the start of this broker: it may have more than the group
    has committed.
    """
    topic, queue_id = queue.topic, queue.queue_id
    pulled = state.stats.pulled_offset(topic, group, queue_id)
    if not pulled:
        return None
    store = state.store
    committed = state.offsets.query(group, topic, queue_id) or 0
    begin = max(pulled, committed, store.min_queue_offset(topic, queue_id))
    end = store.max_queue_offset(topic, queue_id)
    for item in state.skipped.ranges_of(group):
        if (item.topic, item.queue_id) == (topic, queue_id):
            begin = max(begin, item.end)
    return begin, max(begin, end)


def retry_ends(state: BrokerState, group: str) -> dict[int, int]:
    """Return the end of each queue of a group's retry topic."""
    topic = retry_topic(group)
    return {
        queue_id: state.store.end_of_queue(topic, queue_id)
        for queue_id in state.store.queues(topic)
    }


def unfinished(state: BrokerState, group: str) -> int:
    """Return how many messages of a group's retry topic it has not consumed."""
    topic = retry_topic(group)
    return sum(
        end - min(end, state.offsets.query(group, topic, queue_id) or 0)
        for queue_id, end in retry_ends(state, group).items()
    )


def unhanded(state: BrokerState, group: str, ends: Mapping[int, int]) -> int:
    """Return how many messages of a group's retry topic no member has got.

    Args:
        ends: of its queues.
    """
    topic = retry_topic(group)
    count = 0
    for queue_id, end in ends.items():
        pulled = state.stats.pulled_offset(topic, group, queue_id)
        committed = state.offsets.query(group, topic, queue_id) or 0
        count += max(0, end - max(pulled, committed))
    return count


def skipped_view(item: SkippedRange) -> SkippedView:
    """Return a skipped range as requests show it."""
    return SkippedView(
        item.topic,
        item.queue_id,
        item.begin,
        item.end,
        item.reason,
        item.at_ms,
        item.next_offset if item.is_copied else None,
    )
