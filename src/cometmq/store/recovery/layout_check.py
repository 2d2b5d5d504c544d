"""Kinds of store this version cannot serve are refused, before anything is changed.

Job: recognise what a RocketMQ broker with other than default settings makes of its directory.  It
must not open or change files.

====================== =====================================================================
found                  made by
====================== =====================================================================
batchconsumequeue/     topics with the attribute queue.type=BatchCQ
consumequeue/CURRENT   storeType=defaultRocksDB: the queues are a RocksDB database
dledger-<id>/          enableDLegerCommitLog: the commit log is a Raft log of its own format
config/topics/CURRENT  the same, and config/rdb/CURRENT configManagerVersion=v2: topics, groups and
                       offsets are in a database, and the JSON files, if any, are old
====================== =====================================================================

Opened all the same, the first would get second queues of another kind, with which Java does not
start any more; the others would look like stores without messages, or without progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.errors import StoreError

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk

__all__ = ["check_layout"]

_CONFIG_DATABASES: Final = ("topics", "subscriptionGroups", "consumerOffsets", "rdb")


def check_layout(disk: Disk, root: str) -> None:
    """Look for what cannot be served.

    Raises:
        StoreError: it is there; the text says what and where.
    """
    names = disk.listdir(root)
    what = ""
    topics = disk.listdir(f"{root}/batchconsumequeue") if "batchconsumequeue" in names else []
    if topics:
        what = f"batch consume queues (batchconsumequeue/) of topics {', '.join(topics[:5])}"
    elif disk.exists(f"{root}/consumequeue/CURRENT"):
        what = "its consume queues in a RocksDB database (storeType=defaultRocksDB)"
    elif any(disk.exists(f"{root}/config/{name}/CURRENT") for name in _CONFIG_DATABASES):
        what = "its topics, groups and offsets in a RocksDB database (below config/)"
    else:
        found = [name for name in names if name.startswith("dledger-")]
        if found:
            what = f"a DLedger commit log ({found[0]}/)"
    if what:
        raise StoreError(
            f"{root} has {what}, which CometMQ cannot serve; nothing was changed: go on with"
            " RocketMQ's broker"
        )
