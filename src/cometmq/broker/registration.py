"""Registration with the name servers: at start, soon after, regularly, on each new topic, at stop.

Every name server learns that this broker is alive and which topics it has.  Each name server has a
task of its own, so one that is down delays no other.

REGISTER_BROKER carries all topics at the start, and only changed ones when topics change;
UNREGISTER_BROKER goes out at the stop.  At RocketMQ's pace, 10 s after the start and then every
``registerNameServerPeriod``, each name server is asked whether it has our version of the topics
(QUERY_DATA_VERSION, which also counts as a sign of life), and gets all topics if it has not.
Java's broker sends them every time unless ``forceRegister`` is false; ten thousand topics are
1.5 MB for each name server.  After a failure Java waits for its next period; we try again soon, and
register at once with a name server that comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from cometmq.broker.base.config import BrokerConfig
from cometmq.codec.crc import body_crc
from cometmq.core.topic.topic_table import TopicTable
from cometmq.errors import CometError, ResponseCode
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.net.channel import Channel, ChannelPool
from cometmq.net.env import Environment
from cometmq.wire.body.route import (
    TopicConfigWrapper,
    encode_data_version,
    encode_register_broker_body,
)
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["HaAddress", "RegistrationService"]

log = logging.getLogger("cometmq.broker")

SECOND_REGISTRATION_MS: Final = 10_000
RETRY_MS_MIN: Final = 250
RETRY_MS_MAX: Final = 5_000
"""Pause before the next try after a failure; it doubles with each failure."""
WHOLE_DELAY_MS: Final = 500
"""Pause between the first of some deletions and the registration without those topics."""
UNREGISTER_TIMEOUT_MS: Final = 2_000
CONNECT_TIMEOUT_MS: Final = 3_000
WAIT_MAX_MS: Final = 1_000
"""A client waits at most this long until its new topic is routable; then it retries anyway."""


class HaAddress(Protocol):
    """What slaves get the log from."""

    address: str
    """``host:port`` to announce."""


class _NameServer:
    """What one name server does not have yet; `announced` is the last change it got or missed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.changed: dict[str, TopicConfig] = {}
        self.needs_all = True
        self.announced = 0
        self.retry_ms = RETRY_MS_MIN
        self.failed_since: float | None = None
        self.wake = asyncio.Event()


@dataclass(eq=False, slots=True)
class _Waiter:
    """A callback that is due when every name server has `change`, or has missed it."""

    change: int
    done: Callable[[], None]
    timer: asyncio.TimerHandle | None = field(default=None)


