"""Opens the files of the commit log at load.

Job: take the files of the directory in order, refuse a log with a gap or of another file size, and
bring a file that was cut back to its size.  It must not read records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreCorrupt
from cometmq.store.log.commit_log import log_file_name

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk
    from cometmq.store.log.commit_log import CommitLog

__all__ = ["open_log_files"]

_NAME_DIGITS: Final = 20


def open_log_files(log: CommitLog, disk: Disk, damages: list[str]) -> None:
    """Open all of them; what had to be mended is told in `damages`."""
    names = [n for n in disk.listdir(log.path) if len(n) == _NAME_DIGITS and n.isdigit()]
    if names and disk.size(f"{log.path}/{names[-1]}") == 0:
        disk.remove(f"{log.path}/{names.pop()}")
    sizes = {disk.size(f"{log.path}/{name}") for name in names}
    expected = log.file_bytes
    is_alone_and_cut = len(names) == 1 and max(sizes) < expected
    if sizes and expected not in sizes and len(sizes) == 1 and not is_alone_and_cut:
        raise StoreCorrupt(
            f"the files of {log.path} are {sizes.pop()} bytes long, mappedFileSizeCommitLog"
            f" says {expected}; set it to the size the store was made with"
        )
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
        file = disk.open_log(path, log.file_bytes, create=True)
        if file.size() < log.file_bytes:
            file.resize(log.file_bytes)
        file.close()
    log.open_existing(start)
