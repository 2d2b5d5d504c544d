"""The asyncio producer.

A send in flight is one object (see `sending`) that is called with the answer; no task runs for it.
Only rare steps, such as an unknown route or a missing connection, use a task.  A send that meets a
broker which is away, busy, starting or stopping is tried again until its timeout is over: at once
at another broker, then with growing pauses.  Each try carries the same message id, because an
earlier try may have been stored.  Other refusals end a send after three tries, as in Java.  A
message with a fixed queue (``queue=``, ``selector=``, ``message_group=``) is tried again at its
queue only, and not when a later message of that queue was stored first.
"""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from cometmq.client.base import fork
from cometmq.client.base.arguments import (
    batch_topic,
    check_ms,
    check_queue,
    checked_topic,
    message_list,
)
from cometmq.client.base.instance import ClientInstance
from cometmq.client.base.synchronous import build_settings, same_arguments
from cometmq.client.extensions.growing import GroupView
from cometmq.client.message.checks import check_is_message, with_group
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.core import REFUSED_TRIES, ProducerCore, TopicQueues
from cometmq.client.producer.linger import Linger, LingerBatch
from cometmq.client.producer.recall import recall, reschedule
from cometmq.client.producer.request_reply import OpenRequests, Reply, check_received, send_reply
from cometmq.client.producer.sender import STALLED_MS, Sender
from cometmq.client.producer.sending import Sending, within
from cometmq.client.producer.settings import ProducerSettings
from cometmq.client.producer.traces import ProducerTraces
from cometmq.core.produce.batching import (
    BATCH_ITEM_OVERHEAD_BYTES,
    common_group,
    split_by_size,
)
from cometmq.core.topic.selector import QueueSelector
from cometmq.errors import (
    BrokerBusy,
    ClientClosed,
    CometError,
    RequestTimeout,
    ResponseCode,
)
from cometmq.model import Message, MessageQueue, SendResult
from cometmq.net.channel import Channel
from cometmq.wire.body.client import ConsumerData
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["Producer"]

log = logging.getLogger("cometmq.client")
PROBE_INTERVAL_MS: Final = 2_000
PROBE_TIMEOUT_MS: Final = 200
"""Java's ``detectTimeout``: a broker slower than this has not recovered."""


