"""Looks at the bytes of old log files before somebody needs them.

A file gets its digest soon after it is sealed.  Later it is read again from the disk, at the pace
and with the pause of the settings, and compared.  Workers read, a piece at a time; the loop only
hands out pieces.

What is found is said once in the log, with file and block, and counted.  A slave repairs it with
the bytes of its master (`put_right`); elsewhere `cometmq store verify --repair-from` does, from a
broker with the same log.  A file that somebody wrote into since (a Java broker that cut it, a
repair) gets a new digest.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from cometmq.store.scrub.digests import (
    BLOCK_BYTES,
    FileDigest,
    block_crcs,
    load_digests,
    rotten_blocks,
    save_digests,
)
from cometmq.store.scrub.rotten import RottenBlock, rewrite

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.config import StoreConfig
    from cometmq.store.base.disk import Disk, Workers
    from cometmq.store.log.commit_log import CommitLog, MappedFile

__all__ = ["ScrubCounts", "Scrubber"]

_LOG: Final = logging.getLogger("cometmq.store")
_PIECE_BYTES: Final = 8 << 20
_LOOK_MS: Final = 1_000
"""How often the tour looks for a file that is due."""
_RETRY_MS: Final = 60_000
"""Pause after a piece that could not be read or digests that could not be written."""


@dataclass(slots=True)
class ScrubCounts:
    """What the tour has seen since the broker's start."""

    blocks_read: int = 0
    """Blocks of 1 MiB that were read again and compared."""
    rotten_blocks: int = 0
    repaired_blocks: int = 0
    """Rotten blocks that were written anew, with another broker's bytes."""
    differing_blocks: int = 0
    """Blocks that another broker has sealed with other bytes."""


class _Pass(NamedTuple):
    """A file that is being read, piece by piece; without `digest` to make its first one."""

    mapped: MappedFile
    digest: FileDigest | None
    crcs: list[int]


