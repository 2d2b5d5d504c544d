"""What push and pull consumers share: subscriptions, rebalance, offsets, watchdog, broker's calls.

Job: keep a set of assigned queues, each with its pull loop, in step with the group.
Must not: know what happens to messages; `PushConsumer` and `PullConsumer` do.

Theory of rebalance: nobody leads.  Each member asks a broker for the group's members, sorts them
and the topic's queues, applies the same strategy and takes its share.  Two members may hold one
queue for the moments in which their lists differ; that is why delivery is at least once.  It runs
every 20 s, at once on notice (code 40), on route changes, and again after 1 s where a broker
could not be asked.

Theory of silence: a queue without progress while its broker has more is restarted by the
watchdog, with the numbers in the log.  The watchdog asks the brokers for their end offsets
itself, since a loop that died would not.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from cometmq.client.base import fork
from cometmq.client.base.arguments import check_callable, checked_text, checked_topic
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.instance import ClientInstance
from cometmq.client.base.options import ClientOptions
from cometmq.client.consumer.group.awaited import AwaitedTopics
from cometmq.client.consumer.group.served import serve_broker
from cometmq.client.consumer.group.watch import status_table, watch_queue
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.client.queue.offsets import BrokerOffsets, LocalOffsets, OffsetStore
from cometmq.client.queue.pull_loop import PullLoop, PullSettings
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.consume.watchdog import QueueWatch
from cometmq.core.filter.subscription import subscription_of
from cometmq.core.filter.tag_filter import TAG
from cometmq.core.group.allocate import AllocateStrategy, strategy_by_name
from cometmq.core.topic.selector import subscribe_queues
from cometmq.errors import ClientClosed, CometError, ConfigError, ConfigTypeError, NoRoute
from cometmq.model import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from cometmq.model.names import RETRY_PREFIX, retry_topic
from cometmq.net.channel import Channel
from cometmq.wire.body.bodies import ConsumerData
from cometmq.wire.command.command import RemotingCommand

__all__ = ["GroupConsumer", "RebalanceListener"]

log = logging.getLogger("cometmq.client")

RebalanceListener = Callable[
    [Sequence[MessageQueue], Sequence[MessageQueue]], Awaitable[None] | None
]
"""Called with (added, removed) queues after a rebalance changed something; may be ``async``.

