"""Delivers timed messages: what is ready, in order of its time, into its own topic.

Holds messages that were read (`ready`) and messages that were kept unread (`near`), appends those
that are due in runs, and keeps them while the store refuses them.
"""

from __future__ import annotations

import heapq
import logging
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Final

from cometmq.broker.delay.wheel.near import Near
from cometmq.errors import MessageIllegal, StoreError
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.results import PutItem

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.base.state import BrokerState
    from cometmq.broker.delay.wheel.fetch import Ready, Waiting
    from cometmq.broker.delay.wheel.open_slots import OpenSlots

__all__ = ["TimerDelivery"]

log = logging.getLogger("cometmq.broker")

RUN_COUNT: Final = 128
"""Messages delivered in one turn of the loop."""
READY_MAX: Final = 16_384
READY_BYTES_MAX: Final = 32 << 20


class TimerDelivery:
    """Delivers for one broker; calls `put_again(end)` with the timer topic's end after a roll."""

    def __init__(
        self, state: BrokerState, slots: OpenSlots, put_again: Callable[[int], None]
    ) -> None:
        self._state = state
        self._slots = slots
        self._put_again = put_again
        self._heap: list[tuple[int, int, Ready]] = []
        """Due time, a number that no other has, the message."""
        self._numbers = 0
        self._bytes = 0
        self.near = Near(READY_MAX, READY_BYTES_MAX)
        self.at: Callable[[str], None] = lambda name: None
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

    def left(self) -> list[Waiting]:
        """Return the units of messages that are not delivered."""
        return [ready.unit for _, _, ready in self._heap] + self.near.left()

    def next_due_ms(self) -> float:
        """Return when the first message is due; infinity when there is none."""
        return min(self._heap[0][0] if self._heap else inf, self.near.next_due_ms())

    def deliver(self, now_ms: int) -> bool:
        """Append one run of messages that are due; return whether the store took all of it."""
        run = self._take_due(now_ms)
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

    def _take_due(self, now_ms: int) -> list[Ready]:
        heap, near = self._heap, self.near
        run: list[Ready] = []
        while (room := RUN_COUNT - len(run)) > 0:
            # What was read was sent before its slot was loaded, so it goes before what was kept.
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
