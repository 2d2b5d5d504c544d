"""Searches in a queue: its first offset that still counts, and offsets by time.

Job: bisect over units and the store times of their records.  It may read from the disk, so what
is not said to be quick belongs into a worker.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import PRE_BLANK_SIZE
from cometmq.codec.stored_message import STORE_TIMESTAMP_POSITION_V4
from cometmq.model.flags import BORN_HOST_V6
from cometmq.store.record_runs import RECORD_MAGICS
from cometmq.store.results import TimeBoundary

if TYPE_CHECKING:
    from cometmq.store.commit_log import CommitLog
    from cometmq.store.consume_queue import ConsumeQueue, ConsumeQueues

__all__ = ["QueueSearch"]

# total, magic, crc, queue id, flag, queue offset, physical offset, sys flag, born ms.
_HEAD: Final = struct.Struct(">iiiiiqqiq")
_LONG: Final = struct.Struct(">q")
_HEAD_TO_STORE_TIME_BYTES: Final = STORE_TIMESTAMP_POSITION_V4 + 12 + 8


class QueueSearch:
    """Bisects the queues of one store."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = log
        self._queues = queues

    def min_of(self, queue: ConsumeQueue) -> int:
        """The queue's first offset whose record the log still has (``correctMinOffset``)."""
        min_physical = self._log.min_offset
        if queue.min_checked_at == min_physical:
            return queue.min
        low, high = queue.min, queue.max
        while low < high:
            middle = (low + high) // 2
            unit = self._queues.unit(queue, middle)
            is_lost = (
                unit is None
                or unit.size == PRE_BLANK_SIZE
                # Zeros are damage in the middle of a queue; they say nothing of its beginning.
                or (unit.physical_offset < min_physical and unit.size > 0)
            )
            if is_lost:
                low = middle + 1
            else:
                high = middle
        queue.min = low
        queue.min_checked_at = min_physical
        return low

    def offset_by_time(self, queue: ConsumeQueue, time_ms: int, boundary: TimeBoundary) -> int:
        """See `MessageStore.queue_offset_by_time`."""
        first, end = self.min_of(queue), queue.visible
        if first >= end:
            return end
        # First offset whose store time is >= (LOWER) or > (UPPER) the wanted one.
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            at = self.time_at(queue, middle)
            if at < time_ms or (boundary is TimeBoundary.UPPER and at == time_ms):
                low = middle + 1
            else:
                high = middle
        if boundary is TimeBoundary.LOWER:
            return low
        return max(low - 1, first)

    def time_at(self, queue: ConsumeQueue, queue_offset: int) -> int:
        unit = self._queues.unit(queue, queue_offset)
        return -1 if unit is None or not unit.is_valid else self.store_time(unit.physical_offset)

    def store_time(self, physical_offset: int) -> int:
        """Store time of the record at a physical offset; -1 when there is none (may block)."""
        head = self._log.read(physical_offset, _HEAD_TO_STORE_TIME_BYTES)
        if len(head) < _HEAD.size:
            return -1
        _, magic, _, _, _, _, own_offset, sys_flag, _ = _HEAD.unpack_from(head, 0)
        if magic not in RECORD_MAGICS or own_offset != physical_offset:
            return -1
        place = STORE_TIMESTAMP_POSITION_V4 + (12 if sys_flag & BORN_HOST_V6 else 0)
        if len(head) < place + 8:
            return -1
        return int(_LONG.unpack_from(head, place)[0])
