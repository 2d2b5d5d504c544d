"""Computes when a timed message is due, and to which slot of the wheel it belongs.

A timed message has three times (``HookUtils.transformTimerMessage``, RocketMQ 5.4.0)::

    due_ms   when it is delivered: the time that the producer asked for, in milliseconds
    out_ms   TIMER_OUT_MS, its slot: the last multiple of the precision *before* due_ms
    slot_ms  the slot of its unit: out_ms, or an earlier slot, from which it is rolled (put again)

Java delivers slot T when the clock reaches T + precision.  So out_ms < due_ms <= out_ms +
precision; where due_ms is unknown, this maximum is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.codec.properties import find_property
from cometmq.codec.timer import TIMER_DEFAULT, TIMER_ROLL
from cometmq.codec.timer_moved import DUE
from cometmq.model import properties as prop

__all__ = [
    "SLOTS_AHEAD",
    "BadTimer",
    "TimerRules",
    "asked_due_ms",
    "due_ms_of",
    "has_timer",
    "precision_of",
]

SLOTS_AHEAD: Final = 604_800
"""Half of the wheel's slots: seven days of seconds (TIMER_WHEEL_TTL_DAY)."""
SLOTS_BLANK: Final = 60
"""Slots a message stays away from the far end of the wheel (TIMER_BLANK_SLOTS)."""
PRECISION_MS_MAX: Final = 1000
_DELAY_SEC: Final = prop.TIMER_DELAY_SEC
_DELAY_MS: Final = prop.TIMER_DELAY_MS
_DELIVER_MS: Final = prop.TIMER_DELIVER_MS


class BadTimer(Exception):
    """A timer property is not a number; the text names it."""


def precision_of(asked_ms: int) -> int:
    """Return the precision that a value of ``timerPrecisionMs`` results in (MessageStoreConfig)."""
    for below, precision_ms in ((200, 100), (500, 200), (1000, 500)):
        if asked_ms < below:
            return precision_ms
    return 1000


def has_timer(properties: Mapping[str, str]) -> bool:
    """Return whether properties ask for an exact time and the message has not waited yet."""
    return (
        _DELIVER_MS in properties or _DELAY_SEC in properties or _DELAY_MS in properties
    ) and prop.TIMER_OUT_MS not in properties


def asked_due_ms(properties: Mapping[str, str], now_ms: int) -> int:
    """Return when a message is due for whose properties `has_timer` is true.

    Raises:
        BadTimer: the property that counts is not a number.
    """
    for name, scale in ((_DELAY_SEC, 1000), (_DELAY_MS, 1), (_DELIVER_MS, 0)):
        text = properties.get(name)
        if text is None:
            continue
        try:
            value = int(text)
        except ValueError:
            raise BadTimer(f"property {name} is {text!r:.50}, expected a number") from None
        return now_ms + value * scale if scale else value
    raise BadTimer("no timer property is there")


@dataclass(frozen=True, slots=True)
class TimerRules:
    """The settings that decide about slots."""

    precision_ms: int = 1000
    roll_window_slots: int = 172_800

    @property
    def window_ms(self) -> int:
        """How far ahead a unit may be; a message that is due later is rolled."""
        slots = self.roll_window_slots
        if not 2 <= slots <= SLOTS_AHEAD - SLOTS_BLANK:
            slots = SLOTS_AHEAD - SLOTS_BLANK
        return slots * self.precision_ms

    def floor(self, time_ms: int) -> int:
        """Return the slot that contains a time."""
        return time_ms // self.precision_ms * self.precision_ms

    def out_ms(self, due_ms: int) -> int:
        """Return the slot before a due time, never the slot of the due time."""
        return (due_ms - 1) // self.precision_ms * self.precision_ms

    def slot_of(self, out_ms: int, write_ms: int) -> tuple[int, int]:
        """Return slot and magic bits of a unit written at `write_ms` (TimerMessageStore.doEnqueue).

        `out_ms` need not be a multiple of this precision.
        """
        out_ms = self.floor(out_ms)
        excess_ms = out_ms - write_ms - self.window_ms
        if excess_ms < 0:
            return out_ms, TIMER_DEFAULT
        ahead_ms = self.window_ms
        if excess_ms < self.window_ms // self.precision_ms // 3 * self.precision_ms:
            # At half of the window, the remainder is far enough ahead for the next roll.
            ahead_ms = ahead_ms // self.precision_ms // 2 * self.precision_ms
        return write_ms + ahead_ms, TIMER_DEFAULT | TIMER_ROLL


def due_ms_of(raw_properties: bytes, out_ms: int, store_ms: int, precision_ms: int) -> int:
    """Return when a message of slot `out_ms` is due, by its properties in the timer topic.

    A delay counts from the store time, which is too late after the message was rolled.  So a time
    outside the slot is ignored, and the end of the slot is used, which is never too early.
    """
    # The slot may come from a broker with the coarsest precision.
    last_ms = out_ms + (precision_ms if out_ms % PRECISION_MS_MAX else PRECISION_MS_MAX)
    exact = find_property(raw_properties, DUE)
    if exact is not None and _is_number(exact) and out_ms < int(exact) <= last_ms:
        return int(exact)
    for name, scale in ((b"TIMER_DELAY_SEC", 1000), (b"TIMER_DELAY_MS", 1)):
        text = find_property(raw_properties, name)
        if text is not None:
            # A Java broker computes the due time before the store time, so this is not too early.
            due_ms = store_ms + int(text) * scale if _is_number(text) else last_ms
            if out_ms < due_ms <= last_ms:
                return due_ms
    text = find_property(raw_properties, b"TIMER_DELIVER_MS")
    if text is not None and _is_number(text) and out_ms < int(text) <= last_ms:
        return int(text)
    return last_ms


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) < 20
