"""Writes the units in the journal of a dead process to queue files, before the queues are loaded.

Afterwards the queue files, and the ends that the side file states, are as if that process had
written all journaled units to files before it died.  The log is not read; recovery derives from it
the units that the journal lacks.

Units of deleted topics and of expired log files are skipped, and units that are in files already
are not written again.  The cost is that of writing the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.codec.consume_queue import CQ_UNIT, CQ_UNIT_BYTES
from cometmq.store.base.checkpoint import QueueEnd
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.queue.unit_journal import saved_units

if TYPE_CHECKING:
    from cometmq.store.base.checkpoint import SideState
    from cometmq.store.base.disk import Disk
    from cometmq.store.queue.consume_queue import ConsumeQueues
    from cometmq.store.queue.writer import QueueWriter

__all__ = ["file_saved_units"]

_NO_UNITS: Final = QueueEnd(0, 0)


def file_saved_units(
    disk: Disk,
    root: str,
    state: SideState,
    log_min: int,
    queues: ConsumeQueues,
    writer: QueueWriter,
) -> str | None:
    """Write the journaled units to queue files, and update the queues' ends in `state`.

    Args:
        log_min: physical offset at which the log begins.

    Returns None, or why the journal does not continue the files; then nothing was written.
    """
    waiting: dict[tuple[str, int], list[bytes]] = {}
    firsts: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], QueueEnd] = {}
    generation = int(state.heading.get("units_generation", 0))
    for topic, queue_id, first, units in saved_units(disk, root, generation):
        last, size, _ = CQ_UNIT.unpack_from(units, len(units) - CQ_UNIT_BYTES)
        oldest, _, _ = CQ_UNIT.unpack_from(units)
        if last < log_min or oldest < state.floors.get(topic, 0):
            continue
        key = topic, queue_id
        filed_end = (ends.get(key) or state.queues.get(key, _NO_UNITS)).end
        end = first + len(units) // CQ_UNIT_BYTES
        if first > filed_end:
            return f"the unit journal lacks units of {topic}/{queue_id}, from {filed_end} on"
        if end > filed_end:
            firsts.setdefault(key, filed_end)
            waiting.setdefault(key, []).append(units[(filed_end - first) * CQ_UNIT_BYTES :])
            ends[key] = QueueEnd(end, last + size)
    paths = {key: f"{queues.path}/{key[0]}/{key[1]}" for key in waiting}
    for key, path in paths.items():
        position = firsts[key] * CQ_UNIT_BYTES
        position_in_file = position % queues.file_bytes
        # Writing would make the missing file again and hide the loss.
        if position_in_file and not disk.exists(
            f"{path}/{log_file_name(position - position_in_file)}"
        ):
            return f"{path} has lost the file of queue offset {firsts[key]}"
    for key, runs in waiting.items():
        # A temporary queue object: the queues are loaded from their files afterwards.
        writer.write_units(ConsumeQueue(*key, paths[key]), firsts[key], b"".join(runs))
    state.queues.update(ends)
    return None
