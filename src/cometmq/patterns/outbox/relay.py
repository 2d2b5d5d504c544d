"""Sends the rows of an outbox.

A pass leases shards, reads the rows that are due, sends them and deletes those that were sent.
Rows with one order key go one after the other, by their ids; a row that fails waits for its next
try, and the later rows of its key wait behind it.  A relay that dies between a send and the delete
leaves the row, and the next relay sends it again, with the same property ``OUTBOX_ID``.

Between two passes a relay waits for a commit in its process, for PostgreSQL's notification, for the
earliest next try, or for ``poll_ms``.
"""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

from sqlalchemy import Connection, delete, exists, func, or_, select, update

from cometmq import Message, SendStatus
from cometmq.errors import CometError, ConfigError, LocalProtocolError
from cometmq.patterns.outbox.leases import lease_shards, release_shards
from cometmq.patterns.outbox.listening import listen
from cometmq.patterns.outbox.outbox import ROW_COLUMNS, Outbox
from cometmq.patterns.outbox.table import DEAD, OUTBOX, WAITING, OutboxRow

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
STOP_S: Final = 10.0
ERROR_LENGTH_MAX: Final = 1_000
_UNSURE: Final = (SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT)


class SendsMessages(Protocol):
    """Sends one message; a `cometmq.Producer` is one, and so is a client of another broker."""

    def send(self, message: Message) -> Awaitable[Any]:
        """Return when the message is stored; raise otherwise."""
        ...


class Relay:
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
        self.name = name or uuid.uuid4().hex
        self.sent_count = 0
        self._outbox = outbox
        self._transport = transport
        self._batch_count = batch_count
        # Leases are renewed, and the shards of a relay that died are taken, in time.
        self._poll_ms = min(poll_ms, max(1, lease_ms // 3))
        self._lease_ms = lease_ms
        self._pause_ms = pause_ms
        self._pause_ms_max = pause_ms_max
        self._tries_max = tries_max
        self._on_dead = on_dead
        self._shards: list[int] = []
        self._leased_at_ms = 0
        self._leased_until_ms = 0
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._waker: Callable[[], None] | None = None

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to send in the background."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._wake.set)

        self._waker = wake
        self._outbox.wakers.append(wake)
        listening = listen(self._outbox.database.engine, self._wake)
        self._tasks = [asyncio.create_task(self.run())]
        if listening is not None:
            self._tasks.append(asyncio.create_task(listening))

    async def stop(self) -> None:
        """Wait for the pass under way, at most 10 s, and give up the shards."""
        if self._waker is not None:
            self._outbox.wakers.remove(self._waker)
            self._waker = None
        self._is_stopping = True
        self._wake.set()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._outbox.database.wait(lambda connection: release_shards(connection, self.name))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def run(self) -> None:
        """Send until it is cancelled; an error of the database is logged and tried again."""
        while not self._is_stopping:
            self._wake.clear()
            wait_ms = self._poll_ms
            try:
                sent_count = await self.run_once()
                if sent_count >= self._batch_count:
                    continue
                wait_ms = await self._next_due_ms()
            except Exception as error:
                log.warning("relay %s: %s; next try in %d ms", self.name, error, wait_ms)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wait()

    async def _wait(self) -> None:
        if not self._is_stopping:
            await self._wake.wait()

    # -- a pass -----------------------------------------------------------------------------

    async def run_once(self) -> int:
        """One pass: how many rows were due."""
        await self._lease()
        if not self._shards:
            return 0
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
        """The rows to send: due, and behind no row of their key that waits for its next try."""
        now = self._outbox.clock()
        earlier = OUTBOX.alias()
        is_behind = exists().where(
            earlier.c.order_key == OUTBOX.c.order_key,
            earlier.c.id < OUTBOX.c.id,
            earlier.c.state == WAITING,
            earlier.c.due_ms > now,
        )
        query = (
            select(*ROW_COLUMNS)
            .where(
                OUTBOX.c.state == WAITING,
                OUTBOX.c.shard.in_(self._shards),
                OUTBOX.c.due_ms <= now,
                or_(OUTBOX.c.order_key == "", ~is_behind),
            )
            .order_by(OUTBOX.c.id)
            .limit(self._batch_count)
        )
        return [OutboxRow(**row._mapping) for row in connection.execute(query)]

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
        """Delete what was sent, and set the next try of what failed."""
        if sent:
            connection.execute(delete(OUTBOX).where(OUTBOX.c.id.in_(sent)))
        now = self._outbox.clock()
        for row, error in failed:
            tries = row.tries + 1
            text = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
            is_hopeless = isinstance(error, (LocalProtocolError, ConfigError))
            is_dead = is_hopeless or tries >= self._tries_max
            pause_ms = min(self._pause_ms * 2 ** min(row.tries, 30), self._pause_ms_max)
            connection.execute(
                update(OUTBOX)
                .where(OUTBOX.c.id == row.id)
                .values(
                    tries=tries,
                    error=text,
                    state=DEAD if is_dead else WAITING,
                    due_ms=now + pause_ms,
                )
            )
            if is_dead:
                self._died(row, tries, text)
            else:
                log.info("row %d of the outbox: %s; next try in %d ms", row.id, text, pause_ms)

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

    async def _next_due_ms(self) -> int:
        """Milliseconds until the earliest next try, at most ``poll_ms``."""
        query = select(func.min(OUTBOX.c.due_ms)).where(
            OUTBOX.c.state == WAITING, OUTBOX.c.shard.in_(self._shards)
        )
        due_ms = await self._outbox.database.wait(lambda connection: connection.scalar(query))
        if due_ms is None:
            return self._poll_ms
        return min(self._poll_ms, max(1, int(due_ms) - self._outbox.clock()))
