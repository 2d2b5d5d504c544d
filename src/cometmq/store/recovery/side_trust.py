"""Decides whether recovery may use the side file of a store (base/checkpoint.py).

The side file fits the store if three things are true: it was written by the process that left
`abort`, or by a clean stop; `checkpoint` has the time that it states, which a Java broker changes;
and the log has the marked record with the same head.  The last unit of each queue is compared
later, when the queues are loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.model.offsets import PhysicalOffset
from cometmq.store.base.checkpoint import (
    FINGERPRINT_BYTES,
    SIDE_FILE_NAME,
    SideState,
    fingerprint,
    load_side_file,
)

if TYPE_CHECKING:
    from cometmq.codec.checkpoint import Checkpoint
    from cometmq.store.base.disk import Disk
    from cometmq.store.log.commit_log import CommitLog

__all__ = ["SideTrust", "trust_side_file"]

_LONG_MAX: Final = (1 << 63) - 1


class SideTrust(NamedTuple):
    """What recovery may use of a side file."""

    state: SideState | None
    """The side file's content if it fits the store, else None."""
    reason: str = ""
    """Why it does not fit."""
    is_cache_whole: bool = False
    """Whether the page cache still has all that its writer wrote, also where it does not fit."""
    flushed_max: int = _LONG_MAX
    """The log was not flushed beyond this physical offset."""


def trust_side_file(
    disk: Disk,
    root: str,
    log: CommitLog,
    queue_file_bytes: int,
    abort: str | None,
    checkpoint: Checkpoint,
    *,
    is_unsynced: bool,
) -> SideTrust:
    """Read the side file and decide whether it fits the store; the log's files are open.

    Args:
        abort: the content of the crash marker; None when there is none.
        is_unsynced: whether a sync of the earlier process has failed.
    """
    state = load_side_file(disk, f"{root}/{SIDE_FILE_NAME}")
    if isinstance(state, str):
        return SideTrust(None, state)
    heading, now = state.heading, state.progress
    boot_id = disk.boot_id()
    # After a failed sync the page cache may have dropped pages that it could not write.
    is_same_boot = not is_unsynced and bool(boot_id) and heading.get("boot_id") == boot_id
    if now.is_clean:
        if abort is not None:
            return SideTrust(None, "another process crashed here after our clean stop")
    elif abort is None or abort.strip() != str(heading.get("process_id")):
        return SideTrust(None, "another process wrote here after us")
    has_time = checkpoint.physic_timestamp_ms in {now.physic_ms, state.previous_physic_ms}
    # A power cut may take the last writes of one of the two files only.
    if not has_time and (now.is_clean or is_same_boot):
        return SideTrust(None, "another process moved the checkpoint after us")
    fault = _misfit(state, log, queue_file_bytes)
    return SideTrust(None if fault else state, fault, is_same_boot, now.flushed)


def _misfit(state: SideState, log: CommitLog, queue_file_bytes: int) -> str:
    """Return how the log contradicts the side file, "" when it does not."""
    heading, now = state.heading, state.progress
    sizes = (log.file_bytes, queue_file_bytes)
    if (heading.get("log_file_bytes"), heading.get("queue_file_bytes")) != sizes:
        return "file sizes were changed"
    if now.mark >= 0:
        if fingerprint(log.read(PhysicalOffset(now.mark), FINGERPRINT_BYTES)) != now.mark_crc:
            return f"the log changed at {log.where(PhysicalOffset(now.mark))}"
    elif now.derived > log.min_offset:
        return "it names no record of the log"
    if not log.min_offset <= now.derived <= log.end_of_files:
        return f"the log does not reach {now.derived}"
    return ""
