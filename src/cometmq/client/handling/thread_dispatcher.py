"""Runs a plain function in threads of its own, and reports the outcomes on the loop.

Passing work to a thread costs tens of microseconds.  So a quick function gets chunks of messages,
and a slow one gets one message at a time, by the measured time per message.
"""

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Final

from cometmq.client.handling.handlers import (
    Handler,
    Outcome,
    OutcomeReport,
    ends_program,
    outcome_of,
    outcomes_of,
    result_of_error,
)
from cometmq.client.message.message import ReceivedMessage
from cometmq.errors import CometError

__all__ = ["ThreadDispatcher"]

CHUNK_S: Final = 0.002
"""The target length of a chunk of work for one thread."""
CHUNK_MAX: Final = 64
_handler_thread: Final[ContextVar[threading.Thread | None]] = ContextVar(
    "cometmq_handler_thread", default=None
)
"""The handler's thread that made the present call to the loop; the context carries it."""


class _Chunk:
    """Messages of one queue on their way through a thread."""

    __slots__ = (
        "assigned",
        "expired",
        "is_run",
        "messages",
        "outcomes",
        "seconds",
        "started",
        "thread",
    )

    def __init__(
        self, assigned: Any, messages: list[ReceivedMessage], *, is_run: bool = False
    ) -> None:
        self.assigned = assigned
        self.is_run = is_run
        """A run: it ends at the first failure, and each message is reported."""
        self.messages = messages
        self.outcomes: list[Outcome] | None = None
        self.started = 0.0
        self.seconds = 0.0
        self.expired = False
        self.thread: threading.Thread | None = None


