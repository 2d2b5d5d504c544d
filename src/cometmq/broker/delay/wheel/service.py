"""Exact timers: takes up timed messages, holds them in the wheel, delivers them when they are due.

The service moves a timed message from the timer topic to its own topic, in turns of the loop.
`timed_send` decides what a send asks for, and `cometmq.store.timer.book` knows the files.

The way of a message, each step on the loop unless said::

    queue 0 of rmq_sys_wheel_timer --take up--> slot of the wheel and unit of the timer log
        slot is due soon (LEAD_MS) --load, in a worker--> units of the slot
        --fetch, in a worker--> by due time --due--> its own topic, in runs

    take up: intake, here     load: loading     fetch: fetch      due: delivery
    which slots are loaded: open_slots          written progress: saving

A message for a slot that is loaded already stays in memory (`delivery.Near`), or is fetched at
once.  A slot is done with when its time has passed and nothing of it is outstanding; ``timercheck``
names the first slot that is not done with.  That file is written only when the log is durable up to
everything the file stands for, so a crash at any point loses nothing.  After a crash, messages that
were delivered from later slots are recognised (`fetch.Settled`).

A turn of the loop takes up, and delivers, a bounded run of messages, so that sends have theirs in
between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Final

from cometmq.broker.base.state import BrokerState
from cometmq.broker.delay.wheel.delivery import TimerDelivery
from cometmq.broker.delay.wheel.fetch import Ready, Waiting, enqueued
from cometmq.broker.delay.wheel.intake import Fresh, TimerIntake
from cometmq.broker.delay.wheel.loading import TimerLoading
from cometmq.broker.delay.wheel.moved_records import MovedRecords
from cometmq.broker.delay.wheel.open_slots import OpenSlots
from cometmq.broker.delay.wheel.saving import TimerSaving
from cometmq.codec.java_hash import java_hash
from cometmq.codec.timer import TIMER_DELETE, TIMER_ROLL, TimerCheckpoint
from cometmq.store.timer.book import TimerBook
from cometmq.store.timer.timer_slots import TimerRules

__all__ = ["TimerService"]

log = logging.getLogger("cometmq.broker")

RETRY_MS: Final = 100
FAULT_RETRY_MS: Final = 1000
LATE_MS: Final = 2
TICK_MAX_MS: Final = 500
# Consecutive messages with one slot are placed together, and recalls one by one.
_slot_and_recall: Final = attrgetter("out_ms", "recalls")


class TimerService:
    """The timers of one broker.

    `moved` has the physical offsets of records that newer ones replace.
    """

    def __init__(self, state: BrokerState, book: TimerBook, moved: MovedRecords) -> None:
        self._state = state
        self._book = book
        self._moved = moved
        self.rules: TimerRules = book.rules
        self._slots = slots = OpenSlots(book.read_ms, book.rules.precision_ms)
        self.intake = TimerIntake(
            state,
            book.queue_offset,
            self._put_in_wheel,
            self._soon,
            (book.placed_elsewhere, book.read_ms),
        )
        self._delivery = TimerDelivery(state, slots, self.intake.expect)
        self._loading = TimerLoading(state, book, slots, self._delivery, moved, self._soon)
        self._saving = TimerSaving(state, book, slots, self.intake, self._delivery)
        self._is_stopped = False
        self._is_running_soon = False
        self._retry_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.taken_count = 0
        """Messages placed in the wheel since the start."""
        self.taken_tps = self.delivered_tps = 0.0
        """Messages a second, measured over the last second or more."""
        self._measured = (state.env.clock.now_ms(), 0, 0)
        self._at: Callable[[str], None] = lambda name: None

    @property
    def at(self) -> Callable[[str], None]:
        """Called with the name of each step.

        It is no argument of the constructor: tests set it on a running broker, so that the steps of
        its start do not count.
        """
        return self._at

    @at.setter
    def at(self, hook: Callable[[str], None]) -> None:
        self._at = self._book.at = self._delivery.at = hook

    # -- what others ask -------------------------------------------------------------------

    @property
    def read_ms(self) -> int:
        """The first slot that is not done with."""
        return self._slots.read_ms

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """How far the timers are, as the files have it."""
        return self._book.checkpoint

    @property
    def open_to_ms(self) -> int:
        """The first slot whose messages are not being read for delivery."""
        return self._slots.open_to_ms

    @property
    def delivered_count(self) -> int:
        """Messages put into their topics, or rolled, since the start."""
        return self._delivery.delivered_count

    @property
    def is_stopped(self) -> bool:
        """Whether the timers were stopped."""
        return self._is_stopped

    def read_behind_ms(self, now_ms: int) -> int:
        """Return how far the first slot that is not done with lies behind the clock."""
        return max(0, now_ms - self.read_ms)

    def look_again(self) -> None:
        """Deliver what is due now, after the clock was set forward."""
        self._soon()

    def pending_count(self) -> int:
        """Count the messages in slots that are not done with.  Reads the whole wheel."""
        return max(0, self._book.wheel.count_from(self.read_ms))

    def overdue(self, now_ms: int) -> Callable[[], int]:
        """Count the messages whose slot has passed and that are not delivered.

        The result counts those of slots that are not open yet, in a worker: a start after a long
        stop finds many of them.
        """
        slots, wheel = self._slots, self._book.wheel
        count, begin_ms = slots.overdue_count(now_ms), slots.open_to_ms
        step_ms = slots.precision_ms

        def add() -> int:
            closed = [wheel.get(slot_ms) for slot_ms in range(begin_ms, now_ms - step_ms, step_ms)]
            return count + sum(slot.message_count for slot in closed if slot is not None)

        return add

    def slot_count(self, out_ms: int) -> int:
        """Count the messages of one slot."""
        slot = self._book.wheel.get(out_ms)
        return 0 if slot is None else slot.message_count

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with messages that are overdue, or not taken up."""
        self._saving.start()
        self.intake.start()
        self._soon()

    def stop(self) -> None:
        """Deliver no more."""
        self._is_stopped = True
        self._loading.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def finish(self) -> None:
        """Write everything.  Call it after `stop`, before the store closes."""
        loading = self._loading
        while loading.is_loading:  # noqa: ASYNC110 - a worker is reading one slot
            await asyncio.sleep(0.001)
        undelivered = [
            *self._delivery.undelivered(),
            *loading.unread(),
            *self._slots.recalls.values(),
        ]
        await self._saving.finish(None if loading.is_unknown else undelivered)

    # -- taking up -------------------------------------------------------------------------

    def added(self, run: list[Fresh]) -> None:
        """Note messages that were put into the timer topic, with queue offsets in a row."""
        for fresh in run:
            if fresh.recalls is not None and fresh.out_ms < self.open_to_ms:
                # The recall counts before it is durable: its message must not be delivered while
                # the recall is being flushed.
                slot_ms = max(fresh.out_ms, self.read_ms)
                self._slots.recalls[fresh.recalls] = Waiting(
                    slot_ms,
                    fresh.physical_offset,
                    fresh.size,
                    self.rules.floor(slot_ms),
                    TIMER_DELETE,
                )
        self.intake.added(run)
        self._soon()

    def put_again(self, queue_offset: int) -> None:
        """Note that a message was appended to the timer topic again for its log file to go."""
        self.intake.expect(queue_offset + 1)
        self._soon()

    def _put_in_wheel(self, run: list[Fresh], now_ms: int) -> None:
        """Place messages in the wheel, in order, those of one slot together."""
        if len(self._moved):
            # After a crash a replaced record may be taken up again: its newer record is placed.
            run = [fresh for fresh in run if fresh.physical_offset not in self._moved]
        hashes = {topic: java_hash(topic) for topic in {fresh.topic for fresh in run}}
        write_ms = self.rules.floor(now_ms)
        for (out_ms, recalls), group in groupby(run, _slot_and_recall):
            slot_ms, magic = self.rules.slot_of(max(out_ms, self.read_ms), write_ms)
            if recalls is not None:
                magic |= TIMER_DELETE
            messages = list(group)
            units = [(fresh.physical_offset, fresh.size, hashes[fresh.topic]) for fresh in messages]
            self._book.add_run(slot_ms, write_ms, magic, units)
            self.taken_count += len(messages)
            for _ in messages:
                self._at("timer.placed")
            if slot_ms < self.open_to_ms:
                self._add_to_open_slot(messages, slot_ms, write_ms, magic)

    def _add_to_open_slot(self, run: list[Fresh], slot_ms: int, write_ms: int, magic: int) -> None:
        """Have messages delivered that were placed in a slot that is loaded already."""
        is_rolled = bool(magic & TIMER_ROLL)
        units = [
            Waiting(slot_ms, fresh.physical_offset, fresh.size, write_ms, magic) for fresh in run
        ]
        recalls = run[0].recalls
        if recalls is not None and not is_rolled:
            self._slots.recalls[recalls] = units[-1]
            return
        self._slots.expect(slot_ms, len(units))
        ready: list[Ready] = []
        if not is_rolled:
            stamp = enqueued(write_ms)
            for fresh, unit in zip(run, units, strict=True):
                if fresh.item is None:
                    break
                ready.append(Ready(fresh.due_ms, unit, fresh.item, fresh.born_host, stamp))
        count = self._delivery.near.push(ready)
        self._loading.wait(units[count:])

    # -- the turn --------------------------------------------------------------------------

    def _soon(self) -> None:
        """Have a turn of this service next."""
        if not (self._is_running_soon or self._is_stopped):
            self._is_running_soon = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_running_soon = False
        if self._is_stopped:
            return
        now_ms = self._state.env.clock.now_ms()
        try:
            goes_on = False
            if now_ms >= self._retry_ms:
                goes_on = self.intake.take_up(now_ms)
                if not self._delivery.deliver(now_ms):
                    self._retry_ms = now_ms + RETRY_MS
                elif self._delivery.next_due_ms() <= now_ms:
                    goes_on = True
            goes_on |= self._loading.open_slots(now_ms)
            self._loading.fetch()
            self._slots.close(now_ms)
            self._saving.save(now_ms)
            self._measure(now_ms)
        except Exception:
            # One fault must not end all timers.
            log.exception("timers failed; next try in 1 s")
            self._retry_ms = now_ms + FAULT_RETRY_MS
            goes_on = False
        if goes_on:
            self._soon()
        else:
            self._arm(now_ms)

    def _arm(self, now_ms: int) -> None:
        due_ms = int(min(now_ms + TICK_MAX_MS, self._delivery.next_due_ms()))
        if self.intake.is_behind:
            due_ms = min(due_ms, now_ms + LATE_MS)
        due_ms = max(due_ms, min(self._retry_ms, now_ms + TICK_MAX_MS))
        if self._timer is not None:
            if now_ms < self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_s = (max(0, due_ms - now_ms) + 1) / 1000
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._rung)

    def _rung(self) -> None:
        self._timer = None
        if not self._is_running_soon:
            self._turn()

    def _measure(self, now_ms: int) -> None:
        since_ms, taken, delivered = self._measured
        span_s = (now_ms - since_ms) / 1000
        if span_s >= 1:
            self.taken_tps = (self.taken_count - taken) / span_s
            self.delivered_tps = (self.delivered_count - delivered) / span_s
            self._measured = now_ms, self.taken_count, self.delivered_count
