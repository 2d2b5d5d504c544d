"""Cuts the log of a closed store at a physical offset: for a replica whose log parts from its
master's.

What is cut off is kept in ``cometmq.cut-OFFSET``, byte for byte from that offset on.  Everything
derived from the log (queues, index, timers, side files, digests) is removed, and the next opening
derives it again.

Steps, in the order that a crash between any two of them is harmless:

1. the bytes to cut off are copied and synced;
2. what is derived is removed, so the next opening reads the log whatever it finds;
3. later log files are removed, the last one first, and the file with the offset is cleared from
   there on.
"""

from __future__ import annotations

from typing import Final

from cometmq.errors import StoreError
from cometmq.store.base.disk import Disk
from cometmq.store.offline.directory import OfflineStore

__all__ = ["cut_store", "empty_store"]

COPY_BYTES: Final = 1 << 20
_KEPT: Final = (
    "commitlog",
    "config",
    "lock",
    "abort",
    "epochFileCheckpoint",
    "brokerIdentity",
    "cometmqSet",
)
_CUT: Final = "cometmq.cut-"


def cut_store(disk: Disk, root: str, end: int, log_end: int) -> str:
    """Cut the log at `end`, which is the end of a record; return the path of what was cut off.

    Args:
        root: the store's directory, with the log in ``commitlog``; no broker has it open.
        log_end: where the log ends now.

    Raises:
        StoreError: the log does not reach from `end` to `log_end`.
        OSError: the disk does not take it.
    """
    store = OfflineStore(disk, root)
    files = [file for file in store.log_files if file.end > end and file.start < log_end]
    if not files or files[0].start > end:
        raise StoreError(f"the log in {root} has no bytes from {end} to {log_end}")
    kept_path = f"{root}/{_CUT}{end}"
    kept = disk.open_random(f"{kept_path}.tmp", 0, create=True)
    position = 0
    for file in files:
        at = max(0, end - file.start)
        limit = min(file.size, log_end - file.start)
        while at < limit:
            piece = file.file.read(at, min(COPY_BYTES, limit - at))
            kept.write(position, piece)
            position += len(piece)
            at += len(piece)
    kept.resize(position)
    kept.sync()
    kept.close()
    disk.rename(f"{kept_path}.tmp", kept_path)
    disk.sync_dir(root)
    _remove_derived(disk, root)
    for file in reversed(files):
        if file.start >= end and file.start > 0 and file is not store.log_files[0]:
            disk.remove(file.path)
            continue
        # A snapshot may share the file: its bytes stay.
        disk.unshare(file.path)
        active = disk.open_random(file.path, file.size, create=False)
        active.resize(end - file.start)
        active.resize(file.size)
        active.sync()
        active.close()
    disk.sync_dir(f"{root}/commitlog")
    return kept_path


def empty_store(disk: Disk, root: str) -> None:
    """Remove the log, and what is derived from it, of a store that no broker has open.

    Raises:
        OSError: the disk does not take it.
    """
    _remove_derived(disk, root)
    disk.remove_tree(f"{root}/commitlog")
    disk.sync_dir(root)


def _remove_derived(disk: Disk, root: str) -> None:
    for name in disk.listdir(root):
        if not name.startswith((*_KEPT, _CUT)):
            path = f"{root}/{name}"
            if disk.is_dir(path):
                disk.remove_tree(path)
            else:
                disk.remove(path)
    disk.sync_dir(root)
