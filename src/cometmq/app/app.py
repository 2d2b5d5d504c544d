"""The App: what a program registers, and its life from start to the last acknowledgement.

Handlers of one group share a `PushConsumer`, since the members of a RocketMQ group must have equal
subscriptions.  All handlers share one `Producer`.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, Unpack

from cometmq.app.handler import AppHandler, Middleware, is_coroutine_function
from cometmq.app.options import (
    AppConnection,
    ConsumerOptions,
    ProducerOptions,
    ValueFields,
)
from cometmq.app.parameters import name_of, parameters_of
from cometmq.app.producing import TopicProducer, message_of, sends_result
from cometmq.app.serializers import Serializer, ValueReader
from cometmq.app.signals import stop_signals
from cometmq.app.stats import HandlerStats
from cometmq.client import Message, Producer, PushConsumer, ReceivedMessage, SendResult, Sql92
from cometmq.errors import ClientClosed, CometError, ConfigError
from cometmq.net.loop import run

if TYPE_CHECKING:
    from cometmq.app.trial import AppTrial
    from cometmq.client.producer.request_reply import Reply

__all__ = ["App", "OnStats", "Sends"]

log = logging.getLogger("cometmq.app")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Hook = Callable[[], Awaitable[None] | None]
OnStats = Callable[[list[HandlerStats]], Awaitable[None] | None]
CONCURRENCY: Final = 20
"""As `PushConsumer`."""


class Sends(Protocol):
    """What an App needs of its `Producer`."""

    async def send(self, message: Message) -> SendResult:
        """Send a message."""
        ...

    async def request(self, message: Message, *, timeout_ms: int) -> "Reply":
        """Send a message and wait for the reply."""
        ...

    async def reply(self, request: ReceivedMessage, message: Message) -> None:
        """Answer a request."""
        ...


class App:
    """A program of handlers: registers them, starts and ends them, and sends values.

        app = cometmq.App("billing")

        @app.consumer("Orders")
        async def bill(order: Order) -> None: ...

        app.run()

    ``async with app`` starts and stops it inside another program, such as a web server.

    Args:
        group: the consumer group of handlers that name none.
        name_server: as for `Producer`.
        producer: further arguments of the `Producer`, such as ``{"linger_ms": 5}``.
        serializer: for all values; by default the type of a value chooses.
        on_stats: called with a list of `HandlerStats`, one per handler; may be ``async``.
        stats_interval_ms: time between two calls of ``on_stats``.
        connection: what all clients share: ``instance_name``, ``client_ip``, ``env``, the keys
            and ``tls``.

    Raises:
        ConfigError: ``stats_interval_ms`` is wrong.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        name_server: str | Sequence[str] | None = None,
        producer: ProducerOptions | None = None,
        serializer: Serializer | None = None,
        on_stats: OnStats | None = None,
        stats_interval_ms: int = 60_000,
        **connection: Unpack[AppConnection],
    ) -> None:
        if type(stats_interval_ms) is not int or stats_interval_ms < 1:
            raise ConfigError(
                f"stats_interval_ms is {stats_interval_ms!r:.100}; give whole milliseconds"
            )
        self.group = group
        self._name_server = name_server
        self._connection = connection
        self._producer_options: ProducerOptions = producer or {}
        self._serializer = serializer
        self._on_stats = on_stats
        self._stats_interval_s = stats_interval_ms / 1000
        self._groups: dict[str, list[AppHandler]] = {}
        self._middlewares: list[Middleware] = []
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._producer: Sends | None = None
        self._consumers: dict[str, PushConsumer] = {}
        self._running: contextlib.AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None

    # -- registration ---------------------------------------------------------------------------

    def consumer(
        self,
        topic: str,
        *,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        batch: int | None = None,
        reply: bool = False,
        retry_delay_level: int = 0,
        serializer: Serializer | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> Callable[[F], F]:
        """Decorate a handler of a topic, ``async`` or plain (those run in threads).

        A parameter annotated as `ReceivedMessage`, or the only one without an annotation, gets the
        message; the other gets the body as its type: bytes, str, a dataclass, a TypedDict, a
        Struct, a Pydantic model, a Protobuf class. A body that is no such value makes its message a
        dead letter at once. What the handler returns means what it means to a `PushConsumer`.

        Args:
            topic: one topic; decorate twice for two.
            group: the consumer group; by default the App's.
            tags: ``*`` or ``TagA || TagB``.
            sql: an SQL92 filter instead of tags.
            batch: the handler takes lists of at most so many messages or values.
            reply: send what the handler returns as the reply to a request.
            retry_delay_level: of the next try after an exception; 0: the group's back-off.
            serializer: reads the values; by default their type chooses.
            options: as for `PushConsumer`, such as ``order``, ``concurrency`` or
                ``max_reconsume_times``; the handlers of a group have equal ones.

        Raises:
            ConfigError: the handler or an argument cannot be used; the text says why.
        """
        name = group or self.group
        if name is None:
            raise ConfigError(
                f"the handler of {topic} has no group; pass group= here, or App(group) for all"
            )
        if sql is not None and tags != "*":
            raise ConfigError(f"the handler of {topic} has tags and sql; give one of them")
        chosen = serializer or self._serializer

        def register(function: F) -> F:
            parameters = parameters_of(function, chosen, is_batch=batch is not None)
            if batch is not None and (reply or sends_result(function)):
                raise ConfigError(
                    f"{name_of(function)}() has batch=, so its result answers no single message; "
                    "send inside it"
                )
            handler = AppHandler(
                function=function,
                topic=topic,
                expression=tags if sql is None else Sql92(sql),
                group=name,
                batch=batch,
                reply=self._reply if reply else None,
                is_sent=sends_result(function),
                retry_delay_level=retry_delay_level,
                parameters=parameters,
                options=options,
            )
            self._add(handler)
            return function

        return register

    def _add(self, handler: AppHandler) -> None:
        if self._running is not None:
            raise ConfigError(f"the App runs; register {handler.name}() before its start")
        others = self._groups.get(handler.group, [])
        for other in others:
            if other.topic == handler.topic:
                raise ConfigError(
                    f"group {handler.group} has two handlers for {handler.topic}, {other.name}() "
                    f"and {handler.name}(); a group has one subscription per topic, so give one "
                    "of them another group"
                )
            if (other.options, other.batch) != (handler.options, handler.batch):
                raise ConfigError(
                    f"{other.name}() and {handler.name}() share the consumer of group "
                    f"{handler.group} and have different options; make them equal, or give one of "
                    "them another group"
                )
        # Made once here, so that a wrong option is refused where it stands.
        self._consumer_of(handler.group, [*others, handler], self._connection)
        self._groups.setdefault(handler.group, []).append(handler)

    def producer(
        self,
        topic: str,
        *,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> TopicProducer:
        """A `TopicProducer`: sends values to a topic, or decorates a function to send its result.

        Below ``@app.consumer`` it sends what the handler returns.

        Args:
            topic: where to.
            serializer: by default the value's type chooses.
            fields: of each message, such as ``tags``, ``keys`` or ``delay_level``.
        """
        return TopicProducer(self, topic, serializer, fields)

    def middleware(self, function: Middleware) -> Middleware:
        """Decorate ``async def middleware(message, call_next)``, which runs around each handler.

        It returns ``await call_next(message)``, or a verdict of its own. The first one registered
        is the outermost. Below middlewares a plain handler runs in a thread of the App's own.

        Raises:
            ConfigError: it is not ``async``.
        """
        if not is_coroutine_function(function):
            raise ConfigError(f"the middleware {name_of(function)} must be an async function")
        self._middlewares.append(function)
        return function

    def on_startup(self, hook: F) -> F:
        """Decorate a function that runs before the first message; it may already send."""
        self._startup.append(hook)
        return hook

    def on_shutdown(self, hook: F) -> F:
        """Decorate a function that runs after the last handler has ended; it may still send.

        The last one registered runs first.
        """
        self._shutdown.append(hook)
        return hook

    # -- life -------------------------------------------------------------------------------------

    async def start(self, *, name_server: str | Sequence[str] | None = None) -> None:
        """Start the producer, run the startup hooks, then consume.

        Args:
            name_server: instead of the App's own.

        Raises:
            CometError: as `PushConsumer.start`.
            ConfigError: an option of a client is wrong.
        """
        if self._running is not None:
            return
        connection: dict[str, Any] = dict(self._connection)
        connection["name_server"] = self._name_server if name_server is None else name_server
        async with contextlib.AsyncExitStack() as stack:
            producer = await stack.enter_async_context(self._new_producer(connection))
            await self._begin(producer, stack)
            stack.push_async_callback(self._close_consumers)
            for group, handlers in self._groups.items():
                consumer = self._consumer_of(group, handlers, connection)
                await self._subscribe(consumer, handlers)
                self._consumers[group] = consumer
                await consumer.start()
            if self._on_stats is not None:
                task = asyncio.create_task(self._report_stats(self._on_stats), name="stats")
                stack.push_async_callback(_cancelled, task)
            self._running = stack.pop_all()
        log.info("the App runs with %d handlers", sum(map(len, self._groups.values())))

    async def _begin(self, producer: Sends, stack: contextlib.AsyncExitStack) -> None:
        """Send by this producer from now on, and run the hooks, until the stack is closed."""
        stack.callback(self._forget)
        self._loop = asyncio.get_running_loop()
        if self._stopped is None:
            self._stopped = asyncio.Event()
        self._producer = producer
        for hook in self._shutdown:
            stack.push_async_callback(_call_hook, hook)
        for hook in self._startup:
            await _call_hook(hook)

    @contextlib.asynccontextmanager
    async def running_with(self, producer: Sends) -> AsyncIterator[None]:
        """Run the hooks, and send by this producer, without a consumer: for trials."""
        async with contextlib.AsyncExitStack() as stack:
            await self._begin(producer, stack)
            self._running = stack
            try:
                yield
            finally:
                self._running = None

    @property
    def is_running(self) -> bool:
        """Whether the App is started and not shut down."""
        return self._running is not None

    def handlers(self) -> list[AppHandler]:
        """All registered handlers."""
        return [handler for handlers in self._groups.values() for handler in handlers]

    @property
    def middlewares(self) -> tuple[Middleware, ...]:
        """The registered middlewares, the outermost first."""
        return tuple(self._middlewares)

    async def shutdown(self) -> None:
        """Pull no more, let handlers finish and acknowledge, run shutdown hooks, and disconnect."""
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()
            log.info("the App has stopped")

    def _forget(self) -> None:
        self._producer = self._loop = self._stopped = None
        self._consumers = {}

    async def _close_consumers(self) -> None:
        await asyncio.gather(*[consumer.shutdown() for consumer in self._consumers.values()])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown()

    def run(self, *, name_server: str | Sequence[str] | None = None) -> None:
        """Run the program until SIGTERM, SIGINT or `stop`, then drain; blocks.

        Raises:
            CometError: as `start`.
        """
        run(self.serve(name_server=name_server))

    async def serve(self, *, name_server: str | Sequence[str] | None = None) -> None:
        """`run`, on an event loop that already runs.

        Raises:
            ConfigError: the App runs already.
            CometError: as `start`.
        """
        if self._running is not None:
            raise ConfigError("the App runs already; wait for it, or call stop()")
        stopped = self._stopped = asyncio.Event()
        with stop_signals(stopped.set):
            await self.start(name_server=name_server)
            try:
                await stopped.wait()
            finally:
                await self.shutdown()

    def stop(self) -> None:
        """Make `run` and `serve` return, from any thread."""
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    def _new_producer(self, connection: dict[str, Any]) -> Producer:
        options: dict[str, Any] = dict(self._producer_options)
        if self.group is not None:
            options.setdefault("group", self.group)
        return Producer(**options, **connection)

    def _consumer_of(
        self, group: str, handlers: Sequence[AppHandler], connection: Mapping[str, Any]
    ) -> PushConsumer:
        """The consumer of a group's handlers, which `_subscribe` adds."""
        connection = dict(connection)
        if connection.get("instance_name"):
            # Clients must not share an id, and the producer has the plain one.
            connection["instance_name"] += f"-{group}"
        return PushConsumer(
            group,
            {handler.topic: handler.expression for handler in handlers},
            batch_count_max=handlers[0].batch,
            **handlers[0].options,
            **connection,
        )

    async def _subscribe(self, consumer: PushConsumer, handlers: Sequence[AppHandler]) -> None:
        loop = asyncio.get_running_loop()
        for handler in handlers:
            concurrency = handler.options.get("concurrency", CONCURRENCY)
            function = handler.bind(self._middlewares, loop, concurrency)
            await consumer.subscribe(handler.topic, handler.expression, function)

    # -- sending ----------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> SendResult:
        """Send a value to a topic.

        Args:
            topic: where to.
            value: becomes the body; bytes and texts as they are, most other values as JSON.
            serializer: by default the App's, or the value's type chooses.
            fields: of the `Message`: ``keys``, ``tags``, ``message_group``, ``delay_ms``, ...

        Raises:
            ClientClosed: the App does not run.
            CometError: as `cometmq.Producer.send`.
            TypeError: the value has no such form.
        """
        message = message_of(topic, value, serializer or self._serializer, fields)
        return await self._ready().send(message)

    def send_from_thread(
        self,
        topic: str,
        value: Any,
        *,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> SendResult:
        """`send` for plain handlers, which run outside the event loop's thread; waits.

        Raises:
            ClientClosed: the App does not run, or this is its event loop's thread.
            CometError: as `send`.
        """
        return self.run_from_thread(self.send(topic, value, serializer=serializer, **fields))

    async def request(
        self,
        topic: str,
        value: Any,
        *,
        returns: Any = bytes,
        timeout_ms: int = 3_000,
        serializer: Serializer | None = None,
        **fields: Unpack[ValueFields],
    ) -> Any:
        """Send a value, and wait for the reply of the handler that has ``reply=True``.

        Args:
            topic: where to.
            value: becomes the request's body.
            returns: the type of the reply.
            timeout_ms: for the request and its reply together.
            serializer: of both, as for `send`.
            fields: as for `send`.

        Raises:
            RequestTimeout: no reply came in time; the message may have been handled.
            SchemaError: the reply is no such value.
            CometError: as `send`.
        """
        chosen = serializer or self._serializer
        reader = ValueReader(chosen, returns)
        message = message_of(topic, value, chosen, fields)
        return reader.read((await self._ready().request(message, timeout_ms=timeout_ms)).body)

    async def _reply(self, request: ReceivedMessage, value: Any) -> None:
        """Answer a request; a requester that has gone needs no answer and no other try."""
        reply = message_of(request.topic, value, self._serializer, {})
        try:
            await self._ready().reply(request, reply)
        except CometError as error:
            log.warning("the reply to %s was not delivered: %s", request.message_id, error)

    def run_from_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the App's event loop from another thread, and wait for its result.

        Raises:
            ClientClosed: the App does not run, or this is its event loop's thread.
        """
        loop = self._loop
        try:
            is_inside = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_inside = False
        if loop is None or is_inside:
            work.close()
            raise ClientClosed(
                "a blocking call on the App's own event loop would wait for itself; await "
                "the coroutine instead"
                if is_inside
                else "the App does not run; start it first"
            )
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _ready(self) -> Sends:
        if self._producer is None:
            raise ClientClosed("the App does not run; use `async with app` or await start()")
        return self._producer

    # -- statistics -------------------------------------------------------------------------------

    def stats(self) -> list[HandlerStats]:
        """Counts and latencies of each handler since its registration."""
        return [
            handler.meter.snapshot(
                handler.name, handler.group, handler.topic, self._lag(handler.group, handler.topic)
            )
            for handler in self.handlers()
        ]

    def _lag(self, group: str, topic: str) -> int:
        consumer = self._consumers.get(group)
        return 0 if consumer is None else consumer.lag(topic)

    async def _report_stats(self, on_stats: OnStats) -> None:
        while True:
            await asyncio.sleep(self._stats_interval_s)
            try:
                result = on_stats(self.stats())
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("on_stats failed; it is called again")

    def trial(self) -> "AppTrial":
        """The App without a broker, for unit tests: see `AppTrial`."""
        from cometmq.app.trial import AppTrial

        return AppTrial(self)


async def _call_hook(hook: Hook) -> None:
    """Run a hook; a plain one in a thread, where it may block."""
    if is_coroutine_function(hook):
        result = hook()
        assert result is not None
        await result
    else:
        await asyncio.to_thread(hook)


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])
