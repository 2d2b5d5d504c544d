"""Routes, connections and tries of a started producer's sends.

The sender is made when the producer starts, and left behind in a forked child.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from cometmq.client.base.arguments import check_ms
from cometmq.client.base.instance import ClientInstance
from cometmq.client.message.send_codec import Prepared
from cometmq.client.producer.core import (
    CONNECT_MS_MAX,
    TRY_S_MIN,
    ProducerCore,
    TopicQueues,
    final_error,
    retry_pause_s,
)
from cometmq.client.producer.group_sends import GroupSends
from cometmq.client.producer.sending import SEQUENCED_MAX, InFlight, Sending, SendTargets, within
from cometmq.core.topic.selector import QueueSelector
from cometmq.errors import (
    ClientClosed,
    ClientError,
    ConnectFailed,
    LocalProtocolError,
    NoBroker,
    NoRoute,
    RequestTimeout,
)
from cometmq.model import Message, MessageQueue, SendResult
from cometmq.net.channel import Channel

__all__ = ["STALLED_MS", "Sender"]

STALLED_MS: Final = 1000
"""A send that has waited for so long may wait for a broker that is no master any more."""
CALM_S: Final = 10.0
"""After so much time without a failure the pauses between two fetches of a route begin anew."""


class Sender:
    """Sends over the connections of one client instance, on its event loop."""

    def __init__(
        self, core: ProducerCore, instance: ClientInstance, flush_linger: Callable[[], None]
    ) -> None:
        self.core = core
        self.in_flight = InFlight(SEQUENCED_MAX) if core.is_sequenced else InFlight()
        self.instance = instance
        self._loop = asyncio.get_running_loop()
        self._looking_up: dict[str, asyncio.Task[TopicQueues]] = {}
        self._targets: dict[str, SendTargets] = {}
        self._rechecks: dict[str, tuple[int, float]] = {}
        """How often a topic's route was fetched again, and when it may be once more, by topic."""
        self._pausing: dict[str, dict[int, tuple[Sending, asyncio.TimerHandle]]] = {}
        """The sends that wait for their next try, by topic and identity."""
        self._oldest: dict[tuple[str, str], Sending] = {}
        """By topic and address: the send that has waited for an answer longest."""
        self.groups = GroupSends(self, instance, flush_linger)

    def to_keep(self) -> object:
        """Objects of the parent's loop that a forked child must not destroy."""
        return self.in_flight, self._looking_up, self._targets, self.groups

    # -- routes -----------------------------------------------------------------------------

    async def topic(self, name: str) -> TopicQueues:
        """The queues of a topic; concurrent callers share a look-up.

        Raises:
            NoRoute: no broker for the topic.
        """
        cached = self.core.topics.get(name)
        if cached is not None:
            return cached
        task = self._looking_up.get(name)
        if task is None:
            task = asyncio.ensure_future(self._look_up(name))
            self._looking_up[name] = task
            task.add_done_callback(partial(self._looked_up, name))
        return await asyncio.shield(task)

    def _looked_up(self, name: str, task: "asyncio.Task[TopicQueues]") -> None:
        self._looking_up.pop(name, None)
        if not task.cancelled():
            task.exception()  # a send whose time was over does not want it any more

    async def _look_up(self, name: str) -> TopicQueues:
        instance = self.instance
        route = await instance.routes.find_for_send(name)
        try:
            topic = self.core.queues_of(name, route)
        except NoRoute:
            # Routes are fetched again for topics with queues only, so the next send fetches it.
            instance.routes.forget(name)
            raise
        if instance.routes.cached(name) is not None:
            self.core.topics[name] = topic
        return topic

    def forget_topic(self, name: str) -> None:
        """Drop the cached route of a topic, because it is wrong."""
        self.core.topics.pop(name, None)
        self.instance.routes.forget(name)

    def recheck_route(self, name: str) -> None:
        """Fetch the route anew, because one of its brokers cannot be reached.

        While that continues the name server is asked with growing pauses, whatever the number of
        sends that fail.
        """
        now = self.core.monotonic()
        rounds, due = self._rechecks.get(name, (0, now))
        if now < due:
            return
        if now - due > CALM_S:
            rounds = 0
        self._rechecks[name] = rounds + 1, now + retry_pause_s(rounds)
        self.instance.refresh_soon(name)

    async def look_at_waiting(self) -> None:
        """Fetch routes anew while a send waits from one call of this to the next.

        Its broker may be a silent machine, and another broker the master by now.
        """
        oldest, self._oldest = self._oldest, {}
        for name, topic in list(self.core.topics.items()):
            for address in topic.addresses.values():
                channel = self.instance.pool.open_channel(address)
                if channel is None:
                    continue
                sends = (each for each in channel.waiting() if isinstance(each, Sending))
                sending = next(sends, None)
                if sending is None:
                    continue
                self._oldest[name, address] = sending
                if oldest.get((name, address)) is sending:
                    self.recheck_route(name)

    # -- trying -----------------------------------------------------------------------------

    def plain(self, message: Message) -> "asyncio.Future[SendResult] | None":
        """The shortest path of a send; None unless route and connection are ready.  HOT."""
        core = self.core
        try:
            topic = core.topics.get(message.topic)
            if topic is None or message.message_group or core.faults.has_any:
                return None
        except (AttributeError, TypeError):
            return None  # not a message, or without a topic: the ordinary checks raise the error
        targets = self._targets.get(message.topic)
        if targets is None or targets.topic is not topic:
            targets = self._targets[message.topic] = SendTargets(
                topic, core.codec, core.try_s(core.timeout_ms, topic)
            )
        turn = topic.turn.next
        target = targets.targets[turn % targets.count]
        channel = target.channel
        if channel is None or channel.is_closed:
            if target.address is None:
                return None
            channel = target.channel = self.instance.pool.open_channel(target.address)
            if channel is None:
                return None
        prepared = core.codec.prepare(message)
        topic.turn.next = turn + 1
        future: asyncio.Future[SendResult] = self._loop.create_future()
        timeout_ms = core.timeout_ms
        started = core.monotonic()
        deadline = started + timeout_ms / 1000
        sending = Sending(
            self, prepared, future, started, timeout_ms, core.tries - 1, deadline, target.queue
        )
        body = prepared.body
        opaque = channel.next_opaque()
        frame = target.encode(
            opaque,
            target.queue_id,
            prepared.sys_flag,
            core.clock.now_ms(),
            prepared.flag,
            prepared.properties,
            body,
        )
        # After everything that may refuse the message: a send that never began would never end.
        self.in_flight.begin(len(body))
        channel.call(opaque, frame, started + targets.try_s, sending)
        return future

    def begin(
        self, prepared: Prepared, future: "asyncio.Future[Any] | None", timeout_ms: int | None
    ) -> Sending:
        """Begin a send."""
        core = self.core
        if timeout_ms is None:
            timeout_ms = core.timeout_ms
        else:
            check_ms("timeout_ms", timeout_ms)
        started = core.monotonic()
        deadline = started + timeout_ms / 1000
        self.in_flight.begin(len(prepared.body))
        return Sending(self, prepared, future, started, timeout_ms, core.tries, deadline)

    def pin(self, sending: Sending, message: Message, selector: QueueSelector | None) -> None:
        """Fix the queue of a message that must not move, then send it."""
        # Delayed messages keep no order, so they take no part in moves.
        if selector is None and message.message_group and not message.is_delayed:
            self.groups.begin(sending, message.message_group)
            return
        topic = self.core.topics.get(sending.prepared.topic)
        if topic is None:
            self._later(sending, self._pin_slowly(sending, message, selector))
            return
        try:
            sending.fixed = self.core.choose(topic, message, selector)
        except Exception as error:
            sending.fail(error)
            return
        self.start(sending)

    async def _pin_slowly(
        self, sending: Sending, message: Message, selector: QueueSelector | None
    ) -> None:
        topic = await self.topic(sending.prepared.topic)
        sending.fixed = self.core.choose(topic, message, selector)
        self.start(sending)

    def start(self, sending: Sending) -> None:
        """Send now if route and connection are ready, else in a task; HOT."""
        if sending.fixed is not None and sending.group is None:
            self.groups.begin_fixed(sending, sending.fixed)
            return
        core = self.core
        topic = core.topics.get(sending.prepared.topic)
        if topic is None:
            self._later(sending, self._try_unknown(sending))
            return
        queue = sending.fixed or sending.pinned
        if queue is None:
            queue = core.next_queue(topic, sending.queue)
        sending.queue = queue
        address = topic.addresses.get(queue.broker_name)
        channel = self.instance.pool.open_channel(address) if address is not None else None
        if channel is None:
            self._later(sending, self._try_slowly(sending, topic))
            return
        self._write(sending, queue, channel)

    def try_again(self, sending: Sending, pause_s: float) -> None:
        """Send once more, after a pause or when the topic has another route."""
        if not pause_s:
            self.start(sending)
            return
        pausing = self._pausing.setdefault(sending.prepared.topic, {})
        timer = self._loop.call_later(pause_s, self._paused, sending)
        pausing[id(sending)] = sending, timer

    def _paused(self, sending: Sending) -> None:
        del self._pausing[sending.prepared.topic][id(sending)]
        self.start(sending)

    def route_changed(self, name: str) -> None:
        """Try again now what waits for a broker of this topic."""
        for sending, timer in self._pausing.pop(name, {}).values():
            timer.cancel()
            self.start(sending)

    def _write(self, sending: Sending, queue: MessageQueue, channel: Channel) -> None:
        sending.tries_left -= 1
        opaque = channel.next_opaque()
        group = sending.group
        group_home = None if group is None else group.group_home
        try:
            frame = self.core.codec.frame(sending.prepared, queue, opaque, group_home=group_home)
        except LocalProtocolError as error:
            sending.fail(error)
            return
        deadline = sending.deadline
        topic = self.core.topics.get(queue.topic)
        if sending.fixed is None and topic is not None:
            limit = self.core.monotonic() + self.core.try_s(sending.timeout_ms, topic)
            deadline = min(deadline, limit)
        channel.call(opaque, frame, deadline, sending)

    def write(self, sending: Sending, channel: Channel) -> None:
        """Send over this channel to the queue that is set."""
        queue = sending.queue
        assert queue is not None
        self._write(sending, queue, channel)

    def _later(self, sending: Sending, work: Coroutine[Any, Any, None]) -> None:
        """Run a slow step in a task; its failure fails the try."""
        self.instance.spawn(self._step(sending, work), "send")

    async def _step(self, sending: Sending, work: Coroutine[Any, Any, None]) -> None:
        try:
            left_ms = (sending.deadline - self.core.monotonic()) * 1000
            async with within(left_ms, sending.faults):
                await work
        except (ConnectFailed, RequestTimeout, NoBroker) as error:
            self.step_failed(sending, error)
        except asyncio.CancelledError:
            sending.fail(ClientClosed(f"the producer {self.core.group} was closed"))
            raise
        except Exception as error:
            sending.fail(error)

    def step_failed(self, sending: Sending, error: ClientError) -> None:
        """A broker or a name server could not be reached: try again while that may help."""
        sending.tries_left -= 1
        if sending.queue is not None:
            self.core.note(sending.queue, sending.started, failed=True)
        elif sending.deadline - self.core.monotonic() < TRY_S_MIN or self.is_astray(
            sending.started
        ):
            sending.fail(error)
            return
        sending.failed(error)

    def is_astray(self, started: float) -> bool:
        """Whether no name server has answered for so long that the addresses are probably wrong."""
        passed_ms = (self.core.monotonic() - started) * 1000
        limit_ms = self.core.options.request_timeout_ms
        return not self.instance.routes.has_answered and passed_ms >= limit_ms

    async def _try_unknown(self, sending: Sending) -> None:
        await self._try_slowly(sending, await self.topic(sending.prepared.topic))

    async def _try_slowly(self, sending: Sending, topic: TopicQueues) -> None:
        queue = sending.fixed or sending.pinned or sending.queue
        if queue is None:
            queue = self.core.next_queue(topic, None)
        sending.queue = queue
        left_ms = int((sending.deadline - self.core.clock.monotonic()) * 1000)
        if left_ms <= 0:
            raise RequestTimeout(
                f"no time was left to send to {queue}: {sending.timeout_ms} ms have passed"
            )
        channel = await self.channel(topic, queue, min(left_ms, CONNECT_MS_MAX))
        if channel.is_paused:
            await channel.drain()
        self._write(sending, queue, channel)

    async def reach(
        self, name: str, choose: Callable[[TopicQueues], MessageQueue], timeout_ms: int
    ) -> tuple[MessageQueue, Channel]:
        """A queue and the connection to its broker, for a message that is sent without an answer.

        It is tried again like a send; ``choose`` is called for each try.

        Raises:
            CometError: no broker was reached in time.
        """
        core = self.core
        started = core.monotonic()
        deadline = started + timeout_ms / 1000
        faults: list[Exception] = []
        while True:
            left_s = deadline - core.monotonic()
            try:
                async with within(left_s * 1000, faults):
                    topic = await self.topic(name)
                    queue = choose(topic)
                    return queue, await self.channel(topic, queue, CONNECT_MS_MAX)
            except ClientError as error:
                faults.append(error)
                self.recheck_route(name)
                left_s = deadline - core.monotonic()
                is_over = len(faults) >= core.tries or left_s < TRY_S_MIN
                if is_over or self.is_astray(started) or not core.may_retry(faults):
                    raise final_error(name, faults) from error
            await asyncio.sleep(core.pause_before_retry(name, len(faults), left_s))

    async def channel(self, topic: TopicQueues, queue: MessageQueue, timeout_ms: int) -> Channel:
        """A connection to the master of a queue."""
        return await self.instance.io.channel(self.address(topic, queue), timeout_ms)

    def address(self, topic: TopicQueues, queue: MessageQueue) -> str:
        """The address of the master of a queue.

        Raises:
            NoRoute: no route names one.
        """
        address = topic.addresses.get(queue.broker_name)
        if address is None:
            address = self.instance.routes.address(queue.broker_name)
        if address is None:
            raise NoBroker(f"no master is known for the broker {queue.broker_name} of {queue}")
        return address
