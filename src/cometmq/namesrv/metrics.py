"""A name server's metrics for Prometheus, and its health checks; names are our own.

RocketMQ's name server shows none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.core.base.exposition import CONTENT_TYPE, MetricsText, own_labels
from cometmq.net.loop_lag import LoopLag
from cometmq.net.page_server import Page, PageServer, health_page
from cometmq.server.metrics import server_samples

if TYPE_CHECKING:
    from cometmq.core.topic.route_table import RouteTable
    from cometmq.namesrv.config import NameServerConfig
    from cometmq.net.env import Environment
    from cometmq.net.server import RemotingServer
    from cometmq.server.access.guard import AccessGuard

__all__ = ["NameServerMetrics"]

SAMPLES_MAX = 10_000


class NameServerMetrics:
    """The pages of one name server; `await listen()`, `close()`.

    Raises:
        ConfigError: metricsLabel is not ``name:value,name:value``.
    """

    def __init__(
        self,
        config: NameServerConfig,
        env: Environment,
        routes: RouteTable,
        server: RemotingServer,
        guard: Callable[[], AccessGuard | None],
    ) -> None:
        self._config = config
        self._routes = routes
        self._remoting = server
        self._guard = guard
        self._labels = {"node_type": "nameserver", **own_labels(config.metrics_label)}
        self._loop_lag = LoopLag()
        self.port = 0
        self._server = PageServer(
            env,
            {
                "/metrics": self._metrics,
                "/health/live": lambda done: done(health_page([])),
                "/health/ready": lambda done: done(health_page([])),
            },
        )

    async def listen(self) -> None:
        """Listen, and begin to measure.

        Raises:
            ConnectFailed: the port cannot be bound.
        """
        config = self._config
        host = config.metrics_prom_exporter_host or "127.0.0.1"
        self.port = await self._server.listen(host, config.metrics_prom_exporter_port)
        self._loop_lag.start()

    def close(self) -> None:
        """Stop listening and measuring."""
        self._server.close()
        self._loop_lag.stop()

    def _metrics(self, done: Callable[[Page], None]) -> None:
        page = MetricsText(self._labels, SAMPLES_MAX)
        brokers, clusters = self._routes.cluster_info()
        family = page.family(
            "cometmq_registered_brokers", "gauge", "Brokers that are registered, slaves included."
        )
        for cluster, names in clusters.items():
            count = sum(len(brokers[name].broker_addrs) for name in names if name in brokers)
            family.add(count, {"cluster": cluster})
        page.value(
            "cometmq_routed_topics", "gauge", "Topics with a route.", len(self._routes.topics())
        )
        server_samples(page, self._remoting, self._guard(), self._loop_lag)
        done((200, CONTENT_TYPE, page.encode()))
