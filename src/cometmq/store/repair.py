"""Finds the record that a wrong consume-queue unit should point at.

Job: given (queue, queue offset), walk the log between the records of the neighbouring units.
It only reads; the caller corrects the unit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import PRE_BLANK_SIZE, CqUnit
from cometmq.store.dispatch import queue_tags_code
from cometmq.store.log_reader import LogReader

if TYPE_CHECKING:
    from cometmq.store.commit_log import CommitLog
    from cometmq.store.consume_queue import ConsumeQueue, ConsumeQueues

__all__ = ["find_record"]

# A repair runs on the loop: this many bytes of log are searched at most (about 50 ms).
_SEARCH_BYTES_MAX: Final = 16 << 20
# Neighbours that may be wrong as well.
_NEIGHBOURS_MAX: Final = 16


def find_record(
    log: CommitLog,
    queues: ConsumeQueues,
    queue: ConsumeQueue,
    queue_offset: int,
    confirmed_offset: int,
    delays_ms: tuple[int, ...],
) -> CqUnit | None:
    """The unit that belongs at a queue offset; None when its record is damaged or not found."""
    start = _end_of_previous(log, queues, queue, queue_offset)
    end = min(confirmed_offset, start + _SEARCH_BYTES_MAX)
    reader = LogReader(log, start, end)
    while (record := reader.next_record()) is not None:
        if record.queue_offset > queue_offset and record.topic == queue.topic.encode():
            if record.queue_id == queue.queue_id:
                return None
            continue
        if (
            record.queue_offset == queue_offset
            and record.queue_id == queue.queue_id
            and record.topic == queue.topic.encode()
            and record.is_queued
        ):
            code = queue_tags_code(record.topic, record.properties, record.store_ms, delays_ms)
            return CqUnit(record.physical_offset, record.size, code)
    return None


def _end_of_previous(
    log: CommitLog, queues: ConsumeQueues, queue: ConsumeQueue, queue_offset: int
) -> int:
    """End of the nearest earlier record whose unit holds, else the beginning of the log."""
    for earlier in range(queue_offset - 1, max(queue.min, queue_offset - _NEIGHBOURS_MAX) - 1, -1):
        unit = queues.unit(queue, earlier)
        if unit is None or not unit.is_valid or unit.size == PRE_BLANK_SIZE:
            continue
        reader = LogReader(log, unit.physical_offset, unit.physical_offset + unit.size)
        record = reader.next_record()
        if record is not None and record.size == unit.size:
            return unit.physical_offset + unit.size
    return log.min_offset
