"""The mark of a failed sync: `cometmq.unsynced`, and what the next start does about it.

The mark remembers across a restart that the page cache may hold bytes that the disk never took.

When a write-back fails, Linux reports it to one sync call and then takes the pages for clean.
They can be read until memory is needed, no later sync writes them, and a power cut takes them.  So
a start that finds the mark reads as after a power cut, with every CRC, and writes the part of the
log it keeps behind the last good flush once more, which makes those pages dirty, before it syncs.

Durable when: the mark is written to the page cache only.  That is enough: when the page cache is
lost, so are the bytes it warns of.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreError, StoreFailed

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk
    from cometmq.store.log.commit_log import CommitLog

__all__ = ["UNSYNCED_FILE_NAME", "is_marked_unsynced", "mark_unsynced", "write_again"]

_LOG: Final = logging.getLogger("cometmq.store")
UNSYNCED_FILE_NAME: Final = "cometmq.unsynced"
_MARK: Final = b"a sync failed: the next start writes the end of the log again\n"
_CHUNK_BYTES: Final = 1 << 20


def mark_unsynced(disk: Disk, root: str) -> None:
    """Leave the mark (in a worker); an error is logged, since the disk may take nothing at all."""
    path = f"{root}/{UNSYNCED_FILE_NAME}"
    try:
        disk.open_random(path, len(_MARK), create=True).write(0, _MARK)
    except (OSError, StoreError) as error:
        _LOG.error("%s cannot be written: %s; check the disk before the next start", path, error)


def is_marked_unsynced(disk: Disk, root: str) -> bool:
    """Return whether a sync failed before this start and its log was not written again yet."""
    return disk.exists(f"{root}/{UNSYNCED_FILE_NAME}")


def write_again(disk: Disk, root: str, log: CommitLog, flushed: int) -> int:
    """Write and sync the log from `flushed` to its end and remove the mark; return the byte count.

    Raises:
        StoreFailed: the disk still does not take the bytes.
    """
    count = 0
    path = log.path
    try:
        for mapped in log.files:
            path = mapped.path
            start, end = max(flushed, mapped.start), min(log.wrote, mapped.end)
            for position in range(start, end, _CHUNK_BYTES):
                place = position - mapped.start
                data = mapped.file.read(place, min(_CHUNK_BYTES, end - position))
                mapped.file.write(place, data)
                count += len(data)
            if start < end:
                mapped.file.sync()
        path = log.path
        disk.sync_dir(path)
    except OSError as error:
        raise StoreFailed(
            f"writing the end of {path} again failed: {error.strerror or error}; the disk does not"
            " take it: repair or replace it and copy the store there"
        ) from error
    disk.remove(f"{root}/{UNSYNCED_FILE_NAME}")
    return count
