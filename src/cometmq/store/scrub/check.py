"""Compares the log files of a closed store with their digests, and puts rotten blocks right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.store.scrub.digests import (
    BLOCK_BYTES,
    FileDigest,
    block_crcs,
    file_name,
    load_digests,
    rotten_blocks,
    save_digests,
)
from cometmq.store.scrub.rotten import RottenBlock, rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.store.base.disk import Disk

__all__ = ["find_rotten", "put_right"]


def find_rotten(
    disk: Disk, log_path: str, root: str, progress: Callable[[str, int, int], None] | None = None
) -> Iterator[RottenBlock]:
    """Yield the rotten blocks of a store's log.  Blocks.

    A file that somebody wrote into since its digest is passed over.

    Args:
        progress: called with a text, the files done and the files in all.
    """
    digests = load_digests(disk, root)
    for done, digest in enumerate(digests.values()):
        if progress is not None:
            progress("digests", done, len(digests))
        path = f"{log_path}/{file_name(digest)}"
        if not disk.exists(path) or disk.mtime_ms(path) != digest.mtime_ms:
            continue
        size = disk.size(path)
        file = disk.open_random(path, size, create=False)
        for number, crc in enumerate(digest.crcs):
            position = number * BLOCK_BYTES
            end = min(position + BLOCK_BYTES, size)
            found = block_crcs(file, position, end, from_device=True)
            if rotten_blocks(file, digest, number, found):
                yield RottenBlock(path, position, digest.start + position, end - position, crc)


def put_right(disk: Disk, root: str, block: RottenBlock, read: Callable[[int, int], bytes]) -> None:
    """Write the sealed bytes of a block.  The store must be closed; blocks.

    The rotten bytes stay in ``cometmq.rot-<physical offset>``.

    Args:
        read: returns bytes of an intact log, given physical offset and length.

    Raises:
        StoreError: the other log has other bytes there, or the disk does not keep what is written.
    """
    rewrite(disk, root, block, read(block.physical_offset, block.size))
    digests = load_digests(disk, root)
    start = block.physical_offset - block.position
    kept = digests[start]
    digests[start] = FileDigest(start, disk.mtime_ms(block.path), kept.looked_ms, kept.crcs)
    save_digests(disk, root, digests.values())
