"""A member of a consumer group: subscriptions, rebalance, offsets and heartbeats.

Push and pull consumers build on `GroupConsumer`, which keeps a set of assigned queues, each with
its pull loop, in step with the group.  Its subclasses decide what happens to the messages.

A group has no leader.  Each member asks a broker for the group's members, sorts them and the
topic's queues, applies the same strategy and takes its share.  While two members' lists differ,
both may hold one queue; that is why delivery is at least once.  A member rebalances every 20 s, at
once after a notice from a broker (code 40) or a change of routes, and after 1 s where a broker
could not be asked.
"""

import asyncio
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cometmq.client.base import fork
from cometmq.client.base.arguments import check_callable, checked_text, checked_topic
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.instance import ClientInstance
from cometmq.client.base.namespace import Namespace
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.sandbox import LOOK_INTERVAL_MS, SandboxFilter, group_in
from cometmq.client.consumer.group.awaited import AwaitedTopics
from cometmq.client.consumer.group.broker_requests import serve_broker
from cometmq.client.consumer.group.first_offset import (
    StartFrom,
    TopicStart,
    first_offset,
    parse_start,
)
from cometmq.client.consumer.group.watchdog import (
    WATCH_INTERVAL_S,
    WATCH_PATIENCE_MS,
    Watchdog,
    consume_rates,
)
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
    ConsumeType,
    MessageModel,
    MessageQueue,
    SubscriptionData,
)
from cometmq.model.names import RETRY_PREFIX, retry_topic
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.channel import Channel
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.command.command import RemotingCommand

__all__ = ["GroupConsumer", "RebalanceListener"]

log = logging.getLogger("cometmq.client")

RebalanceListener = Callable[
    [Sequence[MessageQueue], Sequence[MessageQueue]], Awaitable[None] | None
]
"""Called with (added, removed) queues after a rebalance that changed something; may be ``async``.

The offsets of removed queues are committed before the call.
"""

REBALANCE_RETRY_S: Final = 1.0


@dataclass(slots=True)
class Running:
    """The parts of a consumer that exist from its start to its end."""

    instance: ClientInstance
    calls: BrokerCalls
    offsets: OffsetStore
    awaited: AwaitedTopics
    watchdog: Watchdog
    rebalance_event: asyncio.Event
    rebalance_lock: asyncio.Lock


