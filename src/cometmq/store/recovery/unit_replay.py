"""What the unit journal holds goes into queue files, before the queues are loaded.

Job: after a process died, make queue files and what the side file says of them as if all units in
its journal had been brought into files just before.  It must not look at the log: what the
journal lacks is derived from it afterwards, as always.

Units are passed over that a deleted topic or a removed queue left in the journal; what is in
files already is not written again.  No record is looked at one by one: this costs what it costs
to write the files.
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
    """Write the journaled units and move the ends in `state`.

    Returns a sentence when journal and files do not meet; nothing was written then.  `log_min` is
    the begin of the log.
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
        known = (ends.get(key) or state.queues.get(key, _NO_UNITS)).end
        end = first + len(units) // CQ_UNIT_BYTES
        if first > known:
            return f"the unit journal lacks units of {topic}/{queue_id}, from {known} on"
        if end > known:
            firsts.setdefault(key, known)
            waiting.setdefault(key, []).append(units[(known - first) * CQ_UNIT_BYTES :])
            ends[key] = QueueEnd(end, last + size)
    paths = {key: f"{queues.path}/{key[0]}/{key[1]}" for key in waiting}
    for key, path in paths.items():
        position = firsts[key] * CQ_UNIT_BYTES
        place = position % queues.file_bytes
        # Writing would make a file that is gone anew, and nobody would notice.
        if place and not disk.exists(f"{path}/{log_file_name(position - place)}"):
            return f"{path} has lost the file of queue offset {firsts[key]}"
    for key, found in waiting.items():
        # Not one of the queues yet: they are loaded from their files next.
        writer.write_units(ConsumeQueue(*key, paths[key]), firsts[key], b"".join(found))
    state.queues.update(ends)
    return None
