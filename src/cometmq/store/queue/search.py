"""Searches in a queue: its first offset whose record exists, and offsets by time.

A search bisects over the units, or over the store times of their records.  Every method but
`known_min` may block, so it belongs in a worker.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES, PRE_BLANK_SIZE, CqUnit
from cometmq.codec.stored_message import STORE_TIMESTAMP_POSITION_V4
from cometmq.model.flags import BORN_HOST_V6
from cometmq.model.offsets import PhysicalOffset, QueueOffset
from cometmq.store.base.results import TimeBoundary
from cometmq.store.log.record_runs import RECORD_MAGICS

if TYPE_CHECKING:
    from cometmq.store.log.commit_log import CommitLog
    from cometmq.store.queue.consume_queue import ConsumeQueue, ConsumeQueues

__all__ = ["QueueSearch"]

# total, magic, crc, queue id, flag, queue offset, physical offset, sys flag, born ms.
_HEAD: Final = struct.Struct(">iiiiiqqiq")
_LONG: Final = struct.Struct(">q")
_NEVER_MS: Final = 1 << 62
_HEAD_TO_STORE_TIME_BYTES: Final = STORE_TIMESTAMP_POSITION_V4 + 12 + 8


class QueueSearch:
    """Bisects the queues of one store."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = log
        self._queues = queues

    def known_min(self, queue: ConsumeQueue) -> int | None:
        """As `min_of`, without blocking; None when a worker has to search.

        Until the worker has, `queue.min` may be too small, never too large, and readers skip
        expired messages.
        """
        min_physical = self._log.min_offset
        if queue.min_checked_at != min_physical:
            if queue.min < queue.max:
                raw = self._queues.units(queue, queue.min, 1, may_block=False)
                if raw is None or len(raw) < CQ_UNIT_BYTES:
                    return None
                if self._is_expired(CqUnit._make(CQ_UNIT.unpack(raw)), min_physical):
                    return None
            queue.min_checked_at = min_physical
        return queue.min

    def min_of(self, queue: ConsumeQueue) -> int:
        """Return the queue's first offset whose record the log has (``correctMinOffset``).

        Blocks; safe in a worker.
        """
        min_physical = self._log.min_offset
        if queue.min_checked_at == min_physical:
            return queue.min
        low, high = queue.min, queue.max
        while low < high:
            middle = (low + high) // 2
            if self._is_before(queue, QueueOffset(middle), min_physical):
                low = middle + 1
            else:
                high = middle
        # Another thread may have found a later offset meanwhile.
        queue.min = max(low, queue.min)
        queue.min_checked_at = min_physical
        return queue.min

    def _is_before(self, queue: ConsumeQueue, queue_offset: QueueOffset, min_physical: int) -> bool:
        """Return whether a queue offset lies before the log's begin.

        A disk may have changed its unit, and all messages before it would be hidden: a unit that
        leads before the one of the message before it says nothing.
        """
        unit = self._queues.unit(queue, queue_offset)
        if not self._is_expired(unit, min_physical):
            return False
        if unit is None or unit.size == PRE_BLANK_SIZE or queue_offset == 0:
            return True
        before = self._queues.unit(queue, QueueOffset(queue_offset - 1))
        return (
            before is None or not before.is_valid or before.physical_offset < unit.physical_offset
        )

    @staticmethod
    def _is_expired(unit: CqUnit | None, min_physical: int) -> bool:
        """Return whether a unit is missing, or leads to a record before the log's begin."""
        return (
            unit is None
            or unit.size == PRE_BLANK_SIZE
            # Zeros in the middle of a queue are damage; they say nothing about its beginning.
            or (unit.physical_offset < min_physical and unit.size > 0)
        )

    def end_below(self, queue: ConsumeQueue, physical_offset: int) -> int:
        """Return the first queue offset whose record does not begin below a physical offset."""
        low, high = queue.min, queue.max
        while low < high:
            middle = (low + high) // 2
            unit = self._queues.unit(queue, QueueOffset(middle))
            if unit is None or unit.size <= 0 or unit.physical_offset < physical_offset:
                # A missing or pre-blank unit stands for a record that has expired.
                low = middle + 1
            else:
                high = middle
        return low

    def offset_by_time(
        self, queue: ConsumeQueue, time_ms: int, boundary: TimeBoundary, end: int
    ) -> int:
        """Search the offsets below `end`; see `MessageStore.queue_offset_by_time`."""
        first = self.min_of(queue)
        if first >= end:
            return end
        # First offset whose store time is >= (LOWER) or > (UPPER) the wanted one.
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            store_ms = self._time_from(queue, middle, high)
            if store_ms < time_ms or (boundary is TimeBoundary.UPPER and store_ms == time_ms):
                low = middle + 1
            else:
                high = middle
        if boundary is TimeBoundary.LOWER:
            return low
        return max(low - 1, first)

    def _time_from(self, queue: ConsumeQueue, queue_offset: int, end: int) -> int:
        """Return the store time at a queue offset, or of the next message that can be read.

        A message whose unit or record a disk has changed is not older than that one, so a search
        does not pass over it.  Without a message below `end` the time is the end of all times.
        """
        for offset in range(queue_offset, end):
            store_ms = self.time_at(queue, QueueOffset(offset))
            if store_ms >= 0:
                return store_ms
        return _NEVER_MS

    def time_at(self, queue: ConsumeQueue, queue_offset: QueueOffset) -> int:
        """Return the store time of the message at a queue offset; -1 without one (may block)."""
        unit = self._queues.unit(queue, queue_offset)
        return -1 if unit is None or not unit.is_valid else self.store_time(unit.physical_offset)

    def store_time(self, physical_offset: PhysicalOffset) -> int:
        """Return the store time of the record at a physical offset; -1 without one (may block)."""
        head = self._log.read(physical_offset, _HEAD_TO_STORE_TIME_BYTES)
        if len(head) < _HEAD.size:
            return -1
        _, magic, _, _, _, _, own_offset, sys_flag, _ = _HEAD.unpack_from(head, 0)
        if magic not in RECORD_MAGICS or own_offset != physical_offset:
            return -1
        time_position = STORE_TIMESTAMP_POSITION_V4 + (12 if sys_flag & BORN_HOST_V6 else 0)
        if len(head) < time_position + 8:
            return -1
        return int(_LONG.unpack_from(head, time_position)[0])
