"""Sends that keep an order: by message group, also while their group moves, or to a fixed queue.

Each such send gets its queue when it goes out.  Sends of one group may be pipelined.  When the old
queue's broker says that a group has moved, it also refuses the later sends that are in flight.  So
a bucket of groups continues only when none of its sends is in flight and the homes were fetched
anew, and then in the order of the calls.  A lingering batch holds messages of many groups.  A
refused batch is split into single sends, and single sends of a moving topic wait until no batch is
in flight.

A send whose broker is away waits here for its next try.  The later sends of its bucket (or queue)
that failed too wait with it, and new ones behind them.  When none is in flight, all go out in the
order of the calls.  A send that a later one has overtaken in the broker's log fails instead.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

from cometmq.client.base.instance import ClientInstance
from cometmq.client.extensions.growing import GroupView, RouteQueues, fetch_growth
from cometmq.client.message.send_codec import Prepared
from cometmq.client.producer.core import (
    CONNECT_MS_MAX,
    ProducerCore,
    TopicQueues,
    final_error,
)
from cometmq.client.producer.linger import LingerBatch
from cometmq.client.producer.sending import InFlight, Sending, within
from cometmq.codec.properties import decode_properties
from cometmq.core.extensions.growing import bucket_of, group_hash
from cometmq.errors import (
    ClientClosed,
    ClientError,
    GroupMoved,
    NoBroker,
    RequestTimeout,
    ResponseCode,
)
from cometmq.model import MessageQueue
from cometmq.model.properties import SHARDING_KEY
from cometmq.net.channel import Channel

__all__ = ["GroupSends"]

LEARN_PAUSE_S: Final = 0.1
"""The pause between two fetches of homes, which change as consumers commit."""


class Path(Protocol):
    """The producer's sender as group sends use it."""

    core: ProducerCore
    in_flight: InFlight

    async def topic(self, name: str) -> TopicQueues:
        """The queues of a topic."""
        ...

    async def channel(self, topic: TopicQueues, queue: MessageQueue, timeout_ms: int) -> Channel:
        """The connection to the broker of a queue."""
        ...

    def step_failed(self, sending: Sending, error: ClientError) -> None:
        """A try has reached no broker."""
        ...

    def write(self, sending: Sending, channel: Channel) -> None:
        """Send over this channel."""
        ...


class _Flight:
    """The sends of one bucket that are in flight or wait for their turn."""

    __slots__ = (
        "is_connecting",
        "is_refused",
        "on_their_way",
        "queue",
        "resume_s",
        "stored_turn",
        "timer",
        "waiting",
        "wake_s",
    )

    def __init__(self, queue: MessageQueue | None) -> None:
        self.queue = queue
        """The queue of sends to a fixed queue; None for those of a bucket."""
        self.is_connecting = False
        self.on_their_way = 0
        self.is_refused = False
        self.waiting: deque[Sending] = deque()
        self.stored_turn = -1
        """The latest turn that a broker has stored."""
        self.timer: asyncio.TimerHandle | None = None
        """Set while the waiting sends pause after a failure."""
        self.resume_s = 0.0
        """When they go on."""
        self.wake_s = 0.0
        """When the timer looks at them: the first of their deadlines comes before, perhaps."""


class _Topic:
    """The group sends of one topic."""

    __slots__ = ("batches", "flights", "learned_s", "learning", "lingered", "name", "view")

    def __init__(self, name: str) -> None:
        self.name = name
        self.view: GroupView | None = None
        self.flights: dict[int | MessageQueue, _Flight] = {}
        """The flights by bucket, and those to fixed queues."""
        self.batches = 0
        self.lingered: GroupView | None = None
        """The view by which the open batches chose their queues."""
        self.learning: asyncio.Future[GroupView] | None = None
        self.learned_s = float("-inf")


