"""What a store directory must look like before it is opened.

Both checks refuse a store that this version would damage, and change nothing.

`check_layout` recognises what a RocketMQ broker with other than default settings makes of its
directory:

====================== =====================================================================
present                made by
====================== =====================================================================
batchconsumequeue/     topics with the attribute queue.type=BatchCQ
consumequeue/CURRENT   storeType=defaultRocksDB: the queues are a RocksDB database
dledger-<id>/          enableDLegerCommitLog: the commit log is a Raft log of its own format
config/topics/CURRENT  the same, and config/rdb/CURRENT configManagerVersion=v2: topics, groups and
                       offsets are in a database, and the JSON files, if any, are old
====================== =====================================================================

Opened nevertheless, the first would get second queues of another kind, with which Java does not
start any more; the others would look like stores without messages or without progress.

`check_file_sizes` compares queue and index files with the configured sizes.  A unit's position
follows from the file size, so another size would cut queues or leave gaps in them.  Single damaged
files are left to recovery; the log's own files are compared where they are opened (log_files.py).
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from cometmq.codec.index import index_file_bytes
from cometmq.errors import StoreCorrupt, StoreError
from cometmq.store.offline.directory import OfflineStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk

__all__ = ["check_file_sizes", "check_layout"]

_QUEUES_CHECKED_MAX: Final = 64
"""Files compared at most; a store may have 100,000 queues."""
_NAME_DIGITS: Final = 20
_CONFIG_DATABASES: Final = ("topics", "subscriptionGroups", "consumerOffsets", "rdb")


def check_layout(disk: Disk, root: str) -> None:
    """Refuse a kind of store that cannot be served.

    Raises:
        StoreError: the store is of such a kind; the text says of which.
    """
    names = disk.listdir(root)
    fault = ""
    topics = disk.listdir(f"{root}/batchconsumequeue") if "batchconsumequeue" in names else []
    if topics:
        fault = f"batch consume queues (batchconsumequeue/) of topics {', '.join(topics[:5])}"
    elif disk.exists(f"{root}/consumequeue/CURRENT"):
        fault = "its consume queues in a RocksDB database (storeType=defaultRocksDB)"
    elif any(disk.exists(f"{root}/config/{name}/CURRENT") for name in _CONFIG_DATABASES):
        fault = "its topics, groups and offsets in a RocksDB database (below config/)"
    else:
        raft_logs = [name for name in names if name.startswith("dledger-")]
        if raft_logs:
            fault = f"a DLedger commit log ({raft_logs[0]}/)"
    if fault:
        raise StoreError(
            f"{root} has {fault}, which CometMQ cannot serve; nothing was changed: go on with"
            " RocketMQ's broker"
        )


def check_file_sizes(disk: Disk, config: StoreConfig) -> None:
    """Compare queue and index files with the configuration.

    Raises:
        StoreCorrupt: they were made with other sizes; the text says with which.
    """
    _check_queues(disk, config)
    if config.is_index_enabled:
        _check_index(disk, config)


def _check_queues(disk: Disk, config: StoreConfig) -> None:
    counts = Counter(
        islice(_queue_file_sizes(disk, f"{config.root}/consumequeue"), _QUEUES_CHECKED_MAX)
    )
    expected = config.queue_file_bytes
    if not counts or expected in counts:
        return
    size, count = counts.most_common(1)[0]
    # A single short file was cut; what several agree on, or what is too long, was made so.
    if count > 1 or size > expected:
        raise StoreCorrupt(
            f"the files of {config.root}/consumequeue are {size} bytes long,"
            f" mappedFileSizeConsumeQueue says {expected}; set it to the size the store was made"
            " with"
        )


def _queue_file_sizes(disk: Disk, base: str) -> Iterator[int]:
    for topic in disk.listdir(base):
        for queue_id in disk.listdir(f"{base}/{topic}"):
            path = f"{base}/{topic}/{queue_id}"
            for name in disk.listdir(path):
                if len(name) == _NAME_DIGITS and name.isdigit():
                    yield disk.size(f"{path}/{name}")


def _check_index(disk: Disk, config: StoreConfig) -> None:
    expected = index_file_bytes(config.index_slot_count, config.index_entry_count)
    base = f"{config.root}/index"
    if all(disk.size(f"{base}/{name}") == expected for name in disk.listdir(base)):
        return
    for file in OfflineStore(disk, config.root).indexes():
        if file.size == expected or file.slot_count is None or file.entry_count is None:
            continue
        if file.header is not None and file.header.index_count > 1:
            raise StoreCorrupt(
                f"{file.path} was made with maxHashSlotNum={file.slot_count} and"
                f" maxIndexNum={file.entry_count}, the configuration says"
                f" {config.index_slot_count} and {config.index_entry_count}; set them to what the"
                f" store was made with, or move {base} away to have it built again"
            )
