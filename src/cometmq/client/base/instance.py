"""What the clients of one connection share, and the part of it that is one client's own.

A `SharedInstance` has connections, routes and heartbeats, as RocketMQ's ``MQClientInstance``.  Each
producer, consumer or admin client is a `ClientInstance` on it, with background tasks of its own.
Without a common `Connection` a client is alone on its shared instance, so clients of several
clusters in one process share nothing.  An instance knows its client only as a `Member`.

A broker knows a client by its connection, so a heartbeat must be the first request on each new
connection: the broker serves the requests of a connection in order, and would answer a pull before
the heartbeat with "subscription does not exist".  Further heartbeats go out every 30 s, from
producers to masters and from consumers to masters and slaves.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Any, Final, Protocol, Self, Unpack

from cometmq.client.base import fork
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.outages import Outages
from cometmq.client.base.routes import MASTER_ID, RouteBook
from cometmq.client.base.security import SecurityOptions
from cometmq.client.base.transport import AsyncIo
from cometmq.codec.ids import UniqIdFactory
from cometmq.errors import (
    AccessDenied,
    ClientClosed,
    CometError,
    ConfigError,
    ResponseCode,
    SubscriptionConflict,
    TlsFailed,
    remote_error,
)
from cometmq.model.names import CLIENT_INNER_PRODUCER
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import Environment
from cometmq.net.network import local_ip
from cometmq.wire.body.client import ConsumerData, HeartbeatData
from cometmq.wire.command.codes import RequestCode, version_of
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import features_of
from cometmq.wire.extensions.subscriptions import DIFFERENCES_FIELD, decode_differences

__all__ = [
    "ClientInstance",
    "Connection",
    "Member",
    "SharedInstance",
    "client_id_of",
    "uniq_ids_of",
]

TIMER_VERSION: Final = version_of(5, 0, 0)
"""Brokers from this version on have timers; older ones ignore a message's exact time."""
log = logging.getLogger("cometmq.client")
UNREGISTER_TIMEOUT_MS: Final = 3_000
_numbers: Final = count(1)


class Member(Protocol):
    """A producer or consumer as its instance sees it."""

    def consumer_data(self) -> ConsumerData | None:
        """The consumer's part of the heartbeat; None for a producer."""
        ...

    def note_difference(self, address: str, difference: str | None) -> None:
        """Take what a broker says about members of the group that want other messages."""
        ...

    def topics(self) -> set[str]:
        """Topics whose routes must be kept fresh."""
        ...

    def routes_changed(self, topic: str) -> None:
        """Called when a route has changed."""
        ...

    def takes(self, command: RemotingCommand) -> bool:
        """Whether a broker's request is for this member, and not for another one."""
        ...

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Answer a request of the broker."""
        ...

    async def shutdown(self) -> None:
        """End the client, because the connection ends."""
        ...


def client_id_of(options: ClientOptions) -> str:
    """``ip@name``: the instance's name, or process id, clock and a number as Java 5 has it."""
    ip = options.client_ip or local_ip()
    if options.instance_name:
        return f"{ip}@{options.instance_name}"
    pid = options.process_id or os.getpid()
    nanos = int(options.env.clock.monotonic() * 1e9)
    return f"{ip}@{pid}#{nanos}{next(_numbers)}"


def uniq_ids_of(options: ClientOptions) -> UniqIdFactory:
    """A factory of message ids for this client alone."""
    return UniqIdFactory(
        options.client_ip or local_ip(),
        options.process_id or os.getpid(),
        options.env.chance.getrandbits(32),
        options.env.clock.now_ms,
    )


