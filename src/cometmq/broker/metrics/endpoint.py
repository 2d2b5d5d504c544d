"""Where a broker shows its metrics and its health: HTTP on a port of its own.

``/metrics`` is for Prometheus.  ``/health/live`` answers while the event loop turns,
``/health/ready`` says whether the broker stores messages and name servers know it, and
``/health/safe-to-stop`` whether another replica has every message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from cometmq.broker.metrics.broker_page import (
    FileFigures,
    TopicBacklog,
    broker_pieces,
    collect_backlogs,
    measure_files,
)
from cometmq.broker.metrics.latencies import RequestLatencies
from cometmq.broker.metrics.sizes import MessageSizes
from cometmq.broker.services import Services
from cometmq.core.base.exposition import CONTENT_TYPE, Histogram, MetricsText, own_labels
from cometmq.net.loop_lag import LoopLag
from cometmq.net.page_server import Page, PageServer, health_page
from cometmq.net.server import RemotingServer
from cometmq.server.access.guard import AccessGuard
from cometmq.server.metrics import server_samples

__all__ = ["MetricsEndpoint"]

log = logging.getLogger("cometmq.broker")


class MetricsEndpoint:
    """The pages of one broker; `await listen()`, `close()`.

    Raises:
        ConfigError: metricsLabel is not ``name:value,name:value``.
    """

    def __init__(
        self,
        services: Services,
        remoting: RemotingServer,
        guard: AccessGuard | None,
        latencies: RequestLatencies,
    ) -> None:
        self._services = services
        self._latencies = latencies
        self._remoting = remoting
        self._guard = guard
        config = services.state.config
        self._labels = {
            "node_type": "broker",
            "cluster": config.broker_cluster_name,
            "node_id": config.broker_name,
            **own_labels(config.metrics_label),
        }
        env = services.state.env
        self._env = env
        self._server = PageServer(
            env,
            {
                "/metrics": self._metrics,
                "/health/live": lambda done: done(health_page([])),
                "/health/ready": lambda done: done(health_page(self._unready())),
                "/health/safe-to-stop": lambda done: done(health_page(self._unsafe())),
            },
        )
        self._sizes = MessageSizes(services.store)
        self._flushes = Histogram((1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000))
        self._loop_lag = LoopLag()
        self._piece: asyncio.Handle | None = None
        self._waiting: list[Callable[[Page], None]] = []
        self.port = 0

    async def listen(self) -> None:
        """Listen, and begin to measure.

        Raises:
            ConnectFailed: the port cannot be bound.
        """
        config = self._services.state.config
        host = config.metrics_prom_exporter_host or config.advertised_ip("127.0.0.1")
        self.port = await self._server.listen(host, config.metrics_prom_exporter_port)
        self._services.store.watch_flushes(self._flushes.add)
        self._loop_lag.start()
        log.info("metrics and health checks at http://%s:%d/metrics", host, self.port)

    def close(self) -> None:
        """Stop listening and measuring."""
        self._server.close()
        self._loop_lag.stop()
        if self._piece is not None:
            self._piece.cancel()

    # -- health -----------------------------------------------------------------------------

    def _unready(self) -> list[str]:
        """Why clients cannot use the broker now."""
        services = self._services
        reasons = []
        refusal = services.store.refusal
        if refusal is not None and services.following is None:
            reasons.append(str(refusal))
        if services.following is not None and not services.state.follows_master():
            reasons.append("it is a slave and not connected to its master")
        reasons += services.registration.unregistered()
        return reasons

    def _unsafe(self) -> list[str]:
        """Why messages would be unavailable if the broker stopped now."""
        services = self._services
        if services.following is not None:
            return []
        if services.replicas is None:
            return ["it has no replica: its messages wait until it is back"]
        count = services.replicas.in_sync_count()
        if count < 2:
            return ["no other replica has the whole log"]
        if services.seat is not None and count <= services.state.config.min_in_sync_replicas:
            least = services.state.config.min_in_sync_replicas
            return [f"{count} replicas are in sync, and the set refuses sends below {least}"]
        return []

    # -- metrics ----------------------------------------------------------------------------

    def _metrics(self, done: Callable[[Page], None]) -> None:
        """Build the page; who asks meanwhile gets the same."""
        self._waiting.append(done)
        if len(self._waiting) > 1:
            return
        backlogs: list[TopicBacklog] = []

        def read() -> None:
            timers, now_ms = self._services.timers, self._env.clock.now_ms()
            overdue = None if timers is None else timers.overdue(now_ms)

            def measure() -> FileFigures:
                self._sizes.measure()
                return measure_files(self._services, backlogs, overdue)

            self._env.workers.submit(measure, write)

        def write(figures: FileFigures | BaseException) -> None:
            if isinstance(figures, BaseException):
                log.error("the page of metrics lacks what files tell: %s", figures)
                figures = FileFigures({}, 0.0)
            self._write(backlogs, figures)

        self._run(collect_backlogs(self._services, backlogs), read)

    def _write(self, backlogs: list[TopicBacklog], figures: FileFigures) -> None:
        limit = self._services.state.config.metrics_otel_cardinality_limit
        page = MetricsText(self._labels, limit)

        def finish() -> None:
            page.histogram(
                "cometmq_flush_milliseconds", "How long flushes of the log take.", self._flushes
            )
            server_samples(page, self._remoting, self._guard, self._loop_lag)
            content = page.encode()
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                done((200, CONTENT_TYPE, content))

        now_ms = self._env.clock.now_ms()
        pieces = broker_pieces(
            page, self._services, now_ms, backlogs, figures, self._sizes, self._latencies
        )
        self._run(pieces, finish)

    def _run(self, pieces: Iterator[None], then: Callable[[], None]) -> None:
        """Take one piece in each turn of the loop."""
        for _ in pieces:
            self._piece = asyncio.get_running_loop().call_soon(self._run, pieces, then)
            return
        then()
