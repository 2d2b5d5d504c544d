"""The asyncio producer.

Job: choose a queue, send, retry on another broker, give each message its own result.
Must not: encode (``send`` does) or know sockets.

Theory: a send in flight is one object of a few fields, called with the answer; no task runs for
it.  Only the rare steps (an unknown route, a connection to be made) use a task.  Retries are
Java's: up to ``retries`` more tries within one total timeout, preferably on another broker, after
transport faults and after answers another broker may not give.  A message with a fixed queue
(``queue=``, ``selector=``, ``message_group=``) is tried once: moving it would break its order.
"""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from cometmq.client import fork
from cometmq.client.instance import ClientInstance, uniq_ids_of
from cometmq.client.linger import Linger, LingerBatch
from cometmq.client.options import ClientOptions
from cometmq.client.send import Prepared, SendCodec, is_retriable
from cometmq.core.batching import MESSAGE_BYTES_MAX, check_batch, split_by_size
from cometmq.core.latency_fault import LatencyFaultTable
from cometmq.core.selector import QueueSelector, RoundRobin, publish_queues, select_by_hash
from cometmq.errors import (
    BrokerBusy,
    ClientClosed,
    ClientError,
    CometError,
    ConfigError,
    ConnectFailed,
    NoRoute,
    RemoteError,
    RequestTimeout,
    ResponseCode,
    SendFailed,
    remote_error,
)
from cometmq.model import Message, MessageQueue, SendResult, SendStatus
from cometmq.model.names import check_group
from cometmq.net.channel import Channel
from cometmq.net.env import Environment
from cometmq.wire.bodies import ConsumerData
from cometmq.wire.command import RemotingCommand

__all__ = ["Producer"]

log = logging.getLogger("cometmq.client")
DEFAULT_GROUP: Final = "DEFAULT_PRODUCER"
RETRY_PAUSE_S: Final = 0.1
"""Before a second try on the only broker there is; doubled for each further one."""
IN_FLIGHT_MAX: Final = 65_535
"""Java's limit of asynchronous requests; beyond it `send_nowait` refuses instead of piling up."""


class _Topic:
    """Where messages of one topic can go."""

    __slots__ = ("addresses", "queues", "turn")

    def __init__(
        self, queues: tuple[MessageQueue, ...], addresses: dict[str, str], start: int
    ) -> None:
        self.queues = queues
        self.addresses = addresses
        self.turn = RoundRobin(start)


