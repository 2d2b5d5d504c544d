"""A send in flight over asyncio: one object per message, called with the answer.

It settles the future of its message (or the futures of a batch), or asks its `SendPath` to try
again.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from cometmq.client.message.send_codec import (
    Prepared,
    SendCodec,
    refusal_of,
    result_of,
    results_of,
)
from cometmq.client.producer.core import (
    QUICK_MS,
    STORED_CODES,
    TRY_S_MIN,
    ProducerCore,
    TopicQueues,
    final_error,
)
from cometmq.client.producer.linger import LingerBatch
from cometmq.core.extensions.producer_sequences import WINDOW
from cometmq.errors import CometError, GroupMoved, RequestTimeout
from cometmq.model import MessageQueue, SendStatus
from cometmq.net.channel import Channel, SendToken
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.fast_decode import PlainSendAnswer

__all__ = [
    "SEQUENCED_MAX",
    "InFlight",
    "SendPath",
    "SendTarget",
    "SendTargets",
    "Sending",
    "within",
]

IN_FLIGHT_MAX: Final = 65_535
"""Java's limit of asynchronous requests; beyond it `send_nowait` refuses instead of piling up."""
SEQUENCED_MAX: Final = WINDOW // 4
"""Numbered sends, or batches of them: a repetition comes before the broker forgets its number."""
IN_FLIGHT_BYTES_MAX: Final = 100 * 1024 * 1024
"""Java's ``backPressureForAsyncSendSize``: the memory that a stalled broker may cost us."""
QUICK_S: Final = QUICK_MS / 1000


@asynccontextmanager
async def within(
    timeout_ms: float, faults: Sequence[Exception] | None = None
) -> AsyncIterator[None]:
    """Limit the time of a step of a send, before which there were these faults.

    Raises:
        RequestTimeout: the time is over, and there was no fault.
        Exception: the time is over; this is the last fault, which says more about the cause.
    """
    try:
        async with asyncio.timeout(max(0.0, timeout_ms / 1000)):
            yield
    except RequestTimeout:
        raise
    except TimeoutError as error:
        if faults:
            raise faults[-1]  # noqa: B904 - the fault keeps its own cause
        raise RequestTimeout(
            f"no name server or broker answered within the {timeout_ms:.0f} ms that were left"
        ) from error


class InFlight:
    """Counts the sends in flight, and lets callers wait for one to end."""

    def __init__(self, count_max: int = IN_FLIGHT_MAX) -> None:
        self._count_max = count_max
        self.count = 0
        self.size_bytes = 0
        self._changed: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether another send has to wait."""
        return self.count >= self._count_max or self.size_bytes >= IN_FLIGHT_BYTES_MAX

    def begin(self, size_bytes: int) -> None:
        """Count a send that begins."""
        self.count += 1
        self.size_bytes += size_bytes

    def end(self, size_bytes: int) -> None:
        """Count a send that has ended."""
        self.count -= 1
        self.size_bytes -= size_bytes
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def wait(self) -> None:
        """Wait until one send has ended."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)


class SendPath(Protocol):
    """The producer as its sends see it."""

    core: ProducerCore
    in_flight: InFlight

    def try_again(self, sending: "Sending", pause_s: float) -> None:
        """Send once more, after a pause."""
        ...

    def forget_topic(self, name: str) -> None:
        """Drop the cached route of a topic, because it is wrong."""
        ...

    def recheck_route(self, name: str) -> None:
        """Fetch the route anew, because one of its brokers cannot be reached."""
        ...


class SendTarget:
    """One queue of a topic with the address, channel and encoder of its sends."""

    __slots__ = ("address", "channel", "encode", "queue", "queue_id")

    def __init__(self, queue: MessageQueue, address: str | None, codec: SendCodec) -> None:
        self.queue = queue
        self.queue_id = queue.queue_id
        self.address = address
        self.encode = codec.template(queue).encode
        self.channel: Channel | None = None


class SendTargets:
    """The send targets of one route of a topic."""

    __slots__ = ("count", "targets", "topic", "try_s")

    def __init__(self, topic: TopicQueues, codec: SendCodec, try_s: float) -> None:
        self.topic = topic
        self.try_s = try_s
        self.targets = [
            SendTarget(queue, topic.addresses.get(queue.broker_name), codec)
            for queue in topic.queues
        ]
        self.count = len(self.targets)


