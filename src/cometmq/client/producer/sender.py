"""Routes, connections and tries of a started producer's sends.

The sender is made when the producer starts, and left behind in a forked child.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cometmq.client.base.arguments import check_ms
from cometmq.client.base.instance import ClientInstance
from cometmq.client.message.send_codec import Prepared
from cometmq.client.producer.core import ProducerCore, TopicQueues
from cometmq.client.producer.group_sends import GroupSends
from cometmq.client.producer.sending import InFlight, Sending, SendTargets
from cometmq.core.topic.selector import QueueSelector
from cometmq.errors import (
    ClientClosed,
    ConnectFailed,
    LocalProtocolError,
    NoRoute,
    RequestTimeout,
)
from cometmq.model import Message, MessageQueue, SendResult
from cometmq.net.channel import Channel

__all__ = ["Sender"]


class Sender:
    """Sends over the connections of one client instance, on its event loop."""

    def __init__(
        self, core: ProducerCore, instance: ClientInstance, flush_linger: Callable[[], None]
    ) -> None:
        self.core = core
        self.in_flight = InFlight()
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._looking_up: dict[str, asyncio.Task[TopicQueues]] = {}
        self._targets: dict[str, SendTargets] = {}
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
            task.add_done_callback(lambda _: self._looking_up.pop(name, None))
        return await asyncio.shield(task)

    async def _look_up(self, name: str) -> TopicQueues:
        instance = self._instance
        topic = self.core.queues_of(name, await instance.routes.find_for_send(name))
        if instance.routes.cached(name) is not None:
            self.core.topics[name] = topic
        return topic

    def forget_topic(self, name: str) -> None:
        """Drop the cached route of a topic, because it is wrong."""
        self.core.topics.pop(name, None)
        self._instance.routes.forget(name)

    def recheck_route(self, name: str) -> None:
        """Fetch the route anew, because one of its brokers cannot be reached."""
        self._instance.refresh_soon(name)

    # -- trying -----------------------------------------------------------------------------

    def plain(self, message: Message) -> "asyncio.Future[SendResult] | None":
        """The shortest path of a send; None unless route and connection are ready.  HOT."""
        core = self.core
        try:
            topic = core.topics.get(message.topic)
            if topic is None or message.message_group or core.faults.has_any:
                return None
        except (AttributeError, TypeError):
            return None  # not a message, or without a topic: the ordinary checks say so
        targets = self._targets.get(message.topic)
        if targets is None or targets.topic is not topic:
            targets = self._targets[message.topic] = SendTargets(topic, core.codec)
        turn = topic.turn.next
        target = targets.targets[turn % targets.count]
        channel = target.channel
        if channel is None or channel.is_closed:
            if target.address is None:
                return None
            channel = target.channel = self._instance.pool.open_channel(target.address)
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
        channel.call(opaque, frame, deadline, sending)
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
        await self._try_slowly(sending, topic)

    def start(self, sending: Sending) -> None:
        """Send now if route and connection are ready, else in a task; HOT."""
        core = self.core
        topic = core.topics.get(sending.prepared.topic)
        if topic is None:
            self._later(sending, self._try_unknown(sending))
            return
        queue = sending.fixed
        if queue is None:
            queue = core.next_queue(topic, sending.queue)
        sending.queue = queue
        address = topic.addresses.get(queue.broker_name)
        channel = self._instance.pool.open_channel(address) if address is not None else None
        if channel is None:
            self._later(sending, self._try_slowly(sending, topic))
            return
        self._write(sending, queue, channel)

    def try_again(self, sending: Sending, pause_s: float) -> None:
        """Send once more, after a pause."""
        if pause_s:
            self._loop.call_later(pause_s, self.start, sending)
        else:
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
        channel.call(opaque, frame, sending.deadline, sending)

    def write(self, sending: Sending, channel: Channel) -> None:
        """Send over this channel to the queue that is set."""
        queue = sending.queue
        assert queue is not None
        self._write(sending, queue, channel)

    def _later(self, sending: Sending, work: Coroutine[Any, Any, None]) -> None:
        """Run a slow step in a task; its failure fails the try."""
        self._instance.spawn(self._step(sending, work), "send")

    async def _step(self, sending: Sending, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ConnectFailed as error:
            if sending.queue is None:
                sending.fail(error)  # no name server: another queue would not help
                return
            self.core.note(sending.queue, sending.started, failed=True)
            sending.tries_left -= 1
            sending.failed(error)
        except asyncio.CancelledError:
            sending.fail(ClientClosed(f"the producer {self.core.group} was closed"))
            raise
        except Exception as error:
            sending.fail(error)

    async def _try_unknown(self, sending: Sending) -> None:
        await self._try_slowly(sending, await self.topic(sending.prepared.topic))

    async def _try_slowly(self, sending: Sending, topic: TopicQueues) -> None:
        queue = sending.fixed or sending.queue
        if queue is None:
            queue = self.core.next_queue(topic, None)
        sending.queue = queue
        left_ms = int((sending.deadline - self.core.clock.monotonic()) * 1000)
        if left_ms <= 0:
            raise RequestTimeout(
                f"no time was left to send to {queue}: {sending.timeout_ms} ms have passed"
            )
        channel = await self.channel(topic, queue, left_ms)
        if channel.is_paused:
            await channel.drain()
        self._write(sending, queue, channel)

    async def channel(self, topic: TopicQueues, queue: MessageQueue, timeout_ms: int) -> Channel:
        address = topic.addresses.get(queue.broker_name)
        if address is None:
            address = self._instance.routes.address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no master is known for the broker {queue.broker_name} of {queue}")
        return await self._instance.io.channel(address, timeout_ms)
