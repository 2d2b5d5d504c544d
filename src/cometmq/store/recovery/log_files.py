"""The commit log's files at a start: opened in order, and cut where recovery found the log's end.

`open_log_files` refuses a log with a gap, and gives a file that was cut its size back, which
`file_sizes` has found.  `cut_log` clears everything behind the end, so that no stale record is ever
taken for a new one; sound records from there go to a file of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreCorrupt
from cometmq.model.offsets import PhysicalOffset
from cometmq.store.log.commit_log import log_file_name
from cometmq.store.log.reader import BLOCK_BYTES, LogReader, data_blocks

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk
    from cometmq.store.base.results import RecoveryReport
    from cometmq.store.log.commit_log import CommitLog, MappedFile

__all__ = ["cut_log", "open_log_files"]

_ZEROS: Final = bytes(BLOCK_BYTES)
_NAME_DIGITS: Final = 20


def open_log_files(log: CommitLog, disk: Disk, damages: list[str]) -> None:
    """Open the files in order; `damages` gets a text about each file that had to be mended.

    Raises:
        StoreCorrupt: a file is missing.
    """
    names = [n for n in disk.listdir(log.path) if len(n) == _NAME_DIGITS and n.isdigit()]
    if names and disk.size(f"{log.path}/{names[-1]}") == 0:
        disk.remove(f"{log.path}/{names.pop()}")
    for name in names:
        _open_file(log, disk, name, damages)


def _open_file(log: CommitLog, disk: Disk, name: str, damages: list[str]) -> None:
    start = int(name)
    if log.files and start != log.files[-1].end:
        raise StoreCorrupt(
            f"{log.path} has no file {log_file_name(log.files[-1].end)} before {name};"
            " put it back, or move the older files away to go on without their messages"
        )
    path = f"{log.path}/{name}"
    size = disk.size(path)
    if size != log.file_bytes:
        damages.append(
            f"{path} is {size} bytes long, expected {log.file_bytes}:"
            " what was cut off is lost, the file is filled with zeros"
        )
        disk.unshare(path)
        file = disk.open_log(path, log.file_bytes, create=True)
        if file.size() < log.file_bytes:
            file.resize(log.file_bytes)
        file.close()
    log.open_existing(start)


def cut_log(log: CommitLog, disk: Disk, root: str, end: int, report: RecoveryReport) -> None:
    """Clear the log from a physical offset on; `report` gets a text about what was there."""
    while log.files and log.files[-1].start > end:
        _remove_file(disk, root, log.files.pop(), report)
    if not log.files or end >= log.files[-1].end:
        return
    mapped = log.files[-1]
    blocks = data_blocks(mapped.file, end - mapped.start, mapped.size)
    if not blocks:
        return
    # A backup may share the file's bytes, and has what is cut here.
    if disk.unshare(mapped.path):
        mapped.file = disk.open_log(mapped.path, mapped.size, create=False)
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
