"""Stores each message of a batch that asks for a time where it waits, as if it were sent alone.

RocketMQ's broker reads only the properties of the batch: it refuses a delay level there, and
delivers messages that ask for a time of their own at once.  This broker keeps the time of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.delay.levels.delayed_send import DelayedKind
from cometmq.broker.delay.levels.schedule import ScheduleService
from cometmq.broker.delay.wheel.intake import Fresh
from cometmq.broker.delay.wheel.service import TimerService
from cometmq.broker.delay.wheel.timed_send import TimedKind
from cometmq.broker.send.batch_keys import keys_of_text, may_wait
from cometmq.broker.send.kinds import Destination, real_entries
from cometmq.codec.java_hash import tags_code
from cometmq.codec.properties import (
    PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
    ensure_trailing_separator,
)
from cometmq.codec.timer_moved import without_own
from cometmq.errors import ResponseCode
from cometmq.model import properties as prop
from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.store.base.results import BatchItem, IndexKeys, PutResult
from cometmq.store.timer.timer_slots import (
    BadTimer,
    asked_due_ms,
    has_timer,
)

__all__ = ["AT_ONCE", "TIMED", "Item", "WaitingItems", "wait_of"]

AT_ONCE: Final = 0
TIMED: Final = -1
"""How a message waits: these two, or its delay level as a number from 1 on."""
_GROUP_COUNT: Final = 1024
ADDED_BYTES_MAX: Final = 600
"""The most that waiting and delivery add to the properties: topic, queue, times and rolls."""
_TIMER_NAMES: Final = (prop.TIMER_DELAY_SEC, prop.TIMER_DELAY_MS, prop.TIMER_DELIVER_MS)

Item = tuple[int, bytes, bytes]
"""Flag, body and properties of a message in a batch."""


def wait_of(properties: bytes, now_ms: int) -> int:
    """Return how an accepted message waits: a delay level, `TIMED` or `AT_ONCE`."""
    if not may_wait(properties):
        return AT_ONCE
    names = decode_properties(properties)
    try:
        level = int(names.get(prop.DELAY, "0"))
    except ValueError:
        level = 0
    if level > 0:
        return level
    return TIMED if has_timer(names) and _due_ms(names, now_ms) > now_ms else AT_ONCE


class WaitingItems:
    """Puts the waiting messages of batches for one broker."""

    def __init__(
        self,
        state: BrokerState,
        delayed: DelayedKind,
        timed: TimedKind,
        schedule: ScheduleService,
        timers: TimerService | None,
    ) -> None:
        self._state = state
        self._delayed = delayed
        self._timed = timed
        self._schedule = schedule
        self._timers = timers

    def check_batch(self, properties: dict[str, str]) -> None:
        """Check the properties of a batch itself: it cannot wait as a whole.

        Raises:
            Refusal: it asks for a time.
        """
        if self._delayed.level_of(properties) or has_timer(properties):
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: a batch has no time of its own; give the property to "
                "each message in it",
            )

    def check(self, items: Sequence[Item], now_ms: int, whole: str) -> list[int]:
        """Return how each message waits.

        `whole` is what a text calls the messages together: "batch".

        Raises:
            Refusal: a message asks for something it cannot have; the text has its number.
        """
        return [
            self._wait_of(number, properties, now_ms, whole) if may_wait(properties) else AT_ONCE
            for number, (_, _, properties) in enumerate(items)
        ]

    def _wait_of(self, number: int, properties: bytes, now_ms: int, whole: str) -> int:
        names = decode_properties(properties)
        try:
            if prop.TIMER_DEL_UNIQKEY in names:
                raise Refusal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    "the message is illegal: it recalls another one; recalls travel alone",
                )
            level = self._delayed.level_of(names)
            wait = level or AT_ONCE
            if not level and has_timer(names):
                out_ms = self._timed.slot_of(Destination("", 0, names), now_ms)
                wait = AT_ONCE if out_ms is None else TIMED
            if len(properties) + ADDED_BYTES_MAX > PROPERTIES_BYTES_MAX:
                raise Refusal(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"the message is illegal: its properties have {len(properties)} bytes, "
                    f"{PROPERTIES_BYTES_MAX - ADDED_BYTES_MAX} are allowed when it waits",
                )
        except Refusal as refusal:
            raise Refusal(
                refusal.code, f"message {number} of the {whole}: {refusal.remark}"
            ) from None
        return wait

    def queue_of(self, wait: int) -> tuple[str, int]:
        """Return the topic and the queue in which messages wait."""
        if wait == TIMED:
            return TIMER_TOPIC, 0
        return SCHEDULE_TOPIC, self._state.delay.clamp(wait) - 1

    def put_all(
        self, topic: str, queue_id: int, items: Sequence[Item], now_ms: int, **how: Any
    ) -> PutResult:
        """Put the messages of a batch, each where it waits, or into the queue.

        Messages that wait alike are put together and in order, all of them or none.  If the disk
        fills up between two such groups, the later ones are not stored and the whole send fails.
        The result has the queue offset of the first message, in whichever queue that is.

        Raises:
            Refusal: a message cannot wait as it asks; nothing was stored.
            StoreError: as `MessageStore.put_batch`.
        """
        waits = self.check(items, now_ms, "batch")
        physical_offsets = [0] * len(items)
        first = end = 0
        for wait in dict.fromkeys(waits):
            numbers = [number for number, other in enumerate(waits) if other == wait]
            for begin in range(0, len(numbers), _GROUP_COUNT):
                group = numbers[begin : begin + _GROUP_COUNT]
                result = self.put(
                    topic, queue_id, wait, [items[number] for number in group], now_ms, **how
                )
                for number, offset in zip(group, result.physical_offsets, strict=True):
                    physical_offsets[number] = offset
                if group[0] == 0:
                    first = result.queue_offset
                end = result.end_offset
        return PutResult(physical_offsets[0], first, end, tuple(physical_offsets))

    def put(
        self, topic: str, queue_id: int, wait: int, items: Sequence[Item], now_ms: int, **how: Any
    ) -> PutResult:
        """Put messages for a queue where they wait, all of them or none.  A delay counts from now.

        `how` are further arguments of `MessageStore.put_batch`, which may raise.
        """
        if wait == AT_ONCE:
            plain = [BatchItem(*item, *_keys(item[2])) for item in items]
            return self._state.store.put_batch(topic, queue_id, plain, store_ms=now_ms, **how)
        waiting: list[BatchItem] = []
        out_times_ms: list[int] = []
        real = real_entries(topic, queue_id)
        level = 0 if wait == TIMED else self._state.delay.clamp(wait)
        for flag, body, properties in items:
            names = decode_properties(properties)
            code, keys = _keys(properties)
            if level:
                for name in _TIMER_NAMES:
                    names.pop(name, None)
                names[prop.DELAY] = str(level)
                raw = encode_properties(names) + real
                code = self._state.delay.deliver_time_ms(level, now_ms)
            else:
                out_ms = self._timed.out_ms(_due_ms(names, now_ms))
                out_times_ms.append(out_ms)
                raw = ensure_trailing_separator(without_own(properties))
                raw += b"TIMER_OUT_MS\x01%d\x02" % out_ms + real
            waiting.append(BatchItem(flag, body, raw, code, keys))
        target, target_id = self.queue_of(wait)
        result = self._state.store.put_batch(target, target_id, waiting, store_ms=now_ms, **how)
        if level:
            self._schedule.added(level, result.queue_offset + len(items) - 1, now_ms)
        elif self._timers is not None:
            # With timers switched off, the messages wait in the topic until they are on again.
            ends = (*result.physical_offsets, result.end_offset)
            self._timers.added(
                [
                    Fresh(result.queue_offset + number, start, end - start, out_ms, topic)
                    for number, (out_ms, (start, end)) in enumerate(
                        zip(out_times_ms, pairwise(ends), strict=True)
                    )
                ]
            )
        return result


def _due_ms(names: dict[str, str], now_ms: int) -> int:
    try:
        return max(now_ms, asked_due_ms(names, now_ms))
    except BadTimer:
        # The property was a number when the message was accepted.
        return now_ms


def _keys(properties: bytes) -> tuple[int, IndexKeys]:
    keys = keys_of_text(properties.decode("utf-8", "replace"))
    return tags_code(keys[2]), keys