class OrderedSend:
    """The part of a `Sending` that only sends by message group, or to a fixed queue, have."""

    __slots__ = (
        "_owner",
        "flight",
        "group_home",
        "is_counted",
        "key",
        "number",
        "topic",
        "turn",
    )

    def __init__(
        self,
        owner: "GroupSends",
        topic: _Topic,
        flight: _Flight,
        key: int | MessageQueue,
        number: int,
        turn: int,
    ) -> None:
        self._owner = owner
        self.topic = topic
        self.flight = flight
        self.key = key
        self.number = number
        """The hash of the message group; 0 for a fixed queue."""
        self.turn = turn
        self.group_home: str | None = None
        self.is_counted = False

    def refused(self, sending: Sending) -> None:
        """Handle the answer that the group has moved."""
        self._owner.refused(sending, self)

    def put_off(self, sending: Sending, pause_s: float) -> None:
        """Try again after a pause, in the order of the calls."""
        self._owner.put_off(sending, self, pause_s)

    def ended(self, *, is_stored: bool) -> None:
        """The send is settled."""
        self._owner.ended(self, is_stored=is_stored)


class BatchSend:
    """The part of a `Sending` that only a lingering batch of groups has."""

    __slots__ = ("_owner", "batch", "group_home", "topic", "turn")

    def __init__(
        self,
        owner: "GroupSends",
        topic: _Topic,
        batch: LingerBatch,
        group_home: str | None,
        turn: int,
    ) -> None:
        self._owner = owner
        self.topic = topic
        self.batch = batch
        self.group_home = group_home
        self.turn = turn

    def refused(self, sending: Sending) -> None:
        """Handle the answer that groups have moved."""
        self._owner.batch_refused(sending, self)

    def put_off(self, sending: Sending, pause_s: float) -> None:
        """Try again message by message, each in the order of its bucket."""
        self._owner.split(sending, self)

    def ended(self, *, is_stored: bool) -> None:
        """The batch is settled."""
        self._owner.batch_ended(self.topic)


