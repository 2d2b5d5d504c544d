"""A handler of an App, as the client calls it: decode, run middlewares, call, count.

The parts are put together once, at start, so that a message costs few calls.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, TypeAlias

from cometmq.app.options import ConsumerOptions
from cometmq.app.parameters import VALUE, HandlerParameters, message_alone, name_of
from cometmq.app.serializers import SchemaError, Serializer
from cometmq.app.stats import HandlerMeter
from cometmq.client import DeadLetter, ReceivedMessage, RetryLater, StopConsuming

__all__ = ["AppHandler", "Middleware", "is_coroutine_function", "is_verdict"]

log = logging.getLogger("cometmq.app")

CallNext: TypeAlias = Callable[[Any], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Any, CallNext], Awaitable[Any]]
"""``async def middleware(message, call_next)``; returns ``await call_next(message)`` or its own.

A handler of batches passes a list of messages.
"""


def is_coroutine_function(function: object) -> bool:
    """Whether a call returns a coroutine, also of an object with an ``async`` ``__call__``."""
    call = getattr(function, "__call__", function)  # noqa: B004 - the method, to examine its kind
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def is_verdict(value: Any) -> bool:
    """Whether a handler's value says what becomes of the message, as the client's handlers do."""
    return value is None or isinstance(value, (bool, RetryLater, StopConsuming))


@dataclass(slots=True)
class AppHandler:
    """A function that an App calls with messages of a topic."""

    function: Callable[..., Any]
    topic: str
    expression: str
    group: str
    batch: int | None
    retry_delay_level: int
    parameters: HandlerParameters
    options: ConsumerOptions
    reply: Callable[[ReceivedMessage, Any], Awaitable[None]] | None = None
    """Sends a value as the reply to a message; None for handlers that do not reply."""
    is_sent: bool = False
    """Whether the function itself sends what it returns."""
    serializer: Serializer | None = None
    meter: HandlerMeter = field(default_factory=HandlerMeter)

    @property
    def name(self) -> str:
        """The function's name, for logs and statistics."""
        return name_of(self.function)

    @property
    def is_async(self) -> bool:
        """Whether the function runs on the event loop."""
        return is_coroutine_function(self.function)

    def bind(
        self, middlewares: Sequence[Middleware], loop: asyncio.AbstractEventLoop, concurrency: int
    ) -> Callable[[Any], Any]:
        """The handler for a `PushConsumer`: ``async`` or plain, for messages or for lists."""
        call: Callable[..., Any] = self.function  # directly, where nothing stands between
        arguments: Callable[[Any], tuple[Any, ...]] = self.parameters.build()
        if middlewares or self.batch is not None:
            call, arguments = self.uncounted(middlewares, concurrency), message_alone
        if self.is_async or middlewares:
            return self._counted_async(call, arguments)
        return self._counted_plain(call, arguments, loop)

    def uncounted(
        self, middlewares: Sequence[Middleware], concurrency: int
    ) -> Callable[[Any], Any]:
        """Decodes, runs middlewares and calls; a schema error or an exception is raised.

        ``async`` where the function is, or where there are middlewares.
        """
        call = self._batch_call() if self.batch is not None else self._single_call()
        if middlewares and not self.is_async:
            call = _in_threads(call, concurrency)
        for middleware in reversed(middlewares):
            call = _around(middleware, call)
        return call

    # -- the call itself ----------------------------------------------------------------------

    def _single_call(self) -> Callable[[ReceivedMessage], Any]:
        """A plain function whose result is awaited where the handler is ``async``."""
        function, arguments = self.function, self.parameters.build()
        return lambda message: function(*arguments(message))

    def _batch_call(self) -> Callable[[list[ReceivedMessage]], Any]:
        function, parameters = self.function, self.parameters

        def arguments(
            messages: list[ReceivedMessage],
        ) -> tuple[list[ReceivedMessage], list[list[Any]], dict[int, SchemaError]]:
            """The readable messages, the arguments of the call, and the errors by position."""
            reader = parameters.reader
            if reader is None:
                return messages, [messages], {}
            errors: dict[int, SchemaError] = {}
            readable: list[ReceivedMessage] = []
            values: list[Any] = []
            for position, message in enumerate(messages):
                try:
                    values.append(reader.read(message.body))
                except SchemaError as error:
                    errors[position] = error
                else:
                    readable.append(message)
            columns = [values if kind == VALUE else readable for kind in parameters.order]
            return readable, columns, errors

        if not self.is_async:

            def call_plain(messages: list[ReceivedMessage]) -> Any:
                readable, columns, errors = arguments(messages)
                value = function(*columns) if readable else None
                return _merged(value, errors, len(messages))

            return call_plain

        async def call(messages: list[ReceivedMessage]) -> Any:
            readable, columns, errors = arguments(messages)
            value = await function(*columns) if readable else None
            return _merged(value, errors, len(messages))

        return call

    # -- around it ------------------------------------------------------------------------------

    def _counted_async(
        self, call: Callable[..., Any], arguments: Callable[[Any], tuple[Any, ...]]
    ) -> Callable[[Any], Awaitable[Any]]:
        meter, is_batch, reply = self.meter, self.batch is not None, self.reply
        judge, record, clock = self._judge, self.meter.record, perf_counter_ns
        is_value = reply is not None or self.is_sent

        async def handle(work: Any) -> Any:
            """One call; HOT."""
            count = len(work) if is_batch else 1
            meter.in_work += count
            begin = clock()
            try:
                value = await call(*arguments(work))
                if is_value and not is_verdict(value):
                    if reply is not None:
                        await reply(work, value)
                    value = None
            except Exception as error:
                value = judge(error, work)
            finally:
                retries = _retries(work) if is_batch else work.stored.reconsume_times > 0
                record(count, clock() - begin, retries)
            return None if value is None else self._result(value, work)

        return handle

    def _counted_plain(
        self,
        call: Callable[..., Any],
        arguments: Callable[[Any], tuple[Any, ...]],
        loop: asyncio.AbstractEventLoop,
    ) -> Callable[[Any], Any]:
        meter, is_batch, reply = self.meter, self.batch is not None, self.reply
        judge, clock = self._judge, perf_counter_ns
        is_value = reply is not None or self.is_sent

        def on_loop(work: Awaitable[Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(_awaited(work), loop).result()

        def handle(work: Any) -> Any:
            """One call, in a thread; HOT."""
            count = len(work) if is_batch else 1
            with meter.lock:
                meter.in_work += count
            begin = clock()
            try:
                value = call(*arguments(work))
                if value is not None:
                    if inspect.isawaitable(value):  # a partial of a coroutine function, say
                        value = on_loop(value)
                    if is_value and not is_verdict(value):
                        value = None if reply is None else on_loop(reply(work, value))
            except Exception as error:
                value = judge(error, work)
            finally:
                retries = _retries(work) if is_batch else work.stored.reconsume_times > 0
                with meter.lock:
                    meter.record(count, clock() - begin, retries)
            return None if value is None else self._result(value, work)

        return handle

    def _judge(self, error: Exception, work: Any) -> RetryLater | StopConsuming:
        """The verdict that an exception means."""
        message = work[0] if self.batch is not None else work
        if isinstance(error, (RetryLater, StopConsuming)):
            return error
        log.warning(
            "the handler %s of group %s failed on message %s of topic %s, try %d; it is tried "
            "again",
            self.name,
            self.group,
            message.message_id,
            message.topic,
            message.reconsume_times + 1,
            exc_info=error,
        )
        return RetryLater(self.retry_delay_level, f"{type(error).__name__}: {error}")

    def _result(self, value: Any, work: Any) -> Any:
        """Count failures, log schema errors, and return what the client understands."""
        is_batch = self.batch is not None
        verdicts = value if is_batch and isinstance(value, (list, tuple)) else [value]
        share = len(work) if is_batch and verdicts == [value] else 1
        failures = dead_letters = schema_errors = 0
        for verdict in verdicts:
            if isinstance(verdict, DeadLetter):
                dead_letters += share
                schema_errors += share * isinstance(verdict, SchemaError)
            elif verdict is False or isinstance(verdict, (RetryLater, StopConsuming)):
                failures += share
        if failures or dead_letters:
            with self.meter.lock:
                self.meter.failed(failures, dead_letters, schema_errors)
        return value


def _around(middleware: Middleware, call: CallNext) -> CallNext:
    async def wrapped(message: Any) -> Any:
        return await middleware(message, call)

    return wrapped


def _in_threads(call: Callable[[Any], Any], concurrency: int) -> CallNext:
    """Run a plain handler below middlewares, in a thread that sees their context variables."""
    threads = ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-app")

    async def run(message: Any) -> Any:
        context = copy_context()
        return await asyncio.get_running_loop().run_in_executor(threads, context.run, call, message)

    return run


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _retries(messages: list[ReceivedMessage]) -> int:
    """How many of the messages are not at their first try."""
    return sum(message.reconsume_times > 0 for message in messages)


def _merged(value: Any, errors: dict[int, SchemaError], count: int) -> Any:
    """The verdict per message of a batch, some of which the handler never saw."""
    if not errors:
        return value
    if isinstance(value, (list, tuple)):
        verdicts = list(value)
    else:
        verdicts = [value] * (count - len(errors))
    for position in sorted(errors):
        verdicts.insert(position, errors[position])
    return verdicts
