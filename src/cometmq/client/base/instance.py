"""The connections, routes, heartbeats and background tasks of one client.

Each producer or consumer has its own `ClientInstance`, so clients of several clusters in one
process share nothing.  The instance knows its owner only as a `Member`.

A broker knows a client by its connection, so a heartbeat must be the first request on each new
connection: the broker serves the requests of a connection in order, and would answer a pull before
the heartbeat with "subscription does not exist".  Further heartbeats go out every 30 s, from
producers to masters and from consumers to masters and slaves.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any, Final, Protocol

from cometmq.client.base import fork
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.routes import MASTER_ID, RouteBook
from cometmq.client.base.transport import AsyncIo
from cometmq.codec.ids import UniqIdFactory
from cometmq.errors import AccessDenied, CometError, TlsFailed, remote_error
from cometmq.model.names import CLIENT_INNER_PRODUCER
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.network import local_ip
from cometmq.wire.body.bodies import ConsumerData, HeartbeatData
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.bulk_pull import features_of

__all__ = ["ClientInstance", "Member", "client_id_of", "uniq_ids_of"]

log = logging.getLogger("cometmq.client")
UNREGISTER_TIMEOUT_MS: Final = 3_000
_numbers: Final = count(1)


class Member(Protocol):
    """A producer or consumer as its instance sees it."""

    def consumer_data(self) -> ConsumerData | None:
        """The consumer's part of the heartbeat; None for a producer."""
        ...

    def topics(self) -> set[str]:
        """Topics whose routes must be kept fresh."""
        ...

    def routes_changed(self, topic: str) -> None:
        """A route has changed."""
        ...

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Answer a request of the broker."""
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


class ClientInstance:
    """Connections and background work of one client; bound to the loop it is started on."""

    def __init__(self, options: ClientOptions, member: Member, producer_group: str | None) -> None:
        self.options = options
        self.env = options.env
        self.client_id = client_id_of(options)
        self.pool = ChannelPool(options.env, member.serve, self._lost, options.security.prepare)
        self.io = AsyncIo(options.env, self.pool, self._greet)
        self.routes = RouteBook(self.io, options.name_servers, options.request_timeout_ms)
        self.is_closed = False
        self._member = member
        self._producer_group = producer_group
        self._greeted: dict[str, Channel] = {}
        self._greetings: dict[str, asyncio.Future[RemotingCommand]] = {}
        self._features: dict[str, frozenset[str]] = {}
        self._denial: CometError | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._refreshing: set[str] = set()
        self._generation = fork.generation()

    # -- life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start heartbeats and route refreshes."""
        self.spawn(self.every(self.options.heartbeat_interval_ms, self.heartbeat), "heartbeat")
        self.spawn(self.every(self.options.route_interval_ms, self.refresh_routes), "routes")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run background work that ends with this instance; a failure is logged."""
        task = asyncio.get_running_loop().create_task(work, name=f"cometmq-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s of %s failed", task.get_name(), self.client_id, exc_info=error)

    async def every(self, interval_ms: int, work: Callable[[], Awaitable[object]]) -> None:
        """Run ``work`` at an interval; a failed round does not end the repetition."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await work()
            except CometError as error:
                log.warning("%s: %s", self.client_id, error)
            except Exception:
                # Without its background work the client would only look alive.
                log.exception("%s: unexpected fault in the background", self.client_id)

    async def close(self, groups: dict[str, str]) -> None:
        """Unregister each group (name to ``producerGroup``/``consumerGroup``) and disconnect."""
        if self.is_closed:
            return
        self.is_closed = True
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
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
        self.is_closed = True
        fork.abandon_descriptors([channel.fileno() for channel in self.pool.channels()])
        fork.keep_forever((self.pool, self._tasks, self))

    # -- heartbeats -------------------------------------------------------------------------

    def _heartbeat_command(self) -> RemotingCommand:
        data = self._member.consumer_data()
        producers = [CLIENT_INNER_PRODUCER]
        if self._producer_group is not None:
            producers.append(self._producer_group)
        body = HeartbeatData(
            self.client_id, tuple(producers), (data,) if data is not None else ()
        ).encode()
        return RemotingCommand.request(RequestCode.HEART_BEAT, {}, body)

    def _greet(self, address: str, channel: Channel) -> None:
        """Send the heartbeat that opens a new connection to a broker."""
        if self.is_closed or address in self.routes.name_servers:
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
                log.info("heartbeat to %s failed: %s", address, error)
            return
        answer = done.result()
        self._features[address] = features_of(answer.ext_fields)
        if answer.code != 0:
            refusal = remote_error(answer.code, answer.remark)
            if isinstance(refusal, AccessDenied):
                self._denial = refusal
            log.warning(
                "%s refused the heartbeat of %s: code %d %s",
                address,
                self.client_id,
                answer.code,
                answer.remark,
            )

    async def introduce(self) -> None:
        """Send a consumer's first heartbeat, and fail where the cluster refuses this client.

        Raises:
            AccessDenied: a broker refuses our keys.
            TlsFailed: a broker's certificate is not trusted, or it does not speak TLS.
        """
        self._denial = None
        await self.heartbeat()
        if self._denial is not None:
            raise self._denial

    async def heartbeat(self) -> None:
        """Send a heartbeat to every broker of the cached routes."""
        wants_slaves = self._member.consumer_data() is not None
        for members in list(self.routes.broker_addresses().values()):
            for broker_id, address in list(members.items()):
                if broker_id == MASTER_ID or wants_slaves:
                    await self.heartbeat_to(address)

    async def heartbeat_to(self, address: str) -> None:
        """Send one heartbeat; an unreachable broker is logged."""
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
            log.info("no heartbeat to %s: %s", address, error)

    def knows(self, address: str, feature: str) -> bool:
        """Whether this broker has announced a feature that RocketMQ's brokers lack."""
        return feature in self._features.get(address, ())

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

    # -- routes -----------------------------------------------------------------------------

    async def refresh_routes(self) -> None:
        """Fetch the routes of all used topics; new brokers get a heartbeat at once."""
        known = {a for members in self.routes.broker_addresses().values() for a in members.values()}
        topics = self._member.topics()
        for topic in sorted(topics):
            await self.refresh_route(topic)
        for members in list(self.routes.broker_addresses().values()):
            for broker_id, address in members.items():
                if address not in known and (
                    broker_id == MASTER_ID or self._member.consumer_data() is not None
                ):
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
            log.warning("the route of %s was not refreshed: %s", topic, error)
            return False
        if after is None or after == before:
            return False
        if before is not None:
            log.info("the route of %s changed", topic)
        self._member.routes_changed(topic)
        return True
