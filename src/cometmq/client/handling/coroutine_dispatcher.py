"""Runs an ``async def`` handler on the loop, in a bounded number of worker tasks.

The workers take messages from one deque and ``await handler(message)`` directly.  A handler that
never suspends costs no task and no turn of the loop; one that suspends blocks its worker only.  The
handler runs inside a real task, so ``asyncio.timeout`` and ``current_task`` work in it as usual.

A run is a list of messages that one worker handles one after the other, and each is reported when
it ends.  When other tasks need the loop, the remaining messages return to the deque, so that a
drain sees them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from cometmq.client.handling.handlers import (
    Outcome,
    OutcomeReport,
    RetryLater,
    StopConsuming,
    ends_program,
    outcome_of,
    outcomes_of,
    result_of_error,
)
from cometmq.client.handling.lanes import Lanes
from cometmq.client.message.message import ReceivedMessage

__all__ = ["CoroutineDispatcher"]

SLICE_S: Final = 0.005
"""How long workers may keep the loop before heartbeats and timers get a turn."""
RUN_S: Final = 0.002
"""The target length of a run; the queue's lock is checked only between two runs."""
RUN_S_MAX: Final = 10 * RUN_S
"""A run that takes longer ends early."""
RUN_MAX: Final = 64


class CoroutineDispatcher:
    """Runs an ``async def`` handler in a bounded number of worker tasks."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[Any]],
        report: OutcomeReport,
        concurrency: int,
        batch_size: int | None,
        spawn: Callable[[Any, str], None],
        lanes: Lanes | None = None,
    ) -> None:
        self._handler = handler
        self._report = report
        self._batch_size = batch_size
        self._ready: deque[tuple[Any, Any]] | Lanes = deque() if lanes is None else lanes
        self._loop = asyncio.get_running_loop()
        self._idle: list[asyncio.Future[None]] = []
        self._wake_sent = False
        self._is_draining = False
        self._current: dict[int, tuple[Any, Any, float, asyncio.Task[Any]]] = {}
        self._drained: asyncio.Future[None] | None = None
        self._drainer: asyncio.Task[Any] | None = None
        # Seconds per message, smoothed.  The first value is pessimistic, so that a slow handler
        # gets runs of one message from the start.
        self._seconds_per_message = RUN_S
        self._workers: set[asyncio.Task[Any] | None] = set()
        self._spawn = spawn
        self._concurrency = 0
        self._numbers: set[int] = set()
        """The numbers of the workers that have not ended."""
        self.set_concurrency(concurrency)

    @property
    def running_count(self) -> int:
        """Messages inside the handler now."""
        if self._batch_size is None:
            return len(self._current)
        return sum(len(messages) for _, messages, _, _ in self._current.values())

    def submit(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue messages of one queue, in their order."""
        if self._is_draining:
            return
        size = self._batch_size
        if size is None:
            self._ready.extend([(assigned, message) for message in messages])
        elif len(messages) <= size:
            self._ready.append((assigned, messages))
        else:
            for begin in range(0, len(messages), size):
                self._ready.append((assigned, messages[begin : begin + size]))
        self._wake()

    @property
    def run_size(self) -> int:
        """Messages of a run: those of one call, or as many as fit the target length."""
        if self._batch_size is not None:
            return self._batch_size
        return max(1, min(RUN_MAX, int(RUN_S / self._seconds_per_message)))

    def submit_run(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue a run for one worker."""
        if self._is_draining:
            self._report.skipped(assigned, messages)
            return
        self._ready.append((assigned, messages))
        # A worker that reports its last run takes the next one itself.
        if asyncio.current_task(self._loop) not in self._workers:
            self._wake()

    def _wake(self) -> None:
        # Wake one worker; it wakes the next one if there is more work.
        while self._idle and not self._wake_sent:
            waiter = self._idle.pop()
            if not waiter.done():
                self._wake_sent = True
                waiter.set_result(None)

    async def _next(self, number: int) -> bool:
        """Wait for work; False if this worker ends, by a drain or a lower concurrency."""
        self._current.pop(number, None)
        while True:
            if self._is_draining:
                self._check_drained()
                return False
            if number >= self._concurrency:
                self._numbers.discard(number)
                if self._ready:
                    self._wake()
                return False
            if self._ready:
                return True
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiter)
            await waiter
            self._wake_sent = False

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many workers there are; a worker too many ends after its handler."""
        self._concurrency = concurrency
        for number in range(concurrency):
            if number not in self._numbers:
                self._numbers.add(number)
                self._spawn(self._work(number), f"handler-{number}")
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)

    async def _work(self, number: int) -> None:
        """One worker: a message, or a list of them, at a time; HOT."""
        ready = self._ready
        current = self._current
        report = self._report
        handler = self._handler
        takes_lists = self._batch_size is not None
        clock = self._loop.time
        task = asyncio.current_task()
        assert task is not None
        self._workers.add(task)
        slice_end = clock() + SLICE_S
        while True:
            if not ready or self._is_draining or number >= self._concurrency:
                if not await self._next(number):
                    return
                slice_end = clock() + SLICE_S
            assigned, work = ready.popleft()
            process_queue = assigned.process_queue
            if process_queue.dropped or process_queue.is_paused:
                report.skipped(assigned, work if isinstance(work, list) else [work])
                continue
            if self._idle and ready and not self._wake_sent:
                self._wake()
            now = clock()
            if now > slice_end:
                # Back to the front: a drain in this turn must not skip it and keep later messages.
                ready.appendleft((assigned, work))
                current.pop(number, None)
                await asyncio.sleep(0)
                slice_end = clock() + SLICE_S
                continue
            if not takes_lists and isinstance(work, list):
                await self._run(number, task, assigned, work, now, slice_end)
                continue
            current[number] = (assigned, work, now, task)
            try:
                value = await handler(work)
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError) and self._was_expired(number):
                    continue
                value = self._failed(task, error)
            process_queue.handler_s += clock() - now
            if current.pop(number, None) is None:
                task.uncancel()  # expired, and the handler swallowed the cancellation
            elif takes_lists:
                _report_list(report, assigned, work, value)
            else:
                report.finished(assigned, work, outcome_of(value))

    async def _run(
        self,
        number: int,
        task: asyncio.Task[Any],
        run: Any,
        messages: list[ReceivedMessage],
        begin: float,
        slice_end: float,
    ) -> None:
        """Handle the messages of a run in order, up to the first that fails; HOT."""
        handler, report, clock = self._handler, self._report, self._loop.time
        process_queue = run.process_queue
        now = before = begin
        done = 0
        outcome: Outcome = None
        for message in messages:
            self._current[number] = (run, message, before, task)
            try:
                value = await handler(message)
            except BaseException as error:
                value = self._failed(task, error)
            now = clock()
            process_queue.handler_s += now - before
            done += 1
            outcome = None if value is None else outcome_of(value)
            if (
                outcome is not None
                or now - begin > RUN_S_MAX
                or now > slice_end
                or self._is_draining
                or process_queue.dropped
                or process_queue.is_paused
            ):
                break
            before = now
            if done < len(messages):
                report.finished(run, message, None)
        del self._current[number]
        self._seconds_per_message += 0.2 * ((now - begin) / done - self._seconds_per_message)
        remaining = messages[done:]
        report.finished(run, message, outcome)
        if not remaining:
            return
        if outcome is None and now - begin <= RUN_S_MAX and not self._is_draining:
            # Other tasks get the loop; a drain or a lost queue finds these messages here.
            self._ready.appendleft((run, remaining))
        else:
            report.skipped(run, remaining)

    def _failed(self, task: asyncio.Task[Any], error: BaseException) -> RetryLater | StopConsuming:
        """The outcome of a handler's exception; raises one that is meant for the worker.

        A handler's exception must not end the worker, whose message would be lost with it.
        """
        if isinstance(error, GeneratorExit) or (
            isinstance(error, asyncio.CancelledError) and task.cancelling()
        ):
            raise error
        if ends_program(error):
            self._loop.call_soon(_raise, error)
        return result_of_error(error)

    def _was_expired(self, number: int) -> bool:
        """Whether `expire` has cancelled this worker to give up its message."""
        if number in self._current:
            return False
        task = asyncio.current_task()
        return task is not None and task.uncancel() == 0

    def _check_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and not self._is_any_awaited():
            self._drained.set_result(None)

    def _is_any_awaited(self) -> bool:
        """Whether a handler runs other than the one that called the drain."""
        return any(task is not self._drainer for _, _, _, task in self._current.values())

    async def drain(self, deadline_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Start no handler, wait for the running ones; returns the messages still in a handler."""
        self._is_draining = True
        for assigned, work in self._ready:
            self._report.skipped(assigned, work if isinstance(work, list) else [work])
        self._ready.clear()
        self._drainer = asyncio.current_task()
        if self._is_any_awaited():
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=deadline_s)
        return _flatten([(assigned, work) for assigned, work, _, _ in self._current.values()])

    async def run_one(self, message: ReceivedMessage) -> Outcome:
        """Run the handler on one message, outside the ordinary flow."""
        if self._batch_size is None:
            return outcome_of(await self._handler(message))
        return outcomes_of(await self._handler([message]), 1)[0]

    def expire(self, older_than_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Cancel handlers that run for too long and return their messages."""
        limit = self._loop.time() - older_than_s
        expired: list[tuple[Any, Any]] = []
        for number, (assigned, work, started, task) in list(self._current.items()):
            if started < limit:
                del self._current[number]
                task.cancel()
                expired.append((assigned, work))
        return _flatten(expired)


def _raise(error: BaseException) -> None:
    """Raise an exit from a callback, where it ends the loop."""
    raise error


def _flatten(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, ReceivedMessage]]:
    flat: list[tuple[Any, ReceivedMessage]] = []
    for assigned, work in pairs:
        if isinstance(work, list):
            flat += [(assigned, message) for message in work]
        else:
            flat.append((assigned, work))
    return flat


def _report_list(
    report: OutcomeReport, assigned: Any, messages: Sequence[ReceivedMessage], value: Any
) -> None:
    if value is None or value is True:
        report.finished_all(assigned, messages)
        return
    for message, outcome in zip(messages, outcomes_of(value, len(messages)), strict=True):
        report.finished(assigned, message, outcome)
