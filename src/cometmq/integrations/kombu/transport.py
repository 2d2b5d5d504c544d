"""The transport: clients of one connection, and the loop that delivers messages.

Reading happens in threads.  `Transport.wake` tells the loop: an event for `drain_events`, and a
byte in a pipe for the event loop of a Celery worker.
"""

import logging
import os
import sys
import threading
from queue import Empty
from time import monotonic
from typing import Any, Final

from kombu.transport import virtual
from kombu.utils.compat import detect_environment

from cometmq import MessageQueue, Tls, __version__
from cometmq.errors import (
    BrokerBusy,
    ClientError,
    ConfigError,
    NoRoute,
    RemoteError,
    ServiceNotAvailable,
)
from cometmq.integrations.kombu.channel import KombuChannel
from cometmq.integrations.kombu.leases import Leases, are_supported
from cometmq.integrations.kombu.names import MARK, escaped
from cometmq.sync import Admin, Producer

__all__ = ["Transport"]

log = logging.getLogger("cometmq.kombu")

QUEUE_COUNT: Final = 8
LEASE_AFTER_S: Final = 30.0
VISIBILITY_TIMEOUT_S: Final = 300.0
_OPTIONS: Final = frozenset({"lease_after", "name_server", "queue_count", "visibility_timeout"})
_KOMBU_OPTIONS: Final = frozenset(
    {"connect_retries_timeout", "interval_max", "interval_start", "interval_step", "max_retries"}
)
"""Options that Kombu's connection itself reads."""


