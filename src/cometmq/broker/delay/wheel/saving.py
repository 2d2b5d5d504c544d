"""Writes the timers' progress: regularly, and at the stop with the undelivered units of open slots.

Everything that the progress stands for is durable before the progress is written.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cometmq.codec.timer import TIMER_DELETE, TIMER_ROLL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.delay.wheel.delivery import TimerDelivery
    from cometmq.broker.delay.wheel.fetch import Waiting
    from cometmq.broker.delay.wheel.intake import TimerIntake
    from cometmq.broker.delay.wheel.open_slots import OpenSlots
    from cometmq.store.timer.book import TimerBook, TimerWrite

__all__ = ["TimerSaving"]

log = logging.getLogger("cometmq.broker")

IDLE_SAVE_MS: Final = 60_000
"""While only time passes, `timercheck` is written this often."""


class TimerSaving:
    """Saves the progress of one broker's timers."""

    def __init__(
        self,
        state: BrokerState,
        book: TimerBook,
        slots: OpenSlots,
        intake: TimerIntake,
        delivery: TimerDelivery,
    ) -> None:
        self._state = state
        self._book = book
        self._slots = slots
        self._intake = intake
        self._delivery = delivery
        self._is_saving = False
        self._saved_ms = 0
        self._saved_delivered = 0

    def start(self) -> None:
        """Count the time from now."""
        self._saved_ms = self._state.env.clock.now_ms()

    def save(self, now_ms: int) -> None:
        """Write the progress when it is time."""
        interval_ms = self._state.config.timer_flush_interval_ms
        if self._is_saving or now_ms - self._saved_ms < interval_ms:
            return
        work = self._take(now_ms)
        if work is None:
            return
        self._is_saving = True
        self._saved_ms = now_ms
        store = self._state.store
        log_min = store.min_physical_offset

        def write() -> None:
            self._book.write(work)
            self._book.drop_expired(log_min)

        def written(result: object) -> None:
            self._is_saving = False
            if isinstance(result, BaseException):
                log.error("writing the timers failed, next try in a second: %s", result)
                self._book.failed(work)
            else:
                self._book.wrote(work)

        def durable(is_durable: bool) -> None:
            if is_durable:
                self._state.env.workers.submit(write, written)
            else:
                self._is_saving = False
                self._book.failed(work)

        store.when_durable(store.max_physical_offset, durable)

    def _take(self, now_ms: int) -> TimerWrite | None:
        """Return what is to be written; None while nothing has changed but the time."""
        book, check, read_ms = self._book, self._book.checkpoint, self._slots.read_ms
        delivered = self._delivery.delivered_count
        has_units = book.log.end != book.log.written or book.wheel.is_dirty
        has_moved = (
            self._intake.next_offset != check.master_queue_offset
            or delivered != self._saved_delivered
        )
        # A Java broker delivers again what is in the slot that the file names.
        is_slot_delivered = check.read_time_ms <= self._slots.delivered_ms
        is_time = read_ms != check.read_time_ms and now_ms - self._saved_ms >= IDLE_SAVE_MS
        if not (has_units or has_moved or is_slot_delivered or is_time):
            return None
        self._saved_delivered = delivered
        return book.take(read_ms, self._intake.next_offset, now_ms)

    # -- at the stop -----------------------------------------------------------------------

    async def finish(self, undelivered: Iterable[Waiting] | None) -> None:
        """Write everything.  Call it when nothing is put any more, before the store closes.

        `undelivered` are the units of loaded slots whose messages were not delivered; None where
        they are not known, because a slot could not be read.
        """
        loop = asyncio.get_running_loop()
        while self._is_saving:  # noqa: ASYNC110 - a worker is writing, once in a second
            await asyncio.sleep(0.001)
        if undelivered is not None:
            self._write_again(undelivered)
        durable: asyncio.Future[bool] = loop.create_future()
        self._state.store.when_durable(self._state.store.max_physical_offset, durable.set_result)
        if not await durable:
            return
        work = self._take(self._state.env.clock.now_ms())
        if work is not None:
            self._book.write(work)
            self._book.wrote(work)

    def _write_again(self, undelivered: Iterable[Waiting]) -> None:
        """Take delivered units out of the slots from the read time on.

        A Java broker that opens the timer log puts its units into their slots again.  So this
        broker takes the undelivered units of all slots up to the last one of which something was
        delivered, writes them into that last slot as a new chain, and moves the read time there.
        """
        slots = self._slots
        last_ms = slots.last_touched_ms()
        if last_ms is None:
            return
        units = sorted(
            (unit for unit in undelivered if unit.slot_ms <= last_ms),
            key=lambda unit: unit.physical_offset,
        )
        self._book.clear(last_ms)
        for unit in units:
            self._book.add(last_ms, unit.write_ms, unit.magic, unit.physical_offset, unit.size, 0)
        has_only_recalls = all(
            unit.magic & TIMER_DELETE and not unit.magic & TIMER_ROLL for unit in units
        )
        if has_only_recalls:
            slots.delivered_ms = last_ms
            last_ms += slots.precision_ms
        slots.read_ms = last_ms
