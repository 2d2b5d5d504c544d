"""Messages of a program whose own rows are not in the outbox's database, or that calls others.

    prepare --> PREPARED --confirm, or the check says True--> waiting --relay--> sent
                   |
                   +-------drop, or the check says False----> dropped

The row is there before the program begins, so a crash leaves a question and no gap: the check
answers it from what the program has done.  Its next time is the row's due time, so a process that
takes a row moves the time first, and one that dies leaves the row to the next pass of any process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, select, update

from cometmq import Message
from cometmq.errors import CometError, ConfigError
from cometmq.patterns.base.flow import is_coroutine_function
from cometmq.patterns.base.runner import Runner
from cometmq.patterns.outbox import Outbox, OutboxRow
from cometmq.patterns.outbox.outbox import ROW_COLUMNS
from cometmq.patterns.outbox.table import DROPPED, OUTBOX, PREPARED, WAITING, values_of

__all__ = ["Check", "MessageDropped", "OnUndecided", "ReliableMessages"]

log = logging.getLogger("cometmq.patterns")

Check = Callable[[Message], Awaitable[bool | None] | bool | None]
"""Says whether a message is to be sent: True, False, or None where that is not decided yet."""
OnUndecided = Callable[[OutboxRow, str], bool | None]
"""Called with a row that stays undecided; its answer counts as the check's."""
FIRST_CHECK_MS: Final = 60_000
PAUSES_MS: Final = (10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000)
CHECKS_ALARM: Final = 8
KEEP_MS: Final = 7 * 24 * 3600 * 1000
BATCH_COUNT: Final = 100
ERROR_LENGTH_MAX: Final = 1_000


class MessageDropped(CometError):
    """A message is confirmed that was dropped before, by the program or by its check."""


