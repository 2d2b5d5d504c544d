"""Store directories that Apache RocketMQ 5.4.0 wrote, with what its own code read there.

`NAME.tar.xz` is the directory, `NAME.json.xz` the reading; README.md says how they were made.
"""

from __future__ import annotations

import functools
import json
import lzma
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cometmq.store.base.config import StoreConfig
from cometmq.store.base.disk import RealDisk
from cometmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.results import RecoveryReport

HERE = Path(__file__).parent
NOW_MS = 1_795_300_000_000


class InlineWorkers:
    """Runs each job at once, in the caller's thread."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        try:
            result = work()
        except Exception as error:
            result = error
        if done is not None:
            done(result)


@functools.cache
def expectation(name: str) -> dict[str, Any]:
    """Return what Java read from the store."""
    found: dict[str, Any] = json.loads(lzma.decompress((HERE / f"{name}.json.xz").read_bytes()))
    return found


def unpack(name: str, target: Path, *, with_timer: bool = False) -> Path:
    """Unpack a fresh copy of the store; the timer wheel, 38 MB of zeros, only on request."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        members = [m for m in archive if with_timer or not m.name.endswith("/timerwheel")]
        archive.extractall(target, members, filter="data")
    return target / name


def config_for(name: str, root: Path, **changes: Any) -> StoreConfig:
    """Return our settings for the store, from the broker.conf that made it."""
    conf = expectation(name)["brokerConf"]
    settings: dict[str, Any] = {
        "root": str(root),
        "commit_log_file_bytes": int(conf["mappedFileSizeCommitLog"]),
        "consume_queue_file_bytes": int(conf.get("mappedFileSizeConsumeQueue", 6_000_000)),
        "index_slot_count": int(conf.get("maxHashSlotNum", 5_000_000)),
        "index_entry_count": int(conf.get("maxIndexNum", 20_000_000)),
        "consume_queue_ext_file_bytes": int(conf.get("mappedFileSizeConsumeQueueExt", 48 << 20)),
        # Nothing may expire while a test looks at it.
        "file_reserved_hours": 1_000_000,
    }
    return StoreConfig(**{**settings, **changes})


def open_store(name: str, root: Path, **changes: Any) -> tuple[MessageStore, RecoveryReport]:
    """Unpack a copy of the store and open it."""
    store = MessageStore(
        config_for(name, root, **changes), RealDisk(), InlineWorkers(), lambda: NOW_MS
    )
    return store, store.load()