# A struct is made in one step in C.  The collector has to track it, because a failed send is part
# of a cycle: the error's traceback refers to the send, whose future refers to the error.
class Sending(SendToken, weakref=False):
    """One message (or batch) on its way; called by the channel with the answer."""

    path: SendPath
    prepared: Prepared
    future: "asyncio.Future[Any] | None"
    started: float
    timeout_ms: int
    tries_left: int
    deadline: float
    queue: MessageQueue | None = None
    """The queue of the latest try."""
    fixed: MessageQueue | None = None
    """The only queue it may go to, if it has one."""
    pinned: MessageQueue | None = None
    """The queue of a try whose outcome is open, for a message that its producer numbers."""
    ids: list[str] | None = None
    """Unique ids of a batch's messages."""
    batch: LingerBatch | None = None
    faults: list[Exception] | None = None
    group: Any = None
    """The part of a send that keeps an order; see `group_sends`."""

    def __call__(self, answer: RemotingCommand | Exception) -> None:
        """Handle the answer, or the error that came instead; HOT."""
        core = self.path.core
        queue = self.queue
        assert queue is not None
        if core.is_sequenced and (isinstance(answer, Exception) or answer.code in STORED_CODES):
            self.pinned = queue
        if isinstance(answer, Exception):
            core.note(queue, self.started, failed=True)
            if isinstance(answer, RequestTimeout):
                passed_ms = (core.monotonic() - self.started) * 1000
                answer = RequestTimeout(f"{answer}, {passed_ms:.0f} ms after the send began")
            self.failed(answer)
            return
        code = answer.code
        # A broker that was always quick costs this comparison only.
        if core.faults.has_any or core.monotonic() - self.started >= QUICK_S:
            core.note(queue, self.started, failed=False)
        if code not in STORED_CODES:
            self.failed(refusal_of(self.prepared, answer))
            return
        if (
            code
            and core.retry_when_not_ok
            and core.tries - self.tries_left < core.stored_tries
            and self.fixed is None
        ):
            self.path.try_again(self, 0.0)
            return
        try:
            if self.ids is None:
                self.finish(core.codec.result(self.prepared, queue, answer))
            else:
                self.finish(core.codec.batch_results(self.ids, queue, answer))
        except CometError as error:
            self.fail(error)

    def stored(self, answer: PlainSendAnswer) -> None:
        """Handle an answer that says where the message was stored; HOT."""
        core = self.path.core
        queue = self.queue
        assert queue is not None
        if core.faults.has_any or core.monotonic() - self.started >= QUICK_S:
            core.note(queue, self.started, failed=False)
        if self.ids is None:
            self.finish(result_of(SendStatus.SEND_OK, self.prepared, queue, answer))
        else:
            self.finish(results_of(SendStatus.SEND_OK, self.ids, queue, answer))

    def failed(self, error: Exception) -> None:
        """Try again if that may help and time remains; else fail."""
        core = self.path.core
        if self.faults is None:
            self.faults = []
        self.faults.append(error)
        left_s = self.deadline - core.clock.monotonic()
        topic = self.prepared.topic
        if self.group is not None and isinstance(error, GroupMoved):
            self.faults = [error]  # it would be the same each time
            if left_s > 0:
                self.group.refused(self)
                return
        if core.doubts_route(error):
            self.path.recheck_route(topic)
        if self.tries_left <= 0 or left_s < TRY_S_MIN or not core.may_retry(self.faults):
            self.fail(final_error(topic, self.faults))
            return
        if core.forgets_route(error):
            self.path.forget_topic(topic)
        pause_s = core.pause_before_retry(topic, len(self.faults), left_s)
        if self.group is not None:
            self.group.put_off(self, pause_s)
        else:
            self.path.try_again(self, pause_s)

    def finish(self, result: Any) -> None:
        """Settle the future, or each future of a lingering batch."""
        future = self.future
        if future is not None:
            if not future.done():
                future.set_result(result)
        elif self.batch is not None:
            for own_future, own_result in zip(self.batch.futures, result, strict=True):
                if not own_future.done():
                    own_future.set_result(own_result)
        self.path.in_flight.end(len(self.prepared.body))
        if self.group is not None:
            self.group.ended(is_stored=True)

    def fail(self, error: Exception) -> None:
        """Settle with an error."""
        futures = self.batch.futures if self.batch is not None else [self.future]
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(error)
        self.path.in_flight.end(len(self.prepared.body))
        if self.group is not None:
            self.group.ended(is_stored=False)
