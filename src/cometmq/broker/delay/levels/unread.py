"""Delayed messages that were just stored, until they are due: they are delivered unread.

For each delay level, runs of messages are kept as they will be appended to their own topics.
Nothing depends on it: a message that is not here is read from the log.

Bounded: `KEPT_BYTES_MAX` in all, and only levels that wait for at most `KEPT_DELAY_MS_MAX`, since
what waits longer would keep the others out.  What is too much goes from the end of the level with
the longest delay: the messages that are due last.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.results import PutItem

__all__ = ["KEPT_DELAY_MS_MAX", "DelayKept", "KeptRun"]

KEPT_BYTES_MAX: Final = 8 << 20
KEPT_DELAY_MS_MAX: Final = 60_000
_OBJECT_BYTES: Final = 512
"""What the objects of one message take beside its body and properties."""


class KeptRun(msgspec.Struct, gc=False):
    """Messages of a level with queue offsets in a row, stored in one millisecond."""

    first_offset: int
    """Queue offset of the first one in the queue of the level."""
    store_ms: int
    born_host: bytes
    items: list[PutItem]
    """For their own topics."""
    byte_count: int = 0


class DelayKept:
    """The unread messages of one broker; `delay_ms` says how long a level waits."""

    def __init__(self, delay_ms: Callable[[int], int]) -> None:
        self._delay_ms = delay_ms
        self._runs: dict[int, deque[KeptRun]] = {}
        self._bytes = 0

    def add(self, level: int, run: KeptRun) -> None:
        """Keep what was just stored, if there is room."""
        if self._delay_ms(level) > KEPT_DELAY_MS_MAX:
            return
        run.byte_count = sum(
            [len(item.body) + len(item.properties) + _OBJECT_BYTES for item in run.items]
        )
        self._runs.setdefault(level, deque()).append(run)
        self._bytes += run.byte_count
        while self._bytes > KEPT_BYTES_MAX:
            longest = max((one for one in self._runs if self._runs[one]), key=self._delay_ms)
            self._bytes -= self._runs[longest].pop().byte_count

    def at(self, level: int, queue_offset: int) -> KeptRun | None:
        """The run that holds this message; what was before it is let go of."""
        runs = self._runs.get(level)
        while runs:
            run = runs[0]
            if queue_offset < run.first_offset:
                return None
            if queue_offset < run.first_offset + len(run.items):
                return run
            runs.popleft()
            self._bytes -= run.byte_count
        return None
