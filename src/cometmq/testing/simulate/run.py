"""Runs one plan to its end and reports the outcome.

A run starts the cluster, its kinds of message and its faults; makes peace; waits until every kind
is at rest; then stops everything and compares the stores byte for byte.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
from collections import Counter
from dataclasses import dataclass, field

from cometmq.testing.loop import current_lifetime
from cometmq.testing.markers import override
from cometmq.testing.network import NetworkFaults
from cometmq.testing.simulate.broker_part import CheckFailed
from cometmq.testing.simulate.cluster import Cluster
from cometmq.testing.simulate.expiry import drop_consumed_files
from cometmq.testing.simulate.faults import inject, make_peace
from cometmq.testing.simulate.ids import seeded_ids
from cometmq.testing.simulate.lives import lock_life_ms, shorter_lives
from cometmq.testing.simulate.plan import BUSY_S, Plan
from cometmq.testing.simulate.settings import broker_settings, with_settings
from cometmq.testing.simulate.workloads import WORKLOADS, Workload
from cometmq.testing.simulation import Event, World, simulate, without_warnings_of_the_dead

__all__ = ["Report", "run_plan"]

SETTLE_S = 400.0
"""Virtual seconds from the last fault until everything must be at rest."""
QUIET_S = 45.0
"""Virtual seconds in which each client finds its brokers again: it asks for routes every 30 s."""
LOCKS_ASKED_S = 25.0
"""Virtual seconds in which a member asks for the queue locks that a killed one has left."""
EXPIRY_S = 2.0
"""Virtual seconds in which consumed log files go, without any fault."""
REST_S = 4.0
"""Virtual seconds at rest in which late messages would still appear."""


@dataclass(slots=True)
class Report:
    """The outcome of a plan; `failure` is the broken promise, None if all were kept."""

    plan: Plan
    failure: str | None = None
    faults: Counter[str] = field(default_factory=Counter)
    """Faults that hit, by kind."""
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Acknowledged messages by their kind."""
    hits: Counter[str] = field(default_factory=Counter)
    """How often each named step was reached."""
    crashes: Counter[str] = field(default_factory=Counter)
    """How often a broker crashed at each named step."""
    expired_files: int = 0
    """Log files that went in the calm, when everything in them was consumed."""
    observations: int = 0
    virtual_s: float = 0.0
    digest: str = ""
    """SHA-256 of everything that happened, in order."""
    trace: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    """What happened to machines and messages, in order."""

    @property
    def counts(self) -> bool:
        """Whether the run proves something: faults hit, and messages were acknowledged."""
        return self.faults.total() > 0 and self.acknowledged.total() > 0