class ThreadDispatcher:
    """Runs a plain function in threads of its own."""

    def __init__(
        self, handler: Handler, report: OutcomeReport, concurrency: int, batch_size: int | None
    ) -> None:
        self._handler: Callable[[Any], Any] = handler
        self._report = report
        self._batch_size = batch_size
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Chunk | None] = SimpleQueue()
        self._done: deque[_Chunk] = deque()
        self._notified = False
        self._is_draining = False
        self._in_threads: set[_Chunk] = set()
        self._drained: asyncio.Future[None] | None = None
        self._drainer: threading.Thread | None = None
        # Seconds per message, smoothed.  The first value is pessimistic, so that slow handlers
        # run in parallel from the start.
        self._seconds_per_message = CHUNK_S
        self._lock = threading.Lock()
        """Guards the two counts of threads below."""
        self._thread_count = 0
        self._surplus_count = 0
        """How many threads are to end; each ends when it has no chunk."""
        self.set_concurrency(concurrency)

    def set_concurrency(self, concurrency: int) -> None:
        """Change how many threads there are; a thread too many ends after its chunk."""
        with self._lock:
            missing = concurrency - (self._thread_count - self._surplus_count)
            revived = min(max(0, missing), self._surplus_count)
            self._surplus_count -= revived
            started = range(self._thread_count, self._thread_count + max(0, missing) - revived)
            self._thread_count += len(started)
            self._surplus_count += max(0, -missing)
        for number in started:
            threading.Thread(
                target=self._run, name=f"cometmq-handler-{number}", daemon=True
            ).start()
        for _ in range(-missing):
            self._work.put(None)  # wakes a thread that waits for work

    def _is_surplus(self) -> bool:
        """Whether the calling thread is to end; counts it as ended then."""
        if not self._surplus_count:
            return False
        with self._lock:
            if not self._surplus_count:
                return False
            self._surplus_count -= 1
            self._thread_count -= 1
            return True

    @property
    def running_count(self) -> int:
        """Messages inside the handler now."""
        return sum(len(chunk.messages) for chunk in self._in_threads if chunk.started)

    def submit(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue messages of one queue, in their order."""
        if self._is_draining or not messages:
            return
        size = self.run_size
        put = self._work.put
        if len(messages) <= size:
            chunk = _Chunk(assigned, messages)
            self._in_threads.add(chunk)
            put(chunk)
            return
        for begin in range(0, len(messages), size):
            chunk = _Chunk(assigned, messages[begin : begin + size])
            self._in_threads.add(chunk)
            put(chunk)

    @property
    def run_size(self) -> int:
        """Messages per chunk: those of one call, or as many as fit the target length."""
        if self._batch_size is not None:
            return self._batch_size
        return max(1, min(CHUNK_MAX, int(CHUNK_S / self._seconds_per_message)))

    def submit_run(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue messages for one thread, up to the first that fails."""
        if self._is_draining:
            self._report.skipped(assigned, messages)
            return
        chunk = _Chunk(assigned, messages, is_run=True)
        self._in_threads.add(chunk)
        self._work.put(chunk)

    def _run(self) -> None:
        """A thread: take a chunk, run it, report it."""
        single = self._batch_size is None
        thread = threading.current_thread()
        _handler_thread.set(thread)
        while not self._is_surplus():
            chunk = self._work.get()
            if chunk is None:
                continue
            process_queue = chunk.assigned.process_queue
            if not (self._is_draining or process_queue.dropped or process_queue.is_paused):
                chunk.thread = thread
                chunk.started = time.monotonic()
                chunk.outcomes = self._run_single(chunk) if single else self._run_list(chunk)
                chunk.seconds = time.monotonic() - chunk.started
            self._done.append(chunk)
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the loop is closed, so nobody waits for results

    def _run_single(self, chunk: _Chunk) -> list[Outcome]:
        """Run the handler on each message, until a drain begins or the queue is dropped."""
        outcomes: list[Outcome] = []
        handler = self._handler
        process_queue = chunk.assigned.process_queue
        in_order = chunk.is_run
        for message in chunk.messages:
            if self._is_draining or process_queue.dropped or process_queue.is_paused:
                break
            try:
                value = handler(message)
                if value is not None and inspect.isawaitable(value):
                    value = self._wait_for(value)
                outcomes.append(None if value is None else outcome_of(value))
            except BaseException as error:  # nothing would replace a thread that ended
                outcomes.append(outcome_of(result_of_error(error)))
            if in_order and outcomes[-1] is not None:
                break
        return outcomes

    def _run_list(self, chunk: _Chunk) -> list[Outcome]:
        try:
            return outcomes_of(self._call(chunk.messages), len(chunk.messages))
        except BaseException as error:
            verdict = result_of_error(error)
            return [outcome_of(verdict)] * len(chunk.messages)

    def _call(self, argument: Any) -> Any:
        value = self._handler(argument)
        return self._wait_for(value) if inspect.isawaitable(value) else value

    def _wait_for(self, value: Awaitable[Any]) -> Any:
        """Run on the loop the coroutine that a plain function returned, and return its result."""

        async def run() -> Any:
            try:
                return await value
            except (KeyboardInterrupt, SystemExit) as error:
                if ends_program(error):
                    raise
                raise CometError(f"the handler raised {error!r}") from error

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _collect(self) -> None:
        """On the loop: report finished chunks."""
        self._notified = False
        done = self._done
        report = self._report
        while done:
            chunk = done.popleft()
            self._in_threads.discard(chunk)
            outcomes = chunk.outcomes
            if outcomes is None or chunk.expired:
                if chunk.is_run or not chunk.expired:
                    report.skipped(chunk.assigned, chunk.messages)
                continue
            chunk.assigned.process_queue.handler_s += chunk.seconds
            if outcomes:
                seconds = chunk.seconds / len(outcomes)
                self._seconds_per_message += 0.2 * (seconds - self._seconds_per_message)
            if len(outcomes) == len(chunk.messages) and not any(
                outcome is not None for outcome in outcomes
            ):
                report.finished_all(chunk.assigned, chunk.messages)
                continue
            for message, outcome in zip(chunk.messages, outcomes, strict=False):
                report.finished(chunk.assigned, message, outcome)
            if len(outcomes) < len(chunk.messages):
                report.skipped(chunk.assigned, chunk.messages[len(outcomes) :])
        if self._drained is not None and not self._drained.done() and not self._is_any_awaited():
            self._drained.set_result(None)

    def _is_any_awaited(self) -> bool:
        """Whether a chunk is under way, apart from the one whose handler called the drain."""
        drainer = self._drainer
        return any(drainer is None or chunk.thread is not drainer for chunk in self._in_threads)

    async def drain(self, deadline_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Start no handler, wait for the running ones; returns the messages still in a handler."""
        self._is_draining = True
        self._drainer = _handler_thread.get()
        if self._is_any_awaited():
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=deadline_s)
        self.set_concurrency(0)
        running: list[tuple[Any, ReceivedMessage]] = []
        for chunk in self._in_threads:
            if chunk.started:
                chunk.expired = True
                running += [(chunk.assigned, message) for message in chunk.messages]
        return running

    async def run_one(self, message: ReceivedMessage) -> Outcome:
        """Run the handler on one message, outside the ordinary flow."""
        if self._batch_size is None:
            return outcome_of(await asyncio.to_thread(self._call, message))
        return outcomes_of(await asyncio.to_thread(self._call, [message]), 1)[0]

    def expire(self, older_than_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Give up chunks that run for too long; a thread cannot be stopped, only ignored."""
        limit = time.monotonic() - older_than_s
        expired: list[tuple[Any, ReceivedMessage]] = []
        for chunk in self._in_threads:
            if chunk.started and chunk.started < limit and not chunk.expired:
                chunk.expired = True
                expired += [(chunk.assigned, message) for message in chunk.messages]
        return expired
