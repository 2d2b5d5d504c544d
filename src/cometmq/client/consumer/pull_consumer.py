"""The pull consumer returns messages when the program asks, by ``poll`` or ``async for``.

It buffers pulled batches, hands them out, tracks positions, commits, seeks and pauses.  It neither
runs handlers nor retries; the program decides what a failure means.

Three offsets of a queue, in order::

    safe  <=  position  <=  pull_offset
      |          |             `- the next message to pull from the broker
      |          `- the next message to hand out
      `- every lower message was handed out before the program's latest call

An automatic commit stores ``safe``, so it never covers a message the program may still be
processing.  A plain ``commit()`` stores ``position``: the program declares that it has processed
every message it got.  Leaving ``async with`` without an error declares the same.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

from cometmq.client.base.arguments import (
    check_count,
    check_ms,
    checked_group,
    queue_list,
    subscription_map,
)
from cometmq.client.base.options import ClientOptions, CommonOptions
from cometmq.client.consumer.group.first_offset import StartFrom
from cometmq.client.consumer.group.group_consumer import GroupConsumer, RebalanceListener
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.client.queue.pull_loop import PullLoop, PullSettings
from cometmq.core.filter.subscription import subscription_of
from cometmq.core.filter.tag_filter import TAG
from cometmq.core.group.allocate import AllocateStrategy
from cometmq.core.topic.selector import subscribe_queues
from cometmq.errors import ClientError, CometError, ConfigError
from cometmq.model import ConsumeType, MessageModel, MessageQueue, SubscriptionData
from cometmq.model.flags import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.env import Environment
from cometmq.wire.command.codes import RequestCode

__all__ = ["PullConsumer"]

log = logging.getLogger("cometmq.client")

SUSPEND_MS: Final = 20_000
POLL_TIMEOUT_MS: Final = 5_000
POLL_COUNT_MAX: Final = 1_000
BUFFER_COUNT_MAX: Final = 1_000
"""Messages buffered per queue before pulling stops (Java's ``pullThresholdForQueue``)."""


_NOTHING: Final[list[ReceivedMessage]] = []


class PulledBatch:
    """Messages of one pull that are not handed out yet; the queue continues at ``next_offset``."""

    __slots__ = ("assignment", "messages", "next_offset")

    def __init__(
        self, assignment: Assignment, messages: list[ReceivedMessage], next_offset: int
    ) -> None:
        self.assignment = assignment
        self.messages = messages
        self.next_offset = next_offset


class QueueBuffer:
    """The offsets of one queue and the batch that arrived last."""

    __slots__ = ("buffered_count", "last", "position", "safe")

    def __init__(self, position: int) -> None:
        self.position = position
        self.safe = position
        self.buffered_count = 0
        self.last: PulledBatch | None = None


class PullConsumer(GroupConsumer):
    """Consumes on demand; ``async with PullConsumer(...)`` starts and stops it.

    Either ``subscribe`` (the members of the group share the queues) or ``assign`` (this consumer
    reads exactly the named queues, also when others read them).

    Args:
        group: consumer group, under which offsets are stored.
        subscriptions: topic to tag expression, as by ``subscribe``.
        name_server: as for `Producer`.
        consume_from: where a group without stored offsets begins, see `PushConsumer`.
        auto_commit: commit every 5 s the messages handed out before the latest ``poll``.
        buffer_count_max: messages buffered per queue.

    Raises:
        ConfigError: an argument is wrong; the text names it and its value.
    """

    _consume_type = ConsumeType.CONSUME_ACTIVELY
    _uses_retry_topic = False

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, str] | None = None,
        *,
        name_server: str | Sequence[str] | None = None,
        consume_from: StartFrom = "last",
        auto_commit: bool = True,
        buffer_count_max: int = BUFFER_COUNT_MAX,
        pull_count_max: int = 32,
        message_model: MessageModel = MessageModel.CLUSTERING,
        strategy: AllocateStrategy | str = "AVG",
        rebalance_listener: RebalanceListener | None = None,
        offset_folder: str | None = None,
        instance_name: str | None = None,
        client_ip: str | None = None,
        env: Environment | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        group = checked_group(group)
        check_count("buffer_count_max", buffer_count_max)
        check_count("pull_count_max", pull_count_max)
        options = ClientOptions.of(
            name_server, env=env, instance_name=instance_name, client_ip=client_ip, **common
        )
        options.refuse_trace("PullConsumer")
        super().__init__(
            group,
            options,
            message_model=message_model,
            consume_from=consume_from,
            strategy=strategy,
            rebalance_listener=rebalance_listener,
            offset_folder=offset_folder,
            settings=PullSettings(
                RequestCode.LITE_PULL_MESSAGE,
                group,
                PULL_SUSPEND | PULL_SUBSCRIPTION | PULL_LITE,
                SUSPEND_MS,
                pull_count_max,
                sends_expression=True,
            ),
        )
        self._commits_by_itself = auto_commit
        self._by_hand_expression = "*"
        self._buffer_count_max = buffer_count_max
        self._ready_batches: deque[PulledBatch] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._paused: set[MessageQueue] = set()
        self._in_hand: list[Assignment] = []
        # The batch that `async for` is in the middle of.
        self._current: PulledBatch | None = None
        self._current_messages: list[ReceivedMessage] = _NOTHING
        self._index = 0
        for topic, expression in subscription_map(subscriptions).items():
            self._subscribe(topic, expression)

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group, if topics are subscribed; a missing topic is read once it exists.

        Raises:
            ClientClosed: the consumer is closed.
            ConnectFailed: no name server could be reached for 3 s.
        """
        self._check_open()
        if self._running is not None:
            return
        running = self._start_running()
        try:
            await self._join()
        except BaseException:
            self._running = None
            await running.instance.close({self.group: "consumerGroup"})
            raise

    async def shutdown(self, *, commit: bool = True) -> None:
        """Stop pulling, commit the messages handed out (with ``auto_commit``), leave the group."""
        if self._is_closed:
            return
        self._is_closed = True
        running = self._running
        if running is None:
            return
        self._is_stopping = True
        for assignment in self._assignments.values():
            assignment.loop.stop()
        try:
            if self._commits_by_itself:
                if commit:
                    self._settle(include_in_hand=True)
                await self._commit(list(self._assignments.values()), wait=True)
        except CometError as error:
            log.error("group %s: offsets were not committed at shutdown: %s", self.group, error)
        finally:  # also on cancellation: a second call would return at once
            self._assignments.clear()
            self._ready_batches.clear()
            self._wake_reader()
            await running.instance.close({self.group: "consumerGroup"})
            self._running = None
            self._wake_reader()  # a `poll` that waits raises ClientClosed from now on

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown(commit=kind is None)

    def after_fork(self) -> None:
        """In a child process: drop the queues and messages, which stay the parent's."""
        super().after_fork()
        self._ready_batches.clear()
        self._arrival = None
        self._in_hand = []
        self._drop_current()

    # -- subscriptions ----------------------------------------------------------------------

    async def subscribe(
        self, topic: str, expression: str = "*", *, expression_type: str = TAG
    ) -> None:
        """Share the queues of a topic with the other members of the group.

        A topic that does not exist yet is read as soon as it does.

        Raises:
            ClientClosed: the consumer is closed.
            ConfigError: `assign` was used before, or the topic or the expression is wrong.
            ConnectFailed: no name server could be reached for 3 s since `start`.
        """
        self._check_open()
        if self._is_by_hand:
            raise ConfigError("this consumer was given queues by assign(); it cannot subscribe too")
        self._subscribe(topic, expression, expression_type)
        if self._running is not None:
            await self._add_topic(topic)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic."""
        self._subscriptions.pop(topic, None)
        if self._running is not None:
            await self._rebalance_round()
            await self._running.instance.heartbeat()

    async def assign(self, queues: Iterable[MessageQueue], expression: str = "*") -> None:
        """Read exactly these queues, from their stored offsets; replaces an earlier assign.

        Raises:
            ClientClosed: the consumer is not started, or is closed.
            ConfigError: the consumer has subscriptions, or a queue or the expression is wrong.
            NoRoute: a queue's topic does not exist.
        """
        instance = self._ready().instance
        if self._subscriptions:
            raise ConfigError("this consumer has subscriptions; it cannot be assigned queues too")
        wanted = set(queue_list(queues))
        subscription_of("", expression, 0)
        self._by_hand_expression = expression
        self._is_by_hand = True
        for topic in sorted({queue.topic for queue in wanted}):
            await instance.routes.find(topic)
        for queue in [queue for queue in self._assignments if queue not in wanted]:
            await self._give_up(queue)
        for queue in sorted(wanted):
            if queue not in self._assignments:
                self._begin(queue, await self._start_offset(queue))

    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self._assignments)

    async def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """All readable queues of a topic.

        Raises:
            ClientClosed: the consumer is not started, or is closed.
            NoRoute: the topic does not exist.
        """
        return subscribe_queues(topic, await self._ready().instance.routes.find(topic))

    # -- reading ----------------------------------------------------------------------------

    async def poll(
        self, timeout_ms: int = POLL_TIMEOUT_MS, count_max: int = POLL_COUNT_MAX
    ) -> list[ReceivedMessage]:
        """Wait for messages: at least one, or none when the time runs out.

        The messages of earlier calls count as processed from now on.

        Raises:
            ClientClosed: the consumer is not started, or is closed, and no message is buffered.
            ConfigError: an argument is not a whole number in its range.
        """
        check_ms("timeout_ms", timeout_ms, may_be_zero=True)
        check_count("count_max", count_max)
        self._settle()
        self._return_current()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        taken_messages: list[ReceivedMessage] = []
        while True:
            while self._ready_batches and len(taken_messages) < count_max:
                self._take_batch(taken_messages, count_max - len(taken_messages))
            if taken_messages:
                return taken_messages
            self._ready()
            left_s = deadline - loop.time()
            if left_s <= 0:
                return taken_messages
            await self._wait(left_s)

    def _return_current(self) -> None:
        """Put the messages that `async for` has not handed out yet back to the front."""
        batch = self._current
        if batch is None:
            return
        messages = batch.messages[self._index :]
        self._drop_current()
        if messages:
            assignment = batch.assignment
            assignment.state.buffered_count += len(messages)
            assignment.process_queue.finished_count -= len(messages)
            self._ready_batches.appendleft(PulledBatch(assignment, messages, batch.next_offset))

    def _take_batch(self, taken_messages: list[ReceivedMessage], room: int) -> None:
        """Move up to ``room`` messages of the next batch; skip a batch of a dropped queue."""
        batch = self._ready_batches.popleft()
        assignment = batch.assignment
        if assignment.process_queue.dropped:
            return
        messages = batch.messages
        if len(messages) > room:
            second_part = PulledBatch(assignment, messages[room:], batch.next_offset)
            if assignment.state.last is batch:
                assignment.state.last = second_part
            self._ready_batches.appendleft(second_part)
            batch = PulledBatch(assignment, messages[:room], messages[room].queue_offset)
        taken_messages += batch.messages
        self._took(batch)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message; suspends only when none is ready. HOT."""
        index = self._index
        messages = self._current_messages
        if index < len(messages):
            self._index = index + 1
            return messages[index]
        return await self.next_batch()

    def next_ready(self) -> ReceivedMessage | None:
        """The next message of the batch being iterated, None at its end; HOT."""
        index = self._index
        messages = self._current_messages
        if index < len(messages):
            self._index = index + 1
            return messages[index]
        return None

    async def next_batch(self) -> ReceivedMessage:
        """The first message of the next batch.

        Raises:
            StopAsyncIteration: the consumer is closed.
            ClientClosed: the consumer is not started.
        """
        while True:
            self._settle()
            while not self._ready_batches:
                if self._is_closed:
                    raise StopAsyncIteration
                self._ready()
                await self._wait(None)
            batch = self._ready_batches.popleft()
            if batch.assignment.process_queue.dropped:
                continue
            self._leave_buffer(batch)
            self._current = batch
            self._current_messages = batch.messages
            self._index = 1
            return batch.messages[0]

    async def _wait(self, timeout_s: float | None) -> None:
        if self._arrival is None or self._arrival.done():
            self._arrival = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._arrival], timeout=timeout_s)

    def _wake_reader(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    # -- bookkeeping ------------------------------------------------------------------------

    def _leave_buffer(self, batch: PulledBatch) -> None:
        buffer: QueueBuffer = batch.assignment.state
        buffer.buffered_count -= len(batch.messages)
        if buffer.last is batch:
            buffer.last = None
        batch.assignment.process_queue.finished_count += len(batch.messages)
        if batch.assignment.loop.hold_reason is not None:
            batch.assignment.loop.wake()

    def _took(self, batch: PulledBatch) -> None:
        """Record that `poll` has handed out a whole batch."""
        self._leave_buffer(batch)
        batch.assignment.state.position = batch.next_offset
        self._in_hand.append(batch.assignment)

    def _release_in_hand(self) -> None:
        """Count the messages of the last `poll` as processed."""
        for assignment in self._in_hand:
            assignment.state.safe = assignment.state.position
        self._in_hand.clear()

    def _settle(self, *, include_in_hand: bool = True) -> None:
        """Bring ``safe`` and ``position`` up to date; ``async for`` does not, for speed."""
        if include_in_hand:
            self._release_in_hand()
        batch = self._current
        if batch is None:
            return
        buffer: QueueBuffer = batch.assignment.state
        messages = batch.messages
        index = self._index
        if index < len(messages):
            buffer.position = messages[index].queue_offset
        else:
            buffer.position = batch.next_offset
        buffer.safe = buffer.position if include_in_hand else messages[index - 1].queue_offset
        if include_in_hand and index >= len(messages):
            self._drop_current()

    def _drop_current(self) -> None:
        self._current = None
        self._current_messages = _NOTHING
        self._index = 0

    def hold(self, loop: PullLoop) -> str | None:
        """Why the queue must not be pulled now: it is paused, unassigned, or its buffer is full."""
        if loop.queue in self._paused:
            return "paused"
        assignment = self._assignments.get(loop.queue)
        if assignment is None:
            return "not assigned"
        count: int = assignment.state.buffered_count
        if count >= self._buffer_count_max:
            return f"{count} messages buffered, limit {self._buffer_count_max}"
        return None

    def room(self, loop: PullLoop) -> tuple[int, int]:
        """How many messages the buffer still admits; bytes are not counted."""
        assignment = self._assignments.get(loop.queue)
        buffered = 0 if assignment is None else assignment.state.buffered_count
        return self._buffer_count_max - buffered, 1 << 30

    def accept(self, loop: PullLoop, messages: list[ReceivedMessage], next_offset: int) -> None:
        """Buffer a pull's messages; HOT."""
        loop.process_queue.skip_to(next_offset, self._options.env.clock.now_ms())
        assignment = self._assignments.get(loop.queue)
        if assignment is None or assignment.loop is not loop:
            return
        buffer: QueueBuffer = assignment.state
        if not messages:
            # Filtered messages move the end of the last batch, or the position itself.
            if buffer.last is not None:
                buffer.last.next_offset = next_offset
            elif self._current is not None and self._current.assignment is assignment:
                self._current.next_offset = next_offset
            else:
                if buffer.safe == buffer.position:
                    buffer.safe = next_offset
                buffer.position = next_offset
            return
        batch = PulledBatch(assignment, messages, next_offset)
        buffer.last = batch
        buffer.buffered_count += len(messages)
        self._ready_batches.append(batch)
        self._wake_reader()

    def _added(self, assignment: Assignment) -> None:
        assignment.state = QueueBuffer(assignment.process_queue.pull_offset)

    def _removed(self, assignment: Assignment) -> None:
        if self._current is not None and self._current.assignment is assignment:
            self._drop_current()
        self._in_hand = [other for other in self._in_hand if other is not assignment]

    def _commit_offset(self, assignment: Assignment) -> ConsumerOffset:
        buffer: QueueBuffer = assignment.state
        return ConsumerOffset(buffer.safe)

    def commit_hint(self, loop: PullLoop) -> int:
        """-1: lite pulls carry no offset (flag 22); commits are requests of their own."""
        return -1

    def is_paused(self, queue: MessageQueue) -> bool:
        return queue in self._paused

    def _subscription_of(self, topic: str) -> SubscriptionData:
        subscription = self._subscriptions.get(topic)
        return subscription or subscription_of(topic, self._by_hand_expression, 0)

    # -- offsets ----------------------------------------------------------------------------

    def _assigned(self, queue: MessageQueue) -> Assignment:
        self._ready()
        assignment = self._assignments.get(queue)
        if assignment is None:
            raise ClientError(f"{queue} is not assigned to this consumer now")
        return assignment

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Read the queue from another offset; its buffered messages are dropped.

        Raises:
            ClientError: the queue is not assigned, or the offset is outside the queue.
            ConfigError: the offset is not a whole number from 0.
        """
        check_count("queue_offset", queue_offset, 0, 2**63 - 1)
        calls = self._ready().calls
        self._assigned(queue)
        address = self._address(queue)
        first = await calls.min_offset(address, queue)
        end = await calls.max_offset(address, queue)
        if not first <= queue_offset <= end:
            raise ClientError(
                f"offset {queue_offset} of {queue} is outside {first} to {end}, what the broker has"
            )
        self._move(queue, queue_offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Read the queue from its oldest message.

        Raises:
            ClientError: the queue is not assigned, or its broker did not answer.
        """
        calls = self._ready().calls
        self._assigned(queue)
        self._move(queue, await calls.min_offset(self._address(queue), queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Read only messages that are stored from now on.

        Raises:
            ClientError: the queue is not assigned, or its broker did not answer.
        """
        calls = self._ready().calls
        self._assigned(queue)
        self._move(queue, await calls.max_offset(self._address(queue), queue))

    def _move(self, queue: MessageQueue, queue_offset: int) -> None:
        self._replace(self._assigned(queue), queue_offset)

    async def position(self, queue: MessageQueue) -> int:
        """The offset of the next message to hand out.

        Raises:
            ClientError: the queue is not assigned.
        """
        self._settle(include_in_hand=False)
        return int(self._assigned(queue).state.position)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's stored offset, None if there is none.

        Raises:
            CometError: the consumer is not started, or the broker refused or did not answer.
        """
        return await self._ready().offsets.read(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store ``offsets``, by default every position, and wait until brokers acknowledge.

        Raises:
            ConfigError: a key is not a queue, or an offset is not a whole number from 0.
            CometError: a broker did not store its offset.
        """
        running = self._ready()
        if offsets is None:
            self._settle()
            offsets = {
                queue: assignment.state.position for queue, assignment in self._assignments.items()
            }
        for queue, queue_offset in offsets.items():
            queue_list([queue])
            check_count(f"the offset of {queue}", queue_offset, 0, 2**63 - 1)
        if offsets:
            await running.offsets.write(
                {queue: ConsumerOffset(offset) for queue, offset in offsets.items()}, wait=True
            )
        for queue, queue_offset in offsets.items():
            assignment = self._assignments.get(queue)
            if assignment is not None:
                assignment.committed = queue_offset

    async def commit_changed(self) -> None:
        """Commit automatically, with ``auto_commit``."""
        if self._commits_by_itself:
            self._settle(include_in_hand=False)
            await super().commit_changed()

    async def _give_up(self, queue: MessageQueue) -> None:
        self._settle(include_in_hand=False)
        if not self._commits_by_itself:
            # Only the program commits.
            assignment = self._assignments.pop(queue)
            assignment.loop.stop()
            assignment.process_queue.dropped = True
            self._removed(assignment)
            return
        await super()._give_up(queue)

    async def offsets_for_times(
        self, times_ms: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """For each queue the first offset stored at or after a time, ms since 1970.

        Raises:
            CometError: the consumer is not started, or a broker refused or did not answer.
        """
        calls = self._ready().calls
        return {
            queue: await calls.search_offset(self._address(queue), queue, timestamp_ms)
            for queue, timestamp_ms in times_ms.items()
        }

    async def begin_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The smallest offset of each queue.

        Raises:
            CometError: the consumer is not started, or a broker refused or did not answer.
        """
        calls = self._ready().calls
        return {
            queue: await calls.min_offset(self._address(queue), queue)
            for queue in queue_list(queues)
        }

    async def end_offsets(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """The next offset to be written of each queue.

        Raises:
            CometError: the consumer is not started, or a broker refused or did not answer.
        """
        calls = self._ready().calls
        return {
            queue: await calls.max_offset(self._address(queue), queue)
            for queue in queue_list(queues)
        }

    # -- pausing ----------------------------------------------------------------------------

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no message of these queues until `resume`; their position stays."""
        self._settle(include_in_hand=False)
        for queue in queue_list(queues):
            self._paused.add(queue)
            assignment = self._assignments.get(queue)
            if assignment is not None:
                buffer: QueueBuffer = assignment.state
                safe = buffer.safe
                fresh = self._replace(assignment, buffer.position)
                fresh.state.safe = safe

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out messages of these queues again."""
        for queue in queue_list(queues):
            self._paused.discard(queue)
            assignment = self._assignments.get(queue)
            if assignment is not None:
                assignment.loop.wake()

    def paused(self) -> list[MessageQueue]:
        """The queues that are paused."""
        return sorted(self._paused)
