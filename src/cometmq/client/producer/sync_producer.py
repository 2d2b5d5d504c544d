"""The synchronous producer: requests over blocking sockets in the caller's thread.

A thread that sends and waits needs no event loop, and a hop to one costs a third of the rate.  So
`send` encodes, writes and reads on a connection that no other thread uses in the meantime.  An
asyncio producer on the background loop shares this one's core; it does heartbeats, routes,
`send_nowait` and lingering batches.  A producer may be used by any number of threads.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from cometmq.client.base import fork
from cometmq.client.base.arguments import batch_topic, check_ms, check_queue, message_list
from cometmq.client.base.background import background
from cometmq.client.base.instance import uniq_ids_of
from cometmq.client.base.sync_connection import blocking_io
from cometmq.client.base.synchronous import on_background, same_arguments
from cometmq.client.extensions.growing import GroupView
from cometmq.client.message.checks import with_group
from cometmq.client.message.send_codec import Prepared, SendCodec, result_of, results_of
from cometmq.client.producer.core import (
    CONNECT_MS_MAX,
    STORED_CODES,
    TRY_S_MIN,
    ProducerCore,
    TopicQueues,
    final_error,
)
from cometmq.client.producer.producer import Producer as AsyncProducer
from cometmq.client.producer.settings import ProducerSettings
from cometmq.core.extensions.growing import group_hash
from cometmq.core.produce.batching import (
    BATCH_ITEM_OVERHEAD_BYTES,
    common_group,
    split_by_size,
)
from cometmq.core.topic.selector import QueueSelector
from cometmq.errors import ClientClosed, ClientError, GroupMoved, NoBroker, remote_error
from cometmq.model import Message, MessageQueue, SendResult, SendStatus
from cometmq.net.blocking import BlockingChannel
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.fast_decode import PlainSendAnswer

__all__ = ["Producer"]


class Producer:
    """Sends messages; ``with Producer(...)`` starts and stops it. Arguments as `cometmq.Producer`.

    `send_nowait` returns a `concurrent.futures.Future`.
    """

    @same_arguments(ProducerSettings)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._set_up(AsyncProducer(*arguments, **options))

    def _set_up(self, twin: AsyncProducer) -> None:
        self._twin = twin
        self._core = twin.core
        self.group = twin.group
        self._lingers = self._core.settings.linger_ms is not None
        options = self._core.options
        self._io = blocking_io(options)
        self._outbox: deque[tuple[Message, dict[str, Any], Future[SendResult]]] = deque()
        self._outbox_scheduled = False
        self._is_started = False
        self._is_closed = False
        self._is_forked = False
        self._start_lock = threading.Lock()
        self._core.make_ids = self._ids_per_thread
        self._core.renew()
        fork.register(self)

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start heartbeats in the background; no connection is made yet.

        Raises:
            ClientClosed: the producer was shut down.
        """
        if self._is_closed:
            raise ClientClosed(f"the producer {self.group} is closed; make a new one")
        with self._start_lock:
            if not self._is_started:
                background().run(self._twin.start())
                self._is_started = True
                self._is_forked = False

    def shutdown(self) -> None:
        """Send lingering messages, wait for answers, unregister and disconnect."""
        if self._is_closed:
            return
        if self._is_started:
            self.flush()
        self._is_closed = True
        if self._is_started:
            background().run(self._twin.shutdown())
        self._io.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def after_fork(self) -> None:
        """In a child process: leave the parent's connections alone, and start anew on next use."""
        self._io.after_fork()
        self._outbox.clear()
        self._outbox_scheduled = False
        self._start_lock = threading.Lock()
        self._is_forked = self._is_started or self._is_forked
        self._is_started = False

    def _ready(self) -> AsyncProducer:
        if self._is_started and not self._is_closed:
            return self._twin
        if self._is_forked and not self._is_closed:
            self.start()
            return self._twin
        if self._is_closed:
            raise ClientClosed(f"the producer {self.group} is closed; make a new one")
        raise ClientClosed(f"the producer {self.group} is not started; use `with` or call start()")

    def _ids_per_thread(self) -> Callable[[], str]:
        """One id counter per thread: a shared one could give one id twice."""
        options = self._core.options

        class _Ids(threading.local):
            def __init__(self) -> None:
                self.next_id = uniq_ids_of(options).next_id

        ids = _Ids()
        return lambda: ids.next_id()  # noqa: PLW0108 - looked up anew in each thread

    @property
    def client_id(self) -> str | None:
        """This producer's id at the brokers, once started."""
        return self._twin.client_id

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._twin.update_name_servers(name_server)

    # -- sending ----------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        message_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait for the broker's answer; raises what `cometmq.Producer.send` raises."""
        if not self._is_started or self._is_closed:
            self._ready()
        if self._lingers and queue is None and selector is None:
            return self.send_nowait(
                message, message_group=message_group, timeout_ms=timeout_ms
            ).result()
        if message_group is not None:
            message = with_group(message, message_group)
        core = self._core
        traces = self._twin.traces
        started = None if traces is None else traces.now()
        prepared = core.codec.prepare(message)
        if timeout_ms is None:
            limit_ms = core.timeout_ms
        else:
            check_ms("timeout_ms", timeout_ms)
            limit_ms = timeout_ms
        fixed = queue
        if fixed is not None:
            check_queue(fixed, message, selector)
        elif selector is not None or message.message_group:
            group = message.message_group
            if selector is None and group and not message.is_delayed:
                target, answer = self._exchange_grouped(prepared, group, limit_ms)
                result = _result(core.codec, prepared, target, answer)
                if traces is not None and started is not None:
                    traces.sent(message, result, started)
                return result
            fixed = core.choose(self._topic(prepared.topic), message, selector)
        target, answer = self._exchange(prepared, fixed, limit_ms)
        result = _result(core.codec, prepared, target, answer)
        if traces is not None and started is not None:
            traces.sent(message, result, started)
        return result

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        message_group: str | None = None,
        timeout_ms: int | None = None,
    ) -> "Future[SendResult]":
        """Send in the background; the future gives what `send` gives, or its exception."""
        self._ready()
        future: Future[SendResult] = Future()
        options = {
            "queue": queue,
            "selector": selector,
            "message_group": message_group,
            "timeout_ms": timeout_ms,
        }
        self._outbox.append((message, options, future))
        if not self._outbox_scheduled:
            # One wake-up serves all sends until the loop runs `_pump`.
            self._outbox_scheduled = True
            background().soon(self._pump)
        return future

    def _pump(self) -> None:
        """On the background loop: hand the outbox to the asyncio producer."""
        self._outbox_scheduled = False
        while self._outbox:
            message, options, future = self._outbox.popleft()
            try:
                inner = self._twin.send_nowait(message, **options)
            except Exception as error:
                future.set_exception(error)
                continue
            inner.add_done_callback(lambda done, future=future: _copy(done, future))  # type: ignore[misc]

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        message_group: str | None = None,
    ) -> None:
        """Send without asking for an answer, so a loss goes unnoticed.

        While no broker can be reached, the call waits and tries again, up to ``timeout_ms``.  With
        a message group an answer is requested and dropped, because the group may move.
        """
        self._ready()
        if message_group is not None:
            message = with_group(message, message_group)
        if message.message_group and queue is None and selector is None:
            self.send_nowait(message)
            return
        core = self._core
        prepared = core.codec.prepare(message)
        if queue is not None:
            check_queue(queue, message, selector)
        chosen, channel = self._reach(
            prepared.topic, lambda topic: queue or core.choose(topic, message, selector)
        )
        try:
            channel.send(
                lambda opaque: core.codec.frame(prepared, chosen, opaque, oneway=True),
                core.timeout_ms,
            )
        finally:
            self._io.give(channel)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as their size allows."""
        self._ready()
        core = self._core
        messages = message_list(messages)
        name = batch_topic(messages)
        if queue is not None:
            check_queue(queue, messages[0], None)
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        items: list[tuple[int, bytes, bytes]] = []
        ids: list[str] = []
        for message in messages:
            item, message_id = core.codec.batch_item(message)
            items.append(item)
            ids.append(message_id)
        group = common_group(messages) if queue is None else None
        limit_ms = core.timeout_ms if timeout_ms is None else timeout_ms
        sizes = [
            BATCH_ITEM_OVERHEAD_BYTES + len(body) + len(properties) for _, body, properties in items
        ]
        results: list[SendResult] = []
        traces = self._twin.traces
        started = None if traces is None else traces.now()
        for begin, end in split_by_size(sizes, core.codec.message_bytes_max):
            prepared = core.codec.prepare_batch(name, items[begin:end], ",".join(ids[begin:end]))
            if group:
                target, answer = self._exchange_grouped(prepared, group, limit_ms)
            else:
                target, answer = self._exchange(prepared, queue, limit_ms)
            if isinstance(answer, PlainSendAnswer):
                results += results_of(SendStatus.SEND_OK, ids[begin:end], target, answer)
            else:
                results += core.codec.batch_results(ids[begin:end], target, answer)
        if traces is not None and started is not None:
            traces.sent_all(messages, results, started)
        return results

    request = on_background(AsyncProducer.request)
    reply = on_background(AsyncProducer.reply)
    recall = on_background(AsyncProducer.recall)
    reschedule = on_background(AsyncProducer.reschedule)
    create_topic = on_background(AsyncProducer.create_topic)

    def flush(self) -> None:
        """Wait until no background send is in flight; raises no send's error."""
        self._ready()
        background().run(self._flush())

    async def _flush(self) -> None:
        self._pump()
        await self._twin.flush()
        await asyncio.sleep(0)  # results reach their futures in this turn

    def fetch_publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that messages can be sent to."""
        self._ready()
        return self._topic(topic).queues

    # -- inside -----------------------------------------------------------------------------

    def _topic(self, name: str, tries: "_Tries | None" = None) -> TopicQueues:
        topic = self._core.topics.get(name)
        if topic is None:
            if tries is None:
                tries = _Tries(self._core, name, self._core.timeout_ms)
            topic = background().run(self._twin.find_topic(name, tries.left_ms(), tries.faults))
        return topic

    def _address(self, topic: TopicQueues, queue: MessageQueue) -> str:
        address = topic.addresses.get(queue.broker_name)
        if address is None:
            raise NoBroker(f"no master is known for the broker {queue.broker_name} of {queue}")
        return address

    def _reach(
        self, name: str, choose: Callable[[TopicQueues], MessageQueue]
    ) -> tuple[MessageQueue, BlockingChannel]:
        """A queue and a connection to its broker, for a message that is sent without an answer."""
        core = self._core
        tries = _Tries(core, name, core.timeout_ms)
        while True:
            try:
                topic = self._topic(name, tries)
                queue = choose(topic)
                connect_ms = min(tries.left_ms(), CONNECT_MS_MAX)
                return queue, self._io.take(self._address(topic, queue), connect_ms)
            except ClientError as error:
                background().soon(self._twin.recheck_route, name)
                tries.failed(error, is_last=self._twin.is_astray(tries.started))

    def _exchange_grouped(
        self, prepared: Prepared, group: str, timeout_ms: int
    ) -> tuple[MessageQueue, RemotingCommand | PlainSendAnswer]:
        """Send to the home of a message group, following it if it moves."""
        core = self._core
        number = group_hash(group)
        tries = _Tries(core, prepared.topic, timeout_ms)
        while True:
            view = core.views.get(prepared.topic)
            try:
                if view is None or view.source is not core.topics.get(prepared.topic):
                    view = self._learn_homes(prepared.topic, tries)
            except ClientError as error:
                tries.failed(error, is_last=self._twin.is_astray(tries.started))
                continue
            try:
                return self._exchange(
                    prepared, view.queue(number), tries.left_ms(), view.group_home(number)
                )
            except GroupMoved:
                if tries.left_ms() <= 1:
                    raise
                if core.views.get(prepared.topic) is view:
                    self._learn_homes(prepared.topic, tries)

    def _learn_homes(self, topic: str, tries: "_Tries") -> GroupView:
        return background().run(self._twin.learn_homes(topic, tries.left_ms(), tries.faults))

    def _exchange(
        self,
        prepared: Prepared,
        fixed: MessageQueue | None,
        timeout_ms: int,
        group_home: str | None = None,
    ) -> tuple[MessageQueue, RemotingCommand | PlainSendAnswer]:
        """Send with retries; returns the queue of the last try and the answer.  HOT."""
        core = self._core
        frame = core.codec.frame
        tries = _Tries(core, prepared.topic, timeout_ms)
        queue: MessageQueue | None = None
        while True:
            try:
                topic = core.topics.get(prepared.topic) or self._topic(prepared.topic, tries)
                queue = fixed or tries.pinned or core.next_queue(topic, queue)
                target = queue
                try_ms = tries.left_ms() if tries.faults else timeout_ms
                if fixed is None:
                    try_ms = min(try_ms, int(core.try_s(timeout_ms, topic) * 1000))
                answer = self._io.exchange_send(
                    self._address(topic, target),
                    lambda opaque: tries.written(
                        target,  # noqa: B023 - used at once
                        frame(prepared, target, opaque, group_home=group_home),  # noqa: B023
                    ),
                    try_ms,
                )
            except ClientError as error:
                tries.pin()
                if queue is not None:
                    core.note(queue, tries.started, failed=True)
                elif tries.is_over() or self._twin.is_astray(tries.started):
                    raise
                fault: Exception = error
            else:
                core.note(queue, tries.started, failed=False)
                if type(answer) is PlainSendAnswer:
                    return queue, answer
                assert isinstance(answer, RemotingCommand)
                if answer.code in STORED_CODES:
                    if not answer.code or not core.retry_when_not_ok or not tries.may_repeat():
                        return queue, answer
                    tries.pin()
                    continue
                fault = remote_error(answer.code, answer.remark)
                if isinstance(fault, GroupMoved):
                    raise fault
            self._doubt_route(prepared.topic, fault)
            tries.failed(fault)

    def _doubt_route(self, topic: str, fault: Exception) -> None:
        """Drop a route that a failed try shows to be wrong, or fetch it again where it may be."""
        if self._core.forgets_route(fault):
            self._twin.forget_topic(topic)
        elif self._core.doubts_route(fault):
            background().soon(self._twin.recheck_route, topic)


def _result(
    codec: SendCodec,
    prepared: Prepared,
    queue: MessageQueue,
    answer: RemotingCommand | PlainSendAnswer,
) -> SendResult:
    if type(answer) is PlainSendAnswer:
        return result_of(SendStatus.SEND_OK, prepared, queue, answer)
    assert isinstance(answer, RemotingCommand)
    return codec.result(prepared, queue, answer)


class _Tries:
    """The tries of one send in the caller's thread: how long it may take, and what went wrong."""

    __slots__ = (
        "_core",
        "_count",
        "_deadline",
        "_topic",
        "_written",
        "faults",
        "pinned",
        "started",
    )

    def __init__(self, core: ProducerCore, topic: str, timeout_ms: int) -> None:
        self._core = core
        self._topic = topic
        self._count = 1
        self.faults: list[Exception] = []
        self.started = core.monotonic()
        self._deadline = self.started + timeout_ms / 1000
        self.pinned: MessageQueue | None = None
        """The queue of a try whose outcome is open, for a message that its producer numbers."""
        self._written: MessageQueue | None = None

    def written(self, queue: MessageQueue, frame: bytes) -> bytes:
        """Note that this try writes a frame, and return the frame."""
        self._written = queue
        return frame

    def pin(self) -> None:
        """Stay with the queue of a try that was written, and that the broker has not refused."""
        if self._core.is_sequenced:
            self.pinned = self._written or self.pinned

    def left_ms(self) -> int:
        """How much time is left, at least 1 ms."""
        return max(1, int((self._deadline - self._core.monotonic()) * 1000))

    def is_over(self) -> bool:
        """Whether the time that is left is too short for another try."""
        return self._deadline - self._core.monotonic() < TRY_S_MIN

    def may_repeat(self) -> bool:
        """Whether a message that was stored unsafely may be sent once more; counts a try."""
        self._count += 1
        return self._count <= self._core.stored_tries and self._core.monotonic() < self._deadline

    def failed(self, error: Exception, *, is_last: bool = False) -> None:
        """Wait before the next try.

        Raises:
            CometError: there is no next try.
        """
        core = self._core
        self._written = None
        self.faults.append(error)
        self._count += 1
        is_over = is_last or self._count > core.tries or self.is_over()
        if is_over or not core.may_retry(self.faults):
            raise final_error(self._topic, self.faults)
        left_s = self._deadline - core.monotonic()
        time.sleep(max(0.0, core.pause_before_retry(self._topic, len(self.faults), left_s)))


def _copy(done: asyncio.Future[SendResult], future: Future[SendResult]) -> None:
    """Copy the result of an asyncio future to a thread's future."""
    if future.cancelled():
        return
    if done.cancelled():
        future.set_exception(ClientClosed("the producer was closed"))
        return
    error = done.exception()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