class Scrubber:
    """The tour over one store's log; `is_on` is false where the settings switch it off."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        workers: Workers,
        log: CommitLog,
        flushed: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._root = config.root
        self._workers = workers
        self._log = log
        self._flushed = flushed
        self._bytes_per_ms = config.scrub_bytes_per_s / 1000
        self._interval_ms = config.scrub_interval_ms
        self._digests: dict[int, FileDigest] = {}
        self.rotten: dict[int, RottenBlock] = {}
        """The rotten blocks that are known, by physical offset."""
        self._pass: _Pass | None = None
        self._next_ms = 0
        self._is_busy = False
        self.counts = ScrubCounts()

    @property
    def is_on(self) -> bool:
        """Whether files are looked at."""
        return self._bytes_per_ms > 0

    @property
    def oldest_look_ms(self) -> int | None:
        """When the file was read whose last look is the longest ago; None without a digest."""
        return min((digest.looked_ms for digest in self._digests.values()), default=None)

    def load(self) -> None:
        """Read the digests; those of files that recovery cut are dropped.  Blocks."""
        if not self.is_on:
            return
        sealed = {mapped.start for mapped in self._log.files[:-1]}
        self._digests = {
            start: digest
            for start, digest in load_digests(self._disk, self._root).items()
            if start in sealed
        }

    def tick(self, now_ms: int) -> None:
        """Hand the next piece to a worker when it is time."""
        if self._is_busy or now_ms < self._next_ms or not self.is_on:
            return
        if self._pass is None or self._pass.mapped not in self._log.files:
            self._pass = self._next_pass(now_ms)
            if self._pass is None:
                self._next_ms = now_ms + _LOOK_MS
                return
        self._read(self._pass, now_ms)

    def _next_pass(self, now_ms: int) -> _Pass | None:
        """Return a file without digest, or the one whose last look is too long ago."""
        flushed = self._flushed()
        sealed = {file.start: file for file in self._log.files[:-1] if file.end <= flushed}
        for start, mapped in sealed.items():
            if start not in self._digests:
                return _Pass(mapped, None, [])
        oldest = min(
            (digest for start, digest in self._digests.items() if start in sealed),
            key=lambda digest: digest.looked_ms,
            default=None,
        )
        if oldest is None or oldest.looked_ms + self._interval_ms > now_ms:
            return None
        return _Pass(sealed[oldest.start], oldest, [])

    def _read(self, current: _Pass, now_ms: int) -> None:
        """Read the next piece of a file."""
        mapped, digest, crcs = current
        first = len(crcs)
        position = first * BLOCK_BYTES
        end = min(position + _PIECE_BYTES, mapped.size)
        is_tour = digest is not None

        def work() -> tuple[list[int], list[int]]:
            found = block_crcs(mapped.file, position, end, from_device=is_tour)
            return found, [] if digest is None else rotten_blocks(mapped.file, digest, first, found)

        def done(result: object) -> None:
            self._is_busy = False
            if isinstance(result, BaseException):
                self._pass = None
                self._next_ms = now_ms + _RETRY_MS
                if mapped in self._log.files:
                    _LOG.error("%s, from position %d on: %s", mapped.path, position, result)
                return
            assert isinstance(result, tuple)
            found, wrong = result
            crcs.extend(found)
            if is_tour:
                self.counts.blocks_read += len(found)
                # Making a first digest reads what is still in memory; only the tour has a pace.
                self._next_ms = now_ms + round((end - position) / self._bytes_per_ms)
            if wrong and not self._is_rotten(mapped, digest, wrong):
                self._digests.pop(mapped.start)
                self._pass = None
            elif end == mapped.size:
                self._pass = None
                self._save(mapped, digest, crcs, now_ms)

        self._is_busy = True
        self._workers.submit(work, done)

    def _is_rotten(self, mapped: MappedFile, digest: FileDigest | None, wrong: list[int]) -> bool:
        """Report rotten blocks; false when somebody wrote into the file since its digest."""
        assert digest is not None
        if self._disk.mtime_ms(mapped.path) != digest.mtime_ms:
            _LOG.warning("%s was written into since its digest, which is made again", mapped.path)
            return False
        for number in wrong:
            position = number * BLOCK_BYTES
            if mapped.start + position in self.rotten:
                continue
            size = min(BLOCK_BYTES, mapped.size - position)
            self.rotten[mapped.start + position] = RottenBlock(
                mapped.path, position, mapped.start + position, size, digest.crcs[number]
            )
            self.counts.rotten_blocks += 1
            _LOG.error(
                "%s has rotten bytes between positions %d and %d: the disk does not give back what"
                " was written. Copy the store, look at the disk, and repair the stopped store with"
                " `cometmq store verify %s --repair-from` an intact broker with the same log",
                mapped.path,
                position,
                position + size,
                self._root,
            )
        return True

    # -- other brokers' copies ------------------------------------------------------------------

    @property
    def sealed(self) -> list[int]:
        """Physical offsets at which the log files with a digest begin."""
        return list(self._digests)

    def sealed_crcs(self, start: int) -> tuple[int, ...]:
        """Return the CRC of each block of the log file that begins at `start`; () without one."""
        digest = self._digests.get(start)
        return () if digest is None else digest.crcs

    def differs(self, start: int, theirs: tuple[int, ...], owner: str) -> bool:
        """Report the blocks of a log file that another broker has sealed with other bytes."""
        ours = self.sealed_crcs(start)
        if ours == theirs:
            return False
        numbers = [n for n, pair in enumerate(zip_longest(ours, theirs)) if len(set(pair)) > 1]
        self.counts.differing_blocks += len(numbers)
        _LOG.error(
            "the log file that begins at physical offset %d was sealed with other bytes here than"
            " at %s, in blocks of 1 MiB at positions %s: one of the two disks or memories has"
            " changed what was written. `cometmq store verify` of both stores shows whose records"
            " are damaged; nothing is changed",
            start,
            owner,
            ", ".join(str(number * BLOCK_BYTES) for number in numbers[:20]),
        )
        return True

    def put_right(self, block: RottenBlock, good: bytes, now_ms: int) -> bool:
        """Have a worker write the sealed bytes of a rotten block; the log says how that ends.

        False while the tour reads: then nothing is done.
        """
        if self._is_busy:
            return False

        def work() -> int:
            rewrite(self._disk, self._root, block, good)
            return self._disk.mtime_ms(block.path)

        def done(result: object) -> None:
            self._is_busy = False
            if isinstance(result, BaseException):
                _LOG.error("%s", result)
                return
            assert isinstance(result, int)
            self.rotten.pop(block.physical_offset, None)
            self.counts.repaired_blocks += 1
            _LOG.warning(
                "%s, position %d: %d bytes with rotten ones among them were written anew",
                block.path,
                block.position,
                block.size,
            )
            start = block.physical_offset - block.position
            if start in self._digests:
                digest = self._digests[start]
                self._digests[start] = msgspec.structs.replace(digest, mtime_ms=result)
                self._write_digests(now_ms)

        self._is_busy = True
        self._workers.submit(work, done)
        return True

    def _save(
        self, mapped: MappedFile, digest: FileDigest | None, crcs: list[int], now_ms: int
    ) -> None:
        """Keep the digest of a file that was read to its end."""
        if mapped not in self._log.files:
            return
        if digest is None:
            mtime_ms = self._disk.mtime_ms(mapped.path)
            digest = FileDigest(mapped.start, mtime_ms, now_ms, tuple(crcs))
        else:
            digest = FileDigest(digest.start, digest.mtime_ms, now_ms, digest.crcs)
        present = {file.start for file in self._log.files}
        self._digests[mapped.start] = digest
        self._digests = {start: kept for start, kept in self._digests.items() if start in present}
        self._write_digests(now_ms)

    def _write_digests(self, now_ms: int) -> None:
        kept = list(self._digests.values())

        def done(result: object) -> None:
            self._is_busy = False
            if isinstance(result, BaseException):
                self._next_ms = now_ms + _RETRY_MS
                _LOG.error("the digests of %s were not written: %s", self._root, result)

        self._is_busy = True
        self._workers.submit(lambda: save_digests(self._disk, self._root, kept), done)
