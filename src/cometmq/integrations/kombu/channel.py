"""A channel: declares, publishes, consumes, and settles what was delivered.

Kombu's virtual channel keeps exchanges and bindings and counts the prefetch; this one replaces
everything that touches messages.
"""

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads

from cometmq import Message, MessageQueue
from cometmq.errors import RemoteError, SendFailed
from cometmq.integrations.kombu.names import (
    MARK,
    dead_letter_topic,
    escaped,
    retry_topic,
    unescaped,
)
from cometmq.integrations.kombu.reader import Delivery, Reader
from cometmq.sync import PullConsumer, ReceivedMessage

if TYPE_CHECKING:
    from cometmq.integrations.kombu.transport import Transport

__all__ = ["KombuChannel"]

log = logging.getLogger("cometmq.kombu")

TIMER_MAX: Final = timedelta(days=3) - timedelta(minutes=1)
"""A broker holds a message for three days at most (``timerMaxDelaySec``)."""
TIMER_MIN: Final = timedelta(seconds=1)
"""RocketMQ's brokers deliver to the second; the worker waits for what is nearer."""
GET_TIMEOUT_S: Final = 5.0
_IGNORED_ARGUMENTS: Final = frozenset({"x-expires", "x-message-ttl"})
"""Arguments of a temporary queue that its end makes superfluous."""


class UnsettledQoS(virtual.QoS):  # type: ignore[misc]
    """Counts the prefetch, and passes outcomes on to the readers."""

    channel: "KombuChannel"

    def ack(self, delivery_tag: str) -> None:
        """Settle a message."""
        self.channel.settle(delivery_tag)
        super().ack(delivery_tag)
        self.channel.connection.wake()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Send a message to the end of its queue, or to the dead letters of the queue's group."""
        message = self._delivered.get(delivery_tag)
        if message is not None and delivery_tag not in self._dirty:
            if requeue:
                self.channel.requeue(message)
            else:
                self.channel.bury(message)
        self.ack(delivery_tag)

    def unsettled(self) -> list[Any]:
        """The messages that were delivered and have no outcome, the oldest first."""
        self._flush()
        return list(self._delivered.values())


