"""Reads ahead: slots of the wheel that are due soon, then the messages of their units.

A worker loads each slot `LEAD_MS` before its time.  Workers read the messages of loaded slots while
there is room for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from cometmq.broker.delay.wheel.fetch import LoadedSlot, Ready, Settled, Waiting, fetch, load_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.delay.wheel.delivery import TimerDelivery
    from cometmq.broker.delay.wheel.open_slots import OpenSlots
    from cometmq.store.timer.book import TimerBook
    from cometmq.store.timer.log import SlotUnits
    from cometmq.store.timer.wheel import Slot

__all__ = ["TimerLoading"]

log = logging.getLogger("cometmq.broker")

LEAD_MS: Final = 2_000
"""A slot is loaded so long before its time."""
FETCH_COUNT: Final = 512
UNREAD_MAX: Final = 200_000
"""No further slot is loaded while so many units of loaded ones are not read."""
BLANK_SLOTS_MAX: Final = 10_000
"""Slots without messages passed over in one turn."""
RETRY_S: Final = 0.1
SLOT_RETRY_S: Final = 1.0


class _Open:
    """A loaded slot, and how many of its messages were read."""

    __slots__ = ("next", "slot_ms", "units")

    def __init__(self, slot_ms: int, units: SlotUnits) -> None:
        self.slot_ms = slot_ms
        self.units = units
        self.next = 0

    def take(self, count_max: int) -> list[Waiting]:
        """Return the next units."""
        first = self.next
        self.next = min(len(self.units), first + count_max)
        return [self._unit(number) for number in range(first, self.next)]

    def untaken(self) -> list[Waiting]:
        """Return all units that were not taken."""
        return [self._unit(number) for number in range(self.next, len(self.units))]

    @property
    def is_over(self) -> bool:
        return self.next == len(self.units)

    def _unit(self, number: int) -> Waiting:
        units = self.units
        return Waiting(
            self.slot_ms,
            units.physical_offsets[number],
            units.sizes[number],
            units.write_times_ms[number],
            units.magics[number],
        )


class TimerLoading:
    """Loads the slots of one broker; calls `soon` when a worker has read something.

    `moved` has the physical offsets of records that newer ones replace.
    """

    def __init__(
        self,
        state: BrokerState,
        book: TimerBook,
        slots: OpenSlots,
        delivery: TimerDelivery,
        moved: Container[int],
        soon: Callable[[], None],
    ) -> None:
        self._state = state
        self._book = book
        self._slots = slots
        self._delivery = delivery
        self._moved = moved
        self._soon = soon
        self._settled = Settled(state.store, slots.read_ms, state.env.clock.now_ms())
        self._waiting: deque[Waiting] = deque()
        self._loaded: deque[_Open] = deque()
        self._unread = 0
        self._fetching: list[Waiting] = []
        self._retry: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self.is_loading = False
        """Whether a slot is being read."""
        self.is_unknown = False
        """Whether a slot could not be read at the stop, so that its units are not known."""

    def stop(self) -> None:
        """Take nothing more from workers."""
        self._is_stopped = True
        if self._retry is not None:
            self._retry.cancel()

    def wait(self, units: Iterable[Waiting]) -> None:
        """Have more messages of a loaded slot read."""
        self._waiting += units

    def unread(self) -> list[Waiting]:
        """Return the units of messages that are not read."""
        units = [*self._waiting, *self._fetching]
        for loaded in self._loaded:
            units += loaded.untaken()
        return units

    # -- slots -----------------------------------------------------------------------------

    def open_slots(self, now_ms: int) -> bool:
        """Load the next slot that is due soon; return whether to go on at once."""
        wheel, slots = self._book.wheel, self._slots
        for _ in range(BLANK_SLOTS_MAX):
            slot_ms = slots.open_to_ms
            if self.is_loading or self._unread > UNREAD_MAX or slot_ms > now_ms + LEAD_MS:
                return False
            slot = wheel.get(slot_ms)
            slots.open_to_ms = slot_ms + slots.precision_ms
            if slot is not None:
                self.is_loading = True
                # The slot stays open until its units are here.
                slots.expect(slot_ms, 1)
                self._load(slot_ms, slot)
                return False
            slots.close(now_ms)
        return True

    def _load(self, slot_ms: int, slot: Slot) -> None:
        reader = self._book.log.reader(slot.last)
        store, moved = self._state.store, self._moved

        def done(result: LoadedSlot | BaseException) -> None:
            if self._is_stopped:
                # Its messages are not delivered any more, but the stop writes their units.
                self.is_loading = False
                if isinstance(result, BaseException):
                    self.is_unknown = True
                else:
                    self._slots.recalls.update(result.recalls)
                    self._loaded.append(_Open(slot_ms, result.units))
                return
            if isinstance(result, BaseException):
                log.error("slot %d of the timer wheel cannot be read: %s", slot_ms, result)
                asyncio.get_running_loop().call_later(SLOT_RETRY_S, self._load, slot_ms, slot)
                return
            self.is_loading = False
            count = len(result.units)
            self._slots.expect(slot_ms, count - 1)
            self._unread += count
            self._slots.recalls.update(result.recalls)
            if count:
                self._loaded.append(_Open(slot_ms, result.units))
            self._soon()

        self._state.env.workers.submit(lambda: load_slot(store, reader, slot_ms, slot, moved), done)

    # -- messages --------------------------------------------------------------------------

    def fetch(self) -> None:
        """Let a worker read messages of open slots, while there is room for them."""
        if (
            self._fetching
            or self._retry is not None
            or not (self._waiting or self._loaded)
            or not self._delivery.has_room()
        ):
            return
        units = self._fetching
        while self._waiting and len(units) < FETCH_COUNT // 2:
            units.append(self._waiting.popleft())
        while self._loaded and len(units) < FETCH_COUNT:
            loaded = self._loaded[0]
            part = loaded.take(FETCH_COUNT - len(units))
            units += part
            self._unread -= len(part)
            if loaded.is_over:
                self._loaded.popleft()
        store, settled, precision_ms = self._state.store, self._settled, self._slots.precision_ms
        work = list(units)

        def done(result: list[Ready | Waiting] | BaseException) -> None:
            self._fetched(work, result)

        self._state.env.workers.submit(lambda: fetch(store, settled, work, precision_ms), done)

    def _fetched(self, units: list[Waiting], result: list[Ready | Waiting] | BaseException) -> None:
        if self._is_stopped:
            return
        self._fetching = []
        if isinstance(result, BaseException):
            log.error("%d timed messages cannot be read, next try soon: %s", len(units), result)
            self._waiting.extendleft(reversed(units))
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._try_again)
            return
        ready = self._delivery.ready
        settled: list[Waiting] = []
        for message in result:
            if isinstance(message, Ready):
                ready(message)
            else:
                settled.append(message)
        self._slots.done_with(settled)
        self._soon()

    def _try_again(self) -> None:
        self._retry = None
        self._soon()