class Bystander:
    """The `Member` of a client that belongs to no group and sends no heartbeat of its own."""

    def __init__(self, shutdown: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.shutdown = shutdown

    def consumer_data(self) -> ConsumerData | None:
        """None: it consumes nothing."""
        return None

    def note_difference(self, address: str, difference: str | None) -> None:
        """Do nothing."""

    def topics(self) -> set[str]:
        """None: its routes may grow old."""
        return set()

    def routes_changed(self, topic: str) -> None:
        """Do nothing."""

    def takes(self, command: RemotingCommand) -> bool:
        """No broker asks it anything."""
        return False

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Refuse a request that is for nobody here."""
        if command.is_oneway:
            return None
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"
        )


class _Tasks:
    """Background work that ends with its owner."""

    def __init__(self, client_id: str, outages: Outages) -> None:
        self.client_id = client_id
        self._outages = outages
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run background work that ends with this instance; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=f"cometmq-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # A task learns so that its client was shut down meanwhile; that is its end, not a failure.
        if not isinstance(error, ClientClosed):
            log.error("%s of %s failed", task.get_name(), self.client_id, exc_info=error)

    async def every(self, interval_ms: int, work: Callable[[], Awaitable[object]]) -> None:
        """Run ``work`` at an interval; a failed round does not end the repetition."""
        activity = f"{getattr(work, '__name__', 'work').strip('_')} of {self.client_id}"
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
                self._outages.ended(activity)
            except CometError as error:
                self._outages.failed(activity, error)
            except Exception:
                # Without its background work the client would only look alive.
                log.exception("%s: unexpected fault in the background", self.client_id)

    def cancel_tasks(self) -> None:
        """End all background work, except the task that asks for it."""
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()


class SharedInstance(_Tasks):
    """The connections, routes and heartbeats of the clients of one connection."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.env = options.env
        self.pool = ChannelPool(options.env, self._serve, self._lost, options.prepare)
        self.io = AsyncIo(options.env, self.pool, self._greet, logging.WARNING, options.namespace)
        super().__init__(client_id_of(options), self.io.outages)
        self.routes = RouteBook(self.io, options.name_servers, options.request_timeout_ms)
        self.routes.on_change = self._route_changed
        # What waits for an answer of such a master is sent to the new one.
        self.routes.on_replaced = self.pool.abort
        self.is_closed = False
        self.is_held = False
        """Whether the connection stays open without clients."""
        self.clients: list[ClientInstance] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._greeted: dict[str, Channel] = {}
        self._greetings: dict[str, asyncio.Future[RemotingCommand]] = {}
        self._features: dict[str, frozenset[str]] = {}
        self._versions: dict[str, int] = {}
        self._denial: CometError | None = None
        self._refreshing: set[str] = set()
        self._generation = fork.generation()

    # -- life -------------------------------------------------------------------------------

    def join(self, client: "ClientInstance") -> None:
        """Add a client.

        Raises:
            ConfigError: another client has the same role in the same group.
        """
        for other in self.clients:
            if client.role is not None and other.role == client.role:
                raise ConfigError(
                    f"this connection has a {client.role} already; a broker knows one of a group "
                    "per connection, so give the second one a Connection of its own"
                )
        self.clients.append(client)

    def start(self) -> None:
        """Start heartbeats and route refreshes, once.

        Raises:
            ConfigError: the connection is used on another event loop.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None:
            if self._loop is not loop:
                raise ConfigError(
                    "this connection is used on another event loop; each loop needs a Connection "
                    "of its own, and cometmq.sync has its own kind"
                )
            if self._greeted:
                self.spawn(self.heartbeat(), "heartbeat")  # the brokers must know the new client
            return
        self._loop = loop
        self.spawn(self.every(self.options.heartbeat_interval_ms, self.heartbeat), "heartbeat")
        self.spawn(self.every(self.options.route_interval_ms, self.refresh_routes), "routes")

    async def leave(self, client: "ClientInstance", groups: dict[str, str]) -> None:
        """Remove a client: unregister its groups (name to ``producerGroup``/``consumerGroup``).

        The last client disconnects, unless the connection is held.
        """
        if client in self.clients:
            self.clients.remove(client)
        left = {other.producer_group for other in self.clients}
        groups = {
            group: field
            for group, field in groups.items()
            if field != "producerGroup" or group not in left
        }
        if self.clients or self.is_held:
            await self._unregister(groups)
        else:
            await self.close(groups)

    async def close(self, groups: dict[str, str]) -> None:
        """Unregister and disconnect."""
        if self.is_closed:
            return
        self.is_closed = True
        self.cancel_tasks()
        try:
            await self._unregister({**groups, CLIENT_INNER_PRODUCER: "producerGroup"})
        finally:
            await self.pool.close()

    async def _unregister(self, groups: dict[str, str]) -> None:
        pending: list[asyncio.Future[RemotingCommand]] = []
        for address, channel in self._greeted.items():
            if channel.is_closed:
                continue
            for group, field in groups.items():
                command = RemotingCommand.request(
                    RequestCode.UNREGISTER_CLIENT, {"clientID": self.client_id, field: group}
                )
                log.debug("%s leaves %s of %s", self.client_id, group, address)
                pending.append(channel.request(command, UNREGISTER_TIMEOUT_MS))
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)

    def abandon(self) -> None:
        """In a forked child: give up everything that belongs to the parent."""
        if self.is_closed or self._generation == fork.generation():
            return
        self.is_closed = True
        fork.abandon_descriptors([channel.fileno() for channel in self.pool.channels()])
        fork.keep_forever((self.pool, self._tasks, self))

    def _serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Pass a broker's request to the client it is for; to the first if nobody knows it."""
        clients = self.clients
        if not clients:
            return None
        if self.options.namespace:
            self.options.namespace.unwrap_command(command)
        chosen = clients[0]
        if len(clients) > 1:
            chosen = next((client for client in clients if client.member.takes(command)), chosen)
        return chosen.member.serve(channel, command)

    # -- heartbeats -------------------------------------------------------------------------

    def _heartbeat_command(self) -> RemotingCommand:
        producers = dict.fromkeys([CLIENT_INNER_PRODUCER])
        consumers: list[ConsumerData] = []
        for client in self.clients:
            if client.producer_group is not None:
                producers[self.options.namespace.wrap(client.producer_group)] = None
            data = client.member.consumer_data()
            if data is not None:
                consumers.append(data)
        body = HeartbeatData(self.client_id, tuple(producers), tuple(consumers)).encode()
        return RemotingCommand.request(RequestCode.HEART_BEAT, {}, body)

    def _greet(self, address: str, channel: Channel) -> None:
        """Send the heartbeat that opens a new connection to a broker."""
        if self.is_closed or self.routes.is_name_server(address):
            return
        self._greeted[address] = channel
        future = channel.request(self._heartbeat_command(), self.options.request_timeout_ms)
        future.add_done_callback(lambda done: self._heartbeat_answered(address, done))
        self._greetings[address] = future

    def _heartbeat_answered(self, address: str, done: "asyncio.Future[RemotingCommand]") -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            if not self.is_closed:
                self.io.outages.failed(f"heartbeat to {address}", error, level=logging.INFO)
            return
        answer = done.result()
        self._features[address] = features_of(answer.ext_fields)
        self._versions[address] = answer.version
        differences = decode_differences(answer.ext_fields.get(DIFFERENCES_FIELD))
        for client in self.clients:
            data = client.member.consumer_data()
            if data is not None:
                client.member.note_difference(address, differences.get(data.group_name))
        if answer.code == 0:
            self.io.outages.ended(f"heartbeat to {address}")
            return
        refusal = remote_error(answer.code, answer.remark)
        if isinstance(refusal, (AccessDenied, SubscriptionConflict)):
            self._denial = refusal
        self.io.outages.failed(
            f"heartbeat to {address}", f"refused with code {answer.code} {answer.remark}"
        )

    async def introduce(self) -> None:
        """Send a consumer's first heartbeat, and fail if the cluster refuses this client.

        Raises:
            AccessDenied: a broker refuses our keys.
            SubscriptionConflict: the group is strict, and its members want other messages.
            TlsFailed: a broker's certificate is not trusted, or it does not speak TLS.
        """
        self._denial = None
        await self.heartbeat()
        if self._denial is not None:
            raise self._denial

    async def heartbeat(self) -> None:
        """Send a heartbeat to every broker of the cached routes."""
        wants_slaves = self._has_consumer()
        for members in list(self.routes.broker_addresses().values()):
            for broker_id, address in list(members.items()):
                if broker_id == MASTER_ID or wants_slaves:
                    await self.heartbeat_to(address)

    def _has_consumer(self) -> bool:
        return any(client.member.consumer_data() is not None for client in self.clients)

    async def heartbeat_to(self, address: str) -> None:
        """Send one heartbeat; a broker that cannot be reached gets a later one."""
        timeout_ms = self.options.request_timeout_ms
        try:
            fresh = self.pool.open_channel(address) is None
            channel = await self.io.channel(address, timeout_ms)
            future = self._greetings.get(address) if fresh else None
            if future is None:  # else the greeting is the heartbeat
                future = channel.request(self._heartbeat_command(), timeout_ms)
                future.add_done_callback(lambda done: self._heartbeat_answered(address, done))
            await asyncio.wait([future])
        except CometError as error:
            if isinstance(error, TlsFailed):
                self._denial = error
            log.debug("no heartbeat to %s: %s", address, error)

    def knows(self, address: str, feature: str) -> bool:
        """Whether this broker has announced a feature that RocketMQ's brokers lack."""
        return feature in self._features.get(address, ())

    def has_timers(self, address: str) -> bool:
        """Whether this broker's version has timers; older ones ignore a message's exact time."""
        return self._versions.get(address, 0) >= TIMER_VERSION

    def forget_features(self, address: str) -> None:
        """Forget the features of a broker until it announces them again."""
        self._features.pop(address, None)

    def is_greeted(self, channel: Channel) -> bool:
        """Whether a heartbeat was sent on this connection."""
        return self._greeted.get(channel.address) is channel

    def _lost(self, channel: Channel) -> None:
        if self._greeted.get(channel.address) is channel:
            del self._greeted[channel.address]
            self.forget_features(channel.address)
        if not self.is_closed:
            log.info("%s lost its connection to %s", self.client_id, channel.address)
            self.io.outages.began(f"connection to {channel.address}")

    # -- routes -----------------------------------------------------------------------------

    async def refresh_routes(self) -> None:
        """Fetch the routes of all used topics; new brokers get a heartbeat at once."""
        known = {a for members in self.routes.broker_addresses().values() for a in members.values()}
        topics = {topic for client in self.clients for topic in client.member.topics()}
        for topic in sorted(topics):
            await self.refresh_route(topic)
        for members in list(self.routes.broker_addresses().values()):
            for broker_id, address in members.items():
                if address not in known and (broker_id == MASTER_ID or self._has_consumer()):
                    log.info("%s found the new broker %s", self.client_id, address)
                    await self.heartbeat_to(address)

    def refresh_soon(self, topic: str) -> None:
        """Fetch one route in the background, unless a fetch is under way."""
        if topic not in self._refreshing and not self.is_closed:
            self._refreshing.add(topic)
            self.spawn(self._refresh_in_background(topic), f"route-{topic}")

    async def _refresh_in_background(self, topic: str) -> None:
        try:
            await self.refresh_route(topic)
        finally:
            self._refreshing.discard(topic)

    async def refresh_route(self, topic: str) -> bool:
        """Fetch one route; True if it changed.  A failure is logged and keeps the old route."""
        before = self.routes.cached(topic)
        try:
            after = await self.routes.refresh(topic)
        except CometError as error:
            self.io.outages.failed("refreshing routes", f"{topic}: {error}")
            return False
        self.io.outages.ended("refreshing routes")
        if after is None or after == before:
            return False
        if before is None:
            self._tell(topic)  # else `_route_changed` does
        return True

    def _route_changed(self, topic: str) -> None:
        log.info("the route of %s changed", topic)
        self._tell(topic)

    def _tell(self, topic: str) -> None:
        for client in self.clients:
            if len(self.clients) == 1 or topic in client.member.topics():
                client.member.routes_changed(topic)


class Connection:
    """The connection that several clients of one process share, if each gets ``connection=``.

    They then have one TCP connection per server, one client id, one heartbeat and one cache of
    routes.  Options that belong to the connection are given here and not to the clients.

        async with cometmq.Connection(name_server="mq.example.com:9876") as connection:
            async with (
                cometmq.Producer("billing", connection=connection) as producer,
                cometmq.PushConsumer("audit", {"Accounts": "*"}, audit, connection=connection),
            ):
                ...

    Its end shuts down the clients that still run.  A connection that is not used with ``async
    with`` opens with its first client and closes after its last one; it may be used again.

    Args:
        name_server: as for `Producer`.
        instance_name: replaces the process id in the client id.
        client_ip: replaces the address in client and message ids.
        env: clock, chance and network; the machine's by default.
        namespace: as for `Producer`.
        sandbox: as for `Producer`.
        security: keys and TLS, as for `Producer`.

    Raises:
        ConfigError: an argument is wrong; the text names it and its value.
    """

    def __init__(
        self,
        *,
        name_server: str | Sequence[str] | None = None,
        instance_name: str | None = None,
        client_ip: str | None = None,
        env: Environment | None = None,
        namespace: str | None = None,
        sandbox: str | None = None,
        **security: Unpack[SecurityOptions],
    ) -> None:
        options = ClientOptions.of(
            name_server,
            env=env,
            instance_name=instance_name,
            client_ip=client_ip,
            namespace=namespace,
            sandbox=sandbox,
            **security,
        )
        self.options = replace(options, connection=self)
        self._shared: SharedInstance | None = None
        self._is_held = False
        self._is_closed = False
        fork.register(self)

    @property
    def client_id(self) -> str | None:
        """The id of all its clients at the brokers, while one of them runs."""
        shared = self._shared
        return shared.client_id if shared is not None and not shared.is_closed else None

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on, for all clients of this connection.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self.options.name_servers.change(name_server)

    async def start(self) -> None:
        """Keep the connection open until `shutdown`, also while it has no client.

        Raises:
            ClientClosed: it was shut down.
        """
        self._is_held = True
        self.open_shared().is_held = True

    async def shutdown(self) -> None:
        """Shut down the clients that still run, the latest first, and disconnect."""
        self._is_closed = True
        shared = self._shared
        if shared is None or shared.is_closed:
            return
        try:
            for client in reversed(shared.clients.copy()):
                await client.member.shutdown()
        finally:
            await shared.close({})

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

    def open_shared(self) -> SharedInstance:
        """What the clients share, for one that begins.

        Raises:
            ClientClosed: this connection is shut down.
        """
        if self._is_closed:
            raise ClientClosed("this connection is shut down; make a new Connection")
        if self._shared is None or self._shared.is_closed:
            self._shared = SharedInstance(self.options)
            self._shared.is_held = self._is_held
        return self._shared

    def after_fork(self) -> None:
        """In a child process: leave the connections to the parent; clients make new ones."""
        if self._shared is not None:
            self._shared.abandon()


class ClientInstance(_Tasks):
    """One client of a shared instance, on the loop it is started on.

    ``role`` names what only one client of a connection may be; None: there may be any number.

    Raises:
        ConfigError: the connection has a client in this role.
    """

    def __init__(
        self,
        options: ClientOptions,
        member: Member,
        producer_group: str | None,
        role: str | None = None,
    ) -> None:
        if options.connection is None:
            shared = SharedInstance(options)
        else:
            opened = options.connection.open_shared()
            assert isinstance(opened, SharedInstance)
            shared = opened
        super().__init__(shared.client_id, shared.io.outages)
        self.options = options
        self.env = options.env
        self.member = member
        self.producer_group = producer_group
        self.role = role
        self.is_closed = False
        # What is shared, under the names that clients use.
        self.shared = shared
        self.pool = shared.pool
        self.io = shared.io
        self.routes = shared.routes
        self.introduce = shared.introduce
        self.heartbeat = shared.heartbeat
        self.heartbeat_to = shared.heartbeat_to
        self.knows = shared.knows
        self.forget_features = shared.forget_features
        self.has_timers = shared.has_timers
        self.is_greeted = shared.is_greeted
        self.refresh_routes = shared.refresh_routes
        self.refresh_route = shared.refresh_route
        self.refresh_soon = shared.refresh_soon
        shared.join(self)

    def start(self) -> None:
        """Start the heartbeats and route refreshes that all clients share.

        Raises:
            ConfigError: the connection is used on another event loop.
        """
        try:
            self.shared.start()
        except BaseException:
            self.shared.clients.remove(self)
            raise

    async def close(self, groups: dict[str, str]) -> None:
        """End this client; ``groups`` maps names to ``producerGroup`` or ``consumerGroup``."""
        if self.is_closed:
            return
        self.is_closed = True
        self.cancel_tasks()
        await self.shared.leave(self, groups)

    def abandon(self) -> None:
        """In a forked child: give up everything that belongs to the parent."""
        self.is_closed = True
        fork.keep_forever((self._tasks, self))
        self.shared.abandon()
