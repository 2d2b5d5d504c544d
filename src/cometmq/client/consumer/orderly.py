"""Ordered consumption: starts the handlers of an ordered consumer and acts on their outcomes.

A *run* is a list of messages of one strand that a handler gets in one call, or a thread handles one
after the other.  At most ``concurrency`` runs are under way and none is queued, so after a lost
lock or a rebalance there is nothing to call back.  A queue that is given up ends in two steps:
`leave` starts nothing new, and `wait_idle` waits for the last run.  A queue that was lost, or
begins again at another offset, ends at once.  Its successor starts when the old runs have ended, so
two handlers never have one queue.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from cometmq.client.extensions.parking.parking import Parking
from cometmq.client.handling.dispatchers import Dispatcher
from cometmq.client.handling.failures import STOPPED, follows, log_failure
from cometmq.client.handling.handlers import OUTCOME_STOP, Outcome, pause_of, reason_of
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
    """The consumer as its runner uses it."""

    group: str

    def dispatcher_of(self, topic: str) -> Dispatcher:
        """The dispatcher of a topic's handler; ConfigError without a handler."""
        ...

    def may_consume(self, queue: MessageQueue) -> bool:
        """Whether this client certainly owns the queue's lock."""
        ...

    def may_start(self, queue: MessageQueue) -> bool:
        """Whether a handler may start on a queue: its lock is ours, and it is not paused."""
        ...

    def stop_consuming(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """Start no handler any more: one of them asks for it."""
        ...

    def now_ms(self) -> int:
        """The time in milliseconds since 1970."""
        ...

    def give_back(self, assignment: Assignment, message: ReceivedMessage, delay_level: int) -> None:
        """Send a message to the retry or dead-letter topic, then call `given_back`."""
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
        """Whether no run may start any more."""
        self.is_listed = False
        """Whether the runner's list of queues to serve contains it."""
        self.run_count = 0
        """How many runs are in handlers."""
        self.timers: dict[str, asyncio.TimerHandle] = {}
        """The timers that resume suspended strands."""
        self.returning: dict[int, _Run] = {}
        """Runs that wait for a returned message, by its queue offset."""
        self._idle: asyncio.Future[None] | None = None

    async def wait_idle(self) -> None:
        """Wait until no handler has a message of this queue."""
        if self.run_count:
            self._idle = self._idle or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def run_ended(self) -> None:
        """Count a run that has ended."""
        self.run_count -= 1
        if not self.run_count and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


class _Run:
    """Messages of one strand in a handler, and their outcomes."""

    __slots__ = (
        "done_count",
        "messages",
        "outcomes",
        "pause_ms",
        "pending_count",
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
        """From the first failure on: an `Outcome` or `_NOT_RUN` per message."""
        self.pending_count = len(messages)
        """How many outcomes, then returned messages, the run waits for."""
        self.done_count = 0
        """How many of the first messages need not run again."""
        self.pause_ms = -1
        """How long the strand pauses; -1 if no message is tried again."""

    @property
    def judged(self) -> list[tuple[ReceivedMessage, Any]]:
        """The messages from the first failure on, with their outcomes."""
        return list(zip(self.messages[self.done_count :], self.outcomes, strict=True))


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
        self._dropped_runs: dict[MessageQueue, int] = {}
        """How many runs of dropped queues are still in handlers."""
        self.parking: Parking | None = None
        """Parks messages that failed too often, with the later ones of their group."""

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many runs may be under way at a time."""
        self._concurrency = concurrency
        self._pump()

    # -- queues -----------------------------------------------------------------------------

    def added(self, assignment: Assignment) -> None:
        """Add a queue, or begin it again at another offset."""
        state = OrderedQueue(assignment)
        assignment.state = state
        self._queues[assignment.queue] = state
        if self.parking is not None:
            self.parking.added(assignment)

    def leave(self, assignment: Assignment) -> OrderedQueue:
        """Start no more runs of a queue; those under way may end."""
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
        """Drop a queue; the outcomes of its runs are ignored."""
        state = self.leave(assignment)
        if state.run_count:
            queue = assignment.queue
            self._dropped_runs[queue] = self._dropped_runs.get(queue, 0) + state.run_count

    def close(self) -> None:
        """Start no more runs at all."""
        for state in list(self._queues.values()):
            self.leave(state.assignment)

    # -- from pulls to handlers -------------------------------------------------------------

    def submit(self, assignment: Assignment, messages: list[ReceivedMessage]) -> None:
        """Add pulled messages of one queue, in their order."""
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
        """Start runs of a queue that may have waited for its lock or its old runs."""
        state = self._queues.get(queue)
        if state is not None:
            self._list(state)
            self._pump()

    def _list(self, state: OrderedQueue) -> None:
        if not state.is_listed and not state.is_closed and state.strands.is_ready:
            state.is_listed = True
            self._waiting.append(state)

    def _pump(self) -> None:
        """Start runs, one queue after the other, while handlers are free; HOT."""
        waiting = self._waiting
        while waiting and self._run_count < self._concurrency:
            state = waiting.popleft()
            state.is_listed = False
            queue = state.assignment.queue
            if (
                state.is_closed
                or queue in self._dropped_runs
                # A queue without a fresh lock begins again at the next successful renewal.
                or not self._host.may_start(queue)
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
            # Finish it now: it need not run again, whatever happens to later messages.
            run.done_count += 1
            run.process_queue.finish(message.queue_offset)
        else:
            run.outcomes.append(outcome)
        run.pending_count -= 1
        if not run.pending_count:
            self._ended(run)

    def finished_all(self, run: _Run, messages: Sequence[ReceivedMessage]) -> None:
        """These messages of a run were handled with success; HOT."""
        if run.outcomes:
            run.outcomes.extend([None] * len(messages))
        else:
            run.done_count += len(messages)
            run.process_queue.finish_all([message.queue_offset for message in messages])
        run.pending_count -= len(messages)
        if not run.pending_count:
            self._ended(run)

    def skipped(self, run: _Run, messages: Sequence[ReceivedMessage]) -> None:
        """These messages did not run: an earlier one failed, or the queue was dropped."""
        run.outcomes.extend([_NOT_RUN] * len(messages))
        run.pending_count -= len(messages)
        if not run.pending_count:
            self._ended(run)

    def _ended(self, run: _Run) -> None:
        state = run.state
        self._run_count -= 1
        state.run_ended()
        queue = state.assignment.queue
        if run.process_queue.dropped:
            for message, outcome in run.judged:
                if outcome is not None and outcome is not _NOT_RUN:
                    self._log(message, outcome, "the queue has another owner now, which handles it")
            if queue in self._dropped_runs:
                self._dropped_runs[queue] -= 1
                if not self._dropped_runs[queue]:
                    del self._dropped_runs[queue]
                    self.wake(queue)
        else:
            self._judge(run)
            self._list(state)
        self._pump()

    def _judge(self, run: _Run) -> None:
        """Finish the messages before the first one that has to wait or did not run."""
        if not run.outcomes:
            self._settle(run)
            return
        back: list[tuple[ReceivedMessage, int]] = []
        finished: list[int] = []
        judged = run.judged
        begin = run.done_count
        for message, outcome in judged:
            if outcome is _NOT_RUN:
                break
            if outcome is None:
                finished.append(message.queue_offset)
            elif outcome == OUTCOME_STOP:
                self._log(message, outcome, STOPPED)
                self._host.stop_consuming(message, outcome)
                judged = judged[: run.done_count - begin]
                break
            else:
                decision = self._policy.after_failure(
                    outcome, message.reconsume_times, pause_of(outcome, self._host.now_ms())
                )
                self._log(message, outcome, follows(decision))
                if isinstance(decision, GiveBack):
                    # The outcome itself may carry properties for the dead letter.
                    level = decision.delay_level
                    back.append((message, outcome if outcome == level else level))
                elif isinstance(decision, Park):
                    self._park(run, message, reason_of(outcome))
                else:
                    run.pause_ms = decision.pause_ms
                    break
            run.done_count += 1
        for message, outcome in judged[run.done_count - begin :]:
            if outcome is not None and outcome is not _NOT_RUN:
                # As in Java this consumer counts the tries; the stored record has another count.
                message.stored.reconsume_times += 1
                run.state.assignment.failed_count += 1
        run.process_queue.finish_all(finished)
        if back:
            self._send_back(run, back)
        else:
            self._settle(run)

    def _log(self, message: ReceivedMessage, outcome: Outcome, follows: str) -> None:
        log_failure(self._host.group, message, outcome, follows)

    def _park(self, run: _Run, message: ReceivedMessage, reason: str) -> None:
        """Park a message; `_settle` parks the later ones of its group in the strand."""
        assert self.parking is not None
        assignment = run.state.assignment
        self.parking.park(assignment, message, ParkKind.FAILED, reason)
        assignment.failed_count += 1

    def _send_back(self, run: _Run, back: list[tuple[ReceivedMessage, int]]) -> None:
        """Return messages; the strand continues when the brokers have accepted all of them."""
        run.pending_count = len(back)
        assignment = run.state.assignment
        for message, _ in back:
            run.state.returning[message.queue_offset] = run
        for message, delay_level in back:
            self._host.give_back(assignment, message, delay_level)

    def given_back(self, assignment: Assignment, message: ReceivedMessage) -> None:
        """Finish a message that a broker has accepted back."""
        assignment.process_queue.finish(message.queue_offset)
        assignment.failed_count += 1
        state: OrderedQueue = assignment.state
        run = state.returning.pop(message.queue_offset, None)
        if run is None:
            return
        run.pending_count -= 1
        if not run.pending_count:
            self._settle(run)
            self._list(state)
            self._pump()

    def _settle(self, run: _Run) -> None:
        """Let the strand continue, now or after a pause."""
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

    def log_hold(self, loop: PullLoop, reason: str) -> None:
        """Log which strand keeps the queue from being pulled further."""
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
