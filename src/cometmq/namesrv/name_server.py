"""A name server: routing table, KV configuration and server, and their timers.

All state but the KV configuration is in memory: every broker registers with every name server again
every 30 s, so any number of name servers runs side by side and none knows of the others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from cometmq.codec.java_properties import merge_properties
from cometmq.core.topic.route_table import RouteTable
from cometmq.errors import CometError
from cometmq.extras import require
from cometmq.namesrv.config import NameServerConfig
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.needs import CLUSTER, NAME_SERVER_NEEDS
from cometmq.namesrv.processor import NameServerProcessor
from cometmq.net.env import Environment
from cometmq.net.network import format_address
from cometmq.net.server import RemotingServer, ServerConnection
from cometmq.net.tls_server import secured
from cometmq.server.access.access import Access
from cometmq.server.access.guard import AccessGuard
from cometmq.store.base.disk import Disk, make_durable_directory

if TYPE_CHECKING:
    from cometmq.namesrv.metrics import NameServerMetrics

__all__ = ["NameServer"]

log = logging.getLogger("cometmq.namesrv")


class NameServer:
    """One name server; `await start()`, `await stop()`, each once.

    Args:
        config: what the operator said.
        env: clock, chance, network and workers.
        disk: where its files are.
        access: accounts that another server of the process opens; until then it serves nobody.

    Raises:
        ConfigError: the settings of TLS name files that cannot be used.
    """

    def __init__(
        self,
        config: NameServerConfig,
        env: Environment,
        disk: Disk,
        *,
        access: Access | None = None,
    ) -> None:
        self._config = config
        self._env = env = secured(env, config)
        self._disk = disk
        self.routes = RouteTable(
            support_acting_master=config.support_acting_master,
            delete_missing_topics=config.delete_topic_with_broker_registration,
        )
        self._kv = KvConfig(expand_home(config.kv_config_path), disk, env.workers)
        self._processor = NameServerProcessor(
            config,
            self.routes,
            self._kv,
            started_ms=env.clock.now_ms(),
            save_config=self._save_config,
        )
        self._server = RemotingServer(env, {}, on_close=self._connection_closed, limits=config)
        self._own_access = Access(config) if access is None and config.is_guarded else None
        self._access = access or self._own_access
        self.guard: AccessGuard | None = None
        """What checks requests; None where nothing does, and before the accounts are there."""
        self._config_lock = threading.Lock()
        self._scan: asyncio.TimerHandle | None = None
        self._port = 0
        self._metrics: NameServerMetrics | None = None

    @property
    def metrics_port(self) -> int:
        """Where metrics and health checks are served; 0 where they are not."""
        return 0 if self._metrics is None else self._metrics.port

    @property
    def port(self) -> int:
        """The bound port; 0 before `start`."""
        return self._port

    @property
    def address(self) -> str:
        """`host:port` for a client on this machine."""
        host = self._config.bind_address
        return format_address("127.0.0.1" if host in {"0.0.0.0", "::", ""} else host, self._port)  # noqa: S104

    @property
    def config(self) -> NameServerConfig:
        """The configuration in force, updates included."""
        return self._processor.config

    async def start(self) -> None:
        """Load the KV configuration and listen.

        Raises:
            StoreCorrupt: the KV configuration cannot be read.
            ConnectFailed: a port cannot be bound.
            ConfigError: metricsLabel is illegal, or the metrics' extra is not installed.
        """
        self._kv.load()
        config = self._config
        if self._own_access is not None:
            folder = str(PurePosixPath(expand_home(config.kv_config_path)).parent)
            self._own_access.open(self._env, self._disk, folder)
            self._own_access.follow()
        if self._access is None:
            self._server.handlers.update(self._processor.handlers())
        else:
            self._access.when_open(self._serve_guarded)
        if config.metrics_exporter_type == "PROM":
            require("metrics", "metricsExporterType=PROM")
            # h11, which it needs, is not imported where nobody asks for metrics.
            from cometmq.namesrv.metrics import NameServerMetrics

            metrics = NameServerMetrics(
                config, self._env, self.routes, self._server, lambda: self.guard
            )
            await metrics.listen()
            self._metrics = metrics
        try:
            self._port = await self._server.listen(config.bind_address, config.listen_port)
        except CometError:
            await self.stop()
            raise
        self._schedule_scan()
        log.info("name server listens on %s", self.address)

    def _serve_guarded(self) -> None:
        assert self._access is not None
        self.guard, table = self._access.guard(
            self._processor.handlers(), NAME_SERVER_NEEDS, CLUSTER
        )
        self._server.handlers.update(table)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self._own_access is not None:
            self._own_access.stop()
        if self._scan is not None:
            self._scan.cancel()
            self._scan = None
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        await self._server.stop()

    def _schedule_scan(self) -> None:
        interval_s = self.config.scan_not_active_broker_interval / 1000
        self._scan = asyncio.get_running_loop().call_later(interval_s, self._drop_silent_brokers)

    def _drop_silent_brokers(self) -> None:
        now_ms = self._env.clock.now_ms()
        for live in self.routes.expired(now_ms):
            log.warning(
                "broker dropped: %s was silent for %d ms, %d are allowed",
                live.member,
                now_ms - live.last_seen_ms,
                live.timeout_ms,
            )
            self.routes.unregister(live.member)
            if isinstance(live.connection, ServerConnection):
                live.connection.abort("its broker fell silent")
        self._schedule_scan()

    def _connection_closed(self, connection: ServerConnection) -> None:
        for member in self.routes.disconnect(connection):
            log.warning("broker dropped: %s closed its connection", member)

    def _save_config(
        self,
        config: NameServerConfig,
        changes: Mapping[str, str],
        done: Callable[[Exception | None], None],
    ) -> None:
        """Write changed keys into the file, or all keys where there is none yet."""
        path = expand_home(config.config_store_path)
        disk = self._disk

        def work() -> None:
            # Two workers may serve two requests; the second has to see the file of the first.
            with self._config_lock:
                make_durable_directory(disk, str(PurePosixPath(path).parent))
                text = config.properties_text()
                if disk.exists(path):
                    before = disk.read_bytes(path)
                    disk.write_atomic(path + ".bak", before)
                    text = merge_properties(before.decode("utf-8", "replace"), changes)
                disk.write_atomic(path, text.encode())

        def written(result: BaseException | None) -> None:
            if result is None:
                done(None)
            else:
                done(CometError(f"{path} could not be written: {result}"))

        self._env.workers.submit(work, written)


def expand_home(path: str) -> str:
    """Replace `~` and Java's `${user.home}` by the user's directory."""
    return str(Path(path.replace("${user.home}", "~")).expanduser())
