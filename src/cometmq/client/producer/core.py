"""The decisions that asyncio and synchronous producers share: queues, faults and retries.

Nothing here waits, does I/O or touches a future.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.client.base.arguments import (
    check_callable,
    checked_group,
)
from cometmq.client.base.instance import uniq_ids_of
from cometmq.client.base.sandbox import group_in, mark_of
from cometmq.client.extensions.growing import GroupView
from cometmq.client.message.send_codec import SendCodec, is_retriable
from cometmq.client.producer.settings import ProducerSettings
from cometmq.core.produce.latency_fault import LatencyFaultTable
from cometmq.core.topic.selector import QueueSelector, RoundRobin, publish_queues, select_by_hash
from cometmq.errors import (
    AccessDenied,
    ClientClosed,
    ClientError,
    ConfigError,
    ConnectFailed,
    NoBroker,
    NoRoute,
    RemoteError,
    RequestTimeout,
    ResponseCode,
    SendFailed,
    TlsFailed,
)
from cometmq.model import Message, MessageQueue, SendStatus, TopicRoute

__all__ = ["STORED_CODES", "ProducerCore", "TopicQueues", "final_error", "retry_pause_s"]

log = logging.getLogger("cometmq.client")

STORED_CODES: Final = frozenset(int(status) for status in SendStatus)
"""Response codes after which the message is in the broker's log."""
QUICK_MS: Final = 50
"""Java's first latency class: a send within this time does not count against its broker."""
RETRY_PAUSE_S: Final = 0.1
"""The pause after every broker has failed once: a replica set has another master soon."""
RETRY_ROUNDS_SOON: Final = 20
"""After so many of them each further pause is twice as long."""
RETRY_PAUSE_S_MAX: Final = 1.0
TRY_S_MIN: Final = 0.02
"""With less time left than this a send is not tried again."""
TRY_MS: Final = 3_000
"""How long a send waits for one of several brokers, or a third of its time if that is longer."""
CONNECT_MS_MAX: Final = 3_000
"""How long one try to connect may take."""
TRIES_UNLIMITED: Final = 1 << 30
REFUSED_TRIES: Final = 3
"""Java's number of tries, for refusals that are not a matter of time."""
_SLAVE_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE})
_PASSING_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)
"""What a broker answers that is overloaded, starts or stops."""


class TopicQueues:
    """The publishable queues of one topic, with the addresses of their brokers."""

    __slots__ = ("addresses", "queues", "turn")

    def __init__(
        self, queues: tuple[MessageQueue, ...], addresses: dict[str, str], start: int
    ) -> None:
        self.queues = queues
        self.addresses = addresses
        self.turn = RoundRobin(start)


