"""Timed messages that were sent for a slot that is loaded already: they are delivered unread.

Job: make them ready from what was just put, in order of their time.  It must not deliver.  It is
bounded apart from what is read from the log, so that neither keeps the other from being ready.
"""

from __future__ import annotations

import heapq

from cometmq.broker.timer_fetch import Ready, Waiting, recall_keys
from cometmq.broker.timer_intake import Kept

__all__ = ["Near"]


class Near:
    """Those of one broker; `heap` is read by the service."""

    __slots__ = ("_bytes", "_bytes_max", "_count_max", "heap")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.heap: list[Ready] = []
        self._bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def has_room(self) -> bool:
        """Whether one more is taken; otherwise it has to be read when it is its turn."""
        return len(self.heap) < self._count_max and self._bytes < self._bytes_max

    def push(self, kept: Kept, topic: str, unit: Waiting, enqueued: bytes, number: int) -> None:
        """Take a message as reading it would give it; `enqueued` says when it was placed."""
        _, _, body, raw, flag, sys_flag, born_ms, code, keys = kept.item
        item = (topic, kept.queue_id, body, raw + enqueued, flag, sys_flag, born_ms, code, keys)
        named = recall_keys(topic, keys[0] or "")
        ready = Ready(kept.due_ms, number, unit, item, kept.born_host, 0, named)
        heapq.heappush(self.heap, ready)
        self._bytes += unit.size

    def pop(self) -> Ready:
        """Give the first one away."""
        ready = heapq.heappop(self.heap)
        self._bytes -= ready.unit.size
        return ready
