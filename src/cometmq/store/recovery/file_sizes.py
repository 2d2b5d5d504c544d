"""File sizes of a store against the configuration, before anything is opened.

Job: refuse a store whose queue or index files were made with other sizes, naming the settings
they were made with.  It must not change anything, and leaves single damaged files to recovery.

A file's position in a queue follows from its size, so opening a store with another one would cut
its queues or leave gaps in them; and whoever made the store, a Java broker maybe, wants it back
as it was.  The log's own files are compared where they are opened (recovery.py).
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from cometmq.codec.index import index_file_bytes
from cometmq.errors import StoreCorrupt
from cometmq.store.offline.directory import OfflineStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk

__all__ = ["check_file_sizes"]

_LOOKED_AT_MAX: Final = 64
"""So many queues tell; a store may have 100,000."""
_NAME_DIGITS: Final = 20


def check_file_sizes(disk: Disk, config: StoreConfig) -> None:
    """Compare queue and index files with the configuration.

    Raises:
        StoreCorrupt: they were made with other sizes; the text says with which.
    """
    _check_queues(disk, config)
    if config.is_index_enabled:
        _check_index(disk, config)


def _check_queues(disk: Disk, config: StoreConfig) -> None:
    counts = Counter(islice(_queue_file_sizes(disk, f"{config.root}/consumequeue"), _LOOKED_AT_MAX))
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