class ProducerCore:
    """The settings and the state of one producer."""

    def __init__(self, settings: ProducerSettings) -> None:
        settings.validate()
        options = settings.client_options()
        self.settings = settings
        self.group = group_in(checked_group(settings.group), options.sandbox)
        self.options = options
        self.clock = options.env.clock
        self.monotonic = self.clock.monotonic
        self.timeout_ms = settings.timeout_ms
        self.tries = TRIES_UNLIMITED if settings.retries is None else 1 + settings.retries
        self.stored_tries = REFUSED_TRIES if settings.retries is None else self.tries
        """How often a message may be stored, with ``retry_when_not_ok``."""
        self.retry_when_not_ok = settings.retry_when_not_ok
        self.faults = LatencyFaultTable(enabled=settings.latency_fault)
        self.topics: dict[str, TopicQueues] = {}
        self.views: dict[str, GroupView] = {}
        """The home queues of message groups, by topic."""
        self.make_ids: Callable[[], Callable[[], str]] = lambda: uniq_ids_of(options).next_id
        """Makes a source of message ids; the synchronous producer has one per thread."""
        self.codec = SendCodec(
            self.group,
            self.make_ids(),
            self.clock.now_ms,
            compression=settings.compression,
            compression_level=settings.compression_level,
            compress_above_bytes=settings.compress_above_bytes,
            message_bytes_max=settings.max_message_bytes,
            credentials=options.security.credentials,
            wrap=options.namespace.wrap,
            mark=mark_of(options.sandbox),
        )
        self.is_sequenced = settings.producer_id is not None
        """Whether messages are numbered; then a repetition goes to the broker of the first try."""
        self._number()

    def renew(self) -> None:
        """In a forked child: use new message ids and fetch routes anew."""
        self.topics.clear()
        self.views.clear()
        self.codec.new_id = self.make_ids()
        self._number()

    def _number(self) -> None:
        """Begin a life of a producer that numbers its messages.

        Each life has an id of its own, so a new process may begin with 1.
        """
        if self.is_sequenced:
            life = f"{self.settings.producer_id}.{self.options.env.chance.getrandbits(48):012x}"
            self.codec.number(life)

    def queues_of(self, name: str, route: TopicRoute) -> TopicQueues:
        """The publishable queues of a route.

        Raises:
            NoRoute: the topic has none; the text says why.
        """
        queues = publish_queues(name, route)
        if not queues:
            has_masters = all(0 in broker.broker_addrs for broker in route.broker_datas)
            raise (NoRoute if has_masters else NoBroker)(
                f"the topic {name} has no queue to write to: its brokers "
                f"{sorted(data.broker_name for data in route.queue_datas)} lack the write "
                "permission or a master"
            )
        addresses = {
            broker.broker_name: broker.broker_addrs[0]
            for broker in route.broker_datas
            if 0 in broker.broker_addrs
        }
        return TopicQueues(queues, addresses, self.options.env.chance.randrange(len(queues)))

    def choose(
        self, topic: TopicQueues, message: Message, selector: QueueSelector | None
    ) -> MessageQueue:
        """The queue of a message, by selector, by message group or in turn.

        Raises:
            ConfigError: the selector is not a function or chose a queue of another topic.
        """
        if selector is not None:
            check_callable("selector", selector)
            chosen = selector(topic.queues, message)
            if chosen not in topic.queues:
                raise ConfigError(
                    f"the selector chose {chosen}, which is not among the {len(topic.queues)} "
                    f"queues of {message.topic}"
                )
            return chosen
        if message.message_group:
            view = self.views.get(message.topic)
            if view is not None and view.growth is not None:
                return view.queue_of(message.message_group)
            return select_by_hash(topic.queues, message.message_group)
        return self.next_queue(topic, None)

    def next_queue(self, topic: TopicQueues, last: MessageQueue | None) -> MessageQueue:
        """The next queue in turn, on another broker than ``last`` if there is one; HOT."""
        if last is None and not self.faults.has_any:
            queues = topic.queues
            turn = topic.turn
            index = turn.next
            turn.next = index + 1
            return queues[index % len(queues)]
        queue = self.faults.select(
            topic.queues,
            topic.turn,
            self.clock.now_ms(),
            last.broker_name if last is not None else None,
        )
        assert queue is not None, "queues_of refuses a topic without queues"
        return queue

    def note(self, queue: MessageQueue, started: float, *, failed: bool) -> None:
        """Record a send in the fault table; for a broker that was always quick this is cheap."""
        latency_ms = (self.clock.monotonic() - started) * 1000
        if failed or latency_ms >= QUICK_MS or self.faults.has_any:
            self.faults.update(
                queue.broker_name,
                latency_ms,
                self.clock.now_ms(),
                failed=failed,
                reachable=not failed,
            )

    def may_retry(self, faults: Sequence[Exception]) -> bool:
        """Whether another try, at another broker or a moment later, may succeed."""
        error = faults[-1]
        if isinstance(error, (AccessDenied, TlsFailed, ClientClosed)):
            return False
        if isinstance(error, NoRoute):
            return isinstance(error, NoBroker)
        if isinstance(error, ClientError):
            return True
        if not isinstance(error, RemoteError) or not is_retriable(error.code):
            return False
        refusals = [
            fault
            for fault in faults
            if isinstance(fault, RemoteError) and fault.code not in _PASSING_CODES
        ]
        return len(refusals) < REFUSED_TRIES

    def doubts_route(self, error: Exception) -> bool:
        """Whether another broker may be the master by now: this one is away, or refuses sends as a
        slave does."""
        if isinstance(error, RemoteError):
            return error.code in _SLAVE_CODES
        return isinstance(error, (ConnectFailed, RequestTimeout))

    def forgets_route(self, error: Exception) -> bool:
        """Whether the error means that the cached route is wrong."""
        return isinstance(error, RemoteError) and error.code == ResponseCode.TOPIC_NOT_EXIST

    def pause_before_retry(self, name: str, failed_count: int, left_s: float) -> float:
        """Seconds to wait before another try; 0 while there is a broker that was not tried."""
        topic = self.topics.get(name)
        rounds = failed_count - (len(topic.addresses) if topic is not None else 1)
        if rounds < 0:
            return 0.0
        return min(retry_pause_s(rounds), left_s / 2)  # the last try still has time

    def try_s(self, timeout_ms: int, topic: TopicQueues) -> float:
        """How long one try of a send may take that any broker of its topic may store."""
        if len(topic.addresses) < 2:
            return timeout_ms / 1000
        return min(timeout_ms, max(TRY_MS, timeout_ms / 3)) / 1000


def retry_pause_s(rounds: int) -> float:
    """Seconds to wait when every broker has failed so often, and once more."""
    doublings = max(0, min(rounds - RETRY_ROUNDS_SOON, 10))
    return float(min(RETRY_PAUSE_S * 2**doublings, RETRY_PAUSE_S_MAX))


def final_error(topic: str, faults: Sequence[Exception]) -> Exception:
    """The error of a send whose tries are used up: the only fault, or a list of all faults.

    Faults of one type give that type, so that it does not depend on how many tries there was time
    for.
    """
    last = faults[-1]
    if len(faults) == 1:
        return last
    is_one_type = len({(type(fault), getattr(fault, "code", None)) for fault in faults}) == 1
    texts = dict.fromkeys(
        fault.remark if is_one_type and isinstance(fault, RemoteError) else str(fault)
        for fault in faults
    )
    text = (
        f"{len(faults)} tries to send to {topic} failed"
        + (": " if len(texts) > 1 else " for the same reason: ")
        + "; ".join(texts)
    )
    failure: Exception
    if not is_one_type:
        failure = SendFailed(text)
    elif isinstance(last, RemoteError):
        failure = type(last)(last.code, text)
    else:
        failure = type(last)(text)
    failure.__cause__ = last
    return failure