class Producer:
    """Sends messages; ``async with Producer(...)`` starts and stops it.

    Args:
        group: producer group, shown to operators.
        name_server: ``host:port``, several joined by ``;``, a sequence, or the URL of an address
            server; default ``NAMESRV_ADDR``, else ``127.0.0.1:9876``.
        timeout_ms: time for a send, all its tries together.  The default rides out the restart of
            a broker.
        retries: further tries after the first, preferably on another broker.  None: as many as
            ``timeout_ms`` has room for, with pauses that grow up to a second.
        linger_ms: gather sends for up to this long into batches; None sends each at once.
        batch_bytes_max: a lingering batch is sent early at this size.
        compression: ``ZLIB``, ``LZ4`` or ``ZSTD``, for bodies of ``compress_above_bytes`` or more.
        max_message_bytes: larger bodies (after compression) are refused here.
        latency_fault: avoid brokers that failed or were slow (Java's
            ``sendLatencyFaultEnable``).
        retry_when_not_ok: also try another broker when the message was stored but its flush or
            replica timed out (Java's ``retryAnotherBrokerWhenNotStoreOK``); it may then be
            stored twice.
        producer_id: number the messages under this name, so that a CometMQ broker stores no
            message twice because the producer repeats a send; other brokers ignore the numbers.
        instance_name: replaces the process id in the client id.
        client_ip: replaces the address in client and message ids.
        env: clock, chance and network; the machine's by default.
        connection: a `Connection` that other clients use too; it then has the name servers, names
            and keys.
        namespace: a set of topics and groups of its own: ``Space`` makes the topic ``Orders`` the
            cluster's ``Space%Orders``.
        sandbox: the test environment whose messages these are; ``"main"`` for the main one.
        trace: write RocketMQ's trace records of sends, apart from them: True for the topic
            ``RMQ_SYS_TRACE_TOPIC``, or the name of another one.
        security: ``access_key``, ``secret_key``, ``security_token`` and ``tls`` (True or a
            `Tls`); by default from ``COMETMQ_ACCESS_KEY`` and the other variables.
    """

    _role: str | None = None

    @same_arguments(ProducerSettings)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._set_up(build_settings(ProducerSettings, arguments, options))

    def _set_up(self, settings: ProducerSettings) -> None:
        self.core = ProducerCore(settings)
        self.group = self.core.group
        self._instance: ClientInstance | None = None
        self._sender: Sender | None = None
        self._requests = OpenRequests()
        self._is_closed = False
        self._is_forked = False
        self.traces: ProducerTraces | None = None
        """What writes the traces of a started producer that was asked for them."""
        self._linger: Linger | None = None
        self._is_plain = settings.linger_ms is None and self.core.options.trace_topic is None
        if settings.linger_ms is not None:
            self._linger = Linger(
                settings.linger_ms / 1000,
                min(settings.batch_bytes_max, settings.max_message_bytes),
                settings.compress_above_bytes,
                self.core.codec,
                self._send_lingered,
            )
        fork.register(self)

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bind to the running loop and start heartbeats; no connection is made yet.

        Raises:
            ClientClosed: the producer was shut down.
        """
        if self._is_closed:
            raise ClientClosed(f"the producer {self.group} is closed; make a new one")
        if self._instance is None:
            self._start()

    def _start(self) -> Sender:
        instance = ClientInstance(self.core.options, self, self.group, self._role)
        instance.start()
        if self.core.faults.enabled:
            instance.spawn(instance.every(PROBE_INTERVAL_MS, self._probe), "probe")
        self._instance = instance
        self._sender = Sender(self.core, instance, self._flush_linger)
        instance.spawn(instance.every(STALLED_MS, self._sender.look_at_waiting), "waiting-sends")
        trace_topic = self.core.options.trace_topic
        if trace_topic is not None:
            self.traces = ProducerTraces(instance, self.group, trace_topic)
        self._is_forked = False
        return self._sender

    async def shutdown(self) -> None:
        """Send lingering messages, wait for answers, unregister and disconnect."""
        if self._is_closed:
            return
        instance = self._instance
        try:
            if instance is not None:
                await self.flush()
            if self.traces is not None:
                await self.traces.close()
        finally:  # also after a cancellation: sends in flight fail then
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
        """In a child process: leave the parent's connections alone, and start anew on next use."""
        if self._instance is not None:
            self._instance.abandon()
            if self._sender is not None:
                fork.keep_forever(self._sender.to_keep())
            self._instance = self._sender = self.traces = None
            self._requests = OpenRequests()
            self._is_forked = True
        self.core.renew()
        if self._linger is not None:
            self._linger.abandon()

    @property
    def client_id(self) -> str | None:
        """This producer's id at the brokers, once started."""
        return self._instance.client_id if self._instance is not None else None

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self.core.options.name_servers.change(name_server)

    def _ready(self) -> Sender:
        sender = self._sender
        if sender is not None and not self._is_closed:
            return sender
        if self._is_closed:
            raise ClientClosed(f"the producer {self.group} is closed; make a new one")
        if self._is_forked:
            log.info("the producer %s starts anew in a forked process", self.group)
            return self._start()
        raise ClientClosed(
            f"the producer {self.group} is not started; use `async with` or await start()"
        )

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

        Args:
            queue: the queue to use, in all tries.
            selector: chooses the queue from (queues, message), for all tries.
            message_group: as the message's own field.
            timeout_ms: instead of the producer's.

        Raises:
            LocalProtocolError: the message breaks a limit.
            NoRoute: no broker for the topic.
            RequestTimeout, ConnectFailed, RemoteError: every try failed in this way.
            SendFailed: the tries failed in different ways; the text lists them.
        """
        sender = self._sender
        if sender is None or self._is_closed:
            sender = self._ready()
        while sender.in_flight.is_full:
            await sender.in_flight.wait()
        if (
            queue is None
            and selector is None
            and message_group is None
            and timeout_ms is None
            and self._is_plain
        ):
            future = sender.plain(message)
            if future is not None:
                return await future
        return await self.send_nowait(
            message,
            queue=queue,
            selector=selector,
            message_group=message_group,
            timeout_ms=timeout_ms,
        )

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
            BrokerBusy: 65,535 sends or 100 MiB are in flight; await some of them first.
        """
        sender = self._sender
        if sender is None or self._is_closed:
            sender = self._ready()
        in_flight = sender.in_flight
        if in_flight.is_full:
            raise BrokerBusy(
                ResponseCode.SYSTEM_BUSY,
                f"{in_flight.count} sends with {in_flight.size_bytes} bytes are in flight",
            )
        if message_group is not None:
            message = with_group(message, message_group)
        core = self.core
        linger = self._linger
        if linger is not None and queue is None and selector is None and linger.takes(message):
            group = message.message_group
            view = sender.groups.linger_view(message.topic, group) if group else None
            if view is not None and group:
                queue = view.queue_of(group)
            if view is not None or not group:
                lingering = linger.add(message, queue, asyncio.get_running_loop())
                if self.traces is not None:
                    self.traces.watch(message, lingering)
                return lingering
        prepared = core.codec.prepare(message)
        if queue is not None:
            check_queue(queue, message, selector)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if self.traces is not None:
            self.traces.watch(message, future)
        sending = sender.begin(prepared, future, timeout_ms)
        if queue is not None:
            sending.fixed = queue
        elif selector is not None or message.message_group:
            sender.pin(sending, message, selector)
            return future
        sender.start(sending)
        return future

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        message_group: str | None = None,
    ) -> None:
        """Send without asking for an answer, so a loss goes unnoticed.

        While no broker can be reached, the call waits and tries again, up to ``timeout_ms``.  What
        was written to a connection is not written again.  With a message group an answer is
        requested and dropped, because the group may move.

        Raises:
            LocalProtocolError: the message breaks a limit.
            NoRoute: no broker for the topic.
            ConnectFailed: the broker cannot be reached.
        """
        sender = self._ready()
        if message_group is not None:
            message = with_group(message, message_group)
        if message.message_group and queue is None and selector is None:
            while sender.in_flight.is_full:
                await sender.in_flight.wait()
            self.send_nowait(message).add_done_callback(_drop)
            return
        prepared = self.core.codec.prepare(message)
        if queue is not None:
            check_queue(queue, message, selector)
        chosen, channel = await sender.reach(
            prepared.topic,
            lambda topic: queue or self.core.choose(topic, message, selector),
            self.core.timeout_ms,
        )
        channel.write(self.core.codec.frame(prepared, chosen, channel.next_opaque(), oneway=True))
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

        The results are in the order of the messages. Several requests are sent one after the
        other; if one fails, its error is raised and what went before stays stored. Messages that
        all have one message group go to its queue.

        Raises:
            ConfigError: the messages or the queue are of a wrong type or topic.
            CometError: as `send`.
        """
        sender = self._ready()
        loop = asyncio.get_running_loop()
        messages = message_list(messages)
        name = batch_topic(messages)
        if queue is not None:
            check_queue(queue, messages[0], None)
        items: list[tuple[int, bytes, bytes]] = []
        ids: list[str] = []
        for message in messages:
            item, message_id = self.core.codec.batch_item(message)
            items.append(item)
            ids.append(message_id)
        group = common_group(messages) if queue is None else None
        sizes = [
            BATCH_ITEM_OVERHEAD_BYTES + len(body) + len(properties) for _, body, properties in items
        ]
        results: list[SendResult] = []
        started = None if self.traces is None else self.traces.now()
        for begin, end in split_by_size(sizes, self.core.codec.message_bytes_max):
            future: asyncio.Future[list[SendResult]] = loop.create_future()
            sending = self._batch_sending(
                sender, name, items[begin:end], ids[begin:end], future, timeout_ms
            )
            sending.fixed = queue
            if group:
                sender.groups.begin(sending, group)
            else:
                sender.start(sending)
            results += await future
        if self.traces is not None and started is not None:
            self.traces.sent_all(messages, results, started)
        return results

    async def flush(self) -> None:
        """Send lingering messages and wait until no send is in flight; raises no send's error."""
        self._flush_linger()
        sender = self._sender
        while sender is not None and sender.in_flight.count:
            await sender.in_flight.wait()

    async def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that messages can be sent to.

        Raises:
            NoRoute: no broker for the topic.
        """
        sender = self._ready()
        return (await sender.topic(checked_topic(topic))).queues

    async def create_topic(
        self, topic: str, *, queue_count: int = 8, attributes: str | None = None
    ) -> None:
        """Create a topic on every master; `Admin.create_topic` has all options.

        Raises:
            ConfigError: the name or the number of queues is wrong.
            RemoteError: a broker refused.
        """
        from cometmq.client.admin.calls import AdminCalls

        instance = self._ready().instance
        timeout_ms = self.core.options.request_timeout_ms
        admin = AdminCalls(instance.io, instance.routes, timeout_ms)
        await admin.create_topic(topic, queue_count=queue_count, attributes=attributes)

    # -- request and reply ------------------------------------------------------------------

    async def request(self, message: Message, *, timeout_ms: int = 3_000) -> Reply:
        """Send a message and wait for its consumer's reply.

        Raises:
            RequestTimeout: no reply came in time; the message may have been handled.
            CometError: as `send`.
        """
        sender = self._ready()
        check_is_message(message)
        check_ms("timeout_ms", timeout_ms)
        instance = sender.instance
        core = self.core
        deadline = core.monotonic() + timeout_ms / 1000
        if message.topic not in core.topics:
            await sender.reach(
                message.topic, lambda topic: core.next_queue(topic, None), timeout_ms
            )
            # A reply may come through any broker of the topic, so each must know us.
            await instance.heartbeat()
            timeout_ms = max(1, int((deadline - core.monotonic()) * 1000))
        prepared = self.core.codec.prepare(message)
        reply = self._requests.open(prepared, instance.client_id, timeout_ms)
        sent: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                sender.start(sender.begin(prepared, sent, timeout_ms))
                await sent
                return await reply
        except RequestTimeout:
            raise  # the request itself was not answered
        except TimeoutError as error:
            raise RequestTimeout(
                f"no reply to {prepared.message_id} came from {message.topic} within {timeout_ms} "
                "ms; check that a consumer of the topic replies"
            ) from error
        finally:
            reply.cancel()

    async def reply(self, request: ReceivedMessage, message: Message | bytes) -> None:
        """Answer a received request; the topic of a `Message` is ignored.

        Raises:
            InvalidParameter: the received message is not a request.
            RemoteError: the broker could not deliver the reply; the requester may be gone.
        """
        instance = self._ready().instance
        check_received(request)
        if isinstance(message, bytes):
            message = Message(request.topic, message)
        await send_reply(instance, self.group, self.core.codec.prepare(message), request)

    # -- timed messages ---------------------------------------------------------------------

    async def recall(self, topic: str, handle: str | None) -> str:
        """Recall a message with an exact time, by ``SendResult.recall_handle``; returns its id.

        Raises:
            InvalidParameter: the handle is missing, or belongs to another topic.
            RemoteError: the broker refuses, with code 604 when the message is due.
        """
        instance = self._ready().instance
        core = self.core
        return await recall(
            instance,
            self.group,
            topic,
            handle,
            timeout_ms=core.timeout_ms,
            tries=min(core.tries, REFUSED_TRIES),
        )

    async def reschedule(self, handle: str | None, message: Message) -> SendResult:
        """Replace a timed message by another one; at least one of the two stays stored.

        Raises:
            LocalProtocolError: the new message has no time.
            RemoteError: the old message was due (604) or the broker refused; then the new one is
                recalled.
        """
        topic = message.topic
        return await reschedule(message, handle, self.send, lambda old: self.recall(topic, old))

    # -- inside -----------------------------------------------------------------------------

    async def find_topic(
        self, name: str, timeout_ms: int, faults: Sequence[Exception]
    ) -> TopicQueues:
        """The queues of a topic, for the synchronous producer's send with these faults so far."""
        async with within(timeout_ms, faults):
            return await self._ready().topic(name)

    def is_astray(self, started: float) -> bool:
        """As `Sender.is_astray`, for the synchronous producer."""
        return self._sender is not None and self._sender.is_astray(started)

    async def learn_homes(
        self, name: str, timeout_ms: int, faults: Sequence[Exception]
    ) -> GroupView:
        """Fetch the homes of message groups, as `find_topic` fetches the queues."""
        async with within(timeout_ms, faults):
            return await self._ready().groups.learn(name)

    def forget_topic(self, name: str) -> None:
        """As `Sender.forget_topic`, for the synchronous producer."""
        if self._sender is not None:
            self._sender.forget_topic(name)

    def recheck_route(self, name: str) -> None:
        """As `Sender.recheck_route`, for the synchronous producer."""
        if self._sender is not None:
            self._sender.recheck_route(name)

    async def _probe(self) -> None:
        """Connect to the unreachable brokers of the fault table, and remove those that answer.

        A connection is proof enough; Java's detector asks for an offset.
        """
        instance = self._instance
        if instance is None:
            return
        faults = self.core.faults
        faults.prune(self.core.clock.now_ms())
        for broker_name in faults.unreachable():
            address = instance.routes.address(broker_name)
            if address is not None:
                try:
                    await instance.io.channel(address, PROBE_TIMEOUT_MS)
                except CometError:
                    continue
                log.info("the broker %s at %s is reachable again", broker_name, address)
            faults.forget(broker_name)

    # -- inside: batches --------------------------------------------------------------------

    def _batch_sending(
        self,
        sender: Sender,
        topic: str,
        items: Sequence[tuple[int, bytes, bytes]],
        ids: list[str],
        future: "asyncio.Future[list[SendResult]] | None",
        timeout_ms: int | None,
    ) -> Sending:
        prepared = self.core.codec.prepare_batch(topic, items, ",".join(ids))
        sending = sender.begin(prepared, future, timeout_ms)
        sending.ids = ids
        return sending

    def _flush_linger(self) -> None:
        if self._linger is not None:
            self._linger.flush()

    def _send_lingered(self, batch: LingerBatch) -> None:
        sender = self._ready()
        sending = self._batch_sending(sender, batch.topic, batch.items, batch.ids, None, None)
        sending.batch = batch
        sending.fixed = batch.queue
        if batch.queue is not None:
            sender.groups.begin_batch(sending, batch)
        sender.start(sending)

    # -- for the instance -------------------------------------------------------------

    def consumer_data(self) -> ConsumerData | None:
        """None: a producer consumes nothing."""
        return None

    def note_difference(self, address: str, difference: str | None) -> None:
        """Do nothing: a producer has no subscription."""

    def topics(self) -> set[str]:
        """Topics sent to so far."""
        return set(self.core.topics)

    def routes_changed(self, topic: str) -> None:
        """Choose queues from the new route from now on."""
        self.core.topics.pop(topic, None)
        if self._sender is not None:
            self._sender.route_changed(topic)

    def takes(self, command: RemotingCommand) -> bool:
        """Whether a broker's request is the reply to a request of this producer."""
        return command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT and self._requests.has(
            command
        )

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Answer a broker's request; only replies to requests are known here."""
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return self._requests.serve(command)
        if command.is_oneway:
            log.debug("request %d of %s ignored", command.code, channel.address)
            return None
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
        )


def _drop(done: "asyncio.Future[SendResult]") -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.info("a message sent without waiting for its answer was not stored: %s", error)
