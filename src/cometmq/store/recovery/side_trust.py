"""Whether the side file of a store fits the directory it lies in.

The answer is what a start may believe of it, or why it may believe nothing.

Proof: it was written by the process that left `abort` (or by a clean close), `checkpoint` holds
the time it says (Java moves it), and the log has the marked record with the same head.  Each
queue's last unit is compared with the file later, when the queues are loaded.
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
    """What a start may believe of a side file."""

    state: SideState | None
    """All of it, when it fits."""
    reason: str = ""
    """Why it does not."""
    is_cache_whole: bool = False
    """The page cache still has every store of the process that wrote it, fit or not."""
    flushed_most: int = _LONG_MAX
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
    """Judge the side file; the log's files are open.

    Args:
        abort: what the crash marker says; None when there is none.
        is_unsynced: whether a sync failed in the life before.
    """
    state = load_side_file(disk, f"{root}/{SIDE_FILE_NAME}")
    if isinstance(state, str):
        return SideTrust(None, state)
    heading, now = state.heading, state.progress
    boot_id = disk.boot_id()
    # After a failed sync the page cache may have dropped what it could not write: as after a
    # power cut.
    is_same_boot = not is_unsynced and bool(boot_id) and heading.get("boot_id") == boot_id
    if now.is_clean:
        if abort is not None:
            return SideTrust(None, "another process crashed here after our clean stop")
    elif abort is None or abort.strip() != str(heading.get("process_id")):
        return SideTrust(None, "another process wrote here after us")
    is_told = checkpoint.physic_timestamp_ms in {now.physic_ms, state.previous_physic_ms}
    # A power cut may keep one of the two files and lose the other's last writes.
    if not is_told and (now.is_clean or is_same_boot):
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
        return "it knows no record of the log"
    if not log.min_offset <= now.derived <= log.end_of_files:
        return f"the log does not reach {now.derived}"
    return ""
