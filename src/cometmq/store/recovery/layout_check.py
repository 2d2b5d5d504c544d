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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreError

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk

__all__ = ["check_layout"]

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
