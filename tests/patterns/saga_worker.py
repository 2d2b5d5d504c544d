"""A runner of sagas in a process of its own, which dies at a named call: see ``test_saga.py``.

python saga_worker.py URL STEP
"""

import asyncio
import os
import signal
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from cometmq.patterns.saga import Refused, Saga, SagaCall, Sagas, SagaState, SagaStep, TccBranch

_, URL, STEP = sys.argv
engine = create_engine(URL)


def die_at(name: str) -> None:
    if name == STEP:
        print("hit", name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


def service(name: str, *, is_refusing: bool = False) -> SagaStep:
    """A participant: its row in ``accounts`` is changed by +1 or back by -1, with its TCC row."""
    branch = TccBranch(name)

    def change(call: SagaCall, begin: str, amount: int) -> None:
        die_at(f"before {begin} of {name}")
        with Session(engine) as session:
            if getattr(branch, begin)(session, call.saga_id):
                adding = text("update accounts set amount = amount + :amount where name = :name")
                session.execute(adding, {"amount": amount, "name": name})
            session.commit()
        die_at(f"after {begin} of {name}")

    def action(call: SagaCall) -> None:
        if is_refusing and call.data == "refused":
            raise Refused("no")
        change(call, "begin_try", 1)

    def compensate(call: SagaCall) -> None:
        change(call, "begin_cancel", -1)

    return SagaStep(name, action, compensate)


async def main() -> None:
    saga = Saga("order", [service("stock"), service("card"), service("courier", is_refusing=True)])
    sagas = Sagas(engine, [saga], lease_ms=500, poll_ms=50)
    sagas.create()
    async with sagas:
        while True:
            row = await asyncio.to_thread(sagas.find, "f")
            if row is not None and row.state in (SagaState.DONE, SagaState.COMPENSATED):
                print("ended", row.state.value, flush=True)
                return
            await asyncio.sleep(0.02)


asyncio.run(main())
