"""The mark of a failed sync, `cometmq.unsynced`, and the work of the start that finds it.

The mark says that the page cache may have bytes that the disk never got.

When a write-back fails, Linux reports it to one sync call and then counts the pages as clean.  They
can be read until their memory is needed elsewhere, but no later sync writes them, and a power cut
takes them.  So a start with the mark recovers as after a power cut and checks every CRC.  Then it
writes the log behind the last good flush again, which makes those pages dirty, and syncs it.

A process may be killed before it has written the mark.  So a start after a kill writes that part of
the log again too, although it believes the page cache: that part is short, since the side file says
every second how far the log is flushed.

Durable when: the mark is in the page cache only.  That suffices: with the page cache, the bytes
that it warns of are lost too.
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
    """Write the mark (in a worker); log an error, since the disk may be unwritable."""
    path = f"{root}/{UNSYNCED_FILE_NAME}"
    try:
        disk.open_random(path, len(_MARK), create=True).write(0, _MARK)
    except (OSError, StoreError) as error:
        _LOG.error("%s cannot be written: %s; check the disk before the next start", path, error)


def is_marked_unsynced(disk: Disk, root: str) -> bool:
    """Return whether a sync has failed and the log was not written again since."""
    return disk.exists(f"{root}/{UNSYNCED_FILE_NAME}")


def write_again(disk: Disk, root: str, log: CommitLog, flushed: int) -> int:
    """Write the log from `flushed` to its end again, sync it, and remove the mark.

    Returns the number of written bytes.

    Raises:
        StoreFailed: writing or syncing failed again.
    """
    count = 0
    path = log.path
    try:
        for mapped in log.files:
            path = mapped.path
            start, end = max(flushed, mapped.start), min(log.wrote, mapped.end)
            for position in range(start, end, _CHUNK_BYTES):
                file_position = position - mapped.start
                data = mapped.file.read(file_position, min(_CHUNK_BYTES, end - position))
                mapped.file.write(file_position, data)
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
