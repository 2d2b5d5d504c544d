"""The broker: opens the store, builds its services, listens, registers, and stops in order.

Start: lock and recover the store, load the tables, listen, register, begin the timers.
Stop: unregister, accept no more, close the connections, then write the tables and the store, so
that what was answered is on disk when `stop` returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.needs import broker_needs
from cometmq.broker.base.state import BrokerState
from cometmq.broker.base.store_config import store_config, with_sizes_of
from cometmq.broker.clients.heartbeats import EXPIRY_SCAN_MS
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.broker.extensions.staging.service import StagingService
from cometmq.broker.files.carrying import CarriedGoods
from cometmq.broker.files.persistence import may_lose, note_loss
from cometmq.broker.memory_watch import MemoryWatch
from cometmq.broker.metrics.latencies import RequestLatencies
from cometmq.broker.pull.filters import FilterService
from cometmq.broker.replication.master import ReplicaServer
from cometmq.broker.replication.seat import Seat
from cometmq.broker.replication.set_master import SetMaster
from cometmq.broker.services import Services, build_services, handlers
from cometmq.broker.transaction.service import TransactionService
from cometmq.codec.ids import HOST_V4_BYTES, encode_host
from cometmq.core.access.accounts import Accounts
from cometmq.errors import CometError, ConfigError, LocalProtocolError, StoreClosed
from cometmq.extras import require
from cometmq.model.names import STATE_TOPIC
from cometmq.net.env import Environment
from cometmq.net.network import format_address, local_ip
from cometmq.net.server import Handler, RemotingServer, Run, ServerConnection, first_of
from cometmq.net.tls_server import secured
from cometmq.server.access.access import ACCOUNTS_FILE, Access
from cometmq.server.access.guard import AccessGuard
from cometmq.store.base.disk import Disk
from cometmq.store.base.results import RecoveryReport
from cometmq.store.message_store import MessageStore
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.header.fast_decode import EndCommand, SendCommand

if TYPE_CHECKING:
    from cometmq.broker.metrics.endpoint import MetricsEndpoint

__all__ = ["Broker"]

log = logging.getLogger("cometmq.broker")

ReportProgress = Callable[[str, int, int], None]
CONFIG_WRITE_WAIT_S = 10.0
"""How long a stop waits for a configuration write that a worker has begun."""
_HA_PORT_DISTANCE = 1
"""Slaves follow at the port above by default, as in RocketMQ."""
_VIP_PORT_DISTANCE = 2
"""Clients up to 4.4.0 send to the port two below (docs/internals/protocol.md#vip-port)."""


class Broker:
    """One broker; `await start()`, `await stop()`, each once.

    Args:
        config: what the operator said.
        env: clock, chance, network and workers.
        disk: where the store lives.
        config_path: the properties file that changes of the configuration are written to.
        seat: what a controller says of this broker; None without a controller.
        access: accounts that this broker shares with another server of the process.

    Raises:
        ConfigError: the settings of TLS name files that cannot be used.
    """

    def __init__(
        self,
        config: BrokerConfig,
        env: Environment,
        disk: Disk,
        *,
        config_path: str | None = None,
        seat: Seat | None = None,
        access: Access | None = None,
    ) -> None:
        self.env = env = secured(env, config)
        if access is None and config.is_guarded:
            access = Access(config)
        self._access = access
        self.guard: AccessGuard | None = None
        """What checks requests; None where nothing does, and before `start`."""
        self._seat = seat
        self.recovery: RecoveryReport | None = None
        """What opening the store took, once started."""
        self._config = config
        self._config_path = config_path
        self._disk = disk
        self._server = RemotingServer(
            env, {}, on_open=self._opened, on_close=self._closed, limits=config
        )
        self._port = 0
        self._address = ""
        self._replicas: ReplicaServer | None = None
        self._services: Services | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._metrics: MetricsEndpoint | None = None
        self._marking: asyncio.Task[None] | None = None
        self._memory: MemoryWatch | None = None
        self._latencies = RequestLatencies(env.clock.monotonic)

    # -- what others ask ------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """The configuration as it holds now."""
        return self._config if self._services is None else self._services.state.config

    @property
    def address(self) -> str:
        """``host:port`` that is announced to name servers and in message ids."""
        return self._address

    @property
    def port(self) -> int:
        """The bound port, also when 0 was configured."""
        return self._port

    @property
    def services(self) -> Services:
        """The parts of the running broker; for tests and tools in the same process.

        Raises:
            RuntimeError: the broker is not running.
        """
        if self._services is None:
            raise RuntimeError("the broker is not running")
        return self._services

    @property
    def state(self) -> BrokerState:
        """Tables and store of the running broker."""
        return self.services.state

    @property
    def carried(self) -> CarriedGoods:
        """What the store of the running broker holds for a Java broker."""
        return self.services.carried

    @property
    def filters(self) -> FilterService:
        """SQL92 filters of the running broker."""
        return self.services.filters

    @property
    def staging(self) -> StagingService:
        """Staged batches of the running broker."""
        return self.services.staging

    @property
    def metrics_port(self) -> int:
        """Where metrics and health checks are served; 0 where they are not."""
        return 0 if self._metrics is None else self._metrics.port

    @property
    def replicas(self) -> ReplicaServer | None:
        """What sends the log to slaves; None on a slave, and where nothing listens for them."""
        return self._replicas

    @property
    def timers(self) -> TimerService:
        """Exact timers of the running broker.

        Raises:
            RuntimeError: timerWheelEnable is false.
        """
        timers = self.services.timers
        if timers is None:
            raise RuntimeError("the broker has no timers: timerWheelEnable is false")
        return timers

    @property
    def transactions(self) -> TransactionService:
        """Open transactions of the running broker."""
        return self.services.transactions

    def look_at_clock(self) -> None:
        """Deliver what is due now: the clock was set forward, and the loop's timers do not know."""
        services = self.services
        services.schedule.look_again()
        if services.timers is not None:
            services.timers.look_again()

    # -- start ----------------------------------------------------------------------------

    def _recovered(self, report: RecoveryReport) -> None:
        """Note a loss before the store notes this start, so that a kill in between hides none."""
        if not report.is_whole and may_lose(self._config):
            note_loss(self._config, self._disk, self.env.clock.now_ms())

    async def start(self, progress: ReportProgress | None = None) -> None:
        """Open the store, listen and register.

        `progress` hears of long recoveries: of what, done, total.

        Raises:
            StoreLocked: another process has the store directory; the text names it.
            StoreError: the store or a configuration file cannot be opened.
            ConnectFailed: the port cannot be bound.
            ConfigError: a setting does not fit this machine (brokerIP1) or cannot be read.
        """
        config = self._config
        ip = config.advertised_ip(local_ip())
        # With port 0 the address, which every message carries, is known only after binding.
        self._port = config.listen_port or await self._server.listen(config.bind_address, 0)
        self._address = format_address(ip, self._port)
        store: MessageStore | None = None
        try:
            was_killed = self._disk.exists(f"{config.store_path()}/abort")
            store = self._make_store()
            self.recovery = store.load(progress, self._recovered)
            if self._seat is not None and config.is_slave:
                store.hide_from(self._seat.confirmed_in(store.max_physical_offset))
            config = with_sizes_of(store.config, config)
            await self._listen_ha(config, store, ip)
            services = build_services(
                config,
                self.env,
                self._disk,
                store,
                self._address,
                was_killed=was_killed,
                is_whole=self.recovery.is_whole,
                replicas=self._replicas,
                seat=self._seat,
            )
            self._services = services
            if self._replicas is not None:
                self._replicas.serve(services.state.barrier)
            table = handlers(services, self._disk, self._config_path)
            if self._access is not None:
                self._open_accounts(self._access, services)
                needs = broker_needs(services.transactions.halves)
                self.guard, table = self._access.guard(table, needs, config.broker_cluster_name)
                self._access.follow()
            self._serve(services, table)
            if config.listen_port:
                await self._server.listen(config.bind_address, config.listen_port)
                await self._listen_vip()
            if config.metrics_exporter_type == "PROM":
                self._metrics = await self._open_metrics(services)
            await self._begin(services)
        except BaseException:
            # Nothing was acknowledged, so nothing has to be written.
            await self._end_serving()
            self._services = None
            if store is not None:
                store.close()
            raise

    def _serve(self, services: Services, table: dict[int, Handler]) -> None:
        """Give requests to their processors, with clocks around them where metrics are on."""
        server, config = self._server, self._config
        # The fast ways read no signature, so a broker that checks them serves each by itself.
        is_fast = not config.is_slave and self._access is None
        send_run: Run = services.send.send_run
        end_run: Run = services.transactions.end_run
        send_front = services.send.front(services.native_kinds()) if is_fast else None
        pull_front = services.pull.front() if is_fast else None
        if config.metrics_exporter_type == "PROM":
            latencies = self._latencies
            table = latencies.handlers(table)
            send_run = latencies.run(send_run, Code.SEND_MESSAGE_V2)
            end_run = latencies.run(end_run, Code.END_TRANSACTION)
            send_front = latencies.front(send_front, Code.SEND_MESSAGE_V2)
            pull_front = latencies.front(pull_front, Code.PULL_MESSAGE)
        server.handlers.update(table)
        if is_fast:
            server.runs = {SendCommand: send_run, EndCommand: end_run}
            server.front = first_of(send_front, pull_front)

    def _open_accounts(self, access: Access, services: Services) -> None:
        """Load the accounts; in a replica set they are those of its master."""
        journal, follower = services.journal, services.state_follower
        access.open(
            self.env,
            self._disk,
            f"{self._config.store_path()}/config",
            None if journal is None else journal.file(ACCOUNTS_FILE),
        )
        accounts = access.accounts
        if access.file is not None and services.seat is not None:
            services.files.add(ACCOUNTS_FILE, access.file)
        if follower is not None and accounts is not None and services.following is not None:
            follower.watch(ACCOUNTS_FILE, lambda data: accounts.take(Accounts.from_json(data)))

    def _make_store(self) -> MessageStore:
        try:
            host = encode_host(self._address)
        except LocalProtocolError as error:
            raise ConfigError(
                f"brokerIP1={self._config.broker_ip1} is not accepted: expected an IP address"
            ) from error
        env = self.env
        return MessageStore(
            store_config(self._config, host), self._disk, env.workers, env.clock.now_ms
        )

    async def _listen_ha(self, config: BrokerConfig, store: MessageStore, ip: str) -> None:
        """On a master, listen for slaves.

        A configuration that names no role is a broker alone, and listens only if it names a port.
        """
        port = config.ha_listen_port
        if config.is_slave or (not config.broker_role and port <= 0):
            return
        if port <= 0:
            port = self._port + _HA_PORT_DISTANCE if config.listen_port else 0
        seat = self._seat
        members = None if seat is None else SetMaster(config, self.env, store, seat)
        self._replicas = ReplicaServer(config, self.env, store, members)
        await self._replicas.listen(config.bind_address, port)
        self._replicas.address = format_address(config.broker_ip2 or ip, self._replicas.port)

    async def _open_metrics(self, services: Services) -> MetricsEndpoint:
        require("metrics", "metricsExporterType=PROM")
        # h11, which it needs, is not imported where nobody asks for metrics.
        from cometmq.broker.metrics.endpoint import MetricsEndpoint

        endpoint = MetricsEndpoint(services, self._server, self.guard, self._latencies)
        await endpoint.listen()
        return endpoint

    async def _listen_vip(self) -> None:
        """Listen on the port of old clients too; somebody else having it is no fault."""
        port = self._port - _VIP_PORT_DISTANCE
        if port <= 0:
            return
        try:
            await self._server.listen(self._config.bind_address, port)
        except CometError as error:
            log.info("not serving clients up to 4.4.0 on their port: %s", error)

    async def _begin(self, services: Services) -> None:
        """Start timers and register; from here on the broker serves."""
        loop = asyncio.get_running_loop()
        services.store.start(loop.call_later)
        if services.following is None:
            services.schedule.start()
            if services.timers is not None:
                services.timers.start()
            services.staging.start()
            services.transactions.start()
            services.growing.start()
            services.backlog.start()
        services.state.stats.start()
        self._memory = MemoryWatch(services.state)
        self._memory.start()
        services.files.start()
        services.files.topics_changed()
        services.state.groups_changed()
        self._scan_later(services)
        await services.registration.start()
        if services.following is not None:
            services.following.start()

    def _scan_later(self, services: Services) -> None:
        self._expiry = asyncio.get_running_loop().call_later(
            EXPIRY_SCAN_MS / 1000, self._scan_clients, services
        )

    def _scan_clients(self, services: Services) -> None:
        """Drop silent clients, and the queue locks of those that stopped renewing them."""
        self._scan_later(services)
        now_ms = self.env.clock.now_ms()
        services.client.drop_expired(now_ms)
        services.queue_locks.drop_expired(now_ms)
        follower = services.state_follower
        if services.journal is not None and follower is not None:
            end = self.services.store.max_queue_offset(STATE_TOPIC, 0)
            position = services.files.journaled_before(end)
            self._marking = asyncio.create_task(
                follower.in_worker(self.env.workers, lambda: follower.mark(position))
            )

    def follow_anew(self) -> None:
        """On a slave of a replica set: the controller names another master."""
        if self._services is not None and self._services.following is not None:
            self._services.following.log.follow_anew()

    async def hold(self) -> None:
        """Read no more requests, and wait until what was put is confirmed and other replicas have
        what was changed in tables.

        Raises:
            CometError: that does not happen any more.
        """
        self._server.hold(is_holding=True)
        services = self.services
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await services.files.journaled()
        store = services.store
        store.when_confirmed(
            store.max_physical_offset, lambda ok: None if done.done() else done.set_result(ok)
        )
        services.state.barrier.kick()
        if not await done:
            raise StoreClosed("the broker stops")

    def go_on(self) -> None:
        """Read requests again after `hold`."""
        self._server.hold(is_holding=False)

    # -- stop -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop serving and write everything; safe to call after a failed start.

        Raises:
            StoreError, OSError: the disk did not take the last writes.
        """
        await self._end_serving()
        services = self._services
        if services is None:
            return
        self._config, self._services = services.state.config, None
        services.transactions.stop()
        try:
            await services.files.settle(CONFIG_WRITE_WAIT_S)
            services.files.stop()
            if services.timers is not None:
                await services.timers.finish()
        finally:
            services.store.close()

    async def _end_serving(self) -> None:
        """Unregister, close all connections, and end every timer."""
        services = self._services
        self._end_watching()
        if services is not None:
            if services.following is not None:
                await services.following.stop()
            await services.registration.stop()
            if services.journal is not None:
                services.journal.stop()
            if services.state_follower is not None:
                await services.state_follower.settle()
        self._server.stop_listening()
        if self._replicas is not None:
            self._replicas.stop()
        if self._expiry is not None:
            self._expiry.cancel()
        if services is not None:
            services.state.barrier.stop()
            services.files.cancel()
            services.pull.hold.stop()
            services.growing.stop()
            services.backlog.stop()
            for service in (services.bulk, services.queue_locks, services.schedule):
                service.stop()
            if services.timers is not None:
                services.timers.stop()
            services.staging.stop()
            services.state.stats.stop()
        await self._server.stop()

    def _end_watching(self) -> None:
        """Show and look at nothing any more."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        for watch in (self._access, self._memory):
            if watch is not None:
                watch.stop()

    # -- events ---------------------------------------------------------------------------

    def _opened(self, connection: ServerConnection) -> None:
        """Give a client with an IPv6 address a 4-byte born host: others cannot read 16."""
        if len(connection.peer_host) != HOST_V4_BYTES:
            mapped = connection.peer_host[:12] == b"\0" * 10 + b"\xff\xff"
            ip = connection.peer_host[12:16] if mapped else b"\0\0\0\0"
            connection.peer_host = ip + connection.peer_host[16:20]

    def _closed(self, connection: ServerConnection) -> None:
        services = self._services
        if services is not None:
            services.pull.hold.drop_connection(connection)
            services.bulk.drop_connection(connection)
            services.client.connection_closed(connection)
