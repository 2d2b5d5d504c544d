"""Running a user's handlers: coroutines, plain functions in threads, one message or a list.

Job: take messages of assigned queues, run the handler on each with bounded concurrency, report
what became of them, drain on shutdown.
Must not: retry, commit or talk to brokers; the consumer does.

Theory of the coroutine dispatcher: a fixed number of worker tasks take messages from one deque and
``await handler(message)`` directly.  A handler that never suspends costs no task and no turn of
the loop; one that does suspends its worker, and the next worker goes on.  Since the handler runs
inside a real task, ``asyncio.timeout`` and ``current_task`` work in it as everywhere.

Theory of the thread dispatcher: crossing threads costs tens of microseconds, so quick functions
get chunks of messages and slow ones get one at a time, by the measured time per message.
"""

import asyncio
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias

from cometmq.client.message import ReceivedMessage
from cometmq.core.consume_retry import DELAY_LEVEL_BY_BROKER, DELAY_LEVEL_DEAD_LETTER
from cometmq.core.process_queue import ProcessQueue
from cometmq.errors import CometError

__all__ = [
    "CoroutineDispatcher",
    "DeadLetter",
    "Dispatcher",
    "Handler",
    "Outcome",
    "RetryLater",
    "ThreadDispatcher",
    "Verdict",
    "make_dispatcher",
    "outcome_of",
    "reason_of",
    "verdict_of_error",
]

log = logging.getLogger("cometmq.client")

Outcome = int | None
"""None for done, else the delay level of the next try (0: the broker's choice, -1: dead letter)."""

SLICE_S: Final = 0.005
"""How long workers may keep the loop before others (heartbeats, timers) get a turn."""
CHUNK_S: Final = 0.002
"""How much work a thread gets at once."""
CHUNK_MAX: Final = 64


class RetryLater(CometError):
    """The handler wants the message again: ``delay_level`` 1..18, or 0 for the usual back-off."""

    def __init__(self, delay_level: int = DELAY_LEVEL_BY_BROKER, reason: str = "") -> None:
        self.delay_level = delay_level
        super().__init__(reason or f"retry later at delay level {delay_level}")


class DeadLetter(RetryLater):
    """The handler never wants the message again: it goes to the group's dead-letter topic."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(DELAY_LEVEL_DEAD_LETTER, reason or "sent to the dead-letter topic")


Verdict: TypeAlias = bool | RetryLater | None
"""What a handler returns for a message."""
Handler: TypeAlias = (
    Callable[[ReceivedMessage], Verdict | Awaitable[Verdict]]
    | Callable[
        [list[ReceivedMessage]],
        Verdict | Sequence[Verdict] | Awaitable[Verdict | Sequence[Verdict]],
    ]
)
"""Takes a `ReceivedMessage` (or a list of them); plain or ``async``.

None or True: done.  False or an exception: try again later.  `RetryLater` (returned or raised):
try again after a level of the handler's choice; `DeadLetter`: never again.  A list handler may
also return one such value per message.
"""


class _Failed(int):
    """A delay level, and why the handler asked for it."""

    reason: str = ""


def reason_of(outcome: Outcome) -> str:
    """Why a message failed, as far as its handler said."""
    return outcome.reason if isinstance(outcome, _Failed) else ""


def outcome_of(value: Any) -> Outcome:
    """What a handler's return value means."""
    if value is None or value is True:
        return None
    if isinstance(value, RetryLater):
        failed = _Failed(value.delay_level)
        failed.reason = str(value)
        return failed
    if value is False:
        return DELAY_LEVEL_BY_BROKER
    return None


def _outcomes(value: Any, count: int) -> "list[Outcome]":
    """What a list handler's return value means for each of ``count`` messages."""
    if isinstance(value, (list, tuple)):
        if len(value) == count:
            return [outcome_of(one) for one in value]
        log.warning(
            "a list handler returned %d results for %d messages; all are tried again",
            len(value),
            count,
        )
        return [DELAY_LEVEL_BY_BROKER] * count
    return [outcome_of(value)] * count


