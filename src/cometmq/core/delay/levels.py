"""The delay levels of ``messageDelayLevel`` and the delivery times that follow from them.

The module reads neither the store nor the clock.

A message of level n (from 1) is delayed by the n-th time of the text.  Until then it is in queue
n-1 of SCHEDULE_TOPIC_XXXX, where its tag code is the delivery time (ScheduleMessageService,
RocketMQ 5.4).
"""

from __future__ import annotations

from typing import Final

from cometmq.errors import ConfigError

__all__ = ["DEFAULT_DELAY_LEVELS", "DelayLevels"]

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class DelayLevels:
    """The table of delays; level numbers begin at 1.

    Raises:
        ConfigError: the text is empty, or a part of it is not a number with a unit.
    """

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        self.text = text
        self.delays_ms: tuple[int, ...] = tuple(_parse(item, text) for item in text.split())
        if not self.delays_ms:
            raise ConfigError("messageDelayLevel is empty; write for example 1s 5s 1m 2h")

    @property
    def max_level(self) -> int:
        """The highest level."""
        return len(self.delays_ms)

    def clamp(self, level: int) -> int:
        """The level that a request for ``level`` gets, at most the highest."""
        return min(level, len(self.delays_ms))

    def delay_ms(self, level: int) -> int:
        """The delay of a level, in milliseconds."""
        return self.delays_ms[level - 1]

    def deliver_time_ms(self, level: int, store_ms: int) -> int:
        """The time at which a message stored at ``store_ms`` is due, in ms since 1970."""
        return store_ms + self.delays_ms[level - 1]

    def table(self) -> dict[int, int]:
        """The delay of each level, in milliseconds."""
        return dict(enumerate(self.delays_ms, 1))

    def due_in_ms(self, level: int, deliver_time_ms: int, now_ms: int) -> int:
        """Milliseconds until a message is due, at most the level's own delay.

        A delivery time further away than the delay means that the clock moved back; the message
        is then due at once (correctDeliverTimestamp).
        """
        wait_ms = deliver_time_ms - now_ms
        if wait_ms > self.delays_ms[level - 1]:
            return 0
        return max(0, wait_ms)


def _parse(item: str, text: str) -> int:
    number, unit = item[:-1], item[-1:].lower()
    if unit not in _UNIT_MS or not number.isascii() or not number.isdigit():
        raise ConfigError(
            f"messageDelayLevel={text} is not accepted: {item!r} is not a number with unit "
            "s, m, h or d; write for example 1s 5s 1m 2h"
        )
    return int(number) * _UNIT_MS[unit]
