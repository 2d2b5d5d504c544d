"""A block of a sealed log file that is not as it was sealed, and how it is written anew."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

from cometmq.errors import StoreError

if TYPE_CHECKING:
    from cometmq.store.base.disk import Disk

__all__ = ["RottenBlock", "rewrite"]


class RottenBlock(NamedTuple):
    """A block whose bytes are not those that were sealed."""

    path: str
    position: int
    """Of its first byte in the file."""
    physical_offset: int
    size: int
    crc: int
    """Of the bytes that were sealed."""


def rewrite(disk: Disk, root: str, block: RottenBlock, good: bytes) -> None:
    """Write the sealed bytes of a block, and see that the disk gives them back.  Blocks.

    The rotten bytes stay in ``cometmq.rot-<physical offset>``.

    Raises:
        StoreError: `good` is not what was sealed, or the disk does not keep what is written.
    """
    if zlib.crc32(good) != block.crc:
        raise StoreError(
            f"{block.path}, position {block.position}: the other broker has other bytes there than"
            " were sealed here, so nothing was written; try another broker or a backup"
        )
    file = disk.open_random(block.path, 0, create=False)
    disk.write_atomic(
        f"{root}/cometmq.rot-{block.physical_offset:020d}", file.read(block.position, block.size)
    )
    file.write(block.position, good)
    file.sync()
    file.forget_cached(block.position, block.size)
    if zlib.crc32(file.read(block.position, block.size)) != block.crc:
        raise StoreError(
            f"{block.path}, position {block.position}: the disk does not give back what was"
            " written: replace it"
        )
