"""Exact timers: takes up timed messages, holds them in the wheel, delivers them when they are due.

Job: the life of a timed message from the timer topic to its own.  It must not decide what a send
asks for (`send_check`), nor know the files (`cometmq.store.timer_book`).

The way of a message, each step on the loop unless said::

    queue 0 of rmq_sys_wheel_timer --take up--> slot of the wheel and unit of the timer log
        slot comes near (LEAD_MS) --load, in a worker--> units of the slot
        --fetch, in a worker--> heap by due time --due--> its own topic, in runs

What comes for a slot that is loaded already goes to the fetch at once.  A slot is done with when
its time has passed and nothing of it is outstanding; `timercheck` says which is the first that is
not.  It is written after the log is durable up to everything it stands for, so a crash at any point
loses nothing, and what was delivered beyond it is recognised (`timer_fetch.Settled`).

A turn of the loop takes up, and delivers, a bounded run of messages: sends go on in between.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import groupby, islice
from math import inf
from typing import Any, Final

from cometmq.broker.state import BrokerState
from cometmq.broker.timer_fetch import (
    LoadedSlot,
    Ready,
    Settled,
    Waiting,
    fetch,
    load_slot,
)
from cometmq.broker.timer_intake import Fresh, TimerIntake
from cometmq.broker.timer_near import Near
from cometmq.codec.java_hash import java_hash
from cometmq.codec.timer import TIMER_DELETE, TIMER_ROLL
from cometmq.codec.timer_slots import TimerRules
from cometmq.errors import MessageIllegal, StoreError
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.timer_book import TimerBook, TimerWrite
from cometmq.store.timer_log import SlotUnits

__all__ = ["TimerService"]

log = logging.getLogger("cometmq.broker")

LEAD_MS: Final = 2_000
"""A slot is loaded so long before its time."""
RUN_COUNT: Final = 128
"""Messages delivered in one turn of the loop."""
FETCH_COUNT: Final = 512
READY_MAX: Final = 16_384
READY_BYTES_MAX: Final = 32 << 20
UNREAD_MAX: Final = 200_000
"""No further slot is loaded while so many units of loaded ones are not read."""
BLANK_SLOTS_MAX: Final = 10_000
"""Slots without messages passed over in one turn."""
RETRY_MS: Final = 100
LATE_MS: Final = 2
TICK_MAX_MS: Final = 500
IDLE_SAVE_MS: Final = 60_000
"""`timercheck` is written so often while only time passes."""


class _Open:
    """A loaded slot: what is not read yet."""

    __slots__ = ("next", "slot_ms", "units")

    def __init__(self, slot_ms: int, units: SlotUnits) -> None:
        self.slot_ms = slot_ms
        self.units = units
        self.next = 0


class TimerService:
    """One broker's timers."""

    def __init__(self, state: BrokerState, book: TimerBook, moved: Container[int] = ()) -> None:
        self._state = state
        self._book = book
        self._moved = moved
        self.rules: TimerRules = book.rules
        self._precision_ms = book.rules.precision_ms
        self.intake = TimerIntake(state, book.queue_offset, self._place, self._soon)
        self.read_ms = book.read_ms
        self._open_to = book.read_ms
        now_ms = state.env.clock.now_ms()
        self.settled = Settled(state.store, book.read_ms, now_ms)
        self._waiting: deque[Waiting] = deque()
        self._slots: deque[_Open] = deque()
        self._unread = 0
        self._fetching: list[Waiting] = []
        self._heap: list[Ready] = []
        self._near = Near(READY_MAX, READY_BYTES_MAX)
        self._ready_bytes = 0
        self._outstanding: dict[int, int] = {}
        self._touched: set[int] = set()
        self._left_ms = -1
        """The last slot something was delivered of, once it is done with."""
        self._recalls: dict[str, Waiting] = {}
        self._numbers = 0
        self._is_loading = False
        self._is_saving = False
        self._is_stopped = False
        self._is_running_soon = False
        self._retry_ms = 0
        self._saved_ms = 0
        self._saved_delivered = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.taken_count = 0
        """Messages placed in the wheel since the start."""
        self.delivered_count = 0
        """Messages put into their topics, or rolled, since the start."""
        self.taken_tps = self.delivered_tps = 0.0
        """Messages a second, over the last one that was measured."""
        self._measured = (now_ms, 0, 0)
        self._at: Callable[[str], None] = lambda name: None

    @property
    def at(self) -> Callable[[str], None]:
        """Called with the name of each step; for tests that crash there."""
        return self._at

    @at.setter
    def at(self, hook: Callable[[str], None]) -> None:
        self._at = self._book.at = hook

    # -- what others ask -------------------------------------------------------------------

    def read_behind_ms(self, now_ms: int) -> int:
        """How far the first slot that is not done with lies behind the clock."""
        return max(0, now_ms - self.read_ms)

    def pending_count(self) -> int:
        """Messages in slots that are not done with.  Looks at the whole wheel: for a worker."""
        return max(0, self._book.wheel.count_from(self.read_ms))

    def slot_count(self, out_ms: int) -> int:
        """Messages in one slot."""
        slot = self._book.wheel.get(out_ms)
        return 0 if slot is None else slot.message_count

    @property
    def is_stopped(self) -> bool:
        """Whether it delivers no more."""
        return self._is_stopped

    @property
    def open_to_ms(self) -> int:
        """The first slot whose messages are not being read for delivery."""
        return self._open_to

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with what is overdue and not taken up."""
        self._saved_ms = self._state.env.clock.now_ms()
        self.intake.start()
        self._soon()

    def stop(self) -> None:
        """Deliver no more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def finish(self) -> None:
        """Write everything; after `stop`, when nothing is put any more, before the store closes."""
        loop = asyncio.get_running_loop()
        while self._is_saving:  # noqa: ASYNC110 - a worker is writing, once in a second
            await asyncio.sleep(0.001)
        self._leave_rest()
        durable: asyncio.Future[bool] = loop.create_future()
        self._state.store.when_durable(self._state.store.max_physical_offset, durable.set_result)
        if not await durable:
            return
        work = self._take_save(self._state.env.clock.now_ms())
        if work is not None:
            self._book.write(work)
            self._book.wrote(work)

    def _leave_rest(self) -> None:
        """Leave nothing in the slots from the read time on that was delivered.

        A Java broker puts units of the timer log into their slots again when it opens it.  So
        what is not delivered of the slots up to the last one that is partly done with is placed
        in that one, in a chain of its own, and reading goes on there.
        """
        touched = [slot_ms for slot_ms in self._touched if slot_ms >= self.read_ms]
        if self._is_loading or not touched:
            return
        last_ms = max(touched)
        left = [ready.unit for heap in (self._heap, self._near.heap) for ready in heap]
        left += [*self._waiting, *self._fetching, *self._recalls.values()]
        for opened in self._slots:
            left += [_unit(opened, number) for number in range(opened.next, len(opened.units))]
        rest = sorted((unit for unit in left if unit.slot_ms <= last_ms), key=lambda one: one.place)
        self._book.clear(last_ms)
        for unit in rest:
            self._book.add(last_ms, unit.write_ms, unit.magic, unit.place, unit.size, 0)
        is_done = all(unit.magic & TIMER_DELETE and not unit.magic & TIMER_ROLL for unit in rest)
        if is_done:
            self._left_ms = last_ms
            last_ms += self._precision_ms
        self.read_ms = last_ms

    # -- taking up -------------------------------------------------------------------------

    def added(self, fresh: Fresh) -> None:
        """Note that a message was put into the timer topic."""
        if fresh.recalls is not None and fresh.out_ms < self._open_to:
            # Before it is durable: a message must not leave while its recall is being flushed.
            slot_ms = max(fresh.out_ms, self.read_ms)
            self._recalls[fresh.recalls] = Waiting(
                slot_ms, fresh.place, fresh.size, self.rules.floor(slot_ms), TIMER_DELETE
            )
        self.intake.added(fresh)
        self._soon()

    def added_many(self, run: Sequence[Fresh]) -> None:
        """Note messages, and no recalls, that were put into the timer topic one behind another."""
        self.intake.added_many(run)
        self._soon()

    def put_again(self, queue_offset: int) -> None:
        """Note that a message was appended to the timer topic again, so that its file can go."""
        self.intake.expect(queue_offset + 1)
        self._soon()

    def _place(self, run: list[Fresh], now_ms: int) -> None:
        """Place messages in order, those of one slot together."""
        # What was appended again is not placed again when it is taken up once more after a crash.
        left = [fresh for fresh in run if fresh.place not in self._moved]
        hashes = {topic: java_hash(topic) for topic in {fresh.topic for fresh in left}}
        write_ms = self.rules.floor(now_ms)
        for (out_ms, is_recall), group in groupby(
            left, lambda fresh: (fresh.out_ms, fresh.recalls is not None)
        ):
            slot_ms, magic = self.rules.place(max(out_ms, self.read_ms), write_ms)
            if is_recall:
                magic |= TIMER_DELETE
            some = list(group)
            units = [(fresh.place, fresh.size, hashes[fresh.topic]) for fresh in some]
            self._book.add_run(slot_ms, write_ms, magic, units)
            self.taken_count += len(some)
            for _ in some:
                self._at("timer.placed")
            if slot_ms < self._open_to:
                self._take_open(some, slot_ms, write_ms, magic)

    def _take_open(self, run: list[Fresh], slot_ms: int, write_ms: int, magic: int) -> None:
        """Take what was placed in a slot that is loaded already."""
        is_rolled = bool(magic & TIMER_ROLL)
        enqueued = b"TIMER_ENQUEUE_MS\x01%d\x02" % write_ms
        for fresh in run:
            unit = Waiting(slot_ms, fresh.place, fresh.size, write_ms, magic)
            if fresh.recalls is not None and not is_rolled:
                self._recalls[fresh.recalls] = unit
                continue
            self._outstanding[slot_ms] = self._outstanding.get(slot_ms, 0) + 1
            kept = fresh.kept
            if kept is None or is_rolled or not self._near.has_room():
                self._waiting.append(unit)
                continue
            self._near.push(kept, fresh.topic, unit, enqueued, self._numbers)
            self._numbers += 1

    # -- slots -----------------------------------------------------------------------------

    def _open_slots(self, now_ms: int) -> bool:
        """Load the next slot that comes near; whether to go on at once."""
        wheel = self._book.wheel
        for _ in range(BLANK_SLOTS_MAX):
            if self._is_loading or self._unread > UNREAD_MAX or self._open_to > now_ms + LEAD_MS:
                return False
            slot_ms = self._open_to
            slot = wheel.get(slot_ms)
            self._open_to = slot_ms + self._precision_ms
            if slot is not None:
                self._is_loading = True
                # The slot stays open until its units are here.
                self._outstanding[slot_ms] = self._outstanding.get(slot_ms, 0) + 1
                self._load(slot_ms, slot)
                return False
            self._close_slots(now_ms)
        return True

    def _load(self, slot_ms: int, slot: Any) -> None:
        reader = self._book.log.reader(slot.last)
        store, moved = self._state.store, self._moved

        def done(result: LoadedSlot | BaseException) -> None:
            if self._is_stopped:
                return
            if isinstance(result, BaseException):
                log.error("slot %d of the timer wheel cannot be read: %s", slot_ms, result)
                asyncio.get_running_loop().call_later(1, self._load, slot_ms, slot)
                return
            self._is_loading = False
            count = len(result.units)
            self._outstanding[slot_ms] += count - 1
            self._unread += count
            self._recalls.update(result.recalls)
            if count:
                self._slots.append(_Open(slot_ms, result.units))
            self._soon()

        self._state.env.workers.submit(lambda: load_slot(store, reader, slot_ms, slot, moved), done)

    def _close_slots(self, now_ms: int) -> None:
        """Move on past the slots that are done with."""
        outstanding = self._outstanding
        read_ms = self.read_ms
        while read_ms < self._open_to and read_ms + self._precision_ms <= now_ms:
            if outstanding.get(read_ms, 0):
                break
            outstanding.pop(read_ms, None)
            if read_ms in self._touched:
                self._touched.discard(read_ms)
                self._left_ms = read_ms
            read_ms += self._precision_ms
        if read_ms != self.read_ms:
            self.read_ms = read_ms
            if self._recalls:
                self._recalls = {
                    key: unit for key, unit in self._recalls.items() if unit.slot_ms >= read_ms
                }

    # -- fetching --------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Let a worker read messages of open slots, as far as memory is meant for them."""
        if (
            self._fetching
            or len(self._heap) >= READY_MAX
            or self._ready_bytes >= READY_BYTES_MAX
            or not (self._waiting or self._slots)
        ):
            return
        units = self._fetching
        while self._waiting and len(units) < FETCH_COUNT // 2:
            units.append(self._waiting.popleft())
        while self._slots and len(units) < FETCH_COUNT:
            opened = self._slots[0]
            end = min(len(opened.units), opened.next + FETCH_COUNT - len(units))
            units += [_unit(opened, number) for number in range(opened.next, end)]
            self._unread -= end - opened.next
            opened.next = end
            if end == len(opened.units):
                self._slots.popleft()
        store, settled, numbers = self._state.store, self.settled, self._numbers
        self._numbers += len(units)
        work = list(units)

        def done(result: list[Ready | Waiting] | BaseException) -> None:
            self._fetched(work, result)

        self._state.env.workers.submit(
            lambda: fetch(store, settled, work, self._precision_ms, numbers), done
        )

    def _fetched(self, units: list[Waiting], result: list[Ready | Waiting] | BaseException) -> None:
        if self._is_stopped:
            return
        self._fetching = []
        if isinstance(result, BaseException):
            log.error("%d timed messages cannot be read, next try soon: %s", len(units), result)
            self._waiting.extendleft(reversed(units))
            self._retry_ms = self._state.env.clock.now_ms() + RETRY_MS
        else:
            for one in result:
                if isinstance(one, Ready):
                    heapq.heappush(self._heap, one)
                    self._ready_bytes += one.unit.size
                else:
                    self._done_with(one)
        self._soon()

    def _done_with(self, unit: Waiting) -> None:
        self._outstanding[unit.slot_ms] -= 1
        self._touched.add(unit.slot_ms)

    # -- delivering ------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> bool:
        """Put what is due, a run of it; whether more is due."""
        heap, near = self._heap, self._near.heap
        run: list[Ready] = []
        while len(run) < RUN_COUNT:
            if near and near[0].due_ms <= now_ms and not (heap and heap[0] < near[0]):
                ready = self._near.pop()
            elif heap and heap[0].due_ms <= now_ms:
                ready = heapq.heappop(heap)
                self._ready_bytes -= ready.unit.size
            else:
                break
            # A recall names what is due in its slot, so the same id in another one stays.
            if self._recalls and self._is_recalled(ready):
                self._done_with(ready.unit)
            else:
                run.append(ready)
        if not run:
            return False
        self._at("timer.before_put")
        done = self._put(run, now_ms)
        self._at("timer.put")
        for ready in islice(run, done):
            self._done_with(ready.unit)
        self.delivered_count += done
        for ready in islice(run, done, None):
            heapq.heappush(heap, ready)
            self._ready_bytes += ready.unit.size
        if done < len(run):
            self._retry_ms = now_ms + RETRY_MS
            return False
        return self._next_due_ms() <= now_ms

    def _next_due_ms(self) -> float:
        """When the first message that is ready is due; never for none."""
        return min([heap[0].due_ms for heap in (self._heap, self._near.heap) if heap], default=inf)

    def _is_recalled(self, ready: Ready) -> bool:
        slot_ms = ready.unit.slot_ms
        found = [recall for key in ready.keys if (recall := self._recalls.get(key)) is not None]
        is_named = any(recall.slot_ms == slot_ms for recall in found)
        return is_named and not ready.unit.magic & TIMER_ROLL

    def _put(self, run: list[Ready], now_ms: int) -> int:
        """Put a run in order; how many are done with."""
        suffix = b"TIMER_DEQUEUE_MS\x01%d\x02" % now_ms
        store = self._state.store
        done = 0
        while done < len(run):
            host = run[done].born_host
            items = []
            for ready in islice(run, done, None):
                item = ready.item
                if ready.born_host != host or ready.reconsume_times or item[0] == TIMER_TOPIC:
                    break
                items.append((*item[:3], item[3] + suffix, *item[4:]))
            if items:
                done += len(store.put_many(items, born_host=host, store_ms=now_ms))
                if done == len(run):
                    break
            # What is special, or does not fit the window: one by one.
            if not self._put_one(run[done], suffix, now_ms):
                break
            done += 1
        return done

    def _put_one(self, ready: Ready, suffix: bytes, now_ms: int) -> bool:
        topic, queue_id, body, raw, flag, sys_flag, born_ms, code, keys = ready.item
        try:
            result = self._state.store.put(
                topic,
                queue_id,
                body,
                raw + suffix,
                flag=flag,
                sys_flag=sys_flag,
                born_ms=born_ms,
                born_host=ready.born_host,
                reconsume_times=ready.reconsume_times,
                tags_code=code,
                store_ms=now_ms,
                index_keys=keys,
            )
        except MessageIllegal as error:
            log.error("a timed message for %s cannot be stored and is skipped: %s", topic, error)
            return True
        except StoreError as error:
            log.error("timed messages wait, next try in 0.1 s: %s", error)
            return False
        if topic == TIMER_TOPIC:
            self.intake.expect(result.queue_offset + 1)
        return True

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
                goes_on |= self._deliver(now_ms)
            goes_on |= self._open_slots(now_ms)
            self._fetch()
            self._close_slots(now_ms)
            self._save(now_ms)
            self._measure(now_ms)
        except Exception:
            # One fault must not end all timers.
            log.exception("timers failed; next try in 1 s")
            self._retry_ms = now_ms + 1000
            goes_on = False
        if goes_on:
            self._soon()
        else:
            self._arm(now_ms)

    def _arm(self, now_ms: int) -> None:
        due_ms = now_ms + TICK_MAX_MS
        due_ms = int(min(due_ms, self._next_due_ms()))
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

    # -- saving ----------------------------------------------------------------------------

    def _save(self, now_ms: int) -> None:
        """Write progress when it is time: first everything it stands for has to be durable."""
        interval_ms = self._state.config.timer_flush_interval_ms
        if self._is_saving or now_ms - self._saved_ms < interval_ms:
            return
        work = self._take_save(now_ms)
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

    def _take_save(self, now_ms: int) -> TimerWrite | None:
        """What there is to write; None when only time has passed."""
        book, check = self._book, self._book.checkpoint
        has_units = book.log.end != book.log.written or book.wheel.is_dirty
        has_moved = (
            self.intake.next_offset != check.master_queue_offset
            or self.delivered_count != self._saved_delivered
        )
        # A Java broker would deliver again what is in the slot that the file names.
        has_left = check.read_time_ms <= self._left_ms
        is_time = self.read_ms != check.read_time_ms and now_ms - self._saved_ms >= IDLE_SAVE_MS
        if not (has_units or has_moved or has_left or is_time):
            return None
        self._saved_delivered = self.delivered_count
        return book.take(self.read_ms, self.intake.next_offset, now_ms)


def _unit(opened: _Open, number: int) -> Waiting:
    units = opened.units
    return Waiting(
        opened.slot_ms,
        units.places[number],
        units.sizes[number],
        units.write_times_ms[number],
        units.magics[number],
    )
