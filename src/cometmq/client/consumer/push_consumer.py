"""The push consumer calls a handler with each message of a group's queues.

It passes pulled messages to the handler, and each outcome to the commit offset, the retry topic or
the dead letters.  ``GroupConsumer`` pulls and rebalances, `handling` runs the handlers, and
``orderly`` keeps the order.

A message is consumed when its handler has returned, or when the broker has accepted it for another
try (code 36).  Until then no higher offset is committed, so a crash repeats the message.  Shutdown
stops pulling, waits for the running handlers, gives back the messages that do not finish in time,
and waits until the brokers have acknowledged the offsets: finished messages are not repeated,
unfinished messages are not lost.
"""

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Literal, Self, Unpack

from cometmq.client.base import fork
from cometmq.client.base.arguments import (
    check_callable,
    check_count,
    check_ms,
    checked_group,
    subscription_map,
)
from cometmq.client.base.instance import uniq_ids_of
from cometmq.client.base.options import ClientOptions, CommonOptions
from cometmq.client.base.reading import QueueReader
from cometmq.client.base.traces import TraceWriter
from cometmq.client.consumer.group.first_offset import StartFrom
from cometmq.client.consumer.group.group_consumer import RebalanceListener, Running
from cometmq.client.consumer.orderly import OrderlyRunner
from cometmq.client.consumer.pausing import OnStopped, PausableConsumer
from cometmq.client.consumer.returned_messages import ReturnedMessages
from cometmq.client.consumer.traces import HandlerTraces
from cometmq.client.extensions.parking.parking import OnParked, Parking
from cometmq.client.handling.dispatchers import Dispatcher, make_dispatcher
from cometmq.client.handling.failures import log_failure, next_try
from cometmq.client.handling.handlers import (
    OUTCOME_STOP,
    Handler,
    Outcome,
    check_handler,
)
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.client.queue.pull_loop import PullLoop, PullSettings
from cometmq.core.consume.order import (
    ORDER_BY_GROUP,
    ORDER_NONE,
    ORDERS,
    RECONSUME_FOR_EVER,
    SUSPEND_MS,
    OrderPolicy,
)
from cometmq.core.consume.process_queue import FlowLimits
from cometmq.core.filter.tag_filter import TAG
from cometmq.core.group.allocate import AllocateStrategy
from cometmq.core.retry.consume_retry import DELAY_LEVEL_BY_BROKER
from cometmq.errors import CometError, ConfigError, ConfigTypeError
from cometmq.model import ConsumeType, MessageModel, MessageQueue
from cometmq.model.flags import PULL_SUSPEND
from cometmq.model.names import RETRY_PREFIX
from cometmq.net.env import Environment
from cometmq.wire.command.codes import RequestCode

__all__ = ["PushConsumer"]

log = logging.getLogger("cometmq.client")

PULL_SUSPEND_MS: Final = 15_000
CONCURRENCY: Final = 20
"""Java's ``consumeThreadMin``."""
LIST_COUNT: Final = 32
"""Messages per call of a list handler unless said otherwise: the size of one pull."""
CONSUME_TIMEOUT_MS: Final = 15 * 60 * 1000
EXPIRED_DELAY_LEVEL: Final = 3


