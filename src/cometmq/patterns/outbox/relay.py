"""Sends the rows of an outbox.

A pass leases shards, reads the rows that are due, sends them and deletes those that were sent.
Rows with one order key go one after the other, by their ids; a row that fails is *retrying* until
its next try, and the later rows of its key wait behind it.  A relay that dies between a send and
the delete leaves the row, and the next relay sends it again, with the same property ``OUTBOX_ID``.

Between two passes a relay waits for a commit in its process, for PostgreSQL's notification, for the
earliest next try, or for ``poll_ms``.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Select, delete, func, select, update

from cometmq import Message, SendStatus
from cometmq.errors import CometError, ConfigError, LocalProtocolError
from cometmq.patterns.base.runner import Runner
from cometmq.patterns.base.sql import is_one_of
from cometmq.patterns.outbox.leases import lease_shards, release_shards
from cometmq.patterns.outbox.listening import listen
from cometmq.patterns.outbox.outbox import ROW_COLUMNS, Outbox
from cometmq.patterns.outbox.table import (
    DEAD,
    DROPPED,
    OUTBOX,
    RETRYING,
    SENT,
    WAITING,
    OutboxRow,
)

__all__ = ["OnDead", "Relay", "SendsMessages"]

log = logging.getLogger("cometmq.patterns")

OnDead = Callable[[OutboxRow, str], None]
"""Called with a row that is given up, and the error of its last try."""
BATCH_COUNT: Final = 500
POLL_MS: Final = 1_000
LEASE_MS: Final = 30_000
PAUSE_MS: Final = 1_000
PAUSE_MS_MAX: Final = 300_000
TRIES: Final = 20
CLEAN_INTERVAL_MS: Final = 60_000
CLEAN_COUNT: Final = 1_000
ERROR_LENGTH_MAX: Final = 1_000
_UNSURE: Final = (SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT)


class SendsMessages(Protocol):
    """Sends one message; a `cometmq.Producer` is one, and so is a client of another broker."""

    def send(self, message: Message) -> Awaitable[Any]:
        """Return when the message is stored; raise otherwise."""
        ...


class Relay(Runner):
    """Sends an outbox's rows; ``async with Relay(outbox, producer)`` runs it.

    Args:
        outbox: whose rows.
        transport: sends them; the program starts and stops it.
        name: of this relay; a random one by default.
        batch_count: rows of a pass.
        poll_ms: the longest wait between two passes; at most a third of ``lease_ms``.
        lease_ms: how long the shards of a relay that died stay with it.
        pause_ms: before the second try of a row; doubled for each further one.
        pause_ms_max: the longest such pause.
        tries_max: tries after which a row is dead.
        pauses_ms: the pause after each failed try, instead of the three arguments above; a row is
            dead when its try after the last pause fails.
        keep_ms: how long rows that were sent stay in the table, marked; 0 deletes them at once.
        on_dead: called with each dead row; the log has a line in any case.

    Raises:
        ConfigError: a number is not positive.
    """

    def __init__(
        self,
        outbox: Outbox,
        transport: SendsMessages,
        *,
        name: str | None = None,
        batch_count: int = BATCH_COUNT,
        poll_ms: int = POLL_MS,
        lease_ms: int = LEASE_MS,
        pause_ms: int = PAUSE_MS,
        pause_ms_max: int = PAUSE_MS_MAX,
        tries_max: int = TRIES,
        pauses_ms: Sequence[int] | None = None,
        keep_ms: int = 0,
        on_dead: OnDead | None = None,
    ) -> None:
        numbers = {
            "batch_count": batch_count,
            "poll_ms": poll_ms,
            "lease_ms": lease_ms,
            "pause_ms": pause_ms,
            "pause_ms_max": pause_ms_max,
            "tries_max": tries_max,
        }
        for label, value in numbers.items():
            if value < 1:
                raise ConfigError(f"{label} of a Relay is {value}; give a number of at least 1")
        if pauses_ms is not None and (not pauses_ms or min(pauses_ms) < 1):
            raise ConfigError(f"pauses_ms of a Relay is {pauses_ms}; give numbers of at least 1")
        self.name = name or uuid.uuid4().hex
        # Leases are renewed, and the shards of a relay that died are taken, in time.
        super().__init__(f"relay {self.name}", min(poll_ms, max(1, lease_ms // 3)))
        self.sent_count = 0
        self._outbox = outbox
        self._transport = transport
        self._full_count = batch_count
        self._lease_ms = lease_ms
        self._pause_ms = pause_ms
        self._pause_ms_max = pause_ms_max
        self._tries_max = tries_max if pauses_ms is None else len(pauses_ms) + 1
        self._pauses_ms = pauses_ms
        self._keep_ms = keep_ms
        self._cleaned_ms = 0
        self._on_dead = on_dead
        self._shards: list[int] = []
        self._leased_at_ms = 0
        self._leased_until_ms = 0
        self._waker: Callable[[], None] | None = None

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake.set)

        self._waker = wake
        self._outbox.wakers.append(wake)
        await super().start()

    def _background(self) -> Coroutine[Any, Any, None] | None:
        return listen(self._outbox.database.engine, self._wake)

    async def stop(self) -> None:
        """Wait for the pass under way, at most 10 s, and give up the shards."""
        if self._waker is not None:
            self._outbox.wakers.remove(self._waker)
            self._waker = None
        await super().stop()
        await self._outbox.database.wait(lambda connection: release_shards(connection, self.name))

    # -- a pass -----------------------------------------------------------------------------

    async def run_once(self) -> int:
        """One pass: how many rows were due."""
        await self._lease()
        if not self._shards:
            return 0
        await self._clean()
        rows = await self._outbox.database.wait(self._due)
        if not rows:
            return 0
        by_key: dict[str, list[OutboxRow]] = {}
        for row in rows:
            by_key.setdefault(row.order_key or row.uid, []).append(row)
        sent: list[int] = []
        failed: list[tuple[OutboxRow, Exception]] = []
        try:
            await asyncio.gather(*[self._send(chain, sent, failed) for chain in by_key.values()])
        finally:
            # Also on cancellation: what was sent must not be sent again.
            settling = self._outbox.database.wait(lambda c: self._settle(c, sent, failed))
            await asyncio.shield(settling)
        self.sent_count += len(sent)
        return len(rows)

    async def _lease(self) -> None:
        """Renew the leases when a third of their time is over, or none is ours."""
        now = self._outbox.clock()
        if self._shards and now - self._leased_at_ms < self._lease_ms / 3:
            return
        self._shards = await self._outbox.database.wait(
            lambda connection: lease_shards(connection, self.name, now, self._lease_ms)
        )
        self._leased_at_ms = now
        self._leased_until_ms = now + self._lease_ms

    def _due(self, connection: Connection) -> list[OutboxRow]:
        """The rows to send: whose next try is due, and new ones whose key has no such row."""
        ours = OUTBOX.c.shard.in_(self._shards)
        retrying = (OUTBOX.c.state == RETRYING) & ours
        query = select(*ROW_COLUMNS).order_by(OUTBOX.c.id).limit(self._full_count)
        due = query.where(retrying, OUTBOX.c.due_ms <= self._outbox.clock())
        rows = [OutboxRow(**row._mapping) for row in connection.execute(due)]
        keys = select(OUTBOX.c.order_key).distinct().where(retrying, OUTBOX.c.order_key != "")
        blocked = connection.scalars(keys).all()
        new = query.where(OUTBOX.c.state == WAITING, ours)
        if blocked:
            new = new.where(~is_one_of(OUTBOX.c.order_key, blocked, connection.dialect.name))
        rows += [OutboxRow(**row._mapping) for row in connection.execute(new)]
        return rows

    async def _send(
        self,
        chain: Sequence[OutboxRow],
        sent: list[int],
        failed: list[tuple[OutboxRow, Exception]],
    ) -> None:
        """Send rows of one key in their order, up to the first that fails."""
        for row in chain:
            if self._outbox.clock() >= self._leased_until_ms:
                return  # another relay may have the shard
            try:
                result = await self._transport.send(row.message())
                status = getattr(result, "status", None)
                if status in _UNSURE:
                    raise CometError(f"the broker answered {status}")
            except Exception as error:
                failed.append((row, error))
                return
            sent.append(row.id)

    def _settle(
        self,
        connection: Connection,
        sent: Sequence[int],
        failed: Sequence[tuple[OutboxRow, Exception]],
    ) -> None:
        """Delete or mark what was sent, and set the next try of what failed."""
        now = self._outbox.clock()
        rows = OUTBOX.c.id.in_(sent)
        if sent and self._keep_ms:
            kept = {"state": SENT, "due_ms": now + self._keep_ms, "error": ""}
            connection.execute(update(OUTBOX).where(rows).values(**kept))
        elif sent:
            connection.execute(delete(OUTBOX).where(rows))
        for row, error in failed:
            tries = row.tries + 1
            text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
            is_hopeless = isinstance(error, (LocalProtocolError, ConfigError))
            is_dead = is_hopeless or tries >= self._tries_max
            pause_ms = self._pause_after(row.tries)
            connection.execute(
                update(OUTBOX)
                .where(OUTBOX.c.id == row.id)
                .values(
                    tries=tries,
                    error=text,
                    state=DEAD if is_dead else RETRYING,
                    due_ms=now + pause_ms,
                )
            )
            if is_dead:
                self._died(row, tries, text)
            elif tries == self._tries_max - 1:
                log.warning("row %d of the outbox: %s; one try is left", row.id, text)
            else:
                log.info("row %d of the outbox: %s; next try in %d ms", row.id, text, pause_ms)

    def _pause_after(self, tries: int) -> int:
        """Milliseconds until the next try of a row that had so many before this one."""
        if self._pauses_ms is not None:
            return self._pauses_ms[min(tries, len(self._pauses_ms) - 1)]
        return min(self._pause_ms << min(tries, 30), self._pause_ms_max)

    async def _clean(self) -> None:
        """Delete the rows that were kept long enough, once a minute."""
        now = self._outbox.clock()
        if now - self._cleaned_ms < CLEAN_INTERVAL_MS:
            return
        self._cleaned_ms = now
        for state in (SENT, DROPPED):
            # The oldest rows only, so that the many that are kept are not read.
            oldest = select(OUTBOX.c.id, OUTBOX.c.due_ms).where(OUTBOX.c.state == state)
            oldest = oldest.order_by(OUTBOX.c.id).limit(CLEAN_COUNT)
            count = CLEAN_COUNT
            while count == CLEAN_COUNT:
                count = await self._outbox.database.wait(partial(_delete_old, oldest, now))

    def _died(self, row: OutboxRow, tries: int, text: str) -> None:
        log.error(
            "row %d of the outbox, for topic %s, is dead after %d tries: %s; `cometmq outbox retry`"
            " sends it again",
            row.id,
            row.topic,
            tries,
            text,
        )
        if self._on_dead is not None:
            try:
                self._on_dead(row, text)
            except Exception:
                log.exception("on_dead of relay %s failed", self.name)

    async def _wait_ms(self) -> int:
        """Milliseconds until the earliest next try, at most ``poll_ms``."""
        query = select(func.min(OUTBOX.c.due_ms)).where(
            OUTBOX.c.state == RETRYING, OUTBOX.c.shard.in_(self._shards)
        )
        due_ms = await self._outbox.database.wait(lambda connection: connection.scalar(query))
        if due_ms is None:
            return self._poll_ms
        return min(self._poll_ms, max(1, int(due_ms) - self._outbox.clock()))


def _delete_old(oldest: Select[Any], now_ms: int, connection: Connection) -> int:
    """Delete those of the oldest rows whose time is over: how many."""
    ids = [row_id for row_id, due_ms in connection.execute(oldest) if due_ms <= now_ms]
    if ids:
        connection.execute(delete(OUTBOX).where(OUTBOX.c.id.in_(ids)))
    return len(ids)
