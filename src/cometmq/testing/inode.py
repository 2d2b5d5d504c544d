"""Files of the simulated disk, with the content of the page cache and of the platter.

An inode stores one file's bytes twice and draws from a seed how much of the difference survives a
power cut.

    write -> [ page cache ] -- sync --> [ platter ]
                   |  power cut: per dirty page one of
                   |  lost (old page) | kept (new page) | torn (some of its sectors new)
                   v
             what the next life reads

A real disk does no more than that: a synced page never changes, and no byte appears that was
never written.
"""

from __future__ import annotations

import random
from typing import Final, Protocol

__all__ = ["PAGE_BYTES", "Inode", "ReservedInode", "SparseInode"]

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512
ONE_LOST_SHARE: Final = 0.4
"""How often a power cut takes one sector of a log file, and leaves all others that were written."""

_Bytes = bytes | bytearray | memoryview
_ZERO_PAGE: Final = bytes(PAGE_BYTES)


class Inode(Protocol):
    """One file's bytes."""

    mtime_ms: int

    def size(self) -> int:
        """Return the length as programs see it."""

    def allocated_bytes(self) -> int:
        """Return how much of the disk's capacity the file uses."""

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes at `position`, fewer at the end."""

    def write(self, position: int, data: _Bytes) -> None:
        """Put `data` into the page cache, extending the file as needed."""

    def resize(self, size: int) -> None:
        """Truncate, or extend with zeros."""

    def sync(self) -> None:
        """Write every page to the platter."""

    def give_up(self) -> None:
        """Mark unsynced pages clean after a failed write-back; no later sync writes them."""

    def power_cut(self, chance: random.Random) -> None:
        """Keep, lose or tear each unsynced page at random."""

    def is_durable(self, start: int, end: int) -> bool:
        """Whether a power cut would leave these bytes as they are."""

    def spoil(self, position: int, data: _Bytes) -> None:
        """Replace bytes in cache and on the platter, unseen by programs."""

    def next_data(self, position: int) -> int | None:
        """Return the first position from `position` on that may be non-zero."""


class ReservedInode:
    """A log file: blocks reserved at creation, written through memory as a mapping is."""

    def __init__(self, size: int, now_ms: int) -> None:
        self.data = bytearray(size)
        self._platter = bytes(size)
        self._is_size_synced = False
        # Bytes of the pages that a failed sync skipped; a difference shows a later store.
        self._given_up: dict[int, bytes] = {}
        self.mtime_ms = now_ms

    def size(self) -> int:
        return len(self.data)

    def allocated_bytes(self) -> int:
        return len(self.data)

    def read(self, position: int, length: int) -> bytes:
        return bytes(self.data[position : position + length])

    def write(self, position: int, data: _Bytes) -> None:
        end = position + len(data)
        if end > len(self.data):
            self.resize(end)
        for page in list(self._given_up):
            if page < end and position < page + PAGE_BYTES:
                del self._given_up[page]
        self.data[position:end] = data

    def resize(self, size: int) -> None:
        # A new object, since a mapped bytearray cannot change its length.
        self.data = bytearray(self.data[:size]) + bytearray(max(0, size - len(self.data)))

    def sync(self) -> None:
        platter = bytearray(self.data)
        for page, raw in list(self._given_up.items()):
            if platter[page : page + PAGE_BYTES] == raw:
                platter[page : page + PAGE_BYTES] = self._platter[page : page + PAGE_BYTES]
            else:
                del self._given_up[page]
        self._platter = bytes(platter)
        self._is_size_synced = True

    def give_up(self) -> None:
        self._platter = self._platter.ljust(len(self.data), b"\0")
        for page in range(0, len(self.data), PAGE_BYTES):
            raw = bytes(self.data[page : page + PAGE_BYTES])
            if raw != self._platter[page : page + PAGE_BYTES]:
                self._given_up[page] = raw

    def power_cut(self, chance: random.Random) -> None:
        new, old = self.data, self._platter
        size = len(new) if len(new) == len(old) or chance.random() < 0.5 else len(old)
        after = bytearray(size)
        after[: len(old)] = old[:size]
        dirty = [
            (start, min(start + PAGE_BYTES, size))
            for start in range(0, min(size, len(new)), PAGE_BYTES)
            if self._given_up.get(start) != bytes(new[start : start + PAGE_BYTES])
            and new[start : start + PAGE_BYTES] != after[start : min(start + PAGE_BYTES, size)]
        ]
        if dirty and chance.random() < ONE_LOST_SHARE:
            _lose_one_sector(after, new, dirty, chance)
        else:
            for start, end in dirty:
                after[start:end] = settle_page(after[start:end], new[start:end], chance)
        self.data = after
        self._platter = bytes(after)
        self._given_up.clear()

    def is_durable(self, start: int, end: int) -> bool:
        return self.data[start:end] == self._platter[start:end]

    def forget_size(self) -> None:
        """Undo the reservation, unless a sync of the file has made it durable."""
        if not self._is_size_synced:
            self.data = bytearray()
            self._platter = b""

    def spoil(self, position: int, data: _Bytes) -> None:
        self.data[position : position + len(data)] = data
        platter = bytearray(self._platter)
        if position + len(data) <= len(platter):
            platter[position : position + len(data)] = data
        self._platter = bytes(platter)

    def next_data(self, position: int) -> int | None:
        return position if position < len(self.data) else None


class SparseInode:
    """Any other file: pages that exist once they are written, zeros elsewhere."""

    def __init__(self, size: int, now_ms: int) -> None:
        self._pages: dict[int, bytearray] = {}
        self._platter: dict[int, bytes] = {}
        self._dirty: dict[int, None] = {}
        self._size = size
        self._platter_size = size
        self.mtime_ms = now_ms

    def size(self) -> int:
        return self._size

    def allocated_bytes(self) -> int:
        return len(self._pages) * PAGE_BYTES

    def pages_needed(self, position: int, length: int) -> int:
        """Return how many pages a write would allocate."""
        first, last = position // PAGE_BYTES, (position + max(length, 1) - 1) // PAGE_BYTES
        return sum(page not in self._pages for page in range(first, last + 1))

    def read(self, position: int, length: int) -> bytes:
        end = min(position + length, self._size)
        parts = []
        while position < end:
            page, start = divmod(position, PAGE_BYTES)
            stop = min(PAGE_BYTES, start + end - position)
            parts.append(bytes(self._pages.get(page, _ZERO_PAGE)[start:stop]))
            position += stop - start
        return b"".join(parts)

    def write(self, position: int, data: _Bytes) -> None:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            page, start = divmod(position + done, PAGE_BYTES)
            count = min(PAGE_BYTES - start, len(view) - done)
            cached = self._pages.setdefault(page, bytearray(PAGE_BYTES))
            cached[start : start + count] = view[done : done + count]
            self._dirty[page] = None
            done += count
        self._size = max(self._size, position + len(view))

    def resize(self, size: int) -> None:
        if size < self._size:
            last, start = divmod(size, PAGE_BYTES)
            for page in [page for page in self._pages if page > last]:
                del self._pages[page]
                self._dirty[page] = None
            if last in self._pages:
                self._pages[last][start:] = bytes(PAGE_BYTES - start)
                self._dirty[last] = None
        self._size = size

    def sync(self) -> None:
        for page in self._dirty:
            if page in self._pages:
                self._platter[page] = bytes(self._pages[page])
            else:
                self._platter.pop(page, None)
        self._dirty.clear()
        self._platter_size = self._size

    def give_up(self) -> None:
        # These pages are lost at a power cut: it no longer draws their fate.
        self._dirty.clear()

    def power_cut(self, chance: random.Random) -> None:
        if self._size != self._platter_size and chance.random() < 0.5:
            self._size = self._platter_size
        for page in sorted(self._dirty):
            old = self._platter.get(page, _ZERO_PAGE)
            new = bytes(self._pages.get(page, _ZERO_PAGE))
            after = settle_page(old, new, chance)
            if page * PAGE_BYTES >= self._size or after == _ZERO_PAGE:
                self._platter.pop(page, None)
            else:
                self._platter[page] = after
        self._pages = {
            page: bytearray(data)
            for page, data in self._platter.items()
            if page * PAGE_BYTES < self._size
        }
        self._dirty.clear()
        self._platter_size = self._size

    def is_durable(self, start: int, end: int) -> bool:
        if self._platter_size < min(end, self._size):
            return False
        pages = range(start // PAGE_BYTES, (max(end, start + 1) - 1) // PAGE_BYTES + 1)
        return all(
            bytes(self._pages.get(page, _ZERO_PAGE)) == self._platter.get(page, _ZERO_PAGE)
            for page in pages
        )

    def spoil(self, position: int, data: _Bytes) -> None:
        for at, byte in enumerate(bytes(data), position):
            page, start = divmod(at, PAGE_BYTES)
            cached = self._pages.setdefault(page, bytearray(PAGE_BYTES))
            cached[start] = byte
            self._platter[page] = bytes(cached)

    def next_data(self, position: int) -> int | None:
        first = position // PAGE_BYTES
        later = [page for page in self._pages if page >= first]
        if not later:
            return None
        first_data = max(position, min(later) * PAGE_BYTES)
        return first_data if first_data < self._size else None


def _lose_one_sector(
    after: bytearray, new: _Bytes, dirty: list[tuple[int, int]], chance: random.Random
) -> None:
    """Write all unsynced sectors but one, so that whole records may follow a torn one."""
    sectors = [
        (start, min(start + SECTOR_BYTES, end))
        for begin, end in dirty
        for start in range(begin, end, SECTOR_BYTES)
    ]
    changed = [(start, end) for start, end in sectors if new[start:end] != after[start:end]]
    changed.remove(chance.choice(changed))
    for start, end in changed:
        after[start:end] = new[start:end]


def settle_page(old: _Bytes, new: _Bytes, chance: random.Random) -> bytes:
    """Draw the content of a dirty page after a cut: old, new, or a mix of their sectors."""
    fate = chance.randrange(3)
    if fate == 0:
        return bytes(old)
    if fate == 1:
        return bytes(new)
    if chance.random() < 0.5:
        # One sector alone is lost: the ends of a long record are there, its middle is not.
        almost = bytearray(new)
        start = chance.randrange(0, max(1, len(new)), SECTOR_BYTES)
        almost[start : start + SECTOR_BYTES] = old[start : start + SECTOR_BYTES]
        return bytes(almost)
    mixed = bytearray(old)
    for start in range(0, len(new), SECTOR_BYTES):
        if chance.random() < 0.5:
            mixed[start : start + SECTOR_BYTES] = new[start : start + SECTOR_BYTES]
    return bytes(mixed)