class GroupConsumer(ABC):
    """Base of the consumers that belong to a group.

    Raises:
        ConfigError: an argument is not accepted; the text names it.
    """

    _consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    _uses_retry_topic = True
    _commits_by_itself = True
    is_orderly = False
    _start_advice = "use `async with` or await start()"
    """What the error of a use before the start tells the program to do."""

    def __init__(
        self,
        group: str,
        options: ClientOptions,
        *,
        message_model: MessageModel,
        consume_from: StartFrom,
        strategy: AllocateStrategy | str,
        rebalance_listener: RebalanceListener | None,
        offset_folder: str | None,
        settings: PullSettings,
    ) -> None:
        message_model = _message_model(message_model)
        if rebalance_listener is not None:
            check_callable("rebalance_listener", rebalance_listener)
        if message_model == MessageModel.BROADCASTING and options.instance_name is None:
            # The client id names the local offset file, so it must survive a restart.
            if options.connection is not None:
                raise ConfigError(
                    "a broadcasting consumer keeps its offsets in a file that the client id names; "
                    "give its Connection an instance_name="
                )
            options = replace(options, instance_name="DEFAULT")
        if isinstance(strategy, str):
            strategy = strategy_by_name(strategy)
        elif isinstance(strategy, type) or not hasattr(strategy, "allocate"):
            raise ConfigTypeError(
                f"strategy is {strategy!r:.100}; give a name such as AVG, or an object with `name` "
                "and `allocate`, such as AllocateAveragely()"
            )
        self.group = group_in(group, options.sandbox)
        self._main_group = group
        self._options = options
        self._model = message_model
        self._consume_from, self._consume_timestamp_ms = parse_start(consume_from)
        self._strategy: AllocateStrategy = strategy
        self._listener = rebalance_listener
        self._offset_folder = offset_folder
        self._settings = replace(settings, group=self.group)
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._assignments: dict[MessageQueue, Assignment] = {}
        self._topic_starts: dict[str, TopicStart] = {}
        self._running: Running | None = None
        self._started_ms = 0
        self._is_closed = False
        self._is_stopping = False
        self._sandbox_filter: SandboxFilter | None = None
        self._differences: dict[str, str] = {}
        """What members of the group want differently, by the broker that says so."""
        self._is_by_hand = False
        """Whether the program assigned the queues, so that no rebalance does."""
        fork.register(self)

    @abstractmethod
    async def shutdown(self) -> None:
        """Stop pulling, commit, leave the group and disconnect."""

    # -- hooks ------------------------------------------------------------------------------

    @abstractmethod
    def _added(self, assignment: Assignment) -> None:
        """Prepare a queue that was added; its loop starts after this."""

    @abstractmethod
    def _removed(self, assignment: Assignment) -> None:
        """Drop a queue that was removed; none of its messages may be delivered any more."""

    @abstractmethod
    def hold(self, loop: PullLoop) -> str | None:
        """See `PullSink`."""

    @abstractmethod
    def room(self, loop: PullLoop) -> tuple[int, int]:
        """See `PullSink`."""

    @abstractmethod
    def accept(self, loop: PullLoop, messages: list[ReceivedMessage], next_offset: int) -> None:
        """See `PullSink`."""

    def _subscription_of(self, topic: str) -> SubscriptionData:
        """The subscription that a topic's loops pull with."""
        return self._subscriptions[topic]

    def _commit_offset(self, assignment: Assignment) -> ConsumerOffset:
        """The offset that may be committed now."""
        return assignment.process_queue.commit_offset

    def is_paused(self, queue: MessageQueue) -> bool:
        """Whether the program has paused this queue."""
        return False

    async def run_directly(self, message: ReceivedMessage) -> Any:
        """Handle a message that a broker sends with code 309.

        Raises:
            CometError: this consumer has no handler.
        """
        raise CometError("this kind of consumer has no handler")

    # -- life -------------------------------------------------------------------------------

    @property
    def client_id(self) -> str | None:
        """This consumer's id at the brokers, once started."""
        return self._instance.client_id if self._instance is not None else None

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._options.name_servers.change(name_server)

    @property
    def _instance(self) -> ClientInstance | None:
        return self._running.instance if self._running is not None else None

    @property
    def subscriptions(self) -> dict[str, SubscriptionData]:
        """Subscriptions by topic, the group's retry topic included."""
        return self._subscriptions

    @property
    def subscription_difference(self) -> str | None:
        """What members of this group want differently; None while all want the same.

        A broker of CometMQ says so, and gives each message to a member that wants it.
        """
        return next(iter(self._differences.values()), None)

    def note_difference(self, address: str, difference: str | None) -> None:
        """Take what a broker says about members of the group that want other messages."""
        before = self.subscription_difference
        if difference:
            self._differences[address] = difference
        else:
            self._differences.pop(address, None)
        present = self.subscription_difference
        if present == before:
            return
        if present is None:
            log.info("the members of group %s want the same messages again", self.group)
        else:
            log.warning("the members of group %s want different messages: %s", self.group, present)

    @property
    def assignments(self) -> dict[MessageQueue, Assignment]:
        """The assigned queues."""
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

    def _ready(self) -> Running:
        if self._running is None:
            self._check_open()
            raise ClientClosed(
                f"the consumer of group {self.group} is not started in this process; "
                f"{self._start_advice}"
            )
        return self._running

    def _start_running(self) -> Running:
        self._started_ms = self._options.env.clock.now_ms()
        self._topic_starts.clear()
        instance = ClientInstance(self._options, self, None, f"consumer of group {self.group}")
        calls = BrokerCalls(instance.io, self._options.request_timeout_ms)
        self._running = Running(
            instance,
            calls,
            self._offset_store(instance, calls),
            AwaitedTopics(instance, self.group, self.topics),
            Watchdog(self.group, self._assignments, self._broker_end, self.is_paused, self.now_ms),
            asyncio.Event(),
            asyncio.Lock(),
        )
        instance.start()
        sandbox = self._options.sandbox
        if sandbox is not None:
            chosen = SandboxFilter(
                sandbox, self._main_group, calls, instance.routes, instance.spawn
            )
            self._sandbox_filter = chosen
            instance.spawn(instance.every(LOOK_INTERVAL_MS, chosen.refresh), "sandboxes")
        return self._running

    def _offset_store(self, instance: ClientInstance, calls: BrokerCalls) -> OffsetStore:
        if self._model == MessageModel.BROADCASTING:
            return LocalOffsets(
                instance.client_id,
                self.group,
                self._offset_folder,
                namespace=self._options.namespace,
            )
        return BrokerOffsets(self.group, calls, instance.routes)

    async def _join(self) -> None:
        """Learn routes, send every broker a heartbeat, and take this member's share."""
        running = self._ready()
        instance = running.instance
        if self._model == MessageModel.CLUSTERING and self._uses_retry_topic:
            self._subscribe(retry_topic(self.group), "*")
        for topic in list(self._subscriptions):
            if not topic.startswith(RETRY_PREFIX):  # the heartbeat makes the broker create it
                await self._begin_topic(topic)
        await self._check_expressions(running)
        await instance.introduce()
        await self._take_first_share()
        instance.spawn(self._rebalance_forever(), "rebalance")
        instance.spawn(
            instance.every(self._options.persist_interval_ms, self.commit_changed), "persist"
        )
        instance.spawn(instance.every(int(WATCH_INTERVAL_S * 1000), self.watch), "watchdog")

    async def _begin_topic(self, topic: str) -> None:
        """Learn a topic's route, and note which queues it has now."""
        running = self._ready()
        start = TopicStart(self.now_ms(), None)
        is_answered = await running.awaited.learn(topic)
        if topic not in self._topic_starts:
            self._topic_starts[topic] = start
            if is_answered:
                start.queues = self._route_queues(topic)

    def _route_queues(self, topic: str) -> frozenset[MessageQueue]:
        route = self._ready().instance.routes.cached(topic)
        return frozenset() if route is None else frozenset(subscribe_queues(topic, route))

    async def _take_first_share(self) -> None:
        """Rebalance for the first time since topics were added."""
        await self._rebalance_round()
        for start in self._topic_starts.values():
            start.is_joining = False

    async def _add_topic(self, topic: str) -> None:
        """Add a topic, or change the expression of one, while running."""
        running = self._ready()
        await self._begin_topic(topic)
        await self._check_expressions(running)
        for queue in [queue for queue in self._assignments if queue.topic == topic]:
            # A loop keeps the expression it was made with.
            await self._give_up(queue)
        await running.instance.heartbeat()
        await self._take_first_share()

    async def _check_expressions(self, running: Running) -> None:
        """Have brokers compile SQL92 expressions before anything depends on them."""
        routes = running.instance.routes
        for subscription in self._subscriptions.values():
            if subscription.expression_type == TAG:
                continue
            route = routes.cached(subscription.topic)
            for broker in route.broker_datas if route is not None else ():
                address = routes.any_address(broker.broker_name)
                if address is not None:
                    await running.calls.check_subscription(
                        address, running.instance.client_id, self.group, subscription
                    )

    def after_fork(self) -> None:
        """In a child process: leave the member to the parent; `start` makes a new one here."""
        running = self._running
        if running is None:
            return
        if not self._is_closed:
            log.warning(
                "the consumer of group %s belongs to the parent process; call start() to consume "
                "in this one too",
                self.group,
            )
        running.instance.abandon()
        fork.keep_forever((self._assignments, running))
        self._running = None
        self._assignments = {}

    # -- rebalance --------------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance in the background as soon as possible."""
        if self._running is not None:
            self._running.rebalance_event.set()

    async def _rebalance_forever(self) -> None:
        event = self._ready().rebalance_event
        pause_s = self._options.rebalance_interval_ms / 1000
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await event.wait()
            except TimeoutError:
                pass
            event.clear()
            pause_s = self._options.rebalance_interval_ms / 1000
            outages = self._ready().instance.io.outages
            try:
                if not await self._rebalance_round():
                    pause_s = REBALANCE_RETRY_S
                outages.ended(f"rebalance of group {self.group}")
            except CometError as error:
                outages.failed(f"rebalance of group {self.group}", error)
                pause_s = REBALANCE_RETRY_S
            except Exception:
                # A strategy or listener of the program may raise anything; the loop continues.
                log.exception("rebalance of group %s failed", self.group)

    async def _rebalance_round(self) -> bool:
        """Rebalance all topics once; False if some queue has to be tried again soon."""
        running = self._ready()
        async with running.rebalance_lock:
            if self._is_stopping:
                return True
            is_complete = True
            added: list[MessageQueue] = []
            removed: list[MessageQueue] = []
            for topic in list(self._subscriptions):
                share = await self._share_of(topic)
                if share is None:
                    # An awaited topic causes a rebalance when it appears.
                    is_complete = is_complete and topic in running.awaited
                    continue
                present = {queue for queue in self._assignments if queue.topic == topic}
                for queue in sorted(present - share):
                    await self._give_up(queue)
                    removed.append(queue)
                granted = await self._acquire(sorted(share - present))
                is_complete = is_complete and len(granted) == len(share - present)
                for queue in granted:
                    if await self._start_queue(queue):
                        added.append(queue)
                    else:
                        is_complete = False
            for queue in [q for q in self._assignments if q.topic not in self._subscriptions]:
                if not self._is_by_hand:
                    await self._give_up(queue)
                    removed.append(queue)
            for topic in self._topic_starts.keys() - self._subscriptions.keys():
                del self._topic_starts[topic]
            if added and self._model == MessageModel.BROADCASTING:
                await self.commit_changed()  # one file has the starts of all queues
        if added or removed:
            log.info(
                "group %s, client %s: added %s, removed %s, has %d queues",
                self.group,
                self.client_id,
                _names(added),
                _names(removed),
                len(self._assignments),
            )
            await self._call_listener(added, removed)
        return is_complete

    async def _share_of(self, topic: str) -> set[MessageQueue] | None:
        """This member's queues of a topic; None if they cannot be determined now."""
        running = self._ready()
        instance = running.instance
        route = instance.routes.cached(topic)
        if route is None and topic not in running.awaited:
            await running.awaited.learn(topic)
            route = instance.routes.cached(topic)
        if route is None:
            return None
        queues = subscribe_queues(topic, route)
        began = self._topic_starts.get(topic)
        if began is not None and began.queues is None:
            began.queues = frozenset(queues)  # the first answer of a name server
        if self._model == MessageModel.BROADCASTING or not queues:
            return set(queues)
        names = [broker.broker_name for broker in route.broker_datas]
        start = self._options.env.chance.randrange(len(names)) if names else 0
        for name in names[start:] + names[:start]:
            address = instance.routes.any_address(name)
            if address is None:
                continue
            listing = f"list of the members of {self.group} at {address}"
            try:
                members = await running.calls.consumer_ids(address, self.group)
            except CometError as error:
                instance.io.outages.failed(listing, error, level=logging.INFO)
                continue
            instance.io.outages.ended(listing)
            if instance.client_id in members:
                return set(self._strategy.allocate(self.group, instance.client_id, queues, members))
            # This broker lacks our heartbeat; without it no member counts us.
            await instance.heartbeat_to(address)
        return None

    async def _acquire(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Those of these queues of our share that may be started now."""
        return queues

    async def _start_queue(self, queue: MessageQueue) -> bool:
        """Start to pull a queue at its stored or first offset; False to try again soon."""
        outages = self._ready().instance.io.outages
        try:
            queue_offset = await self._start_offset(queue)
        except CometError as error:
            outages.failed(f"reading the offset of {queue}", error)
            return False
        outages.ended(f"reading the offset of {queue}")
        # A handler may have unsubscribed in the meantime.
        if not self._is_stopping and queue.topic in self._subscriptions:
            self._begin(queue, queue_offset)
        return True

    def _begin(self, queue: MessageQueue, queue_offset: int) -> Assignment:
        now_ms = self._options.env.clock.now_ms()
        loop = PullLoop(
            self._ready().instance,
            queue,
            ProcessQueue(queue_offset, now_ms),
            self._subscription_of(queue.topic),
            self._settings,
            self,
            None if queue.topic.startswith(RETRY_PREFIX) else self._sandbox_filter,
        )
        assignment = Assignment(loop, QueueWatch(queue, WATCH_PATIENCE_MS, now_ms))
        self._assignments[queue] = assignment
        self._added(assignment)
        loop.pull()
        return assignment

    async def _start_offset(self, queue: MessageQueue) -> int:
        """The stored offset; without one, the offset at which the group begins."""
        running = self._ready()
        stored = await running.offsets.read(queue)
        if stored is not None and stored >= 0:
            return stored
        queue_offset = await first_offset(
            running.calls,
            self._address(queue),
            queue,
            self._consume_from,
            self._consume_timestamp_ms,
            self.now_ms(),
            self._topic_starts.get(queue.topic),
        )
        if self._model == MessageModel.CLUSTERING and self._commits_by_itself:
            # Otherwise a member that ends before its first commit would let the group begin again,
            # at a later end of the queue.
            await running.offsets.write({queue: ConsumerOffset(queue_offset)}, wait=False)
        return queue_offset

    def _address(self, queue: MessageQueue) -> str:
        address = self._ready().instance.routes.any_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no address is known for the broker {queue.broker_name} of {queue}")
        return address

    async def _give_up(self, queue: MessageQueue) -> None:
        """Stop a queue, commit its finished messages and drop the others."""
        assignment = self._assignments.pop(queue)
        assignment.loop.stop()
        changed = self._changed_offsets([assignment], wait=False)
        # Before the commit, which may have to connect: until then handlers would begin.
        assignment.process_queue.dropped = True
        self._removed(assignment)
        if changed:
            await self._ready().offsets.write(changed, wait=False)

    async def _call_listener(
        self, added: Sequence[MessageQueue], removed: Sequence[MessageQueue]
    ) -> None:
        if self._listener is None:
            return
        try:
            answer = self._listener(added, removed)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            log.exception("the rebalance listener of group %s failed", self.group)

    def apply_offset_reset(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Continue at the offsets that a broker orders, by code 220 or in its answer to a pull."""
        for queue, queue_offset in offsets.items():
            assignment = self._assignments.get(queue)
            if queue.topic != topic or assignment is None:
                continue
            log.info("the offset of %s is reset to %d by the broker", queue, queue_offset)
            self._replace(assignment, queue_offset, commit=True)

    def _replace(
        self, assignment: Assignment, queue_offset: int, *, commit: bool = False
    ) -> Assignment:
        """Drop a queue's messages and begin anew at another offset."""
        assignment.loop.stop()
        assignment.process_queue.dropped = True
        self._removed(assignment)
        successor = self._begin(assignment.queue, queue_offset)
        successor.committed = -1
        if commit:
            self.spawn(self._commit([successor], wait=False), "commit")
        return successor

    def offset_moved(self, loop: PullLoop, queue_offset: int, *, is_ordered: bool) -> None:
        """See `PullSink`; messages of this consumer stay valid only if the offset moves forward."""
        if is_ordered:
            self.apply_offset_reset(loop.queue.topic, {loop.queue: queue_offset})
        elif queue_offset < loop.process_queue.pull_offset and loop.queue in self._assignments:
            self._replace(self._assignments[loop.queue], queue_offset)
        else:
            loop.process_queue.skip_to(queue_offset, self._options.env.clock.now_ms())

    # -- offsets ----------------------------------------------------------------------------

    def commit_hint(self, loop: PullLoop) -> int:
        """See `PullSink`; a broker stores the offset, and only a positive one."""
        assignment = self._assignments.get(loop.queue)
        if assignment is None or self._model == MessageModel.BROADCASTING:
            return -1
        consumer_offset = self._commit_offset(assignment)
        return consumer_offset if consumer_offset > 0 else -1

    async def commit_changed(self) -> None:
        """Commit every offset that moved, without waiting for answers."""
        await self._commit(list(self._assignments.values()), wait=False)

    async def _commit(self, assignments: Iterable[Assignment], *, wait: bool) -> None:
        changed = self._changed_offsets(assignments, wait=wait)
        if changed:
            await self._ready().offsets.write(changed, wait=wait)

    def _changed_offsets(
        self, assignments: Iterable[Assignment], *, wait: bool
    ) -> dict[MessageQueue, ConsumerOffset]:
        """The offsets to commit; ``wait`` includes those that have not moved."""
        changed: dict[MessageQueue, ConsumerOffset] = {}
        for assignment in assignments:
            if assignment.process_queue.dropped:
                continue
            consumer_offset = self._commit_offset(assignment)
            if wait or consumer_offset != assignment.committed:
                changed[assignment.queue] = consumer_offset
                assignment.committed = consumer_offset
        return changed

    # -- watchdog ---------------------------------------------------------------------------

    async def watch(self) -> None:
        """Compare each queue with its end at the broker, and restart the loops without progress."""
        await self._ready().watchdog.check_all()

    async def _broker_end(self, queue: MessageQueue) -> int:
        return await self._ready().calls.max_offset(self._address(queue), queue)

    # -- for the instance and brokers -------------------------------------------------------------

    def consumer_data(self) -> ConsumerData | None:
        """This consumer's part of the heartbeat."""
        namespace = self._options.namespace
        return ConsumerData(
            namespace.wrap(self.group),
            self._consume_type,
            self._model,
            self._consume_from,
            tuple(
                namespace.wrap_subscription(self._subscriptions[topic])
                for topic in sorted(self._subscriptions)
            ),
        )

    def topics(self) -> set[str]:
        """Subscribed topics and the topics of assigned queues."""
        return set(self._subscriptions) | {queue.topic for queue in self._assignments}

    def routes_changed(self, topic: str) -> None:
        """Rebalance, because a route has changed."""
        self.rebalance_soon()

    def takes(self, command: RemotingCommand) -> bool:
        """Whether a broker's request names this consumer's group."""
        fields = command.ext_fields
        return self.group in (fields.get("consumerGroup"), fields.get("group"))

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Answer a broker's request (40, 220, 221, 307 or 309)."""
        return serve_broker(self, channel, command)

    def thread_count(self) -> int:
        """How many handlers may run at a time; 0 for a consumer without handlers."""
        return 0

    def name_servers(self) -> tuple[str, ...]:
        """Addresses of the name servers."""
        return self._options.name_servers.addresses

    @property
    def namespace(self) -> Namespace:
        """Translates the names in bodies of brokers' requests."""
        return self._options.namespace

    def now_ms(self) -> int:
        """Wall-clock time of this client."""
        return self._options.env.clock.now_ms()

    def locked_ms(self, queue: MessageQueue) -> int:
        """When the queue's lock was last granted, ms since 1970; 0 without a lock."""
        return 0

    def status_table(self) -> dict[str, dict[str, Any]]:
        """Rates per topic since the watchdog's last check; see `consume_rates`."""
        return consume_rates(self._assignments, self.now_ms(), self._started_ms)

    def spawn(self, work: Any, name: str) -> None:
        """Run background work of this consumer."""
        self._ready().instance.spawn(work, name)


def _message_model(value: object) -> MessageModel:
    if isinstance(value, int) and not isinstance(value, bool) and value in set(MessageModel):
        return MessageModel(value)
    error = ConfigError if isinstance(value, int) else ConfigTypeError
    raise error(
        f"message_model is {value!r:.100} ({type(value).__name__}); give "
        "MessageModel.CLUSTERING or MessageModel.BROADCASTING"
    )


def _names(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(str(queue) for queue in queues) or "none"
