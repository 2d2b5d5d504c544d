"""Starts flows in the program's transactions, and runs them from their table.

A runner takes a lease on each flow that is due, calls its next step, and writes what follows under
the condition that the lease is still its own.  A runner that dies leaves the row; another one takes
it when the lease ends, and calls the same step again with the same key.
"""

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, case, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, registry

from cometmq.errors import ConfigError
from cometmq.patterns.base.clock import Clock, now_ms
from cometmq.patterns.base.flow import is_coroutine_function
from cometmq.patterns.base.metrics import gauges
from cometmq.patterns.base.runner import Runner
from cometmq.patterns.base.sql import AnyEngine, Database
from cometmq.patterns.saga.steps import (
    ACTIVE,
    Refused,
    Saga,
    SagaCall,
    SagaRow,
    SagaState,
    SagaStep,
    after_failure,
    after_success,
)
from cometmq.patterns.saga.table import SAGAS

__all__ = ["OnStuck", "Sagas", "SagasStatus"]

log = logging.getLogger("cometmq.patterns")

OnStuck = Callable[[SagaRow], None]
"""Called with a flow whose compensation, confirmation or forward step fails again and again."""
BATCH_COUNT: Final = 50
LEASE_MS: Final = 60_000
POLL_MS: Final = 1_000
PAUSE_MS: Final = 1_000
PAUSE_MS_MAX: Final = 300_000
STUCK_TRIES: Final = 5
_COLUMNS: Final = (
    SAGAS.c.saga_id,
    SAGAS.c.name,
    SAGAS.c.state,
    SAGAS.c.step,
    SAGAS.c.data,
    SAGAS.c.results,
    SAGAS.c.tries,
    SAGAS.c.error,
    SAGAS.c.deadline_ms,
)