class _PlanRun:
    """One run; its state can still be reported after a failure."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world: World | None = None
        self.cluster: Cluster | None = None
        self.workloads: list[Workload] = []

    async def main(self, world: World) -> None:
        """Run the scenario."""
        self.world = world
        kinds = [WORKLOADS[name] for name in self.plan.workloads]
        settings = broker_settings(self.plan.settings)
        for kind in kinds:
            settings |= kind.settings
        cluster = self.cluster = Cluster(world, self.plan, settings)
        await cluster.start()
        operator = asyncio.ensure_future(cluster.operate())
        self.workloads = [kind(cluster, self.plan.steps) for kind in kinds]
        for workload in self.workloads:
            workload.start()
        faults = [asyncio.ensure_future(inject(cluster, fault)) for fault in self.plan.faults]
        try:
            await self._until_calm(cluster, faults)
            await self._until_settled(cluster)
            await self._stay_calm(cluster)
            await self._close(cluster, operator)
        finally:
            operator.cancel()
            for fault in faults:
                fault.cancel()

    async def _until_calm(self, cluster: Cluster, faults: list[asyncio.Task[None]]) -> None:
        while cluster.world.loop.time() < BUSY_S or not all(fault.done() for fault in faults):
            await self._wait(cluster, 0.1)
        for fault in faults:
            fault.result()
        make_peace(cluster)

    async def _until_settled(self, cluster: Cluster) -> None:
        loop = cluster.world.loop
        deadline_s = loop.time() + SETTLE_S
        while True:
            await self._wait(cluster, 0.1)
            reasons = [
                f"{kind.name}: {reason}" for kind in self.workloads if (reason := kind.unsettled())
            ]
            if not cluster.senders_done():
                reasons.append("a sender of the calm has not ended")
            if not all(part.is_up for part in cluster.brokers):
                reasons.append("a broker is down")
            if not reasons:
                break
            if loop.time() > deadline_s:
                raise CheckFailed(f"never at rest: {'; '.join(reasons)}")
        await self._wait(cluster, REST_S)
        for workload in self.workloads:
            workload.check()
        await self._wait(cluster, 0)

    async def _stay_calm(self, cluster: Cluster) -> None:
        """Wait until everything is connected again, then send without faults, and be strict."""
        observe_every_s, cluster.observe_every_s = cluster.observe_every_s, 1.0
        quiet_s = QUIET_S
        if self.plan.faults:
            quiet_s = max(quiet_s, lock_life_ms(self.plan.lives) / 1000 + LOCKS_ASKED_S)
        await self._wait(cluster, quiet_s)
        cluster.observe_every_s = observe_every_s
        for workload in self.workloads:
            workload.begin_calm()
        await self._until_settled(cluster)
        for workload in self.workloads:
            workload.check_calm()
        cluster.check_routes()
        for part in cluster.brokers:
            part.check_rest()
            # Every message is consumed, and none waits for its time or for its transaction's end.
            for spared in (1, 0):
                gone = await drop_consumed_files(part, EXPIRY_S, spared=spared, is_calm=True)
                cluster.expired_files += gone
        await self._wait(cluster, 0)

    @staticmethod
    async def _wait(cluster: Cluster, seconds: float) -> None:
        """Let virtual time pass; raise a broken promise."""
        await asyncio.wait([cluster.failure], timeout=seconds)
        if cluster.failure.done():
            cluster.failure.result()

    async def _close(self, cluster: Cluster, operator: asyncio.Future[None]) -> None:
        """Stop the clients, then the brokers, and compare the stores."""
        cluster.ended.set()
        for _ in range(600):
            await self._wait(cluster, 0.1)
            if cluster.roles_done():
                break
        else:
            raise CheckFailed("the clients do not stop")
        cluster.observe()
        await self._wait(cluster, 1)
        for part in cluster.brokers:
            part.check_no_reader()
        operator.cancel()
        for part in cluster.brokers:
            await part.stop()

    def report(self, failure: str | None) -> Report:
        """Build the report, whatever the outcome."""
        report = Report(self.plan, failure)
        cluster, world = self.cluster, self.world
        if cluster is None or world is None:
            return report
        report.faults = cluster.injected
        report.expired_files = cluster.expired_files
        report.hits, report.crashes = cluster.hooks.hits, cluster.hooks.crashes
        for workload in self.workloads:
            report.acknowledged[workload.name] = workload.acknowledged_count
        report.observations = sum(part.observation_count for part in cluster.brokers)
        report.virtual_s = world.loop.time()
        report.digest = world.trace.digest()
        report.trace = tuple(world.trace.lines)
        report.events = tuple(world.trace.events)
        return report


class _LoggedErrors(logging.Handler):
    """Remembers the first exception that a server or a client logged instead of raising it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: str | None = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        # Code of crashed lives logs while the simulation is taken down.
        running = current_lifetime()
        if record.exc_info and self.first is None and (running is None or running.alive):
            error = record.exc_info[1]
            if isinstance(error, OSError) and error.errno == errno.EIO:
                return  # a fault of the disk, which a server may log as it is
            self.first = f"logged: {record.getMessage()}: {type(error).__name__}: {error}"


def run_plan(plan: Plan) -> Report:
    """Simulate a plan; any error becomes the report's `failure`."""
    run = _PlanRun(plan)
    logger, errors = logging.getLogger("cometmq"), _LoggedErrors()
    logger.addHandler(errors)
    try:
        with (
            shorter_lives(plan.lives),
            with_settings(plan.settings),
            seeded_ids(plan.seed),
        ):
            simulate(plan.seed, run.main, faults=NetworkFaults())
    except Exception as error:
        return run.report(f"{type(error).__name__}: {error}")
    else:
        return run.report(errors.first)
    finally:
        logger.removeHandler(errors)
        # Crashed lives form reference cycles, each with a timer wheel of 37 MiB.
        run.world = run.cluster = None
        with without_warnings_of_the_dead():
            gc.collect()
