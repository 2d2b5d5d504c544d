"""A running cluster as Arrow readers see it: topics, queues, bounds, consumer offsets.

`LiveCluster` finds the brokers of a topic and sends them requests without an event loop.  When a
connection is lost or a broker has moved, it repeats the request for a limited time.

A `LiveCluster` survives fork and pickle: it opens a connection on first use, a forked child
leaves its parent's connections alone, and a pickle holds only the constructor's arguments.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.base import fork
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.routes import MASTER_ID, RouteBook
from cometmq.client.base.transport import BlockingIo, run_inline
from cometmq.core.topic.selector import subscribe_queues
from cometmq.errors import (
    BrokerBusy,
    ClientClosed,
    ClientError,
    ConfigError,
    ConfigTypeError,
    ConnectFailed,
    NoRoute,
    RemoteError,
    RequestTimeout,
    ResponseCode,
    ServiceNotAvailable,
    remote_error,
)
from cometmq.model import MessageQueue, SubscriptionGroupConfig
from cometmq.model.names import TOOLS_GROUP
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.pipelined import PipelinedChannel
from cometmq.wire.body.admin import decode_topic_stats, encode_group_config
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.admin import TopicHeader
from cometmq.wire.header.headers import OffsetResponseHeader, QueryConsumerOffsetHeader

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.net.env import Environment
    from cometmq.net.tls import Tls

__all__ = ["LiveCluster", "Patience", "QueueId"]

T = TypeVar("T")

TIMEOUT_MS: Final = 10_000
RETRY_MS: Final = 30_000
"""How long requests to a silent broker are repeated: longer than a broker takes to restart."""
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 1.0
_PASSING: Final = (ConnectFailed, RequestTimeout, BrokerBusy, ServiceNotAvailable)
"""Faults that may have passed a moment later."""


class QueueId(NamedTuple):
    """One queue of a topic on one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker}:{self.queue_id}"