class KombuChannel(virtual.Channel):  # type: ignore[misc]
    """A channel of a `Transport`."""

    QoS = UnsettledQoS
    do_restore = False  # what is not settled comes again, because its offset is not committed
    supports_fanout = True
    connection: "Transport"

    def __init__(self, connection: "Transport", **options: Any) -> None:
        super().__init__(connection, **options)
        self._readers: dict[str, Reader] = {}
        self._deliveries: dict[str, Delivery] = {}
        self._no_ack_queues: set[str] = set()

    # -- declarations ------------------------------------------------------------------------

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str = "direct",  # noqa: A002 - Kombu's name
        durable: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Declare an exchange; its topic is created when it is needed first."""
        known = self.state.exchanges.get(exchange)
        if known is not None and known["type"] == (type or "direct"):
            return
        super().exchange_declare(
            exchange, type, durable, auto_delete, arguments, nowait=nowait, passive=passive
        )

    def prepare_queue_arguments(self, arguments: dict[str, Any], **options: Any) -> dict[str, Any]:
        """The arguments of a queue as RabbitMQ names them, for `queue_declare` to judge."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **options)
        return prepared

    def queue_declare(self, queue: str | None = None, passive: bool = False, **options: Any) -> Any:
        """Declare a queue: a topic and a group, or, for a temporary one, where reading begins."""
        if passive:
            return super().queue_declare(queue, passive=True, **options)
        arguments = set(options.get("arguments") or ())
        temporary = queue is None or bool(options.get("exclusive") or options.get("auto_delete"))
        if temporary:
            arguments -= _IGNORED_ARGUMENTS
        if arguments:
            raise _refused(
                f"the queue {queue!r} has {', '.join(sorted(arguments))}, which a topic of "
                "RocketMQ does not have; remove the argument"
            )
        options["temporary"] = temporary
        return super().queue_declare(queue, passive=False, **options)

    def _new_queue(self, queue: str, *, temporary: bool = False, **options: Any) -> None:
        state = self.connection.state
        if temporary:
            state.begin_temporary(queue)
            self._begin_reading(queue, self.connection.replies_topic)
        elif queue not in state.durable_queues:
            self.connection.ensure_topic(self.connection.name_of(queue))
            state.durable_queues.add(queue)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        return queue in self.state.temporary_queues or self._is_durable(queue)

    def _is_durable(self, queue: str) -> bool:
        """Whether the queue has a topic: declared in this process, or anywhere."""
        if queue in self.state.temporary_queues:
            return False
        if queue not in self.state.durable_queues:
            if not self.connection.has_topic(self.connection.name_of(queue)):
                return False
            self.state.durable_queues.add(queue)
        return True

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        topic = self.connection.name_of(exchange)
        self._ensure_exchange(exchange)
        if queue in self.state.temporary_queues:
            self._begin_reading(queue, topic)

    def _ensure_exchange(self, exchange: str) -> None:
        declared = self.state.exchanges.get(exchange, {})
        is_small = declared.get("type") == "fanout" or not declared.get("durable", True)
        self.connection.ensure_topic(
            self.connection.name_of(exchange), queue_count=1 if is_small else None
        )

    def _begin_reading(self, queue: str, topic: str) -> None:
        """Note the end of a topic, from which a temporary queue gets messages."""
        if queue in self.state.read_queues:
            return
        self.connection.ensure_topic(topic, queue_count=1)
        begins: dict[MessageQueue, int] = self.state.temporary_queues[queue]
        if not any(begin.topic == topic for begin in begins):
            offsets = self.connection.admin.topic_offsets(topic)
            begins.update({begin: span.max_offset for begin, span in offsets.items()})

    def _size(self, queue: str) -> int:
        """Messages that the queue's group has not consumed; other keys of an exchange count too."""
        if not self._is_durable(queue):
            return 0
        admin = self.connection.admin
        group = self.connection.name_of(queue)
        topics = [topic for topic in self._subscriptions(queue) if not topic.startswith("%RETRY%")]
        return sum(each.lag for each in admin.group_offsets(group, topics).values())

    def _purge(self, queue: str) -> int:
        """Move the queue's group to the end of its topics; what workers have fetched stays."""
        count = self._size(queue)
        if self._is_durable(queue):
            group = self.connection.name_of(queue)
            offsets: dict[MessageQueue, int] = {}
            for topic in self._subscriptions(queue):
                if not topic.startswith("%RETRY%"):
                    offsets |= self.connection.admin.reset_offsets(group, topic)
            if queue in self._readers:
                self._readers[queue].skip_to(offsets)
        return count

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **options: Any
    ) -> None:
        """Empty the queue and drop its bindings; topic and group stay."""
        if if_empty and self._size(queue):
            return
        self._purge(queue)
        self.state.queue_bindings_delete(queue)
        self.state.temporary_queues.pop(queue, None)
        for declared in self.state.exchanges.values():
            declared["table"] = [entry for entry in declared["table"] if entry[2] != queue]

    # -- publishing --------------------------------------------------------------------------

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **options: Any
    ) -> None:
        """Send a message to the topic of its exchange.

        Raises:
            CometError: as `cometmq.sync.Producer.send`.
        """
        self._inplace_augment_message(message, exchange, routing_key)
        if message["properties"].get("priority"):
            self.connection.warn_priority()
        if exchange:
            self._ensure_exchange(exchange)
            topic = self.connection.name_of(exchange)
        elif self._is_durable(routing_key):
            topic = self.connection.name_of(routing_key)
        else:
            topic = self.connection.replies_topic
            self.connection.ensure_topic(topic, queue_count=1)
        self._send(topic, routing_key, message)

    def _send(self, topic: str, routing_key: str, payload: dict[str, Any]) -> None:
        headers = payload.get("headers") or {}
        task_id = headers.get("id")
        message = Message(
            topic,
            dumps(payload).encode(),
            tags=escaped(routing_key) or None,
            keys=(task_id,) if isinstance(task_id, str) and " " not in task_id else (),
        )
        deliver_time_ms = _deliver_time_ms(headers.get("eta"))
        if deliver_time_ms is not None and self.state.has_timers:
            try:
                self.connection.producer.send(replace(message, deliver_time_ms=deliver_time_ms))
            except (RemoteError, SendFailed) as error:
                self.connection.producer.send(message)
                self.state.has_timers = False
                log.warning("workers hold tasks with an eta from now on: %s", error)
        else:
            self.connection.producer.send(message)

    def requeue(self, message: Any) -> None:
        """Send a copy of a delivered message to the end of its queue."""
        delivery = self._deliveries.get(message.delivery_tag)
        if delivery is None:
            return
        queue = delivery.reader.name
        if delivery.progress is None:
            delivery.payload = delivery.copy
            delivery.reader.put_back(delivery)
        else:
            self._send(self.connection.name_of(queue), queue, delivery.copy)

    _restore = requeue

    def bury(self, message: Any) -> None:
        """Send a copy of a delivered message to the dead letters of the queue's group."""
        delivery = self._deliveries.get(message.delivery_tag)
        if delivery is None or delivery.progress is None:
            return
        queue = delivery.reader.name
        topic = dead_letter_topic(self.connection.name_of(queue))
        self.connection.ensure_topic(topic, queue_count=1)
        self._send(topic, queue, delivery.payload)
        log.warning("a message of queue %s was rejected; it is in %s now", queue, topic)

    # -- consuming ---------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], Any],
        consumer_tag: str,
        **options: Any,
    ) -> None:
        """Deliver the queue's messages to a callback."""
        self._reader(queue).resume()
        if no_ack:
            self._no_ack_queues.add(queue)
        super().basic_consume(queue, no_ack, callback, consumer_tag, **options)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Deliver no more; what was delivered can be settled until the channel closes."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue in self._readers:
            self._readers[queue].pause()

    def basic_get(self, queue: str, no_ack: bool = False, **options: Any) -> Any:
        """The next message of a queue; None if it has none."""
        reader = self._reader(queue)
        reader.resume()
        deadline = monotonic() + GET_TIMEOUT_S
        news = self.connection.news
        while True:
            news.clear()
            try:
                message = self.Message(self._get(queue), channel=self)
            except Empty:
                remaining = deadline - monotonic()
                if remaining <= 0 or not self._size(queue):
                    return None
                news.wait(remaining)
                continue
            if no_ack:
                self.settle(message.delivery_tag)
            else:
                self.qos.append(message, message.delivery_tag)
            return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        delivery = self._readers[queue].take() if queue in self._readers else None
        if delivery is None:
            raise Empty
        payload = delivery.payload
        tag = payload["properties"]["delivery_tag"] = str(next(self._delivery_tags))
        self._deliveries[tag] = delivery
        if queue in self._no_ack_queues:
            self.settle(tag)
        return payload

    def settle(self, delivery_tag: str) -> None:
        """Count a delivered message as consumed."""
        delivery = self._deliveries.pop(delivery_tag, None)
        if delivery is not None:
            delivery.settle()

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set how many messages may be delivered without an outcome."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self.connection.wake()

    def _reader(self, queue: str) -> Reader:
        reader = self._readers.get(queue)
        if reader is None:
            make = self._temporary if queue in self.state.temporary_queues else self._shared
            reader = self._readers[queue] = make(queue)
        return reader

    def _shared(self, queue: str) -> Reader:
        """A reader of a durable queue: a member of its group."""
        subscriptions = self._subscriptions(queue)
        group = self.connection.name_of(queue)
        return Reader(
            queue,
            lambda listener: PullConsumer(
                group,
                subscriptions,
                auto_commit=False,
                consume_from="first",
                buffer_count_max=64,
                rebalance_listener=listener,
                **self.connection.client_options,
            ),
            PullConsumer.start,
            lambda message: self._decoded(queue, message),
            self.connection.wake,
            commits=True,
            leases=self.connection.leases(group, escaped(queue)),
        )

    def _temporary(self, queue: str) -> Reader:
        """A reader of a temporary queue: it has no group, and reads from where it was declared."""
        begins: dict[MessageQueue, int] = self.state.temporary_queues[queue]
        self.state.temporary_queues[queue] = {}
        self.state.read_queues.add(queue)
        expressions = self._subscriptions(queue)
        if not begins:  # it was consumed before: go on with what comes now
            for topic in expressions:
                offsets = self.connection.admin.topic_offsets(topic)
                begins.update({begin: span.max_offset for begin, span in offsets.items()})
        begins = {begin: offset for begin, offset in begins.items() if begin.topic in expressions}
        is_everything = "*" in expressions.values()

        def start(consumer: PullConsumer) -> None:
            consumer.start()
            consumer.assign(begins, "*" if is_everything else " || ".join(expressions.values()))
            for begin, queue_offset in begins.items():
                consumer.seek(begin, queue_offset)

        return Reader(
            queue,
            lambda _listener: PullConsumer(
                f"{self.connection.prefix}{MARK}temporary",
                auto_commit=False,
                **self.connection.client_options,
            ),
            start,
            lambda message: self._decoded(queue, message),
            self.connection.wake,
            commits=False,
        )

    def _bindings(self, queue: str) -> Iterator[tuple[str, str, str | None]]:
        """The exchange, key and pattern of each binding of a queue."""
        for exchange, declared in list(self.state.exchanges.items()):
            for key, pattern, bound in declared["table"]:
                if bound == queue:
                    is_fanout = declared["type"] == "fanout"
                    yield exchange, key, ".*" if is_fanout else pattern

    def _subscriptions(self, queue: str) -> dict[str, str]:
        """Topic to tag expression of everything that can reach a queue."""
        tags: dict[str, set[str]] = {}
        is_temporary = queue in self.state.temporary_queues
        for exchange, key, pattern in self._bindings(queue):
            tag = "*" if pattern is not None or not key else escaped(key)
            tags.setdefault(self.connection.name_of(exchange), set()).add(tag)
        if not is_temporary:
            group = self.connection.name_of(queue)
            tags.setdefault(group, set()).add(escaped(queue))
            tags[retry_topic(group)] = {"*"}
        elif not tags:
            # Only replies come here: a bound temporary queue would read them for nothing.
            tags[self.connection.replies_topic] = {escaped(queue)}
        return {
            topic: "*" if "*" in each else " || ".join(sorted(each)) for topic, each in tags.items()
        }

    def _decoded(self, queue: str, message: ReceivedMessage) -> dict[str, Any] | None:
        """The payload of a message; None if it is for another queue, or was sent on."""
        if not self._is_for(queue, message):
            return None
        payload: dict[str, Any] = loads(message.body)
        payload["properties"]["delivery_info"]  # every message of Kombu has it
        held_until_ms = message.deliver_time_ms
        headers = payload.get("headers") or {}
        if held_until_ms is not None and headers.get("eta"):
            later_ms = _deliver_time_ms(headers["eta"])
            # A broker without timers delivers too early; then the worker waits.
            is_due = held_until_ms <= datetime.now(UTC).timestamp() * 1000 + 1_000
            if later_ms is not None and is_due:
                self._send(self.connection.name_of(queue), queue, payload)
                return None
        return payload

    def _is_for(self, queue: str, message: ReceivedMessage) -> bool:
        topic, key = message.message_queue.topic, unescaped(message.tags)
        group = self.connection.name_of(queue)
        if topic == retry_topic(group):
            return True
        if topic in (group, self.connection.replies_topic) and key == queue:
            return True
        return any(
            topic == self.connection.name_of(exchange)
            and (key == bound_key if pattern is None else re.match(pattern, key) is not None)
            for exchange, bound_key, pattern in self._bindings(queue)
        )

    # -- end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the groups; messages without an outcome come again."""
        if not self.closed and not self.connection.is_foreign:
            for message in self.qos.unsettled():
                delivery = self._deliveries.get(message.delivery_tag)
                if delivery is not None and delivery.is_overtaken:
                    # What overtook it cannot be committed while it is unsettled.
                    self.requeue(message)
                    self.settle(message.delivery_tag)
            for queue, reader in self._readers.items():
                reader.close()
                self.state.read_queues.discard(queue)
        self._readers = {}
        super().close()


def _refused(reason: str) -> ChannelError:
    """The error for a declaration that cannot be honoured."""
    return ChannelError(f"PRECONDITION_FAILED - {reason}", (50, 10), "Channel.queue_declare", "406")


def _deliver_time_ms(eta: object) -> int | None:
    """When a broker should deliver a message with this ``eta``; None for at once."""
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None
    if due.tzinfo is None:  # in the time zone of the app, which only the worker knows
        return None
    now = datetime.now(UTC)
    if due - now < TIMER_MIN:
        return None
    return int(min(due, now + TIMER_MAX).timestamp() * 1000)