class ClusterState(virtual.BrokerState):  # type: ignore[misc]
    """What this process has declared at one cluster, for all its connections."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: set[str] = set()
        self.durable_queues: set[str] = set()
        self.temporary_queues: dict[str, dict[MessageQueue, int]] = {}
        """Where each temporary queue begins to read, until it is consumed."""
        self.read_queues: set[str] = set()
        """The temporary queues that are consumed now."""
        self.has_timers = True
        """Whether no broker has refused a message with a time so far."""

    def begin_temporary(self, queue: str) -> None:
        """Note a temporary queue."""
        self.temporary_queues.setdefault(queue, {})


_states: Final[dict[tuple[str, str], ClusterState]] = {}
_warnings: Final[set[str]] = set()


class Transport(virtual.Transport):  # type: ignore[misc]
    """Kombu's transport over the client of CometMQ.

    Raises:
        ConfigError: an option of the transport is unknown, or the process uses green threads.
    """

    Channel = KombuChannel
    default_port = 9876
    driver_type = "cometmq"
    driver_name = "cometmq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        ClientError,
        BrokerBusy,
        ServiceNotAvailable,
    )
    channel_errors = (*virtual.Transport.channel_errors, RemoteError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        if detect_environment() != "default":
            raise ConfigError(
                f"this process runs on {detect_environment()}, under which the client's event loop "
                "does not run; use the pool prefork, threads or solo"
            )
        settings = client.transport_options
        unknown = set(settings) - _OPTIONS - _KOMBU_OPTIONS
        if unknown:
            raise ConfigError(
                f"the transport options {', '.join(sorted(unknown))} have no meaning here; there "
                f"are {', '.join(sorted(_OPTIONS))}"
            )
        host = client.virtual_host.strip("/") if client.virtual_host else ""
        self.prefix = f"{escaped(host)}{MARK}" if host else ""
        self.replies_topic = f"{self.prefix}{MARK}replies"
        self.queue_count: int = settings.get("queue_count", QUEUE_COUNT)
        self._lease_after_s: float = settings.get("lease_after", LEASE_AFTER_S)
        self._visibility_timeout_s: float = settings.get("visibility_timeout", VISIBILITY_TIMEOUT_S)
        # Without a host the client's own default holds: NAMESRV_ADDR, or this machine.
        address = None
        if client.hostname:
            address = f"{client.hostname}:{client.port or self.default_port}"
        self.client_options: dict[str, Any] = {
            "name_server": settings.get("name_server") or address,
            "access_key": client.userid or None,
            "secret_key": client.password or None,
            "tls": Tls(**client.ssl) if isinstance(client.ssl, dict) else client.ssl or None,
        }
        self.state = _states.setdefault(
            (str(self.client_options["name_server"]), self.prefix), ClusterState()
        )
        self.admin = Admin(**self.client_options)
        self._producer = Producer("kombu", **self.client_options)
        self.news = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._loop: Any = None
        self._process_id = os.getpid()
        _join_celery()

    # -- life --------------------------------------------------------------------------------

    @property
    def is_foreign(self) -> bool:
        """Whether this is a child process, and the connection belongs to its parent."""
        return os.getpid() != self._process_id

    @property
    def producer(self) -> Producer:
        """The producer of this connection, started."""
        self._producer.start()
        return self._producer

    def establish_connection(self) -> "Transport":
        """Check that the cluster answers.

        Raises:
            CometError: the name server does not answer, or knows no broker.
        """
        if not self.admin.cluster_info().brokers:
            raise NoRoute(
                f"the name server {self.client_options['name_server']} knows no broker; start one, "
                "for example with `cometmq up`"
            )
        super().establish_connection()
        return self

    def close_connection(self, connection: "Transport") -> None:
        """Close the channels and disconnect."""
        super().close_connection(connection)
        if self.is_foreign:
            return
        self.unregister_from_event_loop(connection, self._loop)
        self._producer.shutdown()
        self.admin.shutdown()

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """No host name: an address without one leaves the choice to the client."""
        return {"port": self.default_port}

    def driver_version(self) -> str:
        """The version of the client."""
        return __version__

    # -- names and topics --------------------------------------------------------------------

    def name_of(self, name: str) -> str:
        """The topic (and group) of a queue, and the topic of an exchange."""
        return self.prefix + escaped(name)

    def has_topic(self, topic: str) -> bool:
        """Whether the cluster has a topic."""
        if topic not in self.state.topics:
            try:
                self.admin.topic_route(topic)
            except NoRoute:
                return False
            self.state.topics.add(topic)
        return True

    def ensure_topic(self, topic: str, *, queue_count: int | None = None) -> None:
        """Create a topic on every master, unless the cluster has it.

        Raises:
            CometError: as `cometmq.sync.Admin.create_topic`.
        """
        if not self.has_topic(topic):
            self.admin.create_topic(topic, queue_count=queue_count or self.queue_count)
            self.state.topics.add(topic)

    def leases(self, topic: str, tag: str) -> Leases | None:
        """The leases of a queue; None where the broker cannot recall a message.

        Raises:
            CometError: as `cometmq.sync.Producer.send`.
        """
        self.ensure_topic(self.replies_topic, queue_count=1)
        if not are_supported(self.producer, self.replies_topic):
            log.info(
                "the broker cannot recall messages, so long tasks have no leases: they run again "
                "when their message queue moves to another worker"
            )
            return None
        return Leases(
            self.producer,
            topic,
            tag,
            after_s=self._lease_after_s,
            for_s=self._visibility_timeout_s,
        )

    def warn_priority(self) -> None:
        """Say once that priorities have no effect."""
        if "priority" not in _warnings:
            _warnings.add("priority")
            log.warning(
                "a message has a priority, which RocketMQ does not have: messages are delivered in "
                "the order of their queue; give urgent tasks a queue and a worker of their own"
            )

    # -- delivery ----------------------------------------------------------------------------

    def wake(self) -> None:
        """Tell whoever waits for events that a message has arrived, or that there is room."""
        self.news.set()
        pipe = self._pipe
        if pipe is not None:
            try:
                os.write(pipe[1], b"!")
            except OSError:
                pass  # full, so the loop wakes anyway; or closed

    def drain_events(self, connection: "Transport", timeout: float | None = None) -> None:
        """Deliver one message.

        Raises:
            TimeoutError: none came in time.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            self.news.clear()
            if self._deliver_next():
                return
            remaining = None if deadline is None else deadline - monotonic()
            if (remaining is not None and remaining <= 0) or not self.news.wait(remaining):
                raise TimeoutError("no message has arrived")

    def _deliver_next(self) -> bool:
        try:
            self.cycle.get(self._deliver)
        except Empty:
            return False
        return True

    def register_with_event_loop(self, connection: "Transport", loop: Any) -> None:
        """Deliver on the event loop of a Celery worker."""
        if self._pipe is None:
            self._pipe = os.pipe()
            for descriptor in self._pipe:
                os.set_blocking(descriptor, False)
        self._loop = loop
        loop.add_reader(self._pipe[0], self._on_wake)
        self.wake()

    def unregister_from_event_loop(self, connection: "Transport", loop: Any) -> None:
        """Stop to deliver on the event loop."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            loop.remove_reader(pipe[0])
            for descriptor in pipe:
                os.close(descriptor)

    def _on_wake(self) -> None:
        if self._pipe is None:
            return
        try:
            os.read(self._pipe[0], 4096)
        except BlockingIOError:
            pass
        # One at a time: the pool `solo` runs a task in here, and the loop acknowledges it later.
        if self._deliver_next():
            self.wake()


def _join_celery() -> None:
    """Have Celery's workers talk to each other, as they do over the transports it knows."""
    for module, name in (("gossip", "Gossip"), ("mingle", "Mingle")):
        loaded = sys.modules.get(f"celery.worker.consumer.{module}")
        if loaded is not None:
            getattr(loaded, name).compatible_transports.add(Transport.driver_type)
