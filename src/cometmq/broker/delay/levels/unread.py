"""Keeps delayed messages that were just stored in memory, so that their delivery reads nothing.

For each delay level, it keeps runs of messages as they will be appended to their own topics.
Nothing depends on it: a message that is not here is read from the log.

It keeps at most `UNREAD_BYTES_MAX`, and only messages that wait for at most `UNREAD_DELAY_MS_MAX`:
longer ones would keep the others out.  When it is full, it drops messages from the end of the level
with the longest delay: those are due last.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.results import PutItem

__all__ = ["UNREAD_DELAY_MS_MAX", "UnreadMessages", "UnreadRun"]

UNREAD_BYTES_MAX: Final = 8 << 20
UNREAD_DELAY_MS_MAX: Final = 60_000
_OBJECT_BYTES: Final = 512
"""Memory of the objects of one message, beside its body and properties."""


class UnreadRun(msgspec.Struct, gc=False):
    """Messages of a level with queue offsets in a row, stored in one millisecond."""

    first_offset: int
    """Queue offset of the first message, in the queue of the level."""
    store_ms: int
    born_host: bytes
    items: list[PutItem]
    """The messages as they are appended to their own topics."""
    byte_count: int = 0


class UnreadMessages:
    """The unread messages of one broker; `delay_ms` says how long a level waits."""

    def __init__(self, delay_ms: Callable[[int], int]) -> None:
        self._delay_ms = delay_ms
        self._runs: dict[int, deque[UnreadRun]] = {}
        self._bytes = 0

    def add(self, level: int, run: UnreadRun) -> None:
        """Keep messages that were just stored, if there is room."""
        if self._delay_ms(level) > UNREAD_DELAY_MS_MAX:
            return
        run.byte_count = sum(
            [len(item.body) + len(item.properties) + _OBJECT_BYTES for item in run.items]
        )
        self._runs.setdefault(level, deque()).append(run)
        self._bytes += run.byte_count
        while self._bytes > UNREAD_BYTES_MAX:
            longest = max((level for level, runs in self._runs.items() if runs), key=self._delay_ms)
            self._bytes -= self._runs[longest].pop().byte_count

    def at(self, level: int, queue_offset: int) -> UnreadRun | None:
        """Return the run that has this message, and drop all before it."""
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