class GroupSends:
    """The sends by message group of one started producer, on its event loop."""

    def __init__(
        self, path: Path, instance: ClientInstance, flush_linger: Callable[[], None]
    ) -> None:
        self._path = path
        self._instance = instance
        self._topics: dict[str, _Topic] = {}
        self._turns = count()
        self._flush_linger = flush_linger
        """Sends the open batches of the producer."""

    # -- sends ------------------------------------------------------------------------------

    def begin(self, sending: Sending, group: str) -> None:
        """Send to the home of a message group, now or in its turn."""
        self._enter(sending, group, next(self._turns))

    def begin_fixed(self, sending: Sending, queue: MessageQueue) -> None:
        """Send to a fixed queue, now or in its turn."""
        topic = self._topic(sending.prepared.topic)
        flight = topic.flights.get(queue)
        if flight is None:
            flight = topic.flights[queue] = _Flight(queue)
        sending.group = OrderedSend(self, topic, flight, queue, 0, next(self._turns))
        self._wait(topic, flight, sending)

    def _enter(self, sending: Sending, group: str, turn: int) -> None:
        topic = self._topic(sending.prepared.topic)
        number = group_hash(group)
        bucket = bucket_of(number)
        flight = topic.flights.get(bucket)
        if flight is None:
            flight = topic.flights[bucket] = _Flight(None)
        sending.group = OrderedSend(self, topic, flight, bucket, number, turn)
        self._wait(topic, flight, sending)

    def _wait(self, topic: _Topic, flight: _Flight, sending: Sending) -> None:
        flight.waiting.append(sending)
        if flight.timer is not None and sending.deadline < flight.wake_s:
            flight.timer.cancel()
            flight.timer = None
            self._pause(topic, flight)
        self._go(topic, flight)

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name)
        return topic

    def _fresh_view(self, topic: _Topic) -> GroupView | None:
        view = topic.view
        if view is None or topic.learning is not None:
            return None
        return view if view.source is self._path.core.topics.get(topic.name) else None

    def _go(self, topic: _Topic, flight: _Flight, *, is_learned: bool = False) -> None:
        """Send the waiting messages in the order of the calls, if they may be sent now."""
        if flight.timer is not None:
            return
        home: MessageQueue | GroupView | None = flight.queue
        if home is None:
            home = topic.view if is_learned else self._fresh_view(topic)
            if home is None:
                self._learning(topic)
                return
        if flight.is_refused:
            if flight.on_their_way:
                return
            flight.is_refused = False
            flight.waiting = deque(sorted(flight.waiting, key=_turn))
            self._drop_overtaken(flight)
        self._expire(flight)
        if flight.is_connecting:
            return
        if isinstance(home, GroupView) and topic.batches and not home.is_settled:
            return
        while flight.waiting:
            if not self._send_next(topic, flight, home):
                return

    def _send_next(self, topic: _Topic, flight: _Flight, home: MessageQueue | GroupView) -> bool:
        """Send the first waiting message; False if it has to wait longer.

        `home` is the fixed queue of the flight, or the view that has the homes of its groups.
        """
        sending = flight.waiting[0]
        own = sending.group
        source: RouteQueues | None
        if isinstance(home, GroupView):
            if home.must_wait(own.number):
                topic.view = None
                self._learning(topic)
                return False
            queue, source = home.queue(own.number), home.source
        else:
            queue, source = home, self._path.core.topics.get(topic.name)
        address = None if source is None else source.addresses.get(queue.broker_name)
        if address is None:
            address = self._instance.routes.address(queue.broker_name)
        sending.queue = sending.fixed = queue
        channel = None if address is None else self._instance.pool.open_channel(address)
        if channel is None or channel.is_paused:
            flight.is_connecting = True
            self._instance.spawn(self._connect(topic, flight, sending, queue), "connect")
            return False
        flight.waiting.popleft()
        if isinstance(home, GroupView):
            own.group_home = home.group_home(own.number)
        own.is_counted = True
        flight.on_their_way += 1
        self._path.write(sending, channel)
        return True

    async def _connect(
        self, topic: _Topic, flight: _Flight, sending: Sending, queue: MessageQueue
    ) -> None:
        """Make the connection that the first waiting message needs."""
        core = self._path.core
        left_ms = max(1, int((sending.deadline - core.monotonic()) * 1000))
        try:
            async with within(left_ms):
                queues = await self._path.topic(topic.name)
                channel = await self._path.channel(queues, queue, min(left_ms, CONNECT_MS_MAX))
                if channel.is_paused:
                    await channel.drain()
        except asyncio.CancelledError:
            self._fail_waiting(flight, self._closed())
            raise
        except Exception as error:
            flight.is_connecting = False
            if isinstance(error, NoBroker):
                topic.view = None
            if flight.waiting and flight.waiting[0] is sending:
                flight.waiting.popleft()
                self._put_off_failed(sending, error)
        finally:
            flight.is_connecting = False
        self._go_on(topic, flight)

    def _put_off_failed(self, sending: Sending, error: Exception) -> None:
        """Fail a try that reached no broker."""
        if isinstance(error, ClientError):
            self._path.step_failed(sending, error)
        else:
            sending.fail(error)

    def _closed(self) -> Exception:
        return ClientClosed(f"the producer {self._path.core.group} was closed")

    def _fail_waiting(self, flight: _Flight, error: Exception) -> None:
        while flight.waiting:
            flight.waiting.popleft().fail(error)

    def _go_on(self, topic: _Topic, flight: _Flight) -> None:
        if flight.waiting:
            self._go(topic, flight)

    def _expire(self, flight: _Flight) -> None:
        """Fail the messages that have waited too long."""
        now = self._path.core.monotonic()
        late = [sending for sending in flight.waiting if sending.deadline <= now]
        for sending in late:
            flight.waiting.remove(sending)
            sending.fail(_too_late(sending, flight))

    def _drop_overtaken(self, flight: _Flight) -> None:
        """Fail the messages that would be stored behind a later one."""
        for sending in [s for s in flight.waiting if _turn(s) < flight.stored_turn]:
            faults = sending.faults
            if faults and not isinstance(faults[-1], GroupMoved):
                flight.waiting.remove(sending)
                sending.fail(final_error(sending.prepared.topic, faults))

    # -- failures ---------------------------------------------------------------------------

    def put_off(self, sending: Sending, own: OrderedSend, pause_s: float) -> None:
        """Let a send wait for its next try, until no send of its flight is on its way."""
        flight = own.flight
        if own.is_counted:
            own.is_counted = False
            flight.on_their_way -= 1
        flight.is_refused = True
        flight.waiting.append(sending)
        flight.resume_s = max(flight.resume_s, self._path.core.monotonic() + pause_s)
        if flight.timer is not None:
            flight.timer.cancel()
        self._pause(own.topic, flight)

    def _pause(self, topic: _Topic, flight: _Flight) -> None:
        """Look at the waiting sends when their pause, or the time of one of them, is over."""
        now = self._path.core.monotonic()
        flight.wake_s = min(flight.resume_s, *(sending.deadline for sending in flight.waiting))
        flight.timer = asyncio.get_running_loop().call_later(
            max(0.0, flight.wake_s - now), self._resume, topic, flight
        )

    def _resume(self, topic: _Topic, flight: _Flight) -> None:
        flight.timer = None
        self._expire(flight)
        if flight.waiting and self._path.core.monotonic() < flight.resume_s:
            self._pause(topic, flight)
            return
        self._go_on(topic, flight)

    # -- answers ----------------------------------------------------------------------------

    def refused(self, sending: Sending, own: OrderedSend) -> None:
        """Hold a bucket whose group has moved or waits, until none of its sends is in flight."""
        own.flight.on_their_way -= 1
        own.is_counted = False
        own.flight.is_refused = True
        own.flight.waiting.append(sending)
        own.topic.view = None
        self._learning(own.topic)

    def ended(self, own: OrderedSend, *, is_stored: bool) -> None:
        """Count a settled send, and let its flight continue."""
        flight = own.flight
        if is_stored:
            flight.stored_turn = max(flight.stored_turn, own.turn)
        if own.is_counted:
            own.is_counted = False
            flight.on_their_way -= 1
        if flight.waiting:
            if flight.is_refused and not flight.on_their_way:
                self._go(own.topic, flight)
        elif not flight.on_their_way:
            own.topic.flights.pop(own.key, None)

    # -- lingering batches ------------------------------------------------------------------

    def linger_view(self, name: str, group: str) -> GroupView | None:
        """The view for a lingering message of a group; None if it must be sent alone for now."""
        topic = self._topic(name)
        view = self._fresh_view(topic)
        if view is None or not view.is_settled:
            return None
        if topic.lingered is not view:
            if topic.lingered is not None:
                self._flush_linger()  # all messages of a batch use one view
            topic.lingered = view
        flight = topic.flights.get(bucket_of(group_hash(group)))
        return None if flight is not None and flight.waiting else view

    def begin_batch(self, sending: Sending, batch: LingerBatch) -> None:
        """Register a lingering batch of groups that is about to be sent."""
        topic = self._topic(sending.prepared.topic)
        view = topic.lingered
        assert view is not None, "only `linger_view` lets groups linger"
        group_home = view.group_home(None)
        sending.group = BatchSend(self, topic, batch, group_home, next(self._turns))
        topic.batches += 1

    def batch_refused(self, sending: Sending, own: BatchSend) -> None:
        """Split a batch, so that each message goes to the home of its group."""
        own.topic.view = None
        self.split(sending, own)

    def split(self, sending: Sending, own: BatchSend) -> None:
        """Send the messages of a batch one by one."""
        batch = own.batch
        for single, group in _singles(sending, batch):
            self._path.in_flight.begin(len(single.prepared.body))
            self._enter(single, group, own.turn)
        batch.futures = []
        sending.finish([])

    def batch_ended(self, topic: _Topic) -> None:
        """A batch is settled."""
        topic.batches -= 1
        if not topic.batches:
            for flight in list(topic.flights.values()):
                self._go_on(topic, flight)

    # -- learning ---------------------------------------------------------------------------

    def _learning(self, topic: _Topic) -> None:
        """Fetch the homes in the background, unless a fetch is under way."""
        if topic.learning is None:
            topic.learning = self._fetched(topic)

    def _fetched(self, topic: _Topic) -> "asyncio.Future[GroupView]":
        learning: asyncio.Future[GroupView] = asyncio.get_running_loop().create_future()
        self._instance.spawn(self._learn(topic, learning), "homes")
        return learning

    async def learn(self, name: str) -> GroupView:
        """Fetch the homes of a topic's groups from the brokers; concurrent callers share a fetch.

        Raises:
            NoRoute: the topic has no route.
            ClientError: no name server or broker answered.
        """
        topic = self._topic(name)
        topic.learning = learning = topic.learning or self._fetched(topic)
        return await asyncio.shield(learning)

    async def _learn(self, topic: _Topic, learning: "asyncio.Future[GroupView]") -> None:
        core = self._path.core
        try:
            view = await self._ask(topic)
        except asyncio.CancelledError:
            self._learned(topic, learning, self._closed())
            raise
        except Exception as error:
            self._learned(topic, learning, error)
            return
        topic.view = core.views[topic.name] = view
        if not view.is_settled:
            self._flush_linger()
        self._learned(topic, learning, view)

    def _learned(
        self,
        topic: _Topic,
        learning: "asyncio.Future[GroupView]",
        outcome: GroupView | Exception,
    ) -> None:
        topic.learned_s = self._path.core.monotonic()
        topic.learning = None
        if isinstance(outcome, Exception):
            learning.set_exception(outcome)
            learning.exception()  # the waiting sends get the same error
        else:
            learning.set_result(outcome)
        for flight in list(topic.flights.values()):
            if flight.queue is not None:
                continue
            if isinstance(outcome, Exception):
                waiting, flight.waiting = flight.waiting, deque()
                for sending in waiting:
                    self._put_off_failed(sending, outcome)
            elif flight.waiting:
                self._go(topic, flight, is_learned=True)

    async def _ask(self, topic: _Topic) -> GroupView:
        core = self._path.core
        pause_s = topic.learned_s + LEARN_PAUSE_S - core.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        io, name = self._instance.io, topic.name
        timeout_ms = core.options.request_timeout_ms
        queues = await self._path.topic(name)
        growth = await fetch_growth(io, name, queues.addresses, timeout_ms)
        if growth is not None and not growth.brokers <= queues.addresses.keys():
            # A broker has joined since the route was fetched.
            await self._instance.refresh_route(name)
            queues = await self._path.topic(name)
            later = await fetch_growth(io, name, queues.addresses, timeout_ms)
            growth = growth.merged(later)
        return GroupView(name, queues, growth)


