"""Ordered consumption: which pulled messages run, one strand after the other, and what then.

Job: between the pull loops and the handlers of an ordered consumer: keep the strands of each queue
(`core.order`), start what may run, take the outcomes, suspend, send back.
Must not: pull, rebalance or ask for locks; `PushConsumer` and `QueueLockKeeper` do.

Theory: a *run* is what one call of the handler (or one stretch of a thread) gets of one strand.  At
most ``concurrency`` runs are in the handlers' hands, so nothing waits there that a lost lock or
a rebalance would have to call back.  A queue that is given up ends in two steps: it starts
nothing new (`leave`), and is let go when its last run has ended (`wait_idle`).  One that was lost
or begins anew at another offset ends at once; its successor starts when the old runs have ended,
so that two handlers never have one queue.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from cometmq.client.extensions.parking.parking import Parking
from cometmq.client.handling.dispatchers import Dispatcher
from cometmq.client.handling.handlers import Outcome, reason_of
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.queue.assignment import Assignment
from cometmq.client.queue.pull_loop import PullLoop
from cometmq.codec.properties import find_property
from cometmq.core.consume.order import ORDER_BY_GROUP, GiveBack, OrderPolicy, Park, Strands
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.extensions.parking import ParkKind
from cometmq.core.retry.consume_retry import DELAY_LEVEL_BY_BROKER
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue
from cometmq.model.names import RETRY_PREFIX

__all__ = ["OrderedQueue", "OrderlyHost", "OrderlyRunner"]

log = logging.getLogger("cometmq.client")

_GROUP_PROPERTY: Final = b"__SHARDINGKEY"
_NOT_RUN: Final = object()


class OrderlyHost(Protocol):
    """What a runner needs of its consumer."""

    group: str

    def dispatcher_of(self, topic: str) -> Dispatcher:
        """The runner of a topic's handler; ConfigError where there is none."""
        ...

    def may_consume(self, queue: MessageQueue) -> bool:
        """Whether the queue's lock is ours for sure."""
        ...

    def give_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> None:
        """Bring a message to the retry or dead-letter topic, then call `given_back`."""
        ...


class OrderedQueue:
    """The strands of one assigned queue."""

    __slots__ = (
        "_idle",
        "assignment",
        "is_closed",
        "is_listed",
        "returning",
        "run_count",
        "strands",
        "timers",
    )

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.strands: Strands[ReceivedMessage] = Strands()
        self.is_closed = False
        """Nothing new may start."""
        self.is_listed = False
        """It stands in the runner's list of queues with something to run."""
        self.run_count = 0
        """Runs in handlers."""
        self.timers: dict[str, asyncio.TimerHandle] = {}
        """When suspended strands go on."""
        self.returning: dict[int, _Run] = {}
        """Runs that wait for a message on its way back, by its queue offset."""
        self._idle: asyncio.Future[None] | None = None

    async def wait_idle(self) -> None:
        """Wait until no handler has a message of this queue."""
        if self.run_count:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def run_ended(self) -> None:
        """One run less."""
        self.run_count -= 1
        if not self.run_count and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class _Run:
    """Messages of one strand in the handler, and what became of each."""

    __slots__ = (
        "done_count",
        "left",
        "messages",
        "outcomes",
        "pause_ms",
        "process_queue",
        "state",
        "strand",
    )

    def __init__(self, state: OrderedQueue, strand: str, messages: list[ReceivedMessage]) -> None:
        self.state = state
        self.strand = strand
        self.messages = messages
        self.process_queue: ProcessQueue = state.assignment.process_queue
        self.outcomes: list[Any] = []
        """From the first message on that failed or did not run: an `Outcome`, or `_NOT_RUN`."""
        self.left = len(messages)
        """Outcomes still to come, then messages on their way back."""
        self.done_count = 0
        """So many of the first messages need not run again."""
        self.pause_ms = -1
        """How long the strand waits then; -1 if no message has to be tried again."""


