"""Delivers timed messages: appends those that are due to their own topics, in order of time.

Two sorts of messages wait here.  Those from slots were read from the log (`ready`).  Those that
were sent for a slot that is loaded already were never read (`near`).  Both stay while the store
refuses them.
"""

from __future__ import annotations

import heapq
import logging
from itertools import islice
from math import ceil, inf
from typing import TYPE_CHECKING, Final

from cometmq.errors import MessageIllegal, StoreError
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.results import PutItem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.delay.wheel.fetch import Ready, Waiting
    from cometmq.broker.delay.wheel.open_slots import OpenSlots

__all__ = ["Near", "TimerDelivery"]

log = logging.getLogger("cometmq.broker")

RUN_COUNT: Final = 128
"""Messages delivered in one turn of the loop."""
BURST_MS: Final = 10
"""With a rate (timerDeliverRate), the messages of so long a time may go at once."""
READY_MAX: Final = 16_384
READY_BYTES_MAX: Final = 32 << 20


class Near:
    """Timed messages that were sent for a slot that is loaded already: nobody reads them again.

    They are kept by the millisecond at which they are due, in the order in which they came.  They
    have a bound of their own, so that messages read from the log do not keep them out.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._lists: dict[int, list[Ready]] = {}
        self._times_ms: list[int] = []
        """The keys of `_lists`, as a heap."""
        self._count = self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def push(self, run: Sequence[Ready]) -> int:
        """Keep messages from the front of a run while there is room; return how many.

        The others are read from the log when their turn comes.
        """
        room = self._count_max - self._count if self._bytes < self._bytes_max else 0
        lists = self._lists
        for ready in run[:room]:
            due_ms = ready.due_ms
            messages = lists.get(due_ms)
            if messages is None:
                lists[due_ms] = [ready]
                heapq.heappush(self._times_ms, due_ms)
            else:
                messages.append(ready)
            self._bytes += ready.unit.size
        count = min(room, len(run))
        self._count += count
        return count

    def next_due_ms(self) -> float:
        """Return when the first message is due; infinity when there is none."""
        return self._times_ms[0] if self._times_ms else inf

    def take(self, count_max: int) -> list[Ready]:
        """Remove and return messages of the first due time; there must be one."""
        due_ms = self._times_ms[0]
        messages = self._lists[due_ms]
        taken = messages[:count_max]
        if len(taken) == len(messages):
            del self._lists[due_ms]
            heapq.heappop(self._times_ms)
        else:
            del messages[:count_max]
        self._count -= len(taken)
        self._bytes -= sum([ready.unit.size for ready in taken])
        return taken

    def undelivered(self) -> list[Waiting]:
        """Return the units of all messages kept here."""
        return [ready.unit for messages in self._lists.values() for ready in messages]


class TimerDelivery:
    """Delivers for one broker.

    `put_again` is called after a roll, with the queue offset behind the new message.
    """

    def __init__(
        self,
        state: BrokerState,
        slots: OpenSlots,
        put_again: Callable[[int], None],
    ) -> None:
        self._state = state
        self._slots = slots
        self._put_again = put_again
        self.at: Callable[[str], None] = lambda name: None
        """Set by `TimerService.at`."""
        self._heap: list[tuple[int, int, Ready]] = []
        """Due time, a number that tells messages of one time apart, the message."""
        self._numbers = 0
        self._bytes = 0
        self.near = Near(READY_MAX, READY_BYTES_MAX)
        self._paid_ms = 0.0
        """Up to this time the rate is used up."""
        self.delivered_count = 0
        """Messages put into their topics, or rolled, since the start."""

    def has_room(self) -> bool:
        """Whether there is room for another message that is read."""
        return len(self._heap) < READY_MAX and self._bytes < READY_BYTES_MAX

    def ready(self, ready: Ready) -> None:
        """Take a message that was read."""
        self._numbers += 1
        heapq.heappush(self._heap, (ready.due_ms, self._numbers, ready))
        self._bytes += ready.unit.size

    def undelivered(self) -> list[Waiting]:
        """Return the units of messages that are not delivered."""
        return [ready.unit for _, _, ready in self._heap] + self.near.undelivered()

    def next_due_ms(self) -> float:
        """Return when the first message may be delivered; infinity when there is none."""
        due_ms = min(self._heap[0][0] if self._heap else inf, self.near.next_due_ms())
        rate = self._state.config.timer_deliver_rate
        return due_ms if not rate else max(due_ms, ceil(self._paid_ms + 1000 / rate))

    def _allowed(self, now_ms: int) -> int:
        """Return how many messages the rate allows now."""
        rate = self._state.config.timer_deliver_rate
        if not rate:
            return RUN_COUNT
        self._paid_ms = max(self._paid_ms, now_ms - max(BURST_MS, 1000 / rate))
        return min(RUN_COUNT, int((now_ms - self._paid_ms) * rate / 1000))

    def deliver(self, now_ms: int) -> bool:
        """Append one run of messages that are due; return whether the store took all of it."""
        run = self._take_due(now_ms, self._allowed(now_ms))
        if run and self._state.config.timer_deliver_rate:
            self._paid_ms += len(run) * 1000 / self._state.config.timer_deliver_rate
        slots = self._slots
        if slots.recalls:
            due, run = run, []
            for ready in due:
                if slots.is_recalled(ready):
                    slots.done_with([ready.unit])
                else:
                    run.append(ready)
        if not run:
            return True
        self.at("timer.before_put")
        done = self._put(run, now_ms)
        self.at("timer.put")
        slots.done_with([ready.unit for ready in islice(run, done)])
        self.delivered_count += done
        for ready in islice(run, done, None):
            self.ready(ready)
        return done == len(run)

    def _take_due(self, now_ms: int, count_max: int) -> list[Ready]:
        heap, near = self._heap, self.near
        run: list[Ready] = []
        while (room := count_max - len(run)) > 0:
            # A message in the heap was sent before its slot was loaded, so before those in `near`.
            if heap and heap[0][0] <= min(now_ms, near.next_due_ms()):
                ready = heapq.heappop(heap)[2]
                self._bytes -= ready.unit.size
                run.append(ready)
            elif near.next_due_ms() <= now_ms:
                run += near.take(room)
            else:
                break
        return run

    def _put(self, run: list[Ready], now_ms: int) -> int:
        """Put a run in order; return how many of its messages are done with."""
        stamp = b"TIMER_DEQUEUE_MS\x01%d\x02" % now_ms
        done = 0
        while done < len(run):
            host = run[done].born_host
            items: list[PutItem] = []
            for ready in islice(run, done, None):
                if ready.born_host != host:
                    break
                items.append(_stamped(ready.item, ready.enqueued + stamp))
            try:
                results = self._state.store.append(items, born_host=host, store_ms=now_ms)
            except MessageIllegal as error:
                log.error(
                    "a timed message for %s cannot be stored and is skipped: %s",
                    items[0].topic,
                    error,
                )
                done += 1
                continue
            except StoreError as error:
                log.error("timed messages wait, next try in 0.1 s: %s", error)
                break
            for item, result in zip(items, results, strict=False):
                if item.topic == TIMER_TOPIC:
                    self._put_again(result.queue_offset + 1)
            done += len(results)
        return done


def _stamped(item: PutItem, added: bytes) -> PutItem:
    """A copy of an item whose properties go on with what delivery adds."""
    return PutItem(
        item.topic,
        item.queue_id,
        item.body,
        item.properties + added,
        item.flag,
        item.sys_flag,
        item.born_ms,
        item.tags_code,
        item.index_keys,
        item.reconsume_times,
    )
