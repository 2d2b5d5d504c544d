"""The digests of a store's sealed log files, in ``cometmq.digests``.

A log file is sealed when another one follows and the log is flushed behind it: then its bytes never
change.  Its digest is the CRC-32 of each block of 1 MiB, so damage is found to a block.  A message
has only a CRC of its body, and RocketMQ's readers do not look at it.

The file has a line of JSON for each log file, with a CRC-32 of the line in front::

    d6b1f9a0 {"start":0,"mtime_ms":1764296000000,"looked_ms":1764296001000,"crcs":[520093696,…]}

A line that does not have its CRC is left out: the digest is made again.  The whole file is replaced
at each change.  Java ignores it.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.store.log.commit_log import log_file_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cometmq.store.base.disk import Disk, RandomFile

__all__ = [
    "BLOCK_BYTES",
    "DIGESTS_NAME",
    "FileDigest",
    "block_crcs",
    "file_name",
    "load_digests",
    "rotten_blocks",
    "save_digests",
]

BLOCK_BYTES: Final = 1 << 20
DIGESTS_NAME: Final = "cometmq.digests"


class FileDigest(msgspec.Struct, frozen=True):
    """The digest of the log file that begins at `start`; times in ms since the epoch."""

    start: int
    mtime_ms: int
    """Modification time of the file; another one means that somebody wrote into it since."""
    looked_ms: int
    """When all of it was read from the disk last."""
    crcs: tuple[int, ...]


def file_name(digest: FileDigest) -> str:
    """Return the name of the log file."""
    return log_file_name(digest.start)


def load_digests(disk: Disk, root: str) -> dict[int, FileDigest]:
    """Read the digests of a store by the physical offset at which their log file begins."""
    path = f"{root}/{DIGESTS_NAME}"
    if not disk.exists(path):
        return {}
    digests = {}
    for line in disk.read_bytes(path).splitlines():
        crc, _, text = line.partition(b" ")
        if b"%08x" % zlib.crc32(text) != crc:
            continue
        try:
            digest = msgspec.json.decode(text, type=FileDigest)
        except msgspec.DecodeError:
            continue
        digests[digest.start] = digest
    return digests


def save_digests(disk: Disk, root: str, digests: Iterable[FileDigest]) -> None:
    """Replace the digests of a store.  Blocks.

    Raises:
        DiskFull: there is no space; the old file remains.
    """
    lines = []
    for digest in digests:
        text = msgspec.json.encode(digest)
        lines.append(b"%08x %s\n" % (zlib.crc32(text), text))
    disk.write_atomic(f"{root}/{DIGESTS_NAME}", b"".join(lines))


def block_crcs(file: RandomFile, position: int, end: int, *, from_device: bool) -> list[int]:
    """Return the CRC of each block in [position, end).  Blocks.

    Args:
        from_device: read the bytes of the disk, and not a copy that the system has in memory.
    """
    crcs = []
    for start in range(position, end, BLOCK_BYTES):
        size = min(BLOCK_BYTES, end - start)
        if from_device:
            file.forget_cached(start, size)
        crcs.append(zlib.crc32(file.read(start, size)))
        if from_device:
            # The tour must not push the newest messages out of memory.
            file.forget_cached(start, size)
    return crcs


def rotten_blocks(file: RandomFile, digest: FileDigest, first: int, crcs: list[int]) -> list[int]:
    """Return which blocks from number `first` on differ from their digest in two reads.  Blocks."""
    wrong = []
    for number, crc in enumerate(crcs, first):
        if crc == digest.crcs[number]:
            continue
        position = number * BLOCK_BYTES
        again = block_crcs(
            file, position, min(position + BLOCK_BYTES, file.size()), from_device=True
        )
        if again != [digest.crcs[number]]:
            wrong.append(number)
    return wrong