class OrderlyRunner:
    """Starts runs and takes their outcomes; all on the consumer's loop."""

    def __init__(
        self, host: OrderlyHost, order: str, policy: OrderPolicy, concurrency: int
    ) -> None:
        self._host = host
        self._by_group = order == ORDER_BY_GROUP
        self._policy = policy
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._queues: dict[MessageQueue, OrderedQueue] = {}
        self._waiting: deque[OrderedQueue] = deque()
        self._run_count = 0
        self._ghosts: dict[MessageQueue, int] = {}
        """Runs of queues that are no longer ours, or have begun anew."""
        self.parking: Parking | None = None
        """Where messages go that failed too often, with those after them."""

    # -- queues -----------------------------------------------------------------------------

    def added(self, assignment: Assignment) -> None:
        """A queue was taken, or begins anew."""
        state = OrderedQueue(assignment)
        assignment.state = state
        self._queues[assignment.queue] = state
        if self.parking is not None:
            self.parking.added(assignment)

    def leave(self, assignment: Assignment) -> OrderedQueue:
        """Start nothing more of a queue; what runs may end."""
        state: OrderedQueue = assignment.state
        state.is_closed = True
        for timer in state.timers.values():
            timer.cancel()
        state.timers.clear()
        if self._queues.get(assignment.queue) is state:
            del self._queues[assignment.queue]
        if self.parking is not None:
            self.parking.removed(assignment)
        return state

    def drop(self, assignment: Assignment) -> None:
        """A queue is no longer ours, or begins anew: what runs counts for nothing."""
        state = self.leave(assignment)
        if state.run_count:
            queue = assignment.queue
            self._ghosts[queue] = self._ghosts.get(queue, 0) + state.run_count

    def close(self) -> None:
        """Start nothing more at all."""
        for state in list(self._queues.values()):
            self.leave(state.assignment)

    def strands_of(self, queue: MessageQueue) -> Strands[ReceivedMessage] | None:
        """The strands of a queue in our hands."""
        state = self._queues.get(queue)
        return state.strands if state is not None else None

    # -- from pulls to handlers -------------------------------------------------------------

    def submit(self, assignment: Assignment, messages: list[ReceivedMessage]) -> None:
        """Take in pulled messages of one queue, in their order."""
        state: OrderedQueue = assignment.state
        if self.parking is not None:
            messages = self.parking.divert(assignment, messages)
        if self._by_group:
            state.strands.add([(_group_of(message), message) for message in messages])
        else:
            state.strands.add([("", message) for message in messages])
        self._list(state)
        self._pump()

    def wake(self, queue: MessageQueue) -> None:
        """Look again at a queue that might not run a moment ago."""
        state = self._queues.get(queue)
        if state is not None:
            self._list(state)
            self._pump()

    def _list(self, state: OrderedQueue) -> None:
        if not state.is_listed and not state.is_closed and state.strands.is_ready:
            state.is_listed = True
            self._waiting.append(state)

    def _pump(self) -> None:
        """Start runs, queue by queue in turns, as long as handlers are free; HOT."""
        waiting = self._waiting
        while waiting and self._run_count < self._concurrency:
            state = waiting.popleft()
            state.is_listed = False
            queue = state.assignment.queue
            if (
                state.is_closed
                or queue in self._ghosts
                # The next renewal that succeeds begins such a queue anew.
                or not self._host.may_consume(queue)
            ):
                continue
            self._start(state)
            self._list(state)

    def _start(self, state: OrderedQueue) -> None:
        topic = state.assignment.queue.topic
        if topic.startswith(RETRY_PREFIX):
            # Each message may have another handler: that of the topic it was sent to.
            work = state.strands.take(1)
            if work is None:
                return
            try:
                dispatcher = self._host.dispatcher_of(work[1][0].topic)
            except ConfigError as error:
                log.warning("a message to be tried again is given back: %s", error)
                run = _Run(state, *work)
                run.done_count = 1
                self._send_back(run, [(work[1][0], DELAY_LEVEL_BY_BROKER)])
                return
        else:
            dispatcher = self._host.dispatcher_of(topic)
            work = state.strands.take(dispatcher.run_size)
            if work is None:
                return
        run = _Run(state, *work)
        state.run_count += 1
        self._run_count += 1
        dispatcher.submit_run(run, run.messages)

    # -- from handlers to strands -------------------------------------------------------------

    def finished(self, run: _Run, message: ReceivedMessage, outcome: Outcome) -> None:
        """One message of a run was handled; HOT."""
        if outcome is None and not run.outcomes:
            # At once: whatever becomes of those after it, this one need not come again.
            run.done_count += 1
            run.process_queue.finish(message.queue_offset)
        else:
            run.outcomes.append(outcome)
        run.left -= 1
        if not run.left:
            self._ended(run)

    def finished_all(self, run: _Run, messages: Sequence[ReceivedMessage]) -> None:
        """These messages of a run were handled with success; HOT."""
        if run.outcomes:
            run.outcomes.extend([None] * len(messages))
        else:
            run.done_count += len(messages)
            run.process_queue.finish_all([message.queue_offset for message in messages])
        run.left -= len(messages)
        if not run.left:
            self._ended(run)

    def skipped(self, run: _Run, messages: Sequence[ReceivedMessage]) -> None:
        """These did not run: one before them failed, or the queue is gone."""
        run.outcomes.extend([_NOT_RUN] * len(messages))
        run.left -= len(messages)
        if not run.left:
            self._ended(run)

    def _ended(self, run: _Run) -> None:
        state = run.state
        self._run_count -= 1
        state.run_ended()
        queue = state.assignment.queue
        if run.process_queue.dropped:
            if queue in self._ghosts:
                self._ghosts[queue] -= 1
                if not self._ghosts[queue]:
                    del self._ghosts[queue]
                    self.wake(queue)
        else:
            self._judge(run)
            self._list(state)
        self._pump()

    def _judge(self, run: _Run) -> None:
        """What follows: done up to the first message that has to wait or did not run."""
        if not run.outcomes:
            self._settle(run)
            return
        back: list[tuple[ReceivedMessage, int]] = []
        finished: list[int] = []
        judged = list(zip(run.messages[run.done_count :], run.outcomes, strict=True))
        begin = run.done_count
        for message, outcome in judged:
            if outcome is _NOT_RUN:
                break
            if outcome is None:
                finished.append(message.queue_offset)
            else:
                follows = self._policy.after_failure(outcome, message.reconsume_times)
                if isinstance(follows, GiveBack):
                    back.append((message, follows.delay_level))
                elif isinstance(follows, Park):
                    self._park(run, message, reason_of(outcome))
                else:
                    run.pause_ms = follows.pause_ms
                    break
            run.done_count += 1
        for message, outcome in judged[run.done_count - begin :]:
            if outcome is not None and outcome is not _NOT_RUN:
                # As in Java the count lives with this consumer; the stored record keeps its own.
                message.stored.reconsume_times += 1
                run.state.assignment.failed_count += 1
        run.process_queue.finish_all(finished)
        if back:
            self._send_back(run, back)
        else:
            self._settle(run)

    def _park(self, run: _Run, message: ReceivedMessage, reason: str) -> None:
        """Put a message aside; `_settle` does it with those of its group that are in the strand."""
        assert self.parking is not None
        assignment = run.state.assignment
        self.parking.park(assignment, message, ParkKind.FAILED, reason)
        assignment.failed_count += 1

    def _send_back(self, run: _Run, back: list[tuple[ReceivedMessage, int]]) -> None:
        """The strand goes on when the messages are in other hands, so that none is passed."""
        run.left = len(back)
        assignment = run.state.assignment
        for message, _ in back:
            run.state.returning[message.queue_offset] = run
        for message, delay_level in back:
            self._host.give_back(assignment, message, delay_level)

    def given_back(self, assignment: Assignment, message: ReceivedMessage) -> None:
        """A message is in other hands."""
        assignment.process_queue.finish(message.queue_offset)
        assignment.failed_count += 1
        state: OrderedQueue = assignment.state
        run = state.returning.pop(message.queue_offset, None)
        if run is None:
            return
        run.left -= 1
        if not run.left:
            self._settle(run)
            self._list(state)
            self._pump()

    def _settle(self, run: _Run) -> None:
        """The strand goes on, now or after a pause."""
        state = run.state
        parking = self.parking
        if run.pause_ms < 0:
            state.strands.done(run.strand, run.done_count)
        else:
            state.strands.suspend(run.strand, run.done_count)
            if not state.is_closed:
                state.timers[run.strand] = self._loop.call_later(
                    run.pause_ms / 1000, self._resume, state, run.strand
                )
        if parking is not None and parking.is_any_closed:
            for message in state.strands.withdraw(run.strand, parking.is_closed):
                parking.park(state.assignment, message, ParkKind.BEHIND)
        if state.assignment.loop.hold_reason is not None:
            state.assignment.loop.wake()

    def _resume(self, state: OrderedQueue, strand: str) -> None:
        state.timers.pop(strand, None)
        state.strands.resume(strand)
        self._list(state)
        self._pump()

    # -- flow control -----------------------------------------------------------------------

    def say_held(self, loop: PullLoop, reason: str) -> None:
        """Once per hold: which strand keeps the queue from being pulled further."""
        state = self._queues.get(loop.queue)
        if state is None or not state.strands.suspended:
            return
        log.warning(
            "group %s stops pulling %s at offset %d (%s): offset %s is not done, and %d of %d "
            "message groups wait after a failure, the first is %r",
            self._host.group,
            loop.queue,
            loop.process_queue.pull_offset,
            reason,
            loop.process_queue.first_outstanding,
            len(state.strands.suspended),
            state.strands.strand_count,
            state.strands.suspended[0],
        )


def _group_of(message: ReceivedMessage) -> str:
    """The message group; messages without one share the strand of the queue."""
    raw = find_property(message.stored.raw_properties, _GROUP_PROPERTY)
    return raw.decode(errors="replace") if raw else ""