def verdict_of_error(error: Exception, message: ReceivedMessage) -> RetryLater:
    """What an exception of a handler means."""
    if isinstance(error, RetryLater):
        return error
    log.warning(
        "the handler failed on %s at %d; it will be tried again",
        message.message_queue,
        message.queue_offset,
        exc_info=error,
    )
    return RetryLater(reason=f"{type(error).__name__}: {error}")


class Assigned(Protocol):
    """An assigned queue as dispatchers see it."""

    process_queue: ProcessQueue


class OnDone(Protocol):
    """What a dispatcher reports to; called on the loop."""

    def finished(self, assigned: Any, message: ReceivedMessage, outcome: Outcome) -> None:
        """One message was handled."""
        ...

    def finished_all(self, assigned: Any, messages: Sequence[ReceivedMessage]) -> None:
        """All of these messages were handled with success."""
        ...

    def skipped(self, assigned: Any, messages: Sequence[ReceivedMessage]) -> None:
        """These messages of a run will not be handled here."""
        ...


class Dispatcher(Protocol):
    """Runs one handler."""

    @property
    def running_count(self) -> int:
        """Messages inside the handler now."""
        ...

    def submit(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue messages of one queue, in their order."""
        ...

    @property
    def run_size(self) -> int:
        """How many messages a run should have at most."""
        ...

    def submit_run(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue messages that one worker handles one after the other, up to the first failure.

        Every message of a run is reported: finished or skipped.
        """
        ...

    async def drain(self, deadline_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Start nothing new, wait for what runs; what still runs at the deadline is returned."""
        ...

    async def run_one(self, message: ReceivedMessage) -> Outcome:
        """Run the handler on one message outside the ordinary flow (code 309)."""
        ...

    def expire(self, older_than_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Messages whose handler runs for too long; their results will be ignored."""
        ...


class CoroutineDispatcher:
    """Runs an ``async def`` handler in a bounded number of worker tasks."""

    def __init__(
        self,
        handler: Callable[[Any], Awaitable[Any]],
        report: OnDone,
        concurrency: int,
        batch_size: int | None,
        spawn: Callable[[Any, str], None],
    ) -> None:
        self._handler = handler
        self._report = report
        self._batch_size = batch_size
        self._ready: deque[tuple[Any, Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._idle: list[asyncio.Future[None]] = []
        self._wake_sent = False
        self._is_draining = False
        self._current: dict[int, tuple[Any, Any, float, asyncio.Task[Any]]] = {}
        self._drained: asyncio.Future[None] | None = None
        self._workers: set[asyncio.Task[Any] | None] = set()
        for number in range(concurrency):
            spawn(self._work(number), f"handler-{number}")

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
        """Messages of a run: those of one call."""
        return self._batch_size or 1

    def submit_run(self, assigned: Any, messages: list[ReceivedMessage]) -> None:
        """Queue the messages of one call."""
        if self._is_draining:
            self._report.skipped(assigned, messages)
            return
        self._ready.append((assigned, messages if self._batch_size else messages[0]))
        # A worker that reports its last run takes the next one itself.
        if asyncio.current_task(self._loop) not in self._workers:
            self._wake()

    def _wake(self) -> None:
        # One worker at a time: it wakes the next one itself if there is more than it can do.
        while self._idle and not self._wake_sent:
            waiter = self._idle.pop()
            if not waiter.done():
                self._wake_sent = True
                waiter.set_result(None)

    async def _next(self, number: int) -> None:
        """Wait until there is something to do."""
        self._current.pop(number, None)
        while not self._ready or self._is_draining:
            self._check_drained()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiter)
            await waiter
            self._wake_sent = False

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
            if not ready or self._is_draining:
                await self._next(number)
                slice_end = clock() + SLICE_S
            assigned, work = ready.popleft()
            if assigned.process_queue.dropped:
                report.skipped(assigned, work if takes_lists else [work])
                continue
            if ready and self._idle and not self._wake_sent:
                self._wake()
            now = clock()
            if now > slice_end:
                current.pop(number, None)
                await asyncio.sleep(0)
                now = clock()
                slice_end = now + SLICE_S
                if self._is_draining:
                    report.skipped(assigned, work if takes_lists else [work])
                    continue
            current[number] = (assigned, work, now, task)
            try:
                value = await handler(work)
            except asyncio.CancelledError:
                if not self._was_expired(number):
                    raise
                continue
            except Exception as error:
                value = verdict_of_error(error, work[0] if takes_lists else work)
            assigned.process_queue.handler_s += clock() - now
            if current.pop(number, None) is None:
                task.uncancel()  # expired, and the handler swallowed the cancellation
            elif takes_lists:
                _report_list(report, assigned, work, value)
            else:
                report.finished(assigned, work, outcome_of(value))

    def _was_expired(self, number: int) -> bool:
        """Whether the cancellation of a worker was `expire` giving up on its message."""
        if number in self._current:
            return False
        task = asyncio.current_task()
        return task is not None and task.uncancel() == 0

    def _check_drained(self) -> None:
        if self._drained is not None and not self._current and not self._drained.done():
            self._drained.set_result(None)

    async def drain(self, deadline_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Start nothing new, wait for what runs; what still runs at the deadline is returned."""
        self._is_draining = True
        for assigned, work in self._ready:
            self._report.skipped(assigned, [work] if self._batch_size is None else work)
        self._ready.clear()
        if self._current:
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=deadline_s)
        return _flatten([(assigned, work) for assigned, work, _, _ in self._current.values()])

    async def run_one(self, message: ReceivedMessage) -> Outcome:
        """Run the handler on one message outside the ordinary flow."""
        if self._batch_size is None:
            return outcome_of(await self._handler(message))
        return _outcomes(await self._handler([message]), 1)[0]

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


def _flatten(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, ReceivedMessage]]:
    flat: list[tuple[Any, ReceivedMessage]] = []
    for assigned, work in pairs:
        if isinstance(work, list):
            flat += [(assigned, message) for message in work]
        else:
            flat.append((assigned, work))
    return flat


def _report_list(
    report: OnDone, assigned: Any, messages: Sequence[ReceivedMessage], value: Any
) -> None:
    if value is None or value is True:
        report.finished_all(assigned, messages)
        return
    for message, outcome in zip(messages, _outcomes(value, len(messages)), strict=True):
        report.finished(assigned, message, outcome)


class _Chunk:
    """Messages of one queue on their way through a thread."""

    __slots__ = ("assigned", "expired", "is_run", "messages", "outcomes", "seconds", "started")

    def __init__(
        self, assigned: Any, messages: list[ReceivedMessage], *, is_run: bool = False
    ) -> None:
        self.assigned = assigned
        self.is_run = is_run
        """In order: ends at the first failure, and each message is reported."""
        self.messages = messages
        self.outcomes: list[Outcome] | None = None
        self.started = 0.0
        self.seconds = 0.0
        self.expired = False


class ThreadDispatcher:
    """Runs a plain function in threads of its own."""

    def __init__(
        self, handler: Handler, report: OnDone, concurrency: int, batch_size: int | None
    ) -> None:
        self._handler: Callable[[Any], Any] = handler
        self._report = report
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[_Chunk | None] = SimpleQueue()
        self._done: deque[_Chunk] = deque()
        self._notified = False
        self._is_draining = False
        self._in_threads: set[_Chunk] = set()
        self._drained: asyncio.Future[None] | None = None
        # Seconds per message, smoothed; pessimistic at first, so that slow handlers get
        # parallelism from the start.
        self._seconds_per_message = CHUNK_S
        self._threads = [
            threading.Thread(target=self._run, name=f"cometmq-handler-{number}", daemon=True)
            for number in range(concurrency)
        ]
        for thread in self._threads:
            thread.start()

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
        """Messages per chunk: those of one call, or as many as are worth a change of threads."""
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
        while True:
            chunk = self._work.get()
            if chunk is None:
                return
            if not self._is_draining and not chunk.assigned.process_queue.dropped:
                chunk.started = time.monotonic()
                chunk.outcomes = self._run_single(chunk) if single else self._run_list(chunk)
                chunk.seconds = time.monotonic() - chunk.started
            self._done.append(chunk)
            if not self._notified:
                self._notified = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:
                    return  # the loop is closed: nobody waits for results any more

    def _run_single(self, chunk: _Chunk) -> list[Outcome]:
        """Run the handler on each message; those after a drain request stay undone."""
        outcomes: list[Outcome] = []
        handler = self._handler
        process_queue = chunk.assigned.process_queue
        in_order = chunk.is_run
        for message in chunk.messages:
            if self._is_draining or process_queue.dropped:
                break
            try:
                value = handler(message)
                if value is not None and inspect.isawaitable(value):
                    value = self._wait_for(value)
                outcomes.append(None if value is None else outcome_of(value))
            except Exception as error:
                outcomes.append(outcome_of(verdict_of_error(error, message)))
            if in_order and outcomes[-1] is not None:
                break
        return outcomes

    def _run_list(self, chunk: _Chunk) -> list[Outcome]:
        try:
            return _outcomes(self._call(chunk.messages), len(chunk.messages))
        except Exception as error:
            verdict = verdict_of_error(error, chunk.messages[0])
            return [outcome_of(verdict)] * len(chunk.messages)

    def _call(self, argument: Any) -> Any:
        value = self._handler(argument)
        return self._wait_for(value) if inspect.isawaitable(value) else value

    def _wait_for(self, value: Awaitable[Any]) -> Any:
        """A plain function that returned a coroutine (a lambda around an ``async def``): what it
        means is known only when it has run, and it belongs on the loop."""

        async def run() -> Any:
            return await value

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
                if chunk.is_run:
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
            if chunk.is_run and len(outcomes) < len(chunk.messages):
                report.skipped(chunk.assigned, chunk.messages[len(outcomes) :])
        if self._drained is not None and not self._in_threads and not self._drained.done():
            self._drained.set_result(None)

    async def drain(self, deadline_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Start nothing new, wait for what runs; what still runs at the deadline is returned."""
        self._is_draining = True
        if self._in_threads:
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=deadline_s)
        for _ in self._threads:
            self._work.put(None)
        running: list[tuple[Any, ReceivedMessage]] = []
        for chunk in self._in_threads:
            if chunk.started:
                chunk.expired = True
                running += [(chunk.assigned, message) for message in chunk.messages]
        return running

    async def run_one(self, message: ReceivedMessage) -> Outcome:
        """Run the handler on one message outside the ordinary flow."""
        if self._batch_size is None:
            return outcome_of(await asyncio.to_thread(self._call, message))
        return _outcomes(await asyncio.to_thread(self._call, [message]), 1)[0]

    def expire(self, older_than_s: float) -> list[tuple[Any, ReceivedMessage]]:
        """Give up on chunks that run for too long; a thread cannot be stopped, only ignored."""
        limit = time.monotonic() - older_than_s
        expired: list[tuple[Any, ReceivedMessage]] = []
        for chunk in self._in_threads:
            if chunk.started and chunk.started < limit and not chunk.expired:
                chunk.expired = True
                expired += [(chunk.assigned, message) for message in chunk.messages]
        return expired


def make_dispatcher(
    handler: Callable[[Any], Any],
    report: OnDone,
    *,
    concurrency: int,
    batch_size: int | None,
    spawn: Callable[[Any, str], None],
) -> CoroutineDispatcher | ThreadDispatcher:
    """The dispatcher for a coroutine function or a plain one."""
    call = getattr(handler, "__call__", handler)  # noqa: B004 - the method, to look at its kind
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call):
        return CoroutineDispatcher(handler, report, concurrency, batch_size, spawn)
    return ThreadDispatcher(handler, report, concurrency, batch_size)
