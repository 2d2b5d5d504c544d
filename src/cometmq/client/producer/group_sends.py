"""Sends by message group, kept in order while their group moves to another queue.

Each such send gets its queue when it goes out.  Sends of one group may be pipelined.  When the old
queue's broker says that a group has moved, it also refuses the later sends that are in flight.  So
a bucket of groups continues only when none of its sends is in flight and the homes were fetched
anew, and then in the order of the calls.  A lingering batch holds messages of many groups.  A
refused batch is split into single sends, and single sends of a moving topic wait until no batch is
in flight.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

from cometmq.client.base.instance import ClientInstance
from cometmq.client.extensions.growing import GroupView, fetch_growth
from cometmq.client.message.send_codec import Prepared
from cometmq.client.producer.core import ProducerCore, TopicQueues
from cometmq.client.producer.linger import LingerBatch
from cometmq.client.producer.sending import InFlight, Sending
from cometmq.codec.properties import decode_properties
from cometmq.core.extensions.growing import bucket_of, group_hash
from cometmq.errors import ClientClosed, GroupMoved, NoRoute, ResponseCode
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

    def write(self, sending: Sending, channel: Channel) -> None:
        """Send over this channel."""
        ...


class _Flight:
    """The sends of one bucket that are in flight or wait for their turn."""

    __slots__ = ("is_connecting", "is_refused", "on_their_way", "waiting")

    def __init__(self) -> None:
        self.is_connecting = False
        self.on_their_way = 0
        self.is_refused = False
        self.waiting: deque[Sending] = deque()


class _Topic:
    """The group sends of one topic."""

    __slots__ = ("batches", "flights", "learned_s", "learning", "lingered", "name", "view")

    def __init__(self, name: str) -> None:
        self.name = name
        self.view: GroupView | None = None
        self.flights: dict[int, _Flight] = {}
        self.batches = 0
        self.lingered: GroupView | None = None
        """The view by which the open batches chose their queues."""
        self.learning: asyncio.Future[GroupView] | None = None
        self.learned_s = float("-inf")


class GroupSend:
    """The part of a `Sending` that only sends by message group have."""

    __slots__ = (
        "_owner",
        "bucket",
        "flight",
        "group_home",
        "is_counted",
        "number",
        "topic",
        "turn",
    )

    def __init__(
        self, owner: "GroupSends", topic: _Topic, flight: _Flight, number: int, turn: int
    ) -> None:
        self._owner = owner
        self.topic = topic
        self.flight = flight
        self.number = number
        self.bucket = bucket_of(number)
        self.turn = turn
        self.group_home = ""
        self.is_counted = False

    def refused(self, sending: Sending) -> None:
        """Handle the answer that the group has moved."""
        self._owner.refused(sending, self)

    def ended(self) -> None:
        """The send is settled."""
        self._owner.ended(self)


class BatchSend:
    """The part of a `Sending` that only a lingering batch of groups has."""

    __slots__ = ("_owner", "group_home", "topic", "turn")

    def __init__(self, owner: "GroupSends", topic: _Topic, group_home: str, turn: int) -> None:
        self._owner = owner
        self.topic = topic
        self.group_home = group_home
        self.turn = turn

    def refused(self, sending: Sending) -> None:
        """Handle the answer that groups have moved."""
        self._owner.batch_refused(sending, self)

    def ended(self) -> None:
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

    def _enter(self, sending: Sending, group: str, turn: int) -> None:
        topic = self._topic(sending.prepared.topic)
        number = group_hash(group)
        bucket = bucket_of(number)
        flight = topic.flights.get(bucket)
        if flight is None:
            flight = topic.flights[bucket] = _Flight()
        sending.group = GroupSend(self, topic, flight, number, turn)
        flight.waiting.append(sending)
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
        """Send the waiting messages in the order of the calls, if the bucket may send now."""
        view = topic.view if is_learned else self._fresh_view(topic)
        if view is None:
            self._learning(topic)
            return
        if flight.is_refused:
            if flight.on_their_way:
                return
            flight.is_refused = False
            flight.waiting = deque(sorted(flight.waiting, key=_turn))
        self._expire(flight)
        if flight.is_connecting or (topic.batches and not view.is_settled):
            return
        while flight.waiting:
            if not self._send_next(topic, flight, view):
                return

    def _send_next(self, topic: _Topic, flight: _Flight, view: GroupView) -> bool:
        """Send the first waiting message; False if it has to wait longer."""
        sending = flight.waiting[0]
        own = sending.group
        if view.must_wait(own.number):
            topic.view = None
            self._learning(topic)
            return False
        queue = view.queue(own.number)
        address = view.source.addresses.get(queue.broker_name)
        if address is None:
            address = self._instance.routes.address(queue.broker_name)
        if address is None:
            flight.waiting.popleft()
            topic.view = None
            sending.fail(
                NoRoute(f"no master is known for the broker {queue.broker_name} of {queue}")
            )
            return True
        sending.queue = sending.fixed = queue
        channel = self._instance.pool.open_channel(address)
        if channel is None or channel.is_paused:
            flight.is_connecting = True
            self._instance.spawn(self._connect(topic, flight, sending, address), "connect")
            return False
        flight.waiting.popleft()
        own.group_home = view.group_home(own.number)
        own.is_counted = True
        flight.on_their_way += 1
        self._path.write(sending, channel)
        return True

    async def _connect(
        self, topic: _Topic, flight: _Flight, sending: Sending, address: str
    ) -> None:
        """Make the connection that a bucket's first message waits for."""
        queue = sending.queue
        assert queue is not None
        left_ms = max(1, int((sending.deadline - self._path.core.monotonic()) * 1000))
        try:
            channel = await self._instance.io.channel(address, left_ms)
            if channel.is_paused:
                await channel.drain()
        except asyncio.CancelledError:
            self._fail_waiting(flight, self._closed())
            raise
        except Exception as error:
            if flight.waiting and flight.waiting[0] is sending:
                flight.waiting.popleft()
                self._path.core.note(queue, sending.started, failed=True)
                sending.failed(error)
        finally:
            flight.is_connecting = False
        self._go_on(topic, flight)

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
            sending.fail(_too_late(sending))

    # -- answers ----------------------------------------------------------------------------

    def refused(self, sending: Sending, own: GroupSend) -> None:
        """Hold a bucket whose group has moved or waits, until none of its sends is in flight."""
        own.flight.on_their_way -= 1
        own.is_counted = False
        own.flight.is_refused = True
        own.flight.waiting.append(sending)
        own.topic.view = None
        self._learning(own.topic)

    def ended(self, own: GroupSend) -> None:
        """Count a settled send, and let its bucket continue."""
        flight = own.flight
        if own.is_counted:
            own.is_counted = False
            flight.on_their_way -= 1
        if flight.waiting:
            if flight.is_refused and not flight.on_their_way:
                self._go(own.topic, flight)
        elif not flight.on_their_way:
            own.topic.flights.pop(own.bucket, None)

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

    def begin_batch(self, sending: Sending) -> None:
        """Register a lingering batch of groups that is about to be sent."""
        topic = self._topic(sending.prepared.topic)
        view = topic.lingered
        assert view is not None, "only `linger_view` lets groups linger"
        group_home = view.group_home(None)
        sending.group = BatchSend(self, topic, group_home, next(self._turns))
        topic.batches += 1

    def batch_refused(self, sending: Sending, own: BatchSend) -> None:
        """Split a batch, so that each message goes to the home of its group."""
        batch = sending.batch
        assert batch is not None
        own.topic.view = None
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
            topic.learning = asyncio.get_running_loop().create_future()
            self._instance.spawn(self._learn(topic, topic.learning), "homes")

    async def learn(self, name: str) -> GroupView:
        """Fetch the homes of a topic's groups from the brokers; concurrent callers share a fetch.

        Raises:
            NoRoute: the topic has no route.
            ClientError: no name server or broker answered.
        """
        topic = self._topic(name)
        self._learning(topic)
        assert topic.learning is not None
        return await asyncio.shield(topic.learning)

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
            if isinstance(outcome, Exception):
                self._fail_waiting(flight, outcome)
            elif flight.waiting:
                self._go(topic, flight, is_learned=True)

    async def _ask(self, topic: _Topic) -> GroupView:
        core = self._path.core
        pause_s = topic.learned_s + LEARN_PAUSE_S - core.monotonic()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        io, name = self._instance.io, topic.name
        queues = await self._path.topic(name)
        growth = await fetch_growth(io, name, queues.addresses, core.timeout_ms)
        if growth is not None and not growth.brokers <= queues.addresses.keys():
            # A broker has joined since the route was fetched.
            await self._instance.refresh_route(name)
            queues = await self._path.topic(name)
            later = await fetch_growth(io, name, queues.addresses, core.timeout_ms)
            growth = growth.merged(later)
        return GroupView(name, queues, growth)


def _too_late(sending: Sending) -> Exception:
    topic = sending.prepared.topic
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
            1,
            sending.deadline,
        )
        group: Any = decode_properties(text)[SHARDING_KEY]
        singles.append((one, group))
    return singles