class LiveCluster:
    """A client of a cluster's brokers with blocking connections, one per broker and thread.

    When a broker does not answer, its address is looked up again and the request repeated for
    `retry_ms`; then the last fault is raised.  Each wait ends after `timeout_ms`.  A name server
    that has never answered is an error at once.

    - `group` is the consumer group of the pulls; the default exists on every broker.
    - `access_key`, `secret_key`, `security_token`, `tls`: as for every client of CometMQ.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        name_server: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        retry_ms: int = RETRY_MS,
        group: str = TOOLS_GROUP,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        tls: Tls | bool | None = None,
        env: Environment | None = None,
    ) -> None:
        for name, value in (("timeout_ms", timeout_ms), ("retry_ms", retry_ms)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ConfigTypeError(f"{name} must be a whole number of ms, got {value!r}")
        if not (isinstance(group, str) and group):
            raise ConfigError(f"group must be a name, got {group!r}")
        if retry_ms < 0:
            raise ConfigError(f"retry_ms is {retry_ms}; it must not be negative")
        self._recipe: dict[str, Any] = {
            "timeout_ms": timeout_ms,
            "retry_ms": retry_ms,
            "group": group,
            "access_key": access_key,
            "secret_key": secret_key,
            "security_token": security_token,
            "tls": tls,
        }
        options = ClientOptions.of(
            name_server,
            env=env,
            request_timeout_ms=timeout_ms,
            access_key=access_key,
            secret_key=secret_key,
            security_token=security_token,
            tls=tls,
        )
        self.name_server = name_server
        self.group = group
        self.timeout_ms = timeout_ms
        self.security = options.security
        self._retry_ms = retry_ms
        self._clock = options.env.clock
        self._io = BlockingIo(options.env, security=options.security)
        self._routes = RouteBook(self._io, options.name_servers, timeout_ms)
        self._admin = AdminCalls(self._io, self._routes, timeout_ms)
        self._calls = BrokerCalls(self._io, timeout_ms)
        self._free: dict[str, list[PipelinedChannel]] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self.plain_brokers: set[str] = set()
        """Brokers that have refused the bulk pull as unknown."""
        fork.register(self)

    def __reduce__(self) -> tuple[Callable[..., LiveCluster], tuple[str, dict[str, Any]]]:
        return _remake, (self.name_server, self._recipe)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        self._is_closed = True
        self._io.close()
        with self._lock:
            free, self._free = self._free, {}
        for channels in free.values():
            for channel in channels:
                channel.close()

    def after_fork(self) -> None:
        """Abandon the parent's connections in a forked child; the next use opens new ones."""
        self._io.after_fork()
        channels = [channel for free in self._free.values() for channel in free]
        fork.abandon_descriptors(
            [-1 if channel.is_closed else channel.fileno() for channel in channels]
        )
        fork.keep_forever(channels)
        self._free = {}
        self._lock = threading.Lock()

    # -- connections for spans --------------------------------------------------------------

    def take_channel(self, address: str) -> PipelinedChannel:
        """Return a connection for exclusive use; `give_channel` takes it back."""
        with self._lock:
            free = self._free.get(address)
            while free:
                channel = free.pop()
                # `poll` notices a connection that a restarted broker has closed.
                if not channel.is_closed and channel.poll():
                    return channel
        return PipelinedChannel(address, self.timeout_ms, self.security.tls)

    def give_channel(self, channel: PipelinedChannel) -> None:
        """Keep a connection for the next span, unless it is closed."""
        if channel.is_closed:
            return
        with self._lock:
            if not self._is_closed:
                self._free.setdefault(channel.address, []).append(channel)
                return
        channel.close()

    # -- topics and queues ------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Sorted names of all topics except RocketMQ's own.

        Raises:
            ClientError, RemoteError: no name server answers.
        """
        return self._patiently(self._admin.topic_list)

    def queues(self, topic: str) -> list[QueueId]:
        """The queues of a topic that can be read from its masters now.

        Raises:
            NoRoute: the topic is unknown, or none of its brokers has a master.
        """
        route = self._patiently(lambda: self._admin.topic_route(topic))
        masters = {
            data.broker_name for data in route.broker_datas if MASTER_ID in data.broker_addrs
        }
        readable = [QueueId(*queue) for queue in subscribe_queues(topic, route)]
        queues = [queue for queue in readable if queue.broker in masters]
        if not queues:
            raise NoRoute(
                f"no master of topic {topic} lets its queues be read: {len(readable)} queues on"
                f" {len(route.broker_datas)} brokers, {len(masters)} masters"
            )
        return queues

    def bounds(self, queues: Iterable[QueueId]) -> dict[QueueId, tuple[int, int]]:
        """The first offset of each queue and the offset after its last, as the store has them.

        Sends one request per broker and topic.

        Raises:
            NoRoute: a broker does not have the queue.
            RemoteError: a broker refused the request.
        """
        wanted = list(queues)
        parts: dict[tuple[str, str], list[QueueId]] = defaultdict(list)
        for queue in wanted:
            parts[queue.topic, queue.broker].append(queue)
        bounds: dict[QueueId, tuple[int, int]] = {}
        for (topic, _), part in parts.items():
            command = RemotingCommand.request(
                RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic).to_ext()
            )
            answer = self.ask(part[0], command)
            if answer.code != 0:
                raise remote_error(answer.code, answer.remark)
            stats = decode_topic_stats(answer.body).offsets
            ranges = {item.queue_id: at for item, at in stats.items()}
            for queue in part:
                item = ranges.get(queue.queue_id)
                if item is None:
                    raise NoRoute(
                        f"{queue.broker} has no queue {queue.queue_id} of topic {topic}, only"
                        f" {sorted(ranges)}"
                    )
                # Java answers -1 for a queue that never had a message.
                bounds[queue] = max(0, item.min_offset), max(0, item.max_offset)
        return {queue: bounds[queue] for queue in wanted}

    def offset_at(self, queue: QueueId, time_ms: int) -> int:
        """The first offset stored at or after a time (ms since 1970); the queue's end if none is.

        Raises:
            ClientError, RemoteError: the broker does not answer or refuses.
        """
        return self._at(queue, lambda at: self._calls.search_offset(at, _wire(queue), time_ms))

    # -- progress of groups -----------------------------------------------------------------

    def commit(self, group: str, offsets: Mapping[QueueId, int]) -> None:
        """Store a group's next offsets and wait for the brokers; creates an unknown group.

        Raises:
            ClientError, RemoteError: a broker does not answer or refuses.
        """
        for queue, queue_offset in offsets.items():

            async def commit(at: str, queue: QueueId = queue, value: int = queue_offset) -> None:
                consumer_offset = ConsumerOffset(value)
                await self._calls.commit(at, group, _wire(queue), consumer_offset, wait=True)

            try:
                self._at(queue, commit)
            except RemoteError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                command = RemotingCommand.request(
                    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                    {},
                    encode_group_config(SubscriptionGroupConfig(group)),
                )
                answer = self.ask(queue, command)
                if answer.code != 0:
                    raise remote_error(answer.code, answer.remark) from error
                self._at(queue, commit)

    def committed(self, group: str, queues: Iterable[QueueId]) -> dict[QueueId, int | None]:
        """A group's stored offset of each queue; None where it has stored none.

        Raises:
            ClientError, RemoteError: a broker does not answer or refuses.
        """
        return {queue: self._committed(group, queue) for queue in queues}

    def _committed(self, group: str, queue: QueueId) -> int | None:
        # Without the last field a broker answers 0 for a young queue, even if none is stored.
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id, False)
        command = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())
        answer = self.ask(queue, command)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        return OffsetResponseHeader.from_command(answer).queue_offset

    # -- requests ---------------------------------------------------------------------------

    def ask(self, queue: QueueId, command: RemotingCommand) -> RemotingCommand:
        """Send a request to the queue's broker and return the answer, whatever its code.

        Raises:
            ClientError, RemoteError: the broker does not answer in time.
        """
        return self._at(queue, lambda at: self._io.request(at, command, self.timeout_ms))

    def address(self, queue: QueueId, *, is_fresh: bool = False) -> str:
        """The address of the queue's broker; `is_fresh` asks the name server again.

        Raises:
            NoRoute: no name server knows the broker.
        """
        at = None if is_fresh else self._routes.address(queue.broker)
        if at is None:
            run_inline(self._admin.topic_route(queue.topic))
            at = self._routes.address(queue.broker)
        if at is None:
            raise NoRoute(
                f"no broker {queue.broker} with topic {queue.topic} is registered at"
                f" {self.name_server}"
            )
        return at

    def patience(self) -> Patience:
        """A retry policy that starts now."""
        return Patience(self, self._retry_ms)

    def pause(self, seconds: float) -> None:
        """Sleep."""
        run_inline(self._io.sleep(seconds))

    def now_s(self) -> float:
        """Seconds of the monotonic clock."""
        return self._clock.monotonic()

    def check_open(self) -> None:
        """Check that `close` was not called.

        Raises:
            ClientClosed: it was.
        """
        if self._is_closed:
            raise ClientClosed("this LiveCluster is closed; make another")

    def has_answered(self) -> bool:
        """Whether a name server ever answered."""
        return self._routes.has_answered

    def _at(self, queue: QueueId, call: Callable[[str], Coroutine[Any, Any, T]]) -> T:
        """Call the broker of a queue; look its address up again after each passing fault."""
        self.check_open()
        patience = self.patience()
        while True:
            try:
                return run_inline(call(self.address(queue, is_fresh=patience.is_tried)))
            except (*_PASSING, NoRoute) as error:
                patience.wait_after(error)

    def _patiently(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the name servers; repeat the call if they answered once and are silent now."""
        self.check_open()
        patience = self.patience()
        while True:
            try:
                return run_inline(call())
            except _PASSING as error:
                patience.wait_after(error)


class Patience:
    """Repeats of one call: until a deadline, with growing pauses."""

    def __init__(self, cluster: LiveCluster, retry_ms: int) -> None:
        self._cluster = cluster
        self._deadline_s = cluster.now_s() + retry_ms / 1000
        self._pause_s = _PAUSE_S
        self.is_tried = False
        """Whether the call has failed before."""

    def wait_after(self, error: ClientError | RemoteError) -> None:
        """Wait before the next try, or raise the error: it is permanent, or time is up.

        Raises:
            ClientError, RemoteError: the given error.
        """
        cluster = self._cluster
        remaining_s = self._deadline_s - cluster.now_s()
        if remaining_s <= 0 or not cluster.has_answered():
            raise error
        if isinstance(error, NoRoute) and not self.is_tried:
            # The first try found no route: the topic or broker is unknown, not restarting.
            raise error
        self.is_tried = True
        cluster.pause(min(self._pause_s, remaining_s))
        self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)


def _wire(queue: QueueId) -> MessageQueue:
    return MessageQueue(*queue)


def _remake(name_server: str, recipe: dict[str, Any]) -> LiveCluster:
    return LiveCluster(name_server, **recipe)