class RegistrationService:
    """Keeps every name server informed.

    Args:
        address: ``host:port`` of the broker.
        topics: what to announce.
        ha: what sends the log to slaves; None where nobody listens.
        epoch: the master epoch of a replica set; a name server refuses a master of an older one.
    """

    def __init__(
        self,
        env: Environment,
        config: BrokerConfig,
        address: str,
        topics: TopicTable,
        ha: HaAddress | None = None,
        epoch: int = 0,
    ) -> None:
        self._env = env
        self._config = config
        self._identity = {
            "brokerName": config.broker_name,
            "brokerAddr": address,
            "clusterName": config.broker_cluster_name,
            "brokerId": str(config.member_id),
            # The field must be there, also where nobody listens for slaves.
            "haServerAddr": "" if ha is None else ha.address,
        }
        self.master_address: str | None = None
        """``host:port`` of the master, on a slave: the last that a name server has named."""
        self.master_ha_address: str | None = None
        """``host:port`` at which that master sends its log."""
        self._topics = topics
        self._epoch = epoch
        self._pool = ChannelPool(env, on_close=self._lost, prepare=config.signer())
        self._name_servers = {server: _NameServer(server) for server in config.name_servers()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiters: dict[_Waiter, None] = {}
        self._changes = 0
        self._is_stopped = False
        self._whole_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Register once with every name server, then keep doing so in the background.

        Returns after the first attempt with each of them, successful or not.
        """
        await asyncio.gather(*map(self._register, self._name_servers.values()))
        for server in self._name_servers.values():
            self._tasks[server.address] = asyncio.create_task(self._serve(server))

    def change_config(self, config: BrokerConfig, keys: frozenset[str]) -> None:
        """Use another configuration from now on; `keys` are those that were given."""
        self._config = config
        if "namesrvAddr" in keys:
            self._change_addresses(config.name_servers())
        if "brokerPermission" in keys:
            self._announce_all()

    def _change_addresses(self, addresses: Iterable[str]) -> None:
        """Register with these name servers from now on, and leave those that are not named."""
        wanted = dict.fromkeys(addresses)
        for address in [address for address in self._name_servers if address not in wanted]:
            server = self._name_servers.pop(address)
            leaving = asyncio.create_task(self._leave(server, self._tasks.pop(address)))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        for address in wanted:
            if address not in self._name_servers:
                server = self._name_servers[address] = _NameServer(address)
                self._tasks[address] = asyncio.create_task(self._serve(server))
        self._release_announced()

    async def _leave(self, server: _NameServer, serving: asyncio.Task[None]) -> None:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        await self._unregister(server)

    async def stop(self) -> None:
        """Unregister everywhere and close the connections."""
        self._is_stopped = True
        if self._whole_timer is not None:
            self._whole_timer.cancel()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._leaving, return_exceptions=True)
        self._tasks.clear()
        for waiter in list(self._waiters):
            self._release(waiter)
        await asyncio.gather(*map(self._unregister, self._name_servers.values()))
        await self._pool.close()

    def ask_for_master(self) -> None:
        """On a slave, register again soon: the answers name the present master."""
        for server in self._name_servers.values():
            server.needs_all = True
            server.wake.set()

    def topic_changed(self, config: TopicConfig) -> None:
        """Announce a new or changed topic to every name server."""
        self._changes += 1
        for server in self._name_servers.values():
            server.changed[config.topic] = config
            server.wake.set()

    def topic_deleted(self, _: str) -> None:
        """Announce that a topic was deleted; only the whole table can say so."""
        self._announce_all()

    def _announce_all(self) -> None:
        """Send the whole table soon; a tool that deletes a thousand topics has it sent once."""
        if self._whole_timer is None and not self._is_stopped:
            self._whole_timer = asyncio.get_running_loop().call_later(
                WHOLE_DELAY_MS / 1000, self._send_whole_table
            )

    def _send_whole_table(self) -> None:
        self._whole_timer = None
        for server in self._name_servers.values():
            server.needs_all = True
            server.wake.set()

    def when_announced(self, done: Callable[[], None]) -> None:
        """Call `done` when every name server has, or has missed, all changes up to now.

        Calls at once where there is nothing to wait for, and after `WAIT_MAX_MS` at the latest.
        """
        if self._is_stopped or all(
            server.announced >= self._changes for server in self._name_servers.values()
        ):
            done()
            return
        waiter = _Waiter(self._changes, done)
        waiter.timer = asyncio.get_running_loop().call_later(
            WAIT_MAX_MS / 1000, self._release, waiter
        )
        self._waiters[waiter] = None

    def _release(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            del self._waiters[waiter]
            if waiter.timer is not None:
                waiter.timer.cancel()
            waiter.done()

    def _lost(self, channel: Channel) -> None:
        """Register again with a name server that closed its connection: it may have restarted."""
        server = self._name_servers.get(channel.address)
        if server is not None and not self._is_stopped:
            server.needs_all = True
            server.wake.set()

    async def _serve(self, server: _NameServer) -> None:
        next_full_ms = self._env.clock.now_ms() + SECOND_REGISTRATION_MS
        while not self._is_stopped:
            now_ms = self._env.clock.now_ms()
            if now_ms >= next_full_ms:
                next_full_ms = now_ms + self._config.register_name_server_period
                # A slave always registers: only that answer names the master.
                if self._config.is_slave or not await self._is_up_to_date(server):
                    server.needs_all = True
            if server.needs_all or server.changed:
                if await self._register(server):
                    server.retry_ms = RETRY_MS_MIN
                else:
                    await asyncio.sleep(server.retry_ms / 1000)
                    server.retry_ms = min(2 * server.retry_ms, RETRY_MS_MAX)
                continue
            server.wake.clear()
            wait_s = max(1, next_full_ms - self._env.clock.now_ms()) / 1000
            try:
                async with asyncio.timeout(wait_s):
                    await server.wake.wait()
            except TimeoutError:
                continue

    async def _is_up_to_date(self, server: _NameServer) -> bool:
        """Ask whether a name server has our topics as they are; no answer counts as no."""
        if server.needs_all or server.changed:
            # A registration follows in a moment.
            return True
        keys = ("brokerName", "brokerAddr", "clusterName", "brokerId")
        ext = {key: self._identity[key] for key in keys}
        version = encode_data_version(self._version)
        request = RemotingCommand.request(RequestCode.QUERY_DATA_VERSION, ext, version)
        try:
            channel = await self._pool.get(server.address, CONNECT_TIMEOUT_MS)
            response = await channel.request(request, self._config.register_broker_timeout_mills)
        except CometError:
            # The registration that follows reports the cause.
            return False
        is_answered = response.code == ResponseCode.SUCCESS
        return is_answered and response.ext_fields.get("changed") == "false"

    async def _register(self, server: _NameServer) -> bool:
        """Send one registration; False when the name server did not take it."""
        try:
            return await self._register_once(server)
        except Exception:
            # The task of this name server has to live as long as the broker.
            log.exception("registration with name server %s failed", server.address)
            server.needs_all = True
            return False

    async def _register_once(self, server: _NameServer) -> bool:
        change = self._changes
        changed, server.changed = server.changed, {}
        is_full = server.needs_all
        server.needs_all = False
        body = self._encode(self._topics.all().values() if is_full else changed.values())
        ext = {
            **self._identity,
            "compressed": "false",
            "enableActingMaster": "false",
            "bodyCrc32": str(body_crc(body)),
        }
        is_accepted = await self._send(server, RequestCode.REGISTER_BROKER, ext, body)
        if not is_accepted:
            server.needs_all = True
        server.announced = max(server.announced, change)
        self._release_announced()
        return is_accepted

    def unregistered(self) -> list[str]:
        """Say which name servers could not be reached since the last success."""
        return [
            f"not registered with name server {server.address}"
            for server in self._name_servers.values()
            if server.failed_since is not None
        ]

    @property
    def _version(self) -> DataVersion:
        return replace(self._topics.version, state_version=self._epoch)

    def _encode(self, topics: Iterable[TopicConfig]) -> bytes:
        perm = self._config.broker_permission
        table = {topic.topic: _masked(topic, perm) for topic in topics}
        version = DataVersion(self._env.clock.now_ms())
        wrapper = TopicConfigWrapper(table, self._version, version, {}, {})
        return encode_register_broker_body(wrapper)

    def _release_announced(self) -> None:
        """Call back those whose change every name server has, or has missed."""
        for waiter in [
            waiter
            for waiter in self._waiters
            if all(other.announced >= waiter.change for other in self._name_servers.values())
        ]:
            self._release(waiter)

    async def _send(
        self, server: _NameServer, code: int, ext: dict[str, str], body: bytes = b""
    ) -> bool:
        request = RemotingCommand.request(code, ext, body)
        try:
            channel = await self._pool.get(server.address, CONNECT_TIMEOUT_MS)
            response = await channel.request(request, self._config.register_broker_timeout_mills)
        except CometError as error:
            self._report(server, str(error))
            return False
        if response.code != ResponseCode.SUCCESS:
            self._report(server, f"it answered {response.code}: {response.remark}")
            return False
        if code == RequestCode.REGISTER_BROKER and response.ext_fields.get("masterAddr"):
            self.master_address = response.ext_fields["masterAddr"]
            self.master_ha_address = response.ext_fields.get("haServerAddr")
        if server.failed_since is not None:
            away_s = self._env.clock.monotonic() - server.failed_since
            log.info("name server %s is back after %.1f s: registered", server.address, away_s)
            server.failed_since = None
        return True

    def _report(self, server: _NameServer, cause: str) -> None:
        """Log the first failure in a row only."""
        if server.failed_since is None:
            server.failed_since = self._env.clock.monotonic()
            log.warning(
                "not registered with name server %s, trying again: %s", server.address, cause
            )

    async def _unregister(self, server: _NameServer) -> None:
        channel = self._pool.open_channel(server.address)
        if channel is None:
            return
        keys = ("brokerName", "brokerAddr", "clusterName", "brokerId")
        ext = {key: self._identity[key] for key in keys}
        try:
            await channel.request(
                RemotingCommand.request(RequestCode.UNREGISTER_BROKER, ext), UNREGISTER_TIMEOUT_MS
            )
        except CometError as error:
            log.warning("not unregistered from name server %s: %s", server.address, error)


def _masked(config: TopicConfig, broker_permission: int) -> TopicConfig:
    """Give the topic as name servers shall see it: the broker's own permission limits it."""
    if config.perm & broker_permission & 6 == config.perm & 6:
        return config
    return replace(config, perm=config.perm & (broker_permission | ~6))