def _too_late(sending: Sending, flight: _Flight) -> Exception:
    topic = sending.prepared.topic
    faults = sending.faults
    if faults and not isinstance(faults[-1], GroupMoved):
        return final_error(topic, faults)
    if flight.queue is not None or flight.resume_s:
        return RequestTimeout(
            f"no time was left to send to {topic}: {sending.timeout_ms} ms have passed while "
            "earlier messages of the same queue waited for its broker"
        )
    return GroupMoved(
        ResponseCode.GROUP_MOVED,
        f"the message group waited {sending.timeout_ms} ms for the consumers of its old queue; "
        f"cometmq topic growth {topic} shows which consumer groups are behind",
    )


def _turn(sending: Sending) -> int:
    turn: int = sending.group.turn
    return turn


def _singles(sending: Sending, batch: LingerBatch) -> list[tuple[Sending, str]]:
    """The messages of a batch as single sends, with their groups."""
    singles: list[tuple[Sending, str]] = []
    for (flag, body, properties), message_id, future in zip(
        batch.items, batch.ids, batch.futures, strict=True
    ):
        text = properties.decode()
        prepared = Prepared(batch.topic, body, 0, flag, text, message_id)
        one = Sending(
            sending.path,
            prepared,
            future,
            sending.started,
            sending.timeout_ms,
            max(1, sending.tries_left),
            sending.deadline,
            faults=list(sending.faults) if sending.faults else None,
        )
        group: Any = decode_properties(text)[SHARDING_KEY]
        singles.append((one, group))
    return singles
