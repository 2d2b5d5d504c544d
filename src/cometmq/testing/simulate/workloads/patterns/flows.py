"""Flows of three services: sagas whose calls are slow, fail, are refused, and come late or twice.

Two machines run the flows of one table.  A call sleeps before its transaction, so it may arrive
when its flow's lease has ended and another machine has called the step again, or taken it back.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, ClassVar, Final

from cometmq.testing.markers import override
from cometmq.testing.simulate.workloads.base import Workload

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from cometmq.patterns.saga import Saga, SagaCall, Sagas, SagaStep
    from cometmq.testing.simulation import Node

__all__ = ["FlowsWorkload"]

SERVICES: Final = ("stock", "card", "courier")
LEASE_MS: Final = 600
DEADLINE_MS: Final = 3_000


class FlowsWorkload(Workload):
    """A flow that ends has changed each account once, or none of them."""

    name: ClassVar[str] = "flows"

    def start(self) -> None:
        from cometmq.patterns.saga.table import SAGAS
        from cometmq.patterns.saga.tcc import TCC
        from cometmq.testing.sim_database import SimDatabase

        cluster = self.cluster
        self.database = SimDatabase(cluster.world, self.name, **cluster.service_options("database"))
        SAGAS.create(self.database.quiet)
        TCC.create(self.database.quiet)
        self.database.write("create table changes (flow text, service text, amount int)")
        for number, node in enumerate(cluster.clients):
            run = functools.partial(self._run, node, number)
            cluster.role(f"flows {number}", node, run)

    @property
    @override
    def acknowledged_count(self) -> int:
        return len(self.database.read("select saga_id from cometmq_sagas"))

    # -- the services -------------------------------------------------------------------------

    def _service(self, name: str) -> SagaStep:
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import AsyncSession

        from cometmq.patterns.saga import Refused, SagaStep, TccBranch

        branch = TccBranch(name)

        async def change(call: SagaCall, begin: str, amount: int) -> None:
            slow_s = 0.0 if self.cluster.is_peace else self.chance.choice([0, 0, 0.3, 1.0, 4.0])
            await asyncio.sleep(slow_s)

            def work(session: Session) -> None:
                if getattr(branch, begin)(session, call.saga_id):
                    values = {"flow": call.saga_id, "service": name, "amount": amount}
                    changing = text("insert into changes values (:flow, :service, :amount)")
                    session.execute(changing, values)

            async with AsyncSession(self.database.engine) as session:
                await session.run_sync(work)
                await session.commit()

        async def action(call: SagaCall) -> None:
            if call.data == name:
                raise Refused(f"{name} has none")
            await change(call, "begin_try", 1)

        async def compensate(call: SagaCall) -> None:
            await change(call, "begin_cancel", -1)

        return SagaStep(name, action, compensate)

    def _sagas(self, saga: Saga) -> Sagas:
        from cometmq.patterns.saga import Sagas

        return Sagas(
            self.database.engine,
            [saga],
            poll_ms=500,
            lease_ms=LEASE_MS,
            pause_ms=100,
            pause_ms_max=500,
            clock=self.now_ms,
        )

    async def _run(self, node: Node, number: int) -> None:
        from sqlalchemy.exc import OperationalError
        from sqlalchemy.ext.asyncio import AsyncSession

        from cometmq.patterns.saga import Saga

        steps = [self._service(name) for name in SERVICES]
        saga = Saga("order", steps, tries_max=3, deadline_ms=DEADLINE_MS)
        sagas = self._sagas(saga)
        running = asyncio.ensure_future(sagas.run())
        while not self.is_sent:
            self.tries += 1
            flow = f"f{self.tries}"
            refusing = self.chance.choice([None, None, "card", "courier"])

            try:
                async with AsyncSession(self.database.engine) as session:
                    sagas.add(session, "order", flow, refusing)
                    await session.commit()
            except OperationalError:
                self.cluster.world.record("refused", flow)
            await asyncio.sleep(self.chance.uniform(0, 0.8))
        await self.cluster.ended.wait()
        sagas._is_stopping = True
        sagas._wake.set()
        await running

    # -- promises ------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not every flow has begun"
        active = self.database.read(
            "select saga_id from cometmq_sagas where state not in ('done', 'compensated')"
        )
        return f"{len(active)} flows go on" if active else None

    @override
    def check(self) -> None:
        sums = {
            (flow, service): amount
            for flow, service, amount in self.database.read(
                "select flow, service, sum(amount) from changes group by flow, service"
            )
        }
        for flow, state in self.database.read("select saga_id, state from cometmq_sagas"):
            expected = 1 if state == "done" else 0
            found = [sums.get((flow, service), 0) for service in SERVICES]
            if found != [expected] * len(SERVICES):
                self.cluster.fail(f"flows: {flow} is {state}, and its accounts have {found}")