Offsets of removed queues are committed before the call.
"""

WATCH_INTERVAL_S: Final = 10.0
WATCH_PATIENCE_MS: Final = 60_000
"""Longer than the longest held pull (15 or 20 s, plus the broker's 5 s sweep) by far."""
REBALANCE_RETRY_S: Final = 1.0


class GroupConsumer:
    """Base of the consumers that belong to a group."""

    _consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    _uses_retry_topic = True
    is_orderly = False

    def __init__(
        self,
        group: str,
        options: ClientOptions,
        *,
        message_model: MessageModel,
        consume_from: ConsumeFromWhere,
        consume_timestamp_ms: int | None,
        strategy: AllocateStrategy | str,
        rebalance_listener: RebalanceListener | None,
        offset_folder: str | None,
        settings: PullSettings,
    ) -> None:
        message_model = _message_model(message_model)
        if rebalance_listener is not None:
            check_callable("rebalance_listener", rebalance_listener)
        if message_model == MessageModel.BROADCASTING and options.instance_name is None:
            # The local offset file is found by the client id, so it must survive a restart.
            options = replace(options, instance_name="DEFAULT")
        if isinstance(strategy, str):
            strategy = strategy_by_name(strategy)
        elif isinstance(strategy, type) or not hasattr(strategy, "allocate"):
            raise ConfigTypeError(
                f"strategy is {strategy!r:.100}; give a name such as AVG, or an object with `name` "
                "and `allocate`, such as AllocateAveragely()"
            )
        self.group = group
        self._options = options
        self._model = message_model
        self._consume_from = consume_from
        self._consume_timestamp_ms = consume_timestamp_ms
        self._strategy: AllocateStrategy = strategy
        self._listener = rebalance_listener
        self._offset_folder = offset_folder
        self._settings = settings
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._assignments: dict[MessageQueue, Assignment] = {}
        self._instance: ClientInstance | None = None
        self._calls: BrokerCalls | None = None
        self._offsets: OffsetStore | None = None
        self._awaited: AwaitedTopics | None = None
        self._rebalance_asked = False
        self._rebalance_event: asyncio.Event | None = None
        self._rebalance_lock: asyncio.Lock | None = None
        self._started_ms = 0
        self._is_closed = False
        self._is_stopping = False
        # Queues were given by the program, not by a rebalance.
        self._is_by_hand = False
        fork.register(self)

    # -- hooks ------------------------------------------------------------------------------

    def _added(self, assignment: Assignment) -> None:
        """A queue was taken; its loop starts after this."""

    def _removed(self, assignment: Assignment) -> None:
        """A queue was given away; nothing of it may be delivered any more."""

    def hold(self, loop: PullLoop) -> str | None:
        """See `PullSink`."""
        raise AssertionError("a consumer decides when its loops wait")

    def room(self, loop: PullLoop) -> tuple[int, int]:
        """See `PullSink`."""
        raise AssertionError("a consumer says how much its loops may bring")

    def accept(self, loop: PullLoop, messages: list[ReceivedMessage], next_offset: int) -> None:
        """See `PullSink`."""
        raise AssertionError("a consumer takes the messages of its loops")

    def _subscription_of(self, topic: str) -> SubscriptionData:
        """The subscription a topic's loops pull with."""
        return self._subscriptions[topic]

    def _commit_offset(self, assignment: Assignment) -> int:
        """The offset that may be committed now."""
        return assignment.process_queue.commit_offset

    async def run_directly(self, message: ReceivedMessage) -> Any:
        """Handle a message a broker hands over (code 309)."""
        raise CometError("this kind of consumer has no handler")

    # -- life -------------------------------------------------------------------------------

    @property
    def client_id(self) -> str | None:
        """This consumer's id at the brokers, once started."""
        return self._instance.client_id if self._instance is not None else None

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """Subscriptions by topic, the group's retry topic included."""
        return self._subscriptions

    @property
    def assignments(self) -> dict[MessageQueue, Assignment]:
        """Queues in our hands."""
        return self._assignments

    @property
    def message_model(self) -> MessageModel:
        """Clustering or broadcasting."""
        return self._model

    @property
    def started_ms(self) -> int:
        """When `start` was called."""
        return self._started_ms

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed; make a new one")

    def _subscribe(self, topic: str, expression: str | None, expression_type: str = TAG) -> None:
        topic = checked_topic(topic)
        if expression is not None:
            checked_text(f"the subscription of {topic}", expression)
        now_ms = self._options.env.clock.now_ms()
        self._subscriptions[topic] = subscription_of(topic, expression, now_ms, expression_type)

    def _ready(self) -> ClientInstance:
        if self._instance is None:
            self._check_open()
            raise ClientClosed(
                f"the consumer of group {self.group} is not started in this process; use "
                "`async with` or await start()"
            )
        return self._instance

    def _start_instance(self) -> ClientInstance:
        self._started_ms = self._options.env.clock.now_ms()
        instance = ClientInstance(self._options, self, None)
        self._instance = instance
        self._calls = BrokerCalls(instance.io, self._options.request_timeout_ms)
        self._awaited = AwaitedTopics(instance, self.group, self.topics)
        self._rebalance_event = asyncio.Event()
        self._rebalance_lock = asyncio.Lock()
        if self._model == MessageModel.BROADCASTING:
            self._offsets = LocalOffsets(instance.client_id, self.group, self._offset_folder)
        else:
            self._offsets = BrokerOffsets(self.group, self._calls, instance.routes)
        instance.start()
        return instance

    async def _join(self) -> None:
        """Learn routes, introduce ourselves to every broker, take our share."""
        instance = self._ready()
        if self._model == MessageModel.CLUSTERING and self._uses_retry_topic:
            self._subscribe(retry_topic(self.group), "*")
        assert self._awaited is not None
        for topic in list(self._subscriptions):
            if not topic.startswith(RETRY_PREFIX):  # the heartbeat makes that one
                await self._awaited.learn(topic)
        await self._check_expressions(instance)
        await instance.introduce()
        await self._rebalance_round()
        instance.spawn(self._rebalance_forever(), "rebalance")
        instance.spawn(
            instance.every(self._options.persist_interval_ms, self.commit_changed), "persist"
        )
        instance.spawn(instance.every(int(WATCH_INTERVAL_S * 1000), self.watch), "watchdog")

    async def _add_topic(self, topic: str) -> None:
        """Take up a topic, or another expression of one, while running."""
        instance = self._ready()
        assert self._awaited is not None
        await self._awaited.learn(topic)
        await self._check_expressions(instance)
        for queue in [queue for queue in self._assignments if queue.topic == topic]:
            # The loop carries the expression it was made with.
            await self._give_up(queue)
        await instance.heartbeat()
        await self._rebalance_round()

    async def _check_expressions(self, instance: ClientInstance) -> None:
        """Have brokers compile SQL92 expressions before anything depends on them."""
        assert self._calls is not None
        for subscription in self._subscriptions.values():
            if subscription.expression_type == TAG:
                continue
            route = instance.routes.known(subscription.topic)
            for broker in route.broker_datas if route is not None else ():
                address = instance.routes.any_address(broker.broker_name)
                if address is not None:
                    await self._calls.check_subscription(
                        address, instance.client_id, self.group, subscription
                    )

    def after_fork(self) -> None:
        """In a child process: this consumer is the parent's; `start` makes it a new member."""
        if self._instance is None:
            return
        if not self._is_closed:
            log.warning(
                "the consumer of group %s belongs to the parent process; call start() to consume "
                "in this one too",
                self.group,
            )
        self._instance.abandon()
        fork.keep_forever((self._assignments, self._calls, self._offsets))
        self._instance = None
        self._calls = None
        self._offsets = None
        self._assignments = {}

    # -- rebalance --------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance in the background as soon as possible."""
        self._rebalance_asked = True
        if self._rebalance_event is not None:
            self._rebalance_event.set()

    async def _rebalance_forever(self) -> None:
        event = self._rebalance_event
        assert event is not None
        pause_s = self._options.rebalance_interval_ms / 1000
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await event.wait()
            except TimeoutError:
                pass
            event.clear()
            pause_s = self._options.rebalance_interval_ms / 1000
            try:
                if not await self._rebalance_round():
                    pause_s = REBALANCE_RETRY_S
            except CometError as error:
                log.warning("rebalance of group %s: %s", self.group, error)
                pause_s = REBALANCE_RETRY_S
            except Exception:
                # A strategy or listener of the user's may raise anything; the group goes on.
                log.exception("rebalance of group %s failed", self.group)

    async def _rebalance_round(self) -> bool:
        """One pass over all topics; False if some queue has to be tried again soon."""
        assert self._rebalance_lock is not None
        assert self._awaited is not None
        async with self._rebalance_lock:
            if self._is_stopping:
                return True
            complete = True
            added: list[MessageQueue] = []
            removed: list[MessageQueue] = []
            for topic in list(self._subscriptions):
                wanted = await self._share_of(topic)
                if wanted is None:
                    # Topics that are waited for announce themselves.
                    complete = complete and topic in self._awaited
                    continue
                held = {queue for queue in self._assignments if queue.topic == topic}
                for queue in sorted(held - wanted):
                    await self._give_up(queue)
                    removed.append(queue)
                fresh = await self._acquire(sorted(wanted - held))
                complete = complete and len(fresh) == len(wanted - held)
                for queue in fresh:
                    if await self._take(queue):
                        added.append(queue)
                    else:
                        complete = False
            for queue in [q for q in self._assignments if q.topic not in self._subscriptions]:
                if not self._is_by_hand:
                    await self._give_up(queue)
                    removed.append(queue)
        if added or removed:
            log.info(
                "group %s, client %s: took %s, gave up %s, holds %d queues",
                self.group,
                self.client_id,
                _names(added),
                _names(removed),
                len(self._assignments),
            )
            await self._tell_listener(added, removed)
        return complete

    async def _share_of(self, topic: str) -> set[MessageQueue] | None:
        """The queues of a topic that are ours; None if that cannot be told now."""
        instance = self._ready()
        assert self._calls is not None
        assert self._awaited is not None
        route = instance.routes.known(topic)
        if route is None and topic not in self._awaited:
            await self._awaited.learn(topic)
            route = instance.routes.known(topic)
        if route is None:
            return None
        queues = subscribe_queues(topic, route)
        if self._model == MessageModel.BROADCASTING or not queues:
            return set(queues)
        names = [broker.broker_name for broker in route.broker_datas]
        start = self._options.env.chance.randrange(len(names)) if names else 0
        for name in names[start:] + names[:start]:
            address = instance.routes.any_address(name)
            if address is None:
                continue
            try:
                members = await self._calls.consumer_ids(address, self.group)
            except CometError as error:
                log.info("%s was not asked for the members of %s: %s", address, self.group, error)
                continue
            if instance.client_id in members:
                return set(self._strategy.allocate(self.group, instance.client_id, queues, members))
            # Our heartbeat has not arrived there (yet): without it no allocation counts us in.
            await instance.heartbeat_to(address)
        return None

    async def _acquire(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Those of the queues of our share that we may take now."""
        return queues

    async def _take(self, queue: MessageQueue) -> bool:
        """Start pulling a queue from its stored or first offset."""
        try:
            queue_offset = await self._start_offset(queue)
        except CometError as error:
            log.warning("the offset of %s could not be read, trying again: %s", queue, error)
            return False
        # Meanwhile a handler may have unsubscribed.
        if not self._is_stopping and queue.topic in self._subscriptions:
            self._begin(queue, queue_offset)
        return True

    def _begin(self, queue: MessageQueue, queue_offset: int) -> Assignment:
        instance = self._ready()
        now_ms = self._options.env.clock.now_ms()
        process_queue = ProcessQueue(queue_offset, now_ms)
        assignment = Assignment(queue, process_queue, QueueWatch(queue, WATCH_PATIENCE_MS, now_ms))
        assignment.loop = PullLoop(
            instance,
            queue,
            process_queue,
            self._subscription_of(queue.topic),
            self._settings,
            self,
        )
        self._assignments[queue] = assignment
        self._added(assignment)
        assignment.loop.pull()
        return assignment

    async def _start_offset(self, queue: MessageQueue) -> int:
        """The stored offset, else where the group is to begin (store.md 9.2)."""
        assert self._offsets is not None
        stored = await self._offsets.read(queue)
        if stored is not None and stored >= 0:
            return stored
        return await self._first_offset(queue)

    async def _first_offset(self, queue: MessageQueue) -> int:
        assert self._calls is not None
        address = self._address(queue)
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        where = self._consume_from
        if where == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and not is_retry:
            timestamp_ms = self._consume_timestamp_ms
            if timestamp_ms is None:
                timestamp_ms = self._options.env.clock.now_ms() - 30 * 60 * 1000
            return await self._calls.search_offset(address, queue, timestamp_ms)
        if is_retry or where in (
            ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET,
        ):
            return await self._calls.min_offset(address, queue)
        return await self._calls.max_offset(address, queue)

    def _address(self, queue: MessageQueue) -> str:
        address = self._ready().routes.any_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no address is known for the broker {queue.broker_name} of {queue}")
        return address

    async def _give_up(self, queue: MessageQueue) -> None:
        """Stop a queue, commit what is finished, forget the rest."""
        assignment = self._assignments.pop(queue)
        assignment.loop.stop()
        await self._commit([assignment], wait=False)
        assignment.process_queue.dropped = True
        self._removed(assignment)

    async def _tell_listener(
        self, added: Sequence[MessageQueue], removed: Sequence[MessageQueue]
    ) -> None:
        if self._listener is None:
            return
        try:
            waiting = self._listener(added, removed)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception:
            log.exception("the rebalance listener of group %s failed", self.group)

    def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """A broker orders other offsets, by code 220 or with its answer to a pull."""
        for queue, queue_offset in offsets.items():
            assignment = self._assignments.get(queue)
            if queue.topic != topic or assignment is None:
                continue
            log.info("the offset of %s is reset to %d by the broker", queue, queue_offset)
            self._replace(assignment, queue_offset, commit=True)

    def _replace(
        self, assignment: Assignment, queue_offset: int, *, commit: bool = False
    ) -> Assignment:
        """Drop what a queue holds and begin anew at another offset."""
        assignment.loop.stop()
        assignment.process_queue.dropped = True
        self._removed(assignment)
        fresh = self._begin(assignment.queue, queue_offset)
        fresh.committed = -1
        if commit:
            self._ready().spawn(self._commit([fresh], wait=False), "commit")
        return fresh

    def offset_moved(self, loop: PullLoop, queue_offset: int, *, is_ordered: bool) -> None:
        """Go on from another offset; what we hold stays valid only where offsets go forward."""
        if is_ordered:
            self.reset_offsets(loop.queue.topic, {loop.queue: queue_offset})
        elif queue_offset < loop.process_queue.pull_offset and loop.queue in self._assignments:
            self._replace(self._assignments[loop.queue], queue_offset)
        else:
            loop.process_queue.skip_to(queue_offset, self._options.env.clock.now_ms())

    # -- offsets ----------------------------------------------------------------------------

    def commit_hint(self, loop: PullLoop) -> int:
        """An offset to commit along with a pull: only brokers keep it, and only if positive."""
        assignment = self._assignments.get(loop.queue)
        if assignment is None or self._model == MessageModel.BROADCASTING:
            return -1
        consumer_offset = self._commit_offset(assignment)
        return consumer_offset if consumer_offset > 0 else -1

    async def commit_changed(self) -> None:
        """Hand every offset that moved to the offset store, without waiting for answers."""
        await self._commit(list(self._assignments.values()), wait=False)

    async def _commit(self, assignments: Iterable[Assignment], *, wait: bool) -> None:
        assert self._offsets is not None
        changed: dict[MessageQueue, int] = {}
        for assignment in assignments:
            if assignment.process_queue.dropped:
                continue
            consumer_offset = self._commit_offset(assignment)
            if wait or consumer_offset != assignment.committed:
                changed[assignment.queue] = consumer_offset
                assignment.committed = consumer_offset
        if changed:
            await self._offsets.write(changed, wait=wait)

    # -- watchdog ---------------------------------------------------------------------------

    async def watch(self) -> None:
        """Compare every queue with its broker's end and restart what stands still."""
        for assignment in list(self._assignments.values()):
            await watch_queue(self, assignment)

    async def broker_end(self, queue: MessageQueue) -> int:
        """The end of a queue as its broker reports it now."""
        assert self._calls is not None
        return await self._calls.max_offset(self._address(queue), queue)

    def is_paused(self, assignment: Assignment) -> bool:
        """Whether the program wants this queue to stand still."""
        return False

    # -- what the instance asks -------------------------------------------------------------

    def consumer_data(self) -> ConsumerData | None:
        """Our part of the heartbeat."""
        return ConsumerData(
            self.group,
            self._consume_type,
            self._model,
            self._consume_from,
            tuple(self._subscriptions[topic] for topic in sorted(self._subscriptions)),
        )

    def topics(self) -> set[str]:
        """Subscribed topics and those of assigned queues."""
        return set(self._subscriptions) | {queue.topic for queue in self._assignments}

    def routes_changed(self, topic: str) -> None:
        """New queues may be ours."""
        self.rebalance_soon()

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Requests of brokers: 40, 220, 221, 307, 309."""
        return serve_broker(self, channel, command)

    def concurrency(self) -> int:
        """How many handlers may run at a time; none where there are no handlers."""
        return 0

    def name_servers(self) -> tuple[str, ...]:
        """Addresses of the name servers."""
        return self._options.name_servers

    def now_ms(self) -> int:
        """Wall-clock time of this client."""
        return self._options.env.clock.now_ms()

    def locked_ms(self, queue: MessageQueue) -> int:
        """When the queue's lock was got or renewed, ms since 1970; 0 without a lock."""
        return 0

    def status_table(self) -> dict[str, dict[str, Any]]:
        """Rates per topic since the watchdog's last look (``ConsumeStatus`` of Java)."""
        return status_table(self)

    def spawn(self, work: Any, name: str) -> None:
        """Run background work of this consumer."""
        self._ready().spawn(work, name)


def _message_model(given: object) -> MessageModel:
    if isinstance(given, int) and not isinstance(given, bool) and given in set(MessageModel):
        return MessageModel(given)
    error = ConfigError if isinstance(given, int) else ConfigTypeError
    raise error(
        f"message_model is {given!r:.100} ({type(given).__name__}); give "
        "MessageModel.CLUSTERING or MessageModel.BROADCASTING"
    )


def _names(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(str(queue) for queue in queues) or "none"