class _Flow:
    """A row on its way into the table, as SQLAlchemy's sessions add it."""

    def __init__(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


registry().map_imperatively(_Flow, SAGAS)


@dataclass(frozen=True, slots=True)
class SagasStatus:
    """The flows of a table; the age is in milliseconds."""

    active: dict[str, int]
    """State -> number of flows that have not ended."""
    stuck: int
    """Flows whose call has failed five times or more."""
    done: int
    compensated: int
    latest_ms: int
    """For how long the flow that waits longest has been due; 0 where none is."""

    def figures(self) -> dict[str, float]:
        """The figures by the names of their metrics."""
        return {
            **self.active,
            "stuck": self.stuck,
            "done": self.done,
            "compensated": self.compensated,
            "due_seconds": self.latest_ms / 1000,
        }

    def metrics(self) -> str:
        """The figures in the text format of Prometheus."""
        return gauges("sagas", self.figures())


class Sagas(Runner):
    """The flows of a program; ``async with Sagas(engine, [saga])`` runs them.

    Args:
        engine: SQLAlchemy's engine, plain or asyncio.
        sagas: the kinds of flows that this runner knows; it leaves others to other runners.
        poll_ms: how often it looks for flows that are due.
        lease_ms: how long a flow stays with a runner that died; longer than a step takes.
        pause_ms: before a second try; doubled for each further one, up to ``pause_ms_max``.
        pause_ms_max: the longest such pause.
        on_stuck: called after the fifth failure of a call that cannot be given up.
        clock: milliseconds since 1970.

    Raises:
        ConfigTypeError: the engine is not one.
    """

    def __init__(
        self,
        engine: AnyEngine,
        sagas: Iterable[Saga],
        *,
        poll_ms: int = POLL_MS,
        lease_ms: int = LEASE_MS,
        pause_ms: int = PAUSE_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
        on_stuck: OnStuck | None = None,
        clock: Clock = now_ms,
    ) -> None:
        super().__init__("sagas", poll_ms)
        self._database = Database(engine)
        self._sagas = {saga.name: saga for saga in sagas}
        self._lease_ms = lease_ms
        self._pause_ms = pause_ms
        self._pause_ms_max = pause_ms_max
        self._on_stuck = on_stuck
        self._clock = clock

    # -- flows ------------------------------------------------------------------------------

    def create(self) -> Any:
        """Create the table where it is missing; a coroutine with an asyncio engine."""
        return self._database.run(lambda connection: SAGAS.create(connection, checkfirst=True))

    def add(
        self, session: Session | AsyncSession, name: str, saga_id: str, data: Any = None
    ) -> None:
        """Add a flow to the session's transaction; it starts if that is committed.

        Args:
            session: the program's own.
            name: of its kind.
            saga_id: unique in the table; a second flow with it fails the transaction.
            data: a value for all steps, stored as JSON.

        Raises:
            ConfigError: no saga of this runner has the name.
        """
        saga = self._sagas.get(name)
        if saga is None:
            raise ConfigError(f"no saga is named {name!r}; there are {sorted(self._sagas)}")
        now = self._clock()
        plain = session.sync_session if isinstance(session, AsyncSession) else session
        flow = {
            "saga_id": saga_id,
            "name": name,
            "state": SagaState.RUNNING.value,
            "step": 0,
            "data": json.dumps(data),
            "results": "{}",
            "tries": 0,
            "error": "",
            "due_ms": now,
            "deadline_ms": 0 if saga.deadline_ms is None else now + saga.deadline_ms,
            "token": "",
            "lease_ms": 0,
        }
        plain.add(_Flow(flow))

    def find(self, saga_id: str) -> Any:
        """The `SagaRow`, or None; a coroutine with an asyncio engine."""
        query = select(*_COLUMNS).where(SAGAS.c.saga_id == saga_id)

        def work(connection: Connection) -> SagaRow | None:
            row = connection.execute(query).one_or_none()
            return None if row is None else _row(row._mapping)

        return self._database.run(work)

    def status(self) -> Any:
        """The `SagasStatus`; a coroutine with an asyncio engine.  It counts all rows."""
        now = self._clock()
        stuck = case((SAGAS.c.tries >= STUCK_TRIES, 1), else_=0)
        query = select(
            SAGAS.c.state, func.count(), func.sum(stuck), func.min(SAGAS.c.due_ms)
        ).group_by(SAGAS.c.state)

        def work(connection: Connection) -> SagasStatus:
            rows = {row[0]: tuple(row) for row in connection.execute(query)}
            active = [rows.get(state.value, ("", 0, 0, now)) for state in ACTIVE]
            due_ms = min(int(row[3]) for row in active)
            done, compensated = [
                int(rows.get(state.value, ("", 0))[1])
                for state in (SagaState.DONE, SagaState.COMPENSATED)
            ]
            return SagasStatus(
                {state.value: int(row[1]) for state, row in zip(ACTIVE, active, strict=True)},
                sum(int(row[2]) for row in active),
                done,
                compensated,
                max(0, now - due_ms),
            )

        return self._database.run(work)

    async def run_once(self) -> int:
        """Call the next step of each flow that is due: how many flows."""
        token = uuid.uuid4().hex
        rows = await self._database.wait(partial(self._lease, token))
        await asyncio.gather(*[self._advance(row, token) for row in rows])
        return len(rows)

    # -- a step -----------------------------------------------------------------------------

    def _lease(self, token: str, connection: Connection) -> list[SagaRow]:
        now = self._clock()
        is_free = SAGAS.c.lease_ms <= now
        due = (
            select(*_COLUMNS)
            .where(
                SAGAS.c.state.in_([state.value for state in ACTIVE]),
                SAGAS.c.name.in_(self._sagas),
                SAGAS.c.due_ms <= now,
                is_free,
            )
            .order_by(SAGAS.c.due_ms)
            .limit(BATCH_COUNT)
        )
        leased = []
        for row in connection.execute(due).all():
            taking = (
                update(SAGAS)
                .where(SAGAS.c.saga_id == row.saga_id, is_free)
                .values(token=token, lease_ms=now + self._lease_ms)
            )
            if connection.execute(taking).rowcount:
                leased.append(_row(row._mapping))
        return leased

    async def _advance(self, row: SagaRow, token: str) -> None:
        saga = self._sagas[row.name]
        step = saga.steps[row.step]
        function = {
            SagaState.RUNNING: step.action,
            SagaState.CONFIRMING: step.confirm,
            SagaState.COMPENSATING: step.compensate,
        }[row.state]
        is_late = bool(row.deadline_ms) and self._clock() >= row.deadline_ms
        try:
            if is_late and after_failure(saga, row, is_refused=False, is_late=True) is not None:
                # A runner that died may have called the step, so it is taken back too.
                raise TimeoutError("the time is over")
            value = None if function is None else await self._call(function, row, step)
            results = json.dumps({**row.results, step.name: value})
        except Exception as error:
            await self._write(row, token, self._failure(saga, row, error, is_late))
            return
        state, following = after_success(saga, row.state, row.step)
        changed = {"state": state.value, "step": following, "tries": 0, "due_ms": self._clock()}
        if row.state is SagaState.RUNNING:
            changed["results"] = results
        await self._write(row, token, changed)

    async def _call(self, function: Callable[[SagaCall], Any], row: SagaRow, step: SagaStep) -> Any:
        key = f"{row.saga_id}:{step.name}:{row.state.value}"
        call = SagaCall(row.saga_id, key, row.data, row.results)
        if is_coroutine_function(function):
            return await function(call)
        return await asyncio.to_thread(function, call)

    def _failure(self, saga: Saga, row: SagaRow, error: Exception, is_late: bool) -> dict[str, Any]:
        """The changes of a row whose call has failed."""
        text = f"{type(error).__name__}: {error}"[:1_000]
        end = after_failure(saga, row, is_refused=isinstance(error, Refused), is_late=is_late)
        now = self._clock()
        if end is not None:
            state, step = end
            log.warning("saga %s is taken back: step %d: %s", row.saga_id, row.step, text)
            return {"state": state.value, "step": step, "tries": 0, "error": text, "due_ms": now}
        tries = row.tries + 1
        pause_ms = min(self._pause_ms * 2 ** min(row.tries, 30), self._pause_ms_max)
        log.info("saga %s: %s; next try in %d ms", row.saga_id, text, pause_ms)
        if tries == STUCK_TRIES and (row.state is not SagaState.RUNNING or saga.tries_max > tries):
            self._stuck(row, text)
        return {"tries": tries, "error": text, "due_ms": now + pause_ms}

    def _stuck(self, row: SagaRow, text: str) -> None:
        log.error(
            "saga %s is stuck: step %d fails while it is %s: %s; it is tried again",
            row.saga_id,
            row.step,
            row.state.value,
            text,
        )
        if self._on_stuck is not None:
            try:
                self._on_stuck(row)
            except Exception:
                log.exception("on_stuck failed")

    async def _write(self, row: SagaRow, token: str, changed: dict[str, Any]) -> None:
        """Write what follows, unless another runner has the flow now."""
        statement = (
            update(SAGAS)
            .where(SAGAS.c.saga_id == row.saga_id, SAGAS.c.token == token)
            .values(**changed, lease_ms=0)
        )
        count = await self._database.wait(lambda connection: connection.execute(statement).rowcount)
        if not count:
            log.warning("saga %s has another runner, which repeats step %d", row.saga_id, row.step)


def _row(values: Any) -> SagaRow:
    fields = dict(values)
    fields["state"] = SagaState(fields["state"])
    fields["data"] = json.loads(fields["data"])
    fields["results"] = json.loads(fields["results"])
    return SagaRow(**fields)