class _Sending:
    """One message (or batch) on its way; called by the channel with the answer."""

    __slots__ = (
        "batch",
        "deadline",
        "faults",
        "fixed",
        "future",
        "ids",
        "prepared",
        "producer",
        "queue",
        "started",
        "timeout_ms",
        "tries_left",
    )

    def __init__(
        self,
        producer: "Producer",
        prepared: Prepared,
        future: "asyncio.Future[Any] | None",
        started: float,
        timeout_ms: int,
        tries: int,
    ) -> None:
        self.producer = producer
        self.prepared = prepared
        self.future = future
        self.started = started
        self.timeout_ms = timeout_ms
        self.deadline = started + timeout_ms / 1000
        self.tries_left = tries
        self.fixed: MessageQueue | None = None
        self.queue: MessageQueue | None = None
        self.ids: list[str] | None = None
        self.batch: LingerBatch | None = None
        self.faults: list[Exception] | None = None

    def __call__(self, answer: RemotingCommand | Exception) -> None:
        producer = self.producer
        queue = self.queue
        assert queue is not None
        if isinstance(answer, Exception):
            producer._note(queue, self.started, failed=True)
            self.failed(answer)
            return
        code = answer.code
        producer._note(queue, self.started, failed=False)
        if code not in _STORED:
            self.failed(remote_error(code, answer.remark))
            return
        if code and producer._retry_when_not_ok and self.tries_left > 0 and self.fixed is None:
            producer._try(self)
            return
        try:
            if self.ids is None:
                self.finish(producer._codec.result(self.prepared, queue, answer))
            else:
                self.finish(producer._codec.batch_results(self.ids, queue, answer))
        except CometError as error:
            self.fail(error)

    def failed(self, error: Exception) -> None:
        """Try elsewhere if that may help and time is left."""
        producer = self.producer
        if self.faults is None:
            self.faults = []
        self.faults.append(error)
        retriable = isinstance(error, ClientError) or (
            isinstance(error, RemoteError) and is_retriable(error.code)
        )
        left_s = self.deadline - producer._clock.monotonic()
        if not retriable or self.fixed is not None or self.tries_left <= 0 or left_s <= 0:
            self.fail(self._final_error())
            return
        if isinstance(error, RemoteError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
            producer._forget_topic(self.prepared.topic)
        pause_s = producer._pause_before_retry(self, len(self.faults))
        loop = producer._loop
        if pause_s and loop is not None:
            loop.call_later(min(pause_s, left_s), producer._try, self)
        else:
            producer._try(self)

    def _final_error(self) -> Exception:
        faults = self.faults
        assert faults
        last = faults[-1]
        if len(faults) == 1:
            return last
        failure = SendFailed(
            f"{len(faults)} tries to send to {self.prepared.topic} failed: "
            + "; ".join(str(fault) for fault in faults)
        )
        failure.__cause__ = last
        return failure

    def finish(self, result: Any) -> None:
        """Settle the future, or each future of a lingering batch."""
        future = self.future
        if future is not None:
            if not future.done():
                future.set_result(result)
        elif self.batch is not None:
            for one, own in zip(self.batch.futures, result, strict=True):
                if not one.done():
                    one.set_result(own)
        self.producer._sending_done()

    def fail(self, error: Exception) -> None:
        """Settle with an error."""
        futures = self.batch.futures if self.batch is not None else [self.future]
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(error)
        self.producer._sending_done()


_STORED: Final = frozenset(int(status) for status in SendStatus)


class Producer:
    """Sends messages; ``async with Producer(...)`` starts and stops it.

    Args:
        group: producer group, shown to operators.
        name_server: ``host:port``, several joined by ``;``, or a sequence; default
            ``NAMESRV_ADDR``, else ``127.0.0.1:9876``.
        timeout_ms: time for a send, all its tries together.
        retries: further tries after the first, preferably on another broker.
        linger_ms: gather sends for up to this long into batches; None sends each at once.
        batch_bytes_max: a lingering batch is sent early at this size.
        compression: ``ZLIB``, ``LZ4`` or ``ZSTD``, for bodies of ``compress_above_bytes`` or more.
        latency_fault: keep away from brokers that failed or were slow (Java's
            ``sendLatencyFaultEnable``).
        retry_when_not_ok: also try another broker when the message was stored but its flush or
            replica timed out (Java's ``retryAnotherBrokerWhenNotStoreOK``); it may then exist
            twice.
    """

    def __init__(
        self,
        group: str = DEFAULT_GROUP,
        *,
        name_server: str | Sequence[str] | None = None,
        timeout_ms: int = 3_000,
        retries: int = 2,
        linger_ms: float | None = None,
        batch_bytes_max: int = 128 * 1024,
        compression: str = "ZLIB",
        compression_level: int = 5,
        compress_above_bytes: int = 4_096,
        max_message_bytes: int = MESSAGE_BYTES_MAX,
        latency_fault: bool = True,
        retry_when_not_ok: bool = False,
        instance_name: str | None = None,
        client_ip: str | None = None,
        env: Environment | None = None,
    ) -> None:
        fault = check_group(group)
        if fault is not None:
            raise ConfigError(fault)
        if timeout_ms <= 0 or retries < 0 or (linger_ms is not None and linger_ms < 0):
            raise ConfigError(
                f"timeout_ms ({timeout_ms}) must be positive, retries ({retries}) and linger_ms "
                f"({linger_ms}) not negative"
            )
        self.group = group
        self._options = ClientOptions.of(
            name_server, env=env, instance_name=instance_name, client_ip=client_ip
        )
        self._clock = self._options.env.clock
        self._timeout_ms = timeout_ms
        self._tries = 1 + retries
        self._retry_when_not_ok = retry_when_not_ok
        self._codec = SendCodec(
            group,
            uniq_ids_of(self._options),
            self._clock.now_ms,
            compression=compression,
            compression_level=compression_level,
            compress_above_bytes=compress_above_bytes,
            message_bytes_max=max_message_bytes,
        )
        self._faults = LatencyFaultTable(enabled=latency_fault)
        self._topics: dict[str, _Topic] = {}
        self._instance: ClientInstance | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._in_flight = 0
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False
        self._forked = False
        self._linger: Linger | None = None
        if linger_ms is not None:
            self._linger = Linger(
                linger_ms / 1000, batch_bytes_max, compress_above_bytes, self._send_lingered
            )
        fork.register(self)

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind to the running loop and start heartbeats; no connection is made yet."""
        if self._is_closed:
            raise ClientClosed(f"the producer {self.group} is closed; make a new one")
        if self._instance is None:
            self._start()

    def _start(self) -> ClientInstance:
        self._loop = asyncio.get_running_loop()
        instance = ClientInstance(self._options, self, self.group)
        instance.start()
        if self._faults.enabled:
            instance.spawn(instance.every(2_000, self._probe), "probe")
        self._instance = instance
        self._forked = False
        return instance

    async def shutdown(self) -> None:
        """Send what lingers, wait for answers, unregister and disconnect."""
        if self._is_closed:
            return
        instance = self._instance
        if instance is not None:
            await self.flush()
        self._is_closed = True
        if instance is not None:
            await instance.close({self.group: "producerGroup"})

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

    def after_fork(self) -> None:
        """In a child process: leave the parent's connections, start anew on next use."""
        if self._instance is not None:
            self._instance.abandon()
            self._instance = None
            self._forked = True
        self._loop = None
        self._in_flight = 0
        self._idle = None
        self._topics.clear()
        self._codec.new_id = uniq_ids_of(self._options).next_id
        if self._linger is not None:
            self._linger.abandon()

    @property
    def client_id(self) -> str | None:
        """This producer's id at the brokers, once started."""
        return self._instance.client_id if self._instance is not None else None

    # -- sending ----------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        message_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait for the broker's answer.

        Raises:
            LocalProtocolError: the message breaks a limit.
            NoRoute: no broker for the topic.
            RequestTimeout, ConnectFailed, RemoteError: the only try failed.
            SendFailed: all tries failed; the text lists them.
        """
        instance = self._instance
        if instance is None:
            instance = self._ready()
        elif self._in_flight >= IN_FLIGHT_MAX:
            await self._room()
        future = self.send_nowait(
            message,
            queue=queue,
            selector=selector,
            message_group=message_group,
            timeout_ms=timeout_ms,
        )
        return await future

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        message_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send without waiting; the future gives what `send` gives.

        Raises:
            LocalProtocolError: the message breaks a limit.
            BrokerBusy: 65,535 sends are in flight already; await some of them first.
        """
        if self._instance is None:
            self._ready()
        loop = self._loop
        assert loop is not None
        if self._in_flight >= IN_FLIGHT_MAX:
            raise BrokerBusy(
                ResponseCode.SYSTEM_BUSY, f"{self._in_flight} sends are in flight, the limit"
            )
        if message_group is not None:
            message.message_group = message_group
        linger = self._linger
        if linger is not None and queue is None and selector is None and linger.takes(message):
            lingering = self._linger_nowait(linger, message, loop)
            if lingering is not None:
                return lingering
        prepared = self._codec.prepare(message)
        future: asyncio.Future[SendResult] = loop.create_future()
        sending = _Sending(
            self,
            prepared,
            future,
            self._clock.monotonic(),
            self._timeout_ms if timeout_ms is None else timeout_ms,
            self._tries,
        )
        self._in_flight += 1
        if queue is not None:
            sending.fixed = queue
        elif selector is not None or message.message_group:
            self._pin(sending, message, selector)
            return future
        self._try(sending)
        return future

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        message_group: str | None = None,
    ) -> None:
        """Send without asking for an answer: nothing tells whether it arrived."""
        self._ready()
        if message_group is not None:
            message.message_group = message_group
        prepared = self._codec.prepare(message)
        topic = await self._topic(prepared.topic)
        chosen = queue or self._choose(topic, message, selector)
        channel = await self._channel(topic, chosen, self._timeout_ms)
        channel.write(self._codec.frame(prepared, chosen, channel.next_opaque(), oneway=True))
        if channel.is_paused:
            await channel.drain()

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as their size allows.

        The results are in the order of the messages. Several requests go to one queue each, one
        after the other; if one fails, its error is raised and the earlier ones stay stored.
        """
        self._ready()
        loop = self._loop
        assert loop is not None
        topic = check_batch(messages)
        items: list[tuple[int, bytes, bytes]] = []
        ids: list[str] = []
        for message in messages:
            item, message_id = self._codec.batch_item(message)
            items.append(item)
            ids.append(message_id)
        sizes = [22 + len(body) + len(properties) for _, body, properties in items]
        results: list[SendResult] = []
        if queue is None and messages[0].message_group:
            groups = {message.message_group for message in messages}
            if len(groups) == 1:
                queue = select_by_hash((await self._topic(topic)).queues, messages[0].message_group)
        for begin, end in split_by_size(sizes, self._codec.message_bytes_max):
            future: asyncio.Future[list[SendResult]] = loop.create_future()
            self._send_items(topic, items[begin:end], ids[begin:end], future, queue, timeout_ms)
            results += await future
        return results

    async def flush(self) -> None:
        """Send what lingers and wait until no send is in flight; errors stay with their sends."""
        if self._linger is not None:
            self._linger.flush()
        while self._in_flight:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that messages can be sent to."""
        self._ready()
        return (await self._topic(topic)).queues

    # -- inside: choosing -------------------------------------------------------------------

    def _ready(self) -> ClientInstance:
        instance = self._instance
        if instance is not None:
            return instance
        if self._is_closed:
            raise ClientClosed(f"the producer {self.group} is closed; make a new one")
        if self._forked:
            log.info("the producer %s starts anew in a forked process", self.group)
            return self._start()
        raise ClientClosed(
            f"the producer {self.group} is not started; use `async with` or await start()"
        )

    async def _topic(self, name: str) -> _Topic:
        known = self._topics.get(name)
        if known is not None:
            return known
        instance = self._ready()
        route = await instance.routes.find_for_send(name)
        queues = publish_queues(name, route)
        if not queues:
            raise NoRoute(
                f"the topic {name} has no queue to write to: its brokers "
                f"{sorted(data.broker_name for data in route.queue_datas)} lack the write "
                "permission or a master"
            )
        addresses = {
            broker.broker_name: broker.broker_addrs[0]
            for broker in route.broker_datas
            if 0 in broker.broker_addrs
        }
        topic = _Topic(queues, addresses, self._options.env.chance.randrange(len(queues)))
        if instance.routes.known(name) is not None:
            self._topics[name] = topic
        return topic

    def _choose(
        self, topic: _Topic, message: Message, selector: QueueSelector | None
    ) -> MessageQueue:
        if selector is not None:
            chosen = selector(topic.queues, message)
            if chosen not in topic.queues:
                raise ConfigError(
                    f"the selector chose {chosen}, which is not among the {len(topic.queues)} "
                    f"queues of {message.topic}"
                )
            return chosen
        if message.message_group:
            return select_by_hash(topic.queues, message.message_group)
        queue = self._faults.select(topic.queues, topic.turn, self._clock.now_ms())
        assert queue is not None
        return queue

    def _pin(self, sending: _Sending, message: Message, selector: QueueSelector | None) -> None:
        """Fix the queue of a message that must not move."""
        topic = self._topics.get(sending.prepared.topic)
        if topic is None:
            self._later(sending, self._pin_slowly(sending, message, selector))
            return
        try:
            sending.fixed = self._choose(topic, message, selector)
        except Exception as error:
            sending.fail(error)
            return
        self._try(sending)

    async def _pin_slowly(
        self, sending: _Sending, message: Message, selector: QueueSelector | None
    ) -> None:
        topic = await self._topic(sending.prepared.topic)
        sending.fixed = self._choose(topic, message, selector)
        await self._try_slowly(sending, topic)

    # -- inside: trying ---------------------------------------------------------------------

    def _try(self, sending: _Sending) -> None:
        """Send now if route and connection are there, else in a task; HOT."""
        prepared = sending.prepared
        topic = self._topics.get(prepared.topic)
        instance = self._instance
        if topic is None or instance is None:
            self._later(sending, self._try_unknown(sending))
            return
        queue = sending.fixed
        if queue is None:
            last = sending.queue
            if last is None and not self._faults.has_any:
                queues = topic.queues
                turn = topic.turn
                queue = queues[turn.next % len(queues)]
                turn.next += 1
            else:
                queue = self._faults.select(
                    topic.queues,
                    topic.turn,
                    self._clock.now_ms(),
                    last.broker_name if last is not None else None,
                )
                assert queue is not None
        sending.queue = queue
        address = topic.addresses.get(queue.broker_name)
        channel = instance.pool.open_channel(address) if address is not None else None
        if channel is None:
            self._later(sending, self._try_slowly(sending, topic))
            return
        self._write(sending, queue, channel)

    def _write(self, sending: _Sending, queue: MessageQueue, channel: Channel) -> None:
        sending.tries_left -= 1
        opaque = channel.next_opaque()
        channel.call(
            opaque,
            self._codec.frame(sending.prepared, queue, opaque),
            sending.timeout_ms if sending.faults is None else self._left_ms(sending),
            sending,
        )

    def _left_ms(self, sending: _Sending) -> int:
        return max(1, int((sending.deadline - self._clock.monotonic()) * 1000))

    def _later(self, sending: _Sending, work: Any) -> None:
        """Do a slow step in a task; its failure is the try's failure."""
        if self._instance is None:
            work.close()
            sending.fail(ClientClosed(f"the producer {self.group} is closed"))
            return

        async def step() -> None:
            try:
                await work
            except CometError as error:
                if isinstance(error, ConnectFailed) and sending.queue is not None:
                    self._note(sending.queue, sending.started, failed=True)
                    sending.tries_left -= 1
                    sending.failed(error)
                else:
                    sending.fail(error)
            except asyncio.CancelledError:
                sending.fail(ClientClosed(f"the producer {self.group} was closed"))
                raise
            except Exception as error:
                sending.fail(error)

        self._instance.spawn(step(), "send")

    async def _try_unknown(self, sending: _Sending) -> None:
        topic = await self._topic(sending.prepared.topic)
        await self._try_slowly(sending, topic)

    async def _try_slowly(self, sending: _Sending, topic: _Topic) -> None:
        queue = sending.fixed or sending.queue
        if queue is None:
            queue = self._faults.select(topic.queues, topic.turn, self._clock.now_ms())
            assert queue is not None
        sending.queue = queue
        left_ms = int((sending.deadline - self._clock.monotonic()) * 1000)
        if left_ms <= 0:
            raise RequestTimeout(
                f"no time was left to send to {queue}: the timeout of the send has passed"
            )
        channel = await self._channel(topic, queue, left_ms)
        if channel.is_paused:
            await channel.drain()
        self._write(sending, queue, channel)

    async def _channel(self, topic: _Topic, queue: MessageQueue, timeout_ms: int) -> Channel:
        instance = self._ready()
        address = topic.addresses.get(queue.broker_name)
        if address is None:
            address = instance.routes.address(queue.broker_name)
        if address is None:
            raise NoRoute(f"no master is known for the broker {queue.broker_name} of {queue}")
        return await instance.io.channel(address, timeout_ms)

    def _note(self, queue: MessageQueue, started: float, *, failed: bool) -> None:
        """Tell the fault table; brokers that always were quick cost one comparison."""
        latency_ms = (self._clock.monotonic() - started) * 1000
        if failed or latency_ms >= 50 or self._faults.has_any:
            self._faults.update(
                queue.broker_name,
                latency_ms,
                self._clock.now_ms(),
                failed=failed,
                reachable=not failed,
            )

    def _pause_before_retry(self, sending: _Sending, failed_count: int) -> float:
        """Seconds to wait before another try: none if another broker can take it."""
        topic = self._topics.get(sending.prepared.topic)
        if topic is None or len(topic.addresses) > 1:
            return 0.0
        return float(RETRY_PAUSE_S * 2 ** (failed_count - 1))

    def _sending_done(self) -> None:
        self._in_flight -= 1
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def _room(self) -> None:
        while self._in_flight >= IN_FLIGHT_MAX:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)
        if self._instance is not None:
            self._instance.routes.forget(name)

    async def _probe(self) -> None:
        """Ask unreachable brokers whether they are back (Java's detector)."""
        instance = self._instance
        if instance is None:
            return
        self._faults.prune(self._clock.now_ms())
        for broker_name in self._faults.unreachable():
            address = instance.routes.address(broker_name)
            if address is None:
                self._faults.forget(broker_name)
                continue
            try:
                await instance.io.channel(address, 200)
            except CometError:
                continue
            self._faults.forget(broker_name)
            log.info("the broker %s at %s is reachable again", broker_name, address)

    # -- inside: batches --------------------------------------------------------------------

    def _send_items(
        self,
        topic: str,
        items: Sequence[tuple[int, bytes, bytes]],
        ids: list[str],
        future: "asyncio.Future[list[SendResult]] | None",
        queue: MessageQueue | None,
        timeout_ms: int | None = None,
        batch: LingerBatch | None = None,
    ) -> None:
        prepared = self._codec.prepare_batch(topic, items, ",".join(ids))
        sending = _Sending(
            self,
            prepared,
            future,
            self._clock.monotonic(),
            self._timeout_ms if timeout_ms is None else timeout_ms,
            self._tries,
        )
        sending.ids = ids
        sending.fixed = queue
        sending.batch = batch
        self._in_flight += 1
        self._try(sending)

    def _linger_nowait(
        self, linger: Linger, message: Message, loop: asyncio.AbstractEventLoop
    ) -> "asyncio.Future[SendResult] | None":
        """Put the message into a batch; None if its group's queue is not known yet."""
        queue: MessageQueue | None = None
        if message.message_group:
            topic = self._topics.get(message.topic)
            if topic is None:
                return None
            queue = select_by_hash(topic.queues, message.message_group)
        item, message_id = self._codec.batch_item(message)
        future: asyncio.Future[SendResult] = loop.create_future()
        linger.add(message, queue, item, message_id, future, loop)
        return future

    def _send_lingered(self, batch: LingerBatch) -> None:
        self._send_items(batch.topic, batch.items, batch.ids, None, batch.queue, batch=batch)

    # -- what the instance asks -------------------------------------------------------------

    def consumer_data(self) -> ConsumerData | None:
        """A producer consumes nothing."""
        return None

    def topics(self) -> set[str]:
        """Topics sent to so far."""
        return set(self._topics)

    def routes_changed(self, topic: str) -> None:
        """Choose queues from the new route from now on."""
        self._topics.pop(topic, None)

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Brokers ask producers about transactions and replies; this one knows of neither."""
        if command.is_oneway:
            log.debug("request %d of %s ignored", command.code, channel.address)
            return None
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
        )