class ReliableMessages(Runner):
    """Prepared messages of an outbox; ``async with`` asks for those that nobody has decided.

    Args:
        outbox: has the rows; a `Relay` of it sends what is confirmed.
        check: decides for a message whose program has not; ``async def``, or plain in a thread.
            A message whose operation may still run is not decided: None.
        first_check_ms: how long a program has until its check is asked first.
        pauses_ms: the pause after each check without an answer; the last one is repeated.
        checks_alarm: after so many checks without an answer there is an error in the log, and
            ``on_undecided`` is called.
        on_undecided: see `OnUndecided`.
        keep_ms: how long dropped rows stay, so that a late confirm fails; a relay deletes them.
        poll_ms: how often it looks for rows that are due.

    Raises:
        ConfigError: a number is not positive.
    """

    _full_count = BATCH_COUNT

    def __init__(
        self,
        outbox: Outbox,
        check: Check,
        *,
        first_check_ms: int = FIRST_CHECK_MS,
        pauses_ms: Sequence[int] = PAUSES_MS,
        checks_alarm: int = CHECKS_ALARM,
        on_undecided: OnUndecided | None = None,
        keep_ms: int = KEEP_MS,
        poll_ms: int = 1_000,
    ) -> None:
        if min(first_check_ms, checks_alarm, keep_ms, poll_ms, *(pauses_ms or (0,))) < 1:
            raise ConfigError(
                f"ReliableMessages has first_check_ms={first_check_ms}, pauses_ms={pauses_ms}, "
                f"checks_alarm={checks_alarm}, keep_ms={keep_ms}, poll_ms={poll_ms}; give numbers "
                "of at least 1"
            )
        super().__init__("reliable messages", poll_ms)
        self._outbox = outbox
        self._check = check
        self._first_check_ms = first_check_ms
        self._pauses_ms = pauses_ms
        self._checks_alarm = checks_alarm
        self._on_undecided = on_undecided
        self._keep_ms = keep_ms

    # -- the program's calls ----------------------------------------------------------------

    def prepare(self, message: Message) -> Any:
        """Store a message before the operation: its row's id; a coroutine of an asyncio engine.

        The check gets the message as it is, so its keys or properties name the operation.
        """
        now = self._outbox.clock()
        due_ms = now + self._first_check_ms
        values = {**values_of(message, now), "state": PREPARED, "due_ms": due_ms}

        def work(connection: Connection) -> int:
            key = connection.execute(OUTBOX.insert().values(**values)).inserted_primary_key
            assert key is not None
            return int(key[0])

        return self._outbox.database.run(work)

    def confirm(self, row_id: int) -> Any:
        """Let a prepared message be sent; again has no effect.  A coroutine of an asyncio engine.

        Raises:
            MessageDropped: it was dropped; the operation has happened all the same.
        """
        return self._outbox.run_and_wake(lambda connection: self._confirm(connection, row_id))

    def drop(self, row_id: int) -> Any:
        """Forget a prepared message; True if it was not sent.  A coroutine of an asyncio engine."""
        return self._outbox.database.run(lambda connection: self._drop(connection, row_id))

    def _confirm(self, connection: Connection, row_id: int) -> None:
        now = self._outbox.clock()
        if self._move(connection, row_id, state=WAITING, due_ms=now, tries=0, error=""):
            return
        if _state(connection, row_id) == DROPPED:
            raise MessageDropped(
                f"row {row_id} of the outbox was dropped before it is confirmed; let the check "
                "answer None as long as an operation may run, and add a new message"
            )

    def _drop(self, connection: Connection, row_id: int) -> bool:
        until_ms = self._outbox.clock() + self._keep_ms
        if self._move(connection, row_id, state=DROPPED, due_ms=until_ms):
            return True
        return _state(connection, row_id) == DROPPED

    @staticmethod
    def _move(connection: Connection, row_id: int, **values: Any) -> bool:
        prepared = (OUTBOX.c.id == row_id) & (OUTBOX.c.state == PREPARED)
        return bool(connection.execute(update(OUTBOX).where(prepared).values(**values)).rowcount)

    # -- a pass -----------------------------------------------------------------------------

    async def run_once(self) -> int:
        """Ask for each message whose time has come: how many."""
        rows = await self._outbox.database.wait(self._take)
        await asyncio.gather(*map(self._ask, rows))
        return len(rows)

    def _take(self, connection: Connection) -> list[OutboxRow]:
        """The rows to ask for, whose next time is moved so that no other process asks too."""
        now = self._outbox.clock()
        due = (
            select(*ROW_COLUMNS, OUTBOX.c.due_ms)
            .where(OUTBOX.c.state == PREPARED, OUTBOX.c.due_ms <= now)
            .order_by(OUTBOX.c.due_ms, OUTBOX.c.id)
            .limit(BATCH_COUNT)
        )
        taken = []
        for row in connection.execute(due).all():
            values = dict(row._mapping)
            seen = (OUTBOX.c.state == PREPARED) & (OUTBOX.c.due_ms == values.pop("due_ms"))
            pause_ms = self._pauses_ms[min(row.tries, len(self._pauses_ms) - 1)]
            taking = (
                update(OUTBOX)
                .where(OUTBOX.c.id == row.id, seen)
                .values(tries=OUTBOX.c.tries + 1, due_ms=now + pause_ms)
            )
            if connection.execute(taking).rowcount:
                taken.append(OutboxRow(**{**values, "tries": row.tries + 1}))
        return taken

    async def _ask(self, row: OutboxRow) -> None:
        reason = "the check has no answer"
        answer: Any = None
        try:
            message = row.message()
            if is_coroutine_function(self._check):
                answer = await self._check(message)  # type: ignore[misc]
            else:
                answer = await asyncio.to_thread(self._check, message)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]
        if answer is None and row.tries >= self._checks_alarm:
            answer = self._alarm(row, reason)
        if answer is None:
            log.info("row %d of the outbox is undecided: %s", row.id, reason)
            noting = update(OUTBOX).where(OUTBOX.c.id == row.id).values(error=reason)
            await self._outbox.database.wait(lambda connection: connection.execute(noting))
        elif answer:
            await self._outbox.database.wait(lambda connection: self._confirm(connection, row.id))
            self._outbox.wake()
        else:
            await self._outbox.database.wait(lambda connection: self._drop(connection, row.id))

    def _alarm(self, row: OutboxRow, reason: str) -> bool | None:
        if row.tries == self._checks_alarm:
            log.error(
                "row %d of the outbox, for topic %s, is undecided after %d checks: %s; `cometmq "
                "outbox confirm` or `drop` decides it",
                row.id,
                row.topic,
                row.tries,
                reason,
            )
        if self._on_undecided is not None:
            try:
                return self._on_undecided(row, reason)
            except Exception:
                log.exception("on_undecided failed")
        return None


def _state(connection: Connection, row_id: int) -> str | None:
    return connection.scalar(select(OUTBOX.c.state).where(OUTBOX.c.id == row_id))