class PushConsumer(PausableConsumer):
    """Consumes with a handler; ``async with PushConsumer(...)`` starts and stops it.

    Args:
        group: consumer group; its members share the messages.
        subscriptions: topic to tag expression (``*`` or ``TagA || TagB``).
        handler: called with each `ReceivedMessage`, or with a list of them when its parameter
            is annotated as a list or ``batch_count_max`` is given. ``async def`` runs on the
            loop, a plain function in threads. `Handler` says what its results mean.
        name_server: as for `Producer`.
        consume_from: ``"last"``, ``"first"``, a `ConsumeFromWhere`, or milliseconds since 1970:
            where a group without stored offsets begins.
        concurrency: handlers running at a time.
        batch_count_max: messages per call of a list handler.
        message_model: clustering or broadcasting.
        max_reconsume_times: tries after the first before a message becomes a dead letter. None:
            the group's setting at its broker (``cometmq group set``; 16 by default) without an
            order, no limit with an order.
        order: ``"none"``: any number of handlers per queue. ``"queue"``: one at a time per queue,
            and a message that fails is tried again before the next one. ``"group"``: the same
            for each message group (`Message.message_group`), so the groups of a queue run in
            parallel. Both need the queue's lock at the broker.
        low_priority_share: messages of higher queues are handled before those of lower ones, as
            priority topics have them, except for this part of the handlers' starts (0.1: one in
            ten). Needs an ``async def`` handler and no order. None: in the order they come.
        suspend_ms: how long a queue (or group) waits after a failure.
        park_after: how many failed tries park a message of a consumer with an order. The message
            and the later ones of its message group then wait in the topic ``%PARK%group`` while
            other groups continue; ``cometmq parking`` shows, retries and skips them. None: never.
        on_stopped: called with the message and the reason when a handler answers
            `StopConsuming`; may be ``async``.
        on_parked: called with the message that failed and the reason; may be ``async``.
        flow_limits: when a queue stops pulling.
        strategy: how queues are shared: ``AVG``, ``AVG_BY_CIRCLE``, ``CONSISTENT_HASH``, or an
            object with ``name`` and ``allocate``.
        rebalance_listener: called with (added, removed) queues.
        drain_timeout_ms: how long shutdown waits for running handlers.
        consume_timeout_ms: a handler that runs longer has its message tried again.
        offset_folder: where broadcasting keeps offsets; default ``~/.rocketmq_offsets``.
        common: ``connection``, and keys and TLS as for `Producer`.

    Raises:
        ConfigError: an argument is wrong; the text names it and its value.
    """

    _consume_type = ConsumeType.CONSUME_PASSIVELY

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, str] | None = None,
        handler: Handler | None = None,
        *,
        name_server: str | Sequence[str] | None = None,
        consume_from: StartFrom = "last",
        concurrency: int = CONCURRENCY,
        batch_count_max: int | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        max_reconsume_times: int | None = None,
        order: Literal["none", "queue", "group"] = "none",
        low_priority_share: float | None = None,
        suspend_ms: int = SUSPEND_MS,
        park_after: int | None = None,
        on_parked: OnParked | None = None,
        on_stopped: OnStopped | None = None,
        flow_limits: FlowLimits | None = None,
        strategy: AllocateStrategy | str = "AVG",
        rebalance_listener: RebalanceListener | None = None,
        drain_timeout_ms: int = 10_000,
        consume_timeout_ms: int = CONSUME_TIMEOUT_MS,
        pull_count_max: int = 32,
        offset_folder: str | None = None,
        instance_name: str | None = None,
        client_ip: str | None = None,
        env: Environment | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        group = checked_group(group)
        check_count("concurrency", concurrency)
        if batch_count_max is not None:
            check_count("batch_count_max", batch_count_max)
        if max_reconsume_times is not None:
            check_count("max_reconsume_times", max_reconsume_times, -1)
        check_ms("suspend_ms", suspend_ms)
        check_ms("drain_timeout_ms", drain_timeout_ms, may_be_zero=True)
        check_ms("consume_timeout_ms", consume_timeout_ms)
        check_count("pull_count_max", pull_count_max)
        if order not in ORDERS:
            raise ConfigError(f"order is {order!r}; give one of {', '.join(ORDERS)}")
        if low_priority_share is not None:
            _check_share(low_priority_share, order)
        if flow_limits is not None:
            _check_limits(flow_limits)
        _check_listeners(on_parked=on_parked, on_stopped=on_stopped)
        if park_after is not None:
            _check_parking(order, message_model, park_after)
        elif on_parked is not None:
            raise ConfigError("on_parked is called only with park_after=, which is not given")
        super().__init__(
            group,
            ClientOptions.of(
                name_server, env=env, instance_name=instance_name, client_ip=client_ip, **common
            ),
            message_model=message_model,
            consume_from=consume_from,
            strategy=strategy,
            rebalance_listener=rebalance_listener,
            offset_folder=offset_folder,
            on_stopped=on_stopped,
            settings=PullSettings(
                RequestCode.PULL_MESSAGE, group, PULL_SUSPEND, PULL_SUSPEND_MS, pull_count_max
            ),
        )
        if handler is not None:
            check_handler(handler)
        self._handler = handler
        self._handlers: dict[str, Handler] = {}
        self._concurrency = concurrency
        self._low_share = low_priority_share
        self._batch_count_max = batch_count_max
        self._policy: OrderPolicy | None = None
        _check_names(self._options, park_after)
        if order != ORDER_NONE:
            if max_reconsume_times is None:
                max_reconsume_times = RECONSUME_FOR_EVER
            self._policy = OrderPolicy(suspend_ms, max_reconsume_times, park_after)
        self._max_reconsume_times = max_reconsume_times
        self._order = order
        self.is_orderly = order != ORDER_NONE
        self._on_parked = on_parked
        self._limits = flow_limits or FlowLimits()
        self._drain_timeout_ms = drain_timeout_ms
        self._consume_timeout_ms = consume_timeout_ms
        self._dispatchers: dict[int, Dispatcher] = {}
        self._default: Dispatcher | None = None
        self._by_topic: dict[str, Dispatcher] = {}
        self._returns: ReturnedMessages | None = None
        self._traces: TraceWriter | None = None
        self._traced: HandlerTraces | None = None
        for topic, expression in subscription_map(subscriptions).items():
            self._subscribe(topic, expression)

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group and begin to consume; a missing topic is consumed once it exists.

        Raises:
            ClientClosed: the consumer is closed.
            ConfigError: a subscribed topic has no handler.
            ConnectFailed: no name server could be reached for 3 s.
            RequestTimeout: one was reached and did not answer.
        """
        self._check_open()
        if self._running is not None:
            return
        running = self._start_running()
        instance = running.instance
        topic = self._options.trace_topic
        if topic is not None:
            self._traces = TraceWriter(instance, topic)
            self._traced = HandlerTraces(
                self._traces,
                self.group,
                topic,
                self._options.env.clock,
                uniq_ids_of(self._options).next_id,
            )
        retries_max = self._max_reconsume_times
        if retries_max is not None:
            # A copy beyond the last try carries this number plus one, in 32 bits.
            retries_max = min(retries_max, RECONSUME_FOR_EVER - 1)
        self._returns = ReturnedMessages(
            instance,
            running.calls,
            self.group,
            retries_max,
            self._given_back,
            is_orderly=self.is_orderly,
        )
        if self._policy is not None:
            ordering = OrderlyRunner(self, self._order, self._policy, self._concurrency)
            self._start_ordering(ordering)
            if self._policy.park_after is not None:
                self._start_parking(running, ordering, self._policy)
        try:
            for topic in self._subscriptions:
                self.dispatcher_of(topic)  # raises for a topic without a handler
            await self._join()
        except BaseException:
            await self._abort_start()
            raise
        if self._ordering is None:  # ordered messages do not expire, as in Java
            instance.spawn(instance.every(60_000, self.expire_now), "expire")
        log.info(
            "consumer %s of group %s started: %s",
            self.client_id,
            self.group,
            ", ".join(f"{s.topic} {s.sub_string}" for s in self._subscriptions.values()),
        )

    def _start_parking(
        self, running: Running, ordering: OrderlyRunner, policy: OrderPolicy
    ) -> None:
        instance = running.instance
        self._parking = ordering.parking = Parking(
            self,
            QueueReader(instance.io, running.calls, instance.routes),
            self._options.env.clock,
            policy,
            self._on_parked,
            self._concurrency,
        )

    async def _abort_start(self) -> None:
        running = self._running
        self._running = None
        for assignment in self._assignments.values():
            assignment.loop.stop()
        self._assignments.clear()
        dispatchers = self._release_dispatchers()
        try:
            for dispatcher in dispatchers:
                await dispatcher.drain(0)
        finally:
            if running is not None:
                await running.instance.close({self.group: "consumerGroup"})

    def _release_dispatchers(self) -> list[Dispatcher]:
        """Forget the dispatchers: their workers end with the instance; a start makes new ones."""
        dispatchers = list(self._dispatchers.values())
        self._dispatchers.clear()
        self._by_topic.clear()
        return dispatchers

    def after_fork(self) -> None:
        """In a child process: the parent's handlers run in the parent."""
        super().after_fork()
        fork.keep_forever(self._release_dispatchers())

    async def subscribe(
        self,
        topic: str,
        expression: str = "*",
        handler: Handler | None = None,
        *,
        expression_type: str = TAG,
    ) -> None:
        """Consume a topic (also while running), with its own handler if one is passed.

        A topic that does not exist yet is consumed as soon as it does.

        Raises:
            ClientClosed: the consumer is closed.
            ConfigError: the handler, the topic or the expression is wrong, or no handler is set.
        """
        self._check_open()
        if handler is not None:
            check_handler(handler)
        self._subscribe(topic, expression, expression_type)
        if handler is not None:
            self._handlers[topic] = handler
        self._by_topic.pop(topic, None)
        if self._running is not None:
            self.dispatcher_of(topic)
            await self._add_topic(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; finished messages are committed."""
        self._subscriptions.pop(topic, None)
        self._handlers.pop(topic, None)
        if self._running is not None:
            await self._rebalance_round()
            await self._running.instance.heartbeat()

    async def shutdown(self) -> None:
        """Stop pulling, let handlers finish, commit, leave the group, disconnect.

        Shutdown does not wait for a handler that calls it, so that handler's message comes again.
        """
        if self._is_closed:
            return
        self._is_closed = True
        running = self._running
        if running is None:
            return
        self._is_stopping = True
        for assignment in self._assignments.values():
            assignment.loop.stop()
        if self._ordering is not None:
            self._ordering.close()
        if self._parking is not None:
            self._parking.stop()
        try:
            await self._wind_down()
        finally:  # also on cancellation: a second call would return at once
            for assignment in self._assignments.values():
                assignment.process_queue.dropped = True
            self._assignments.clear()
            await running.instance.close({self.group: "consumerGroup"})
            self._running = None

    async def _wind_down(self) -> None:
        """Wait for the running handlers, and commit the finished messages."""
        deadline = asyncio.get_running_loop().time() + self._drain_timeout_ms / 1000
        for dispatcher in self._dispatchers.values():
            left_s = max(0.0, deadline - asyncio.get_running_loop().time())
            for assignment, message in await dispatcher.drain(left_s):
                self._not_drained(assignment, message)
        assert self._returns is not None
        await self._returns.finish(self._drain_timeout_ms / 1000)
        if self._parking is not None:
            await self._parking.finish(self._drain_timeout_ms / 1000)
        try:
            await self._commit(self._in_hand(), wait=True)
        except CometError as error:
            log.error(
                "group %s: offsets were not committed at shutdown, so finished messages will "
                "come again: %s",
                self.group,
                error,
            )
        await self._release_locks()
        if self._traces is not None:
            await self._traces.close()

    def _not_drained(self, assignment: Assignment, message: ReceivedMessage) -> None:
        """Give back a message whose handler did not end in time, or itself called `shutdown`."""
        log.warning(
            "the handler of %s at %d did not finish within %d ms, or is what shuts the consumer "
            "down; %s",
            message.message_queue,
            message.queue_offset,
            self._drain_timeout_ms,
            "its queue stays locked until the lock expires"
            if self._locks is not None
            else "it is given back",
        )
        if self._ordering is None:
            self.give_back(assignment, message, 0)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown()

    def assignment(self) -> list[MessageQueue]:
        """The queues of the subscribed topics that are assigned to this consumer now."""
        return sorted(q for q in self._assignments if not q.topic.startswith(RETRY_PREFIX))

    def lag(self, topic: str) -> int:
        """Messages of a topic's assigned queues that are not consumed, as of each last pull."""
        queues = [
            assignment.process_queue
            for queue, assignment in self._assignments.items()
            if queue.topic == topic
        ]
        return sum(max(0, queue.broker_max_offset - queue.commit_offset) for queue in queues)

    # -- from pulls to handlers -------------------------------------------------------------

    def dispatcher_of(self, topic: str) -> Dispatcher:
        """The dispatcher of a topic's handler; each handler has one.

        Raises:
            ConfigError: the topic has no handler.
        """
        cached = self._by_topic.get(topic)
        if cached is not None:
            return cached
        handler = self._handlers.get(topic, self._handler)
        if handler is None:
            raise ConfigError(
                f"the topic {topic} has no handler; pass handler= to PushConsumer or subscribe()"
            )
        dispatcher = self._dispatchers.get(id(handler))
        if dispatcher is None:
            dispatcher = make_dispatcher(
                handler if self._traced is None else self._traced.wrapped(handler),
                self._ordering or self,
                concurrency=self._concurrency,
                low_share=self._low_share,
                batch_size=self._list_count(handler),
                spawn=self._ready().instance.spawn,
            )
            self._dispatchers[id(handler)] = dispatcher
        self._by_topic[topic] = dispatcher
        return dispatcher

    def _list_count(self, handler: Handler) -> int | None:
        """How many messages a handler takes per call; None if it takes single ones."""
        if self._batch_count_max is not None:
            return self._batch_count_max
        return LIST_COUNT if _takes_list(handler) else None

    def hold(self, loop: PullLoop) -> str | None:
        """Flow control: see `ProcessQueue.blocked_by`."""
        if self._handler is None and not self._handlers:
            return "no handler yet"
        if loop.process_queue.is_paused:
            return "paused"
        reason = loop.process_queue.blocked_by(self._limits)
        if self._ordering is not None:
            if reason is None and self._order == ORDER_BY_GROUP:
                # Other groups continue while one fails, so the count does not limit the span.
                ahead = loop.process_queue.ahead
                if ahead >= self._limits.span_max:
                    reason = f"offset span {ahead}, limit {self._limits.span_max}"
            if reason is None and not self.may_consume(loop.queue):
                return "its lock was not renewed for 30 s"
            if reason is not None and loop.hold_reason is None:
                self._ordering.log_hold(loop, reason)
        return reason

    def room(self, loop: PullLoop) -> tuple[int, int]:
        """How many messages and bytes flow control still admits: see `ProcessQueue.room`."""
        count, byte_count = loop.process_queue.room(self._limits)
        if self._order == ORDER_BY_GROUP:
            count = max(0, min(count, self._limits.span_max - loop.process_queue.ahead))
        return count, byte_count

    def accept(self, loop: PullLoop, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Submit a pull's messages to their handler; HOT."""
        process_queue = loop.process_queue
        now_ms = self._options.env.clock.now_ms()
        if not messages:
            process_queue.skip_to(next_offset, now_ms)
            return
        assignment = self._assignments.get(loop.queue)
        if assignment is None:
            return
        process_queue.add(
            [message.queue_offset for message in messages],
            [message.size_bytes for message in messages],
            next_offset,
            now_ms,
        )
        if self._ordering is not None:
            self._ordering.submit(assignment, messages)
            return
        self._submit(assignment, messages)

    def _submit(self, assignment: Assignment, messages: list[ReceivedMessage]) -> None:
        """Submit messages of a queue without an order to their handler; HOT."""
        topic = assignment.queue.topic
        if topic.startswith(RETRY_PREFIX) and self._handlers:
            for message in messages:
                self._submit_retried(assignment, message)
            return
        dispatcher = self._by_topic.get(topic)
        if dispatcher is None:
            dispatcher = self.dispatcher_of(topic)
        dispatcher.submit(assignment, messages)

    def _submit_retried(self, assignment: Assignment, message: ReceivedMessage) -> None:
        """Submit a retried message to the handler of the topic it was first sent to."""
        try:
            dispatcher = self.dispatcher_of(message.topic)
        except ConfigError as error:
            # Another member may have the handler; after the last try the message is a dead letter.
            log.warning("a message to be tried again is given back: %s", error)
            self.give_back(assignment, message, DELAY_LEVEL_BY_BROKER)
        else:
            dispatcher.submit(assignment, [message])

    # -- from handlers to offsets -----------------------------------------------------------

    def finished(self, assignment: Assignment, message: ReceivedMessage, outcome: Outcome) -> None:
        """Record the outcome of one message; HOT."""
        process_queue = assignment.process_queue
        if outcome is not None:
            # Only this log line has the reason: a send-back carries none.
            log_failure(self.group, message, outcome, self._next_try(assignment, message, outcome))
            if outcome == OUTCOME_STOP:
                process_queue.is_paused = True
                assignment.set_aside.append(message)
                self.stop_consuming(message, outcome)
                return
        if process_queue.dropped:
            return
        if outcome is not None:
            self.give_back(assignment, message, outcome)
            return
        process_queue.finish(message.queue_offset)
        loop = assignment.loop
        if loop.hold_reason is not None and (
            process_queue.count < 64 or not process_queue.finished_count & 63
        ):
            loop.wake()

    def _next_try(self, assignment: Assignment, message: ReceivedMessage, outcome: int) -> str:
        """What follows on a failure, for the log."""
        if assignment.process_queue.dropped and outcome != OUTCOME_STOP:
            return "the queue has another owner now, which handles the message"
        if self._model == MessageModel.BROADCASTING and outcome != OUTCOME_STOP:
            return "broadcasting never repeats a message, so it is skipped"
        return next_try(outcome, message.reconsume_times, self._max_reconsume_times, self.now_ms())

    def finished_all(self, assignment: Assignment, messages: Sequence[ReceivedMessage]) -> None:
        """Record that all of these messages were handled with success; HOT."""
        process_queue = assignment.process_queue
        if process_queue.dropped:
            return
        process_queue.finish_all([message.queue_offset for message in messages])
        if assignment.loop.hold_reason is not None:
            assignment.loop.wake()

    def skipped(self, assignment: Assignment, messages: Sequence[ReceivedMessage]) -> None:
        """Keep messages of a paused queue; those of a dropped one go to its next owner."""
        if assignment.process_queue.dropped or self._is_stopping:
            return
        assignment.set_aside.extend(messages)
        if not assignment.process_queue.is_paused:  # the pause has ended meanwhile
            self._submit_set_aside(assignment)

    def give_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> None:
        """Send a message to the group's retry topic, or to its dead letters (-1)."""
        if self._model == MessageModel.BROADCASTING:
            self._given_back(assignment, message)
            return
        assert self._returns is not None
        self._returns.start(assignment, message, delay_level)

    def _given_back(self, assignment: Assignment, message: ReceivedMessage) -> None:
        if self._ordering is not None:
            self._ordering.given_back(assignment, message)
        else:
            assignment.process_queue.finish(message.queue_offset)
            assignment.failed_count += 1
        assignment.loop.wake()

    async def expire_now(self) -> None:
        """Give back messages whose handler runs for too long (``consumeTimeout``)."""
        for dispatcher in self._dispatchers.values():
            for assignment, message in dispatcher.expire(self._consume_timeout_ms / 1000):
                log.error(
                    "the handler of group %s has run for more than %d s on %s at %d; the message "
                    "is tried again",
                    self.group,
                    self._consume_timeout_ms // 1000,
                    message.message_queue,
                    message.queue_offset,
                )
                self.give_back(assignment, message, EXPIRED_DELAY_LEVEL)

    # -- requests of brokers -----------------------------------------------------------------

    async def run_directly(self, message: ReceivedMessage) -> Outcome:
        """Run the handler on a message that an operator sent (code 309).

        Raises:
            ConfigError: the message's topic has no handler.
        """
        return await self.dispatcher_of(message.topic).run_one(message)

    def thread_count(self) -> int:
        """How many handlers may run at a time, for a broker that asks."""
        return self._concurrency

    @property
    def concurrency(self) -> int:
        """How many handlers may run at a time; a change holds at once.

        Raises:
            ConfigError: the new value is not a whole number of at least 1.
        """
        return self._concurrency

    @concurrency.setter
    def concurrency(self, concurrency: int) -> None:
        check_count("concurrency", concurrency)
        self._concurrency = concurrency
        for dispatcher in self._dispatchers.values():
            dispatcher.set_concurrency(concurrency)
        if self._ordering is not None:
            self._ordering.set_concurrency(concurrency)


def _check_listeners(**listeners: object) -> None:
    for name, listener in listeners.items():
        if listener is not None:
            check_callable(name, listener)


def _check_share(share: object, order: str) -> None:
    if not isinstance(share, (int, float)) or isinstance(share, bool) or not 0 < share <= 1:
        raise ConfigError(
            f"low_priority_share is {share!r:.100}; give the part of handlers' starts for lower"
            " priorities, above 0 and at most 1"
        )
    if order != ORDER_NONE:
        raise ConfigError("low_priority_share changes the order, so it needs order='none'")


def _check_parking(order: str, message_model: MessageModel, park_after: int) -> None:
    """Refuse ``park_after`` for consumers whose messages cannot be parked."""
    if order == ORDER_NONE or message_model == MessageModel.BROADCASTING:
        raise ConfigError(
            "park_after needs order='queue' or order='group' and a clustering group; without an "
            "order a failed message holds up no other"
        )
    check_count("park_after", park_after)


def _check_names(options: ClientOptions, park_after: int | None) -> None:
    """Refuse a namespace for parking, whose records name the topics of the cluster."""
    if park_after is not None:
        replace(options, sandbox=None).of_whole_cluster("parking")


def _check_limits(limits: object) -> None:
    """Refuse limits that would never let a queue pull, or never stop it."""
    if not isinstance(limits, FlowLimits):
        raise ConfigTypeError(
            f"flow_limits is {limits!r:.100} ({type(limits).__name__}); give FlowLimits(...)"
        )
    for name in ("count_max", "size_bytes_max", "span_max"):
        check_count(f"{name} of flow_limits", getattr(limits, name), most=2**63 - 1)


def _takes_list(handler: Handler) -> bool:
    """Whether the handler's parameter is annotated as a list of messages."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError):
        return False
    if not parameters:
        return False
    annotation = parameters[0].annotation
    if isinstance(annotation, str):
        name = annotation.partition("[")[0].rpartition(".")[2].strip().lower()
        return name in ("list", "sequence")
    origin = getattr(annotation, "__origin__", annotation)
    return origin in (list, Sequence)
