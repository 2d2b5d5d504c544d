"""A controller's metrics for Prometheus, and its health checks.

``role``, ``active_broker_num`` and ``election_total`` are RocketMQ's names, without a prefix as its
exporter writes them; the others are our own.

Source: ControllerMetricsManager and ControllerMetricsConstant of RocketMQ 5.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.core.base.exposition import CONTENT_TYPE, MetricsText, own_labels
from cometmq.net.loop_lag import LoopLag
from cometmq.net.page_server import Page, PageServer, health_page
from cometmq.server.metrics import server_samples

if TYPE_CHECKING:
    from cometmq.controller.server import Controller
    from cometmq.core.replication.replica_set import ReplicaSet
    from cometmq.net.env import Environment

__all__ = ["ControllerMetrics"]

SAMPLES_MAX: Final = 10_000
_FOLLOWER, _LEADER = 2, 3
"""RocketMQ's numbers of the roles."""


class ControllerMetrics:
    """The pages of one controller; `await listen()`, `close()`.

    Raises:
        ConfigError: metricsLabel is not ``name:value,name:value``.
    """

    def __init__(self, controller: Controller, env: Environment) -> None:
        self._controller = controller
        config = controller.config
        self._labels = {"node_type": "controller", **own_labels(config.metrics_label)}
        self._loop_lag = LoopLag()
        self.port = 0
        self._server = PageServer(
            env,
            {
                "/metrics": self._metrics,
                "/health/live": lambda done: done(health_page([])),
                "/health/ready": lambda done: done(health_page(self._unready())),
            },
        )

    async def listen(self) -> None:
        """Listen, and begin to measure.

        Raises:
            ConnectFailed: the port cannot be bound.
        """
        config = self._controller.config
        host = config.metrics_prom_exporter_host or "127.0.0.1"
        self.port = await self._server.listen(host, config.metrics_prom_exporter_port)
        self._loop_lag.start()

    def close(self) -> None:
        """Stop listening and measuring."""
        self._server.close()
        self._loop_lag.stop()

    def _unready(self) -> list[str]:
        """Why brokers cannot use the controllers now."""
        if self._controller.leader_address is None:
            return ["no controller leads, as far as this one knows"]
        return []

    def _metrics(self, done: Callable[[Page], None]) -> None:
        controller = self._controller
        page = MetricsText(self._labels, SAMPLES_MAX)
        page.value(
            "role",
            "gauge",
            "3 while this controller leads, else 2.",
            _LEADER if controller.is_leading else _FOLLOWER,
        )
        sets = controller.recorded_sets()
        families: tuple[tuple[str, str, Callable[[ReplicaSet], int]], ...] = (
            (
                "active_broker_num",
                "Brokers that send heartbeats, by set.",
                lambda each: controller.alive_count(each.broker_name),
            ),
            (
                "cometmq_in_sync_members",
                "In-sync replicas, by set.",
                lambda each: len(each.in_sync),
            ),
            (
                "cometmq_has_master",
                "1 for each set with a master, 0 for one without.",
                lambda each: int(each.master_id is not None),
            ),
        )
        for name, help_text, measure in families:
            family = page.family(name, "gauge", help_text)
            for recorded in sets:
                labels = {"cluster": recorded.cluster, "broker_set": recorded.broker_name}
                family.add(measure(recorded), labels)
        elections = page.family("election_total", "counter", "Changes of masters, by result.")
        for result, count in controller.elections.items():
            elections.add(count, {"election_result": result})
        server_samples(page, controller.server, controller.guard, self._loop_lag)
        done((200, CONTENT_TYPE, page.encode()))
