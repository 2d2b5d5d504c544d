"""Ends the log where recovery found its end.

Job: clear what lies behind the end, so that no stale record is ever taken for a new one, and keep
sound records from there in a file of their own.  It must not decide where the end is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.model.offsets import PhysicalOffset
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.reader import BLOCK_BYTES, LogReader, data_blocks

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk
    from cometmq.store.base.results import RecoveryReport
    from cometmq.store.log.commit_log import CommitLog, MappedFile

__all__ = ["cut_log"]

_ZEROS: Final = bytes(BLOCK_BYTES)


def cut_log(log: CommitLog, disk: Disk, root: str, end: int, report: RecoveryReport) -> None:
    """Clear everything from the physical offset `end` on; `report` tells what was there."""
    while log.files and log.files[-1].start > end:
        _remove_file(disk, root, log.files.pop(), report)
    if not log.files or end >= log.files[-1].end:
        return
    mapped = log.files[-1]
    blocks = data_blocks(mapped.file, end - mapped.start, mapped.size)
    if not blocks:
        return
    _keep_sound_records(
        log, disk, root, mapped, end, mapped.start + blocks[-1] + len(_ZEROS), report
    )
    for block in blocks:
        raw = mapped.file.read(block, min(len(_ZEROS), mapped.size - block))
        if raw.count(0) != len(raw):
            mapped.file.write(block, _ZEROS[: len(raw)])
            report.truncated_bytes += len(raw.strip(b"\0"))


def _keep_sound_records(
    log: CommitLog,
    disk: Disk,
    root: str,
    mapped: MappedFile,
    end: int,
    limit: int,
    report: RecoveryReport,
) -> None:
    """Copy what is cut off when it holds sound records: nobody can prove they count."""
    limit = min(limit, mapped.end)
    reader = LogReader(log, end, mapped.end)
    first = reader.next_record() or reader.resync(limit)
    if first is None:
        return
    last = first
    while (record := reader.next_record()) is not None and record.physical_offset < limit:
        last = record
    raw = log.read(PhysicalOffset(end), last.physical_offset + last.size - end)
    path = f"{root}/cometmq.cut-{log_file_name(end)}"
    disk.write_atomic(path, bytes(raw))
    report.damages.append(
        f"{log.where(PhysicalOffset(end))}: the log ends here; {len(raw)} bytes behind it with"
        f" sound records were moved to {path}"
    )


def _remove_file(disk: Disk, root: str, mapped: MappedFile, report: RecoveryReport) -> None:
    """A file behind the end: empty ones were reserved, others are kept under another name."""
    first = mapped.file.next_data(0)
    head = b"" if first is None else mapped.file.read(0, 4096)
    if head.count(0) == len(head):
        disk.remove(mapped.path)
        return
    target = f"{root}/cometmq.cut-{log_file_name(mapped.start)}"
    disk.rename(mapped.path, target)
    report.damages.append(f"{mapped.path} lies behind the log's end and was moved to {target}")
