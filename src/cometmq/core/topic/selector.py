"""Selects the queue of a topic for a message: the queues of a route, hash selector, round robin.

A producer may write to queues ``0..writeQueueNums-1`` of every broker that grants the write
permission and has a master (address id 0).  An ``orderTopicConf`` replaces that list by the brokers
and counts that it names (``MQClientInstance.topicRouteData2TopicPublishInfo``).  Queues are sorted
by broker name and id, because the hash selector is an index into this order and every producer
must select the same queue for a message group.
"""

from collections.abc import Callable, Sequence

from cometmq.codec.java_hash import java_hash
from cometmq.model import Message, MessageQueue, TopicRoute
from cometmq.model.flags import PERM_READ, PERM_WRITE

__all__ = [
    "QueueSelector",
    "RoundRobin",
    "publish_queues",
    "select_by_hash",
    "subscribe_queues",
]

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""A user's choice: the topic's publishable queues and the message in, one of the queues out."""


def publish_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """The queues a producer may send to, in the order that selectors index."""
    if route.order_topic_conf:
        return _ordered_queues(topic, route.order_topic_conf)
    with_master = {broker.broker_name for broker in route.broker_datas if 0 in broker.broker_addrs}
    queues: list[MessageQueue] = []
    for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
        if data.perm & PERM_WRITE and data.broker_name in with_master:
            for queue_id in range(data.write_queue_count):
                queues.append(MessageQueue(topic, data.broker_name, queue_id))
    return tuple(queues)


def _ordered_queues(topic: str, order_topic_conf: str) -> tuple[MessageQueue, ...]:
    """The queues of ``broker-a:4;broker-b:2``; items without a number are skipped."""
    queues: list[MessageQueue] = []
    for item in order_topic_conf.split(";"):
        broker_name, _, count = item.partition(":")
        if broker_name and count.strip().isdigit():
            for queue_id in range(int(count)):
                queues.append(MessageQueue(topic, broker_name, queue_id))
    return tuple(queues)


def subscribe_queues(topic: str, route: TopicRoute) -> tuple[MessageQueue, ...]:
    """The queues a consumer may read, sorted as allocation strategies need them."""
    queues: list[MessageQueue] = []
    for data in route.queue_datas:
        if data.perm & PERM_READ:
            for queue_id in range(data.read_queue_count):
                queues.append(MessageQueue(topic, data.broker_name, queue_id))
    return tuple(sorted(queues))


def select_by_hash(queues: Sequence[MessageQueue], key: str) -> MessageQueue:
    """The queue of a message group: Java's ``SelectMessageQueueByHash`` for a String argument.

    Java takes ``hashCode() % size`` and drops the sign of the remainder, which is the remainder
    of the absolute value (also for the smallest int, whose absolute value Python can hold).
    """
    return queues[abs(java_hash(key)) % len(queues)]


class RoundRobin:
    """Selects queues in turn.

    The caller chooses ``start`` at random, so that producers do not all begin at the same queue.
    ``next`` counts selections; the queue is ``next`` modulo the number of queues.
    """

    __slots__ = ("next",)

    def __init__(self, start: int = 0) -> None:
        self.next = start

    def select(
        self,
        queues: Sequence[MessageQueue],
        last_broker: str | None = None,
        is_good: Callable[[str], bool] | None = None,
    ) -> MessageQueue | None:
        """The next queue that is not on ``last_broker`` and whose broker ``is_good``, if any."""
        count = len(queues)
        index = self.next
        self.next = index + 1
        if last_broker is None and is_good is None:
            return queues[index % count] if count else None
        for step in range(count):
            queue = queues[(index + step) % count]
            if queue.broker_name != last_broker and (is_good is None or is_good(queue.broker_name)):
                self.next = index + step + 1
                return queue
        return None
