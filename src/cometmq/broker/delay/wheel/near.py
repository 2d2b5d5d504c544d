"""Timed messages that were sent for a slot that is loaded already: they are delivered unread.

They are kept by the millisecond at which they are due, in the order in which they came.  Their
bound is apart from that of messages read from the log, so that neither kind keeps the other out.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cometmq.broker.delay.wheel.fetch import Ready, Waiting

__all__ = ["Near"]


class Near:
    """The unread messages of one broker."""

    __slots__ = ("_bytes", "_bytes_max", "_count", "_count_max", "_lists", "_times_ms")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._lists: dict[int, list[Ready]] = {}
        self._times_ms: list[int] = []
        """Keys of the dictionary, as a heap."""
        self._count = self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def push(self, run: Sequence[Ready]) -> int:
        """Keep messages from the front of a run while there is room; return how many.

        The others have to be read when it is their turn.
        """
        room = self._count_max - self._count if self._bytes < self._bytes_max else 0
        lists = self._lists
        for ready in run[:room]:
            due_ms = ready.due_ms
            found = lists.get(due_ms)
            if found is None:
                lists[due_ms] = [ready]
                heapq.heappush(self._times_ms, due_ms)
            else:
                found.append(ready)
            self._bytes += ready.unit.size
        taken = min(room, len(run))
        self._count += taken
        return taken

    def next_due_ms(self) -> float:
        """Return when the first message is due; infinity when there is none."""
        return self._times_ms[0] if self._times_ms else inf

    def take(self, count_max: int) -> list[Ready]:
        """Remove and return messages of the first due time; there must be one."""
        due_ms = self._times_ms[0]
        found = self._lists[due_ms]
        taken = found[:count_max]
        if len(taken) == len(found):
            del self._lists[due_ms]
            heapq.heappop(self._times_ms)
        else:
            del found[:count_max]
        self._count -= len(taken)
        self._bytes -= sum([ready.unit.size for ready in taken])
        return taken

    def left(self) -> list[Waiting]:
        """Return the units of all messages kept here."""
        return [ready.unit for found in self._lists.values() for ready in found]
