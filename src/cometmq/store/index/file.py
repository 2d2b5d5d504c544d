"""One index file: a hash table from message keys to physical offsets (codec/index.py).

Entries, chains and slots are exactly those that Java writes for the same keys.

Keys are added in two ways with equal results: a few keys read and write their slots in the file;
many keys go through numpy with the whole slot table in memory (20 MB, newest file only).  Entries
and head are returned as (position, bytes) for a worker to write.  The table's changed pages are
written from time to time; after a crash the entries behind the last such write mend the table.

Durable when: entries and head survive the process once they are written, slots within seconds;
after a power cut the table is mended from the entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.codec.index import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT,
    IndexHeader,
    entry_position,
    index_file_bytes,
    slot_position,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from cometmq.store.base.disk import RandomFile

__all__ = ["FileWrite", "IndexFile", "IsRight", "hash_many"]

FileWrite = tuple[int, bytes]
if TYPE_CHECKING:
    IsRight = Callable[[int, int], bool]
    """Whether the record at a physical offset (second) has a key of this hash."""
_INT_MAX: Final = (1 << 31) - 1
_PAGE_SLOTS: Final = 1024
# Entries read at once when a table is mended: 20 MB.
_MEND_ENTRIES: Final = 1 << 20
_ENTRY_DTYPE: Final = [("hash", ">i4"), ("offset", ">i8"), ("delta", ">i4"), ("previous", ">i4")]


class IndexFile:
    """An open index file and its head."""

    def __init__(
        self, path: str, file: RandomFile, slot_count: int, entry_count: int, header: IndexHeader
    ) -> None:
        self.path = path
        self.file = file
        self.slot_count = slot_count
        self.entry_count = entry_count
        self.header = header._replace(index_count=max(1, header.index_count))
        self.slots: NDArray[np.int32] | None = None
        """The slot table in native order, while it is in memory."""
        self.slots_known = 1
        """Entries below this number are in the slot table of the file."""
        self.is_doubtful = False
        """After a crash: slots in the file may lead to entries that are not counted."""
        self._dirty_pages: Any = None

    @property
    def room(self) -> int:
        """How many entries still fit."""
        return self.entry_count - self.header.index_count

    @property
    def is_full(self) -> bool:
        """Whether the next entry needs another file."""
        return self.header.index_count >= self.entry_count

    @property
    def are_slots_known(self) -> bool:
        """Whether the slot table of the file knows every entry."""
        return self.slots_known >= self.header.index_count and not self.is_doubtful

    def cut(self, physical_offset: int, is_right: IsRight | None = None) -> None:
        """Drop entries from the first one whose record is not below an offset.

        What lies behind the last sync after a power cut may be zeros, or entries of a life before
        the one that ended, of records that are no longer there: both go too, the latter where
        `is_right` says that no record at that place has the hash.
        """
        header = self.header
        low, high = 1, header.index_count
        while low < high:
            middle = (low + high) // 2
            entry = self._entry(middle)
            is_kept = entry is not None and entry[1] < physical_offset and entry != (0, 0, 0, 0)
            if is_kept:
                low = middle + 1
            else:
                high = middle
        while is_right is not None and low > 1:
            entry = self._entry(low - 1)
            if entry is not None and entry[1] < physical_offset and is_right(entry[0], entry[1]):
                break
            low -= 1
        self._cut_to(low)

    def _cut_to(self, low: int) -> None:
        """Drop the entries from a number on."""
        header = self.header
        if low == header.index_count:
            return
        last = self._entry(low - 1) if low > 1 else None
        self.header = header._replace(
            index_count=low,
            end_physical_offset=header.begin_physical_offset if last is None else last[1],
            end_timestamp_ms=header.begin_timestamp_ms + (0 if last is None else last[2] * 1000),
        )
        # Slots may point behind the new end; only a table made from the entries is right.
        self.slots_known = 1
        if low == 1:
            self.header = IndexHeader(0, 0, 0, 0, 0, 1)
            self.slots_known = 0
        self.file.write(*self.head_write())

    def cut_unsound(self) -> bool:
        """Drop entries from the first one that cannot be right; return whether there was one.

        Right ones have rising offsets, lead backwards, and begin where the head says.  Zeros of
        pages that a power cut took fail this.
        """
        import numpy as np

        before = self.header.begin_physical_offset
        for first in range(1, self.header.index_count, _MEND_ENTRIES):
            end = min(first + _MEND_ENTRIES, self.header.index_count)
            entries = self.read_entries(first, end)
            offsets = entries["offset"].astype(np.int64)
            numbers = np.arange(first, first + len(entries))
            floor = np.concatenate(([before], offsets[:-1]))
            is_zero = (entries["hash"] == 0) & (offsets == 0) & (numbers > 1)
            is_wrong = (
                (offsets < floor)
                | is_zero
                | (entries["hash"] < 0)
                | (entries["delta"] < 0)
                | (entries["previous"] < 0)
                | (entries["previous"] >= numbers)
            )
            if is_wrong.any() or len(entries) < end - first:
                wrong = np.flatnonzero(is_wrong)
                self._cut_to(first + (int(wrong[0]) if len(wrong) else len(entries)))
                return True
            before = int(offsets[-1])
        return False

    def _entry(self, number: int) -> tuple[int, int, int, int] | None:
        raw = self.file.read(entry_position(number, self.slot_count), INDEX_ENTRY_BYTES)
        if len(raw) < INDEX_ENTRY_BYTES:
            return None
        key_hash, offset, delta, previous = INDEX_ENTRY.unpack(raw)
        return key_hash, offset, delta, previous

    def head_write(self) -> FileWrite:
        """Return the write of the present head."""
        return 0, INDEX_HEADER.pack(*self.header)

    # -- one by one ----------------------------------------------------------------------

    def add_one(self, key_hash: int, physical_offset: int, store_ms: int) -> None:
        """Add one entry, reading and writing the file; the caller writes the head."""
        header = self.header
        number = header.index_count
        slot = key_hash % self.slot_count
        place = slot_position(slot)
        if self.slots is not None:
            previous = int(self.slots[slot])
        else:
            (previous,) = INDEX_SLOT.unpack(self.file.read(place, 4))
        if not 0 < previous <= number:
            previous = 0
        delta = self._delta(store_ms)
        entry = INDEX_ENTRY.pack(key_hash, physical_offset, delta, previous)
        self.file.write(entry_position(number, self.slot_count), entry)
        self.file.write(place, INDEX_SLOT.pack(number))
        if self.slots is not None:
            self.slots[slot] = number
        if self.slots_known == number:
            self.slots_known = number + 1
        self._count(1, 0 if previous else 1, physical_offset, store_ms, physical_offset, store_ms)

    def _delta(self, store_ms: int) -> int:
        begin_ms = self.header.begin_timestamp_ms
        if begin_ms <= 0:
            return 0
        return max(0, min((store_ms - begin_ms) // 1000, _INT_MAX))

    def _count(
        self, added: int, new_slots: int, first: int, first_ms: int, last: int, last_ms: int
    ) -> None:
        """Account for entries in the head."""
        header = self.header
        is_first = header.index_count <= 1
        self.header = IndexHeader(
            first_ms if is_first else header.begin_timestamp_ms,
            last_ms,
            first if is_first else header.begin_physical_offset,
            last,
            header.slot_count + new_slots,
            header.index_count + added,
        )

    # -- many ----------------------------------------------------------------------------

    def load_slots(self) -> NDArray[np.int32]:
        """Read the slot table and mend it from entries it does not know (blocks; in a worker)."""
        import numpy as np

        raw = self.file.read(INDEX_HEADER_BYTES, self.slot_count * 4)
        slots = np.zeros(self.slot_count, dtype=np.int32)
        stored = np.frombuffer(raw[: len(raw) // 4 * 4], dtype=">i4")
        slots[: len(stored)] = stored
        known, count = max(1, self.slots_known), self.header.index_count
        if ((slots < 0) | (slots >= count)).any():
            # The entries that were meant are lost, and with them the way to older ones.
            slots[:] = 0
            known = 1
        for first in range(known, count, _MEND_ENTRIES):
            entries = self.read_entries(first, min(first + _MEND_ENTRIES, count))
            slots[entries["hash"].astype(np.int64) % self.slot_count] = np.arange(
                first, first + len(entries), dtype=np.int32
            )
        return slots

    def adopt_slots(self, slots: NDArray[np.int32]) -> None:
        """Take a loaded table; it must be as old as the head."""
        import numpy as np

        self.slots = slots
        pages = -(-self.slot_count // _PAGE_SLOTS)
        self._dirty_pages = np.zeros(pages, dtype=np.bool_)
        if not self.are_slots_known:
            # What a crash or a cut left in the head counts slots of entries that are gone.
            self.header = self.header._replace(slot_count=int(np.count_nonzero(slots)))
            if self.is_doubtful:
                # The file's table may be wrong anywhere until this one is written.
                self.slots_known = 1
            self.is_doubtful = False
            # Mended in memory only, and the changed pages are unknown.
            self._dirty_pages[:] = True

    def read_entries(self, first: int, end: int) -> Any:
        """Entries [first, end) as a numpy array with hash, offset, delta, previous."""
        import numpy as np

        raw = self.file.read(
            entry_position(first, self.slot_count), (end - first) * INDEX_ENTRY_BYTES
        )
        usable = len(raw) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES
        return np.frombuffer(raw[:usable], dtype=_ENTRY_DTYPE)

    def add_many(
        self, hashes: NDArray[np.int64], offsets: NDArray[np.int64], times_ms: NDArray[np.int64]
    ) -> FileWrite:
        """Add entries that fit (see `room`); the table must be in memory.

        Returns the write of the entries; the caller adds the head's.
        """
        import numpy as np

        slots = self.slots
        assert slots is not None
        count = len(hashes)
        start = self.header.index_count
        numbers = np.arange(start, start + count, dtype=np.int32)
        places = hashes % self.slot_count
        # Entries of one bucket in a row: each but the first points at the one before it.
        order = np.argsort(places, kind="stable")
        sorted_places = places[order]
        previous_sorted = slots[sorted_places]
        is_repeated = np.zeros(count, dtype=np.bool_)
        is_repeated[1:] = sorted_places[1:] == sorted_places[:-1]
        sorted_numbers = numbers[order]
        previous_sorted[is_repeated] = sorted_numbers[np.flatnonzero(is_repeated) - 1]
        previous = np.empty(count, dtype=np.int32)
        previous[order] = previous_sorted
        slots[sorted_places] = sorted_numbers
        self._dirty_pages[sorted_places // _PAGE_SLOTS] = True
        entries = np.empty(count, dtype=_ENTRY_DTYPE)
        entries["hash"] = hashes
        entries["offset"] = offsets
        entries["previous"] = previous
        entries["delta"] = self._deltas(times_ms)
        self._count(
            count,
            int(np.count_nonzero(previous == 0)),
            int(offsets[0]),
            int(times_ms[0]),
            int(offsets[-1]),
            int(times_ms[-1]),
        )
        return entry_position(start, self.slot_count), entries.tobytes()

    def _deltas(self, times_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """Seconds after the file's begin; the very first entry still counts from the old one."""
        import numpy as np

        first = self._delta(int(times_ms[0]))
        begin_ms = self.header.begin_timestamp_ms
        if self.header.index_count <= 1:
            begin_ms = int(times_ms[0])
        if begin_ms <= 0:
            return np.zeros(len(times_ms), dtype=np.int64)
        deltas = np.clip((times_ms - begin_ms) // 1000, 0, _INT_MAX)
        deltas[0] = first
        return deltas

    def slot_writes(self) -> Callable[[], None] | None:
        """What a worker does to bring changed pages of the table into the file; None for none.

        It may run while entries are added: pages changed meanwhile are written again later.
        """
        import numpy as np

        slots = self.slots
        if slots is None or self._dirty_pages is None or not self._dirty_pages.any():
            return None
        known = self.header.index_count
        pages = np.flatnonzero(self._dirty_pages)
        self._dirty_pages[:] = False
        runs = np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1)
        file = self.file

        def write() -> None:
            try:
                for run in runs:
                    first = int(run[0]) * _PAGE_SLOTS
                    last = (int(run[-1]) + 1) * _PAGE_SLOTS
                    file.write(slot_position(first), slots[first:last].astype(">i4").tobytes())
            except BaseException:
                # They are due again; otherwise a later success would vouch for them.
                if self._dirty_pages is not None:
                    self._dirty_pages[pages] = True
                raise
            self.slots_known = max(self.slots_known, known)

        return write

    def write_slots_again(self) -> None:
        """Mark every page of the table as changed, since a write of some was dropped."""
        if self._dirty_pages is not None:
            self._dirty_pages[:] = True

    def mend(self) -> None:
        """Make the file's slot table from its entries (blocks; nothing may be added meanwhile)."""
        self.slots_known = 1
        slots = self.load_slots()
        self.header = self.header._replace(slot_count=int((slots != 0).sum()))
        self.file.write(slot_position(0), slots.astype(">i4").tobytes())
        self.file.write(*self.head_write())
        # Nobody else syncs a full file any more.
        self.file.sync()
        self.slots_known = self.header.index_count
        self.is_doubtful = False

    def drop_slots(self) -> None:
        """Free the table's memory; its changes must have been written."""
        self.slots = None
        self._dirty_pages = None

    # -- queries -------------------------------------------------------------------------

    def is_in_time(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file's time range meets the query's (``IndexFile.isTimeMatched``)."""
        first, last = self.header.begin_timestamp_ms, self.header.end_timestamp_ms
        return begin_ms <= last and end_ms >= first

    def newest(self, key_hash: int) -> int | None:
        """Number of the newest entry in the key's bucket, 0 for none; None: not in memory."""
        slots = self.slots
        return None if slots is None else int(slots[key_hash % self.slot_count])

    def newest_in_file(self, key_hash: int) -> int:
        """The same from the file (blocks; all of the table after a crash, until it is mended).

        It may not know entries that were added while their table was in memory.
        """
        slot = key_hash % self.slot_count
        if self.slots is None and not self.are_slots_known:
            return int(self.load_slots()[slot])
        raw = self.file.read(slot_position(slot), 4)
        return int(INDEX_SLOT.unpack(raw)[0]) if len(raw) == 4 else 0


def hash_many(texts: Sequence[str], prefixes: Sequence[int] | int) -> NDArray[np.int64]:
    """Index hashes of many keys: Java's hash of each text, its prefix's hash going before.

    `prefixes` are the unsigned 32-bit hashes of what stands before each text, or one for all.
    """
    import numpy as np

    count = len(texts)
    before = np.full(count, prefixes, dtype=np.uint32)
    result = np.zeros(count, dtype=np.uint32)
    lengths = list(map(len, texts))
    kinds = set(lengths)
    whole = "".join(texts)
    if not whole.isascii():
        wide = [index for index, text in enumerate(texts) if not text.isascii()]
        _hash_wide(texts, wide, before, result)
        for index in wide:
            lengths[index] = -1
        kinds = set(lengths) - {-1}
    elif len(kinds) == 1:
        return _signed(_hash_equally_long(whole, count, kinds.pop(), before))
    places = np.array(lengths)
    for length in kinds:
        members = np.flatnonzero(places == length)
        joined = "".join([texts[index] for index in members.tolist()])
        result[members] = _hash_equally_long(joined, len(members), length, before[members])
    return _signed(result)


def _hash_equally_long(joined: str, count: int, length: int, before: Any) -> Any:
    """Unsigned hashes of `count` ASCII keys of one length that follow each other."""
    import numpy as np

    units = np.frombuffer(joined.encode("ascii"), dtype=np.uint8).reshape(count, length)
    powers = np.array(
        [pow(31, length - 1 - place, 1 << 32) for place in range(length)], dtype=np.uint32
    )
    return before * np.uint32(pow(31, length, 1 << 32)) + (units * powers).sum(
        axis=1, dtype=np.uint32
    )


def _signed(hashes: Any) -> NDArray[np.int64]:
    """Absolute values as Java's Math.abs on an int gives them; -2**31 has none and becomes 0."""
    import numpy as np

    signed = hashes.view(np.int32).astype(np.int64)
    positive: NDArray[np.int64] = np.abs(signed)
    positive[signed == -(1 << 31)] = 0
    return positive


def _hash_wide(texts: Sequence[str], members: list[int], before: Any, result: Any) -> None:
    """Keys beyond ASCII, unit by unit."""
    for index in members:
        value = int(before[index])
        raw = texts[index].encode("utf-16-be", "surrogatepass")
        for place in range(0, len(raw), 2):
            value = (31 * value + ((raw[place] << 8) | raw[place + 1])) & 0xFFFFFFFF
        result[index] = value


assert index_file_bytes(1, 1) == INDEX_HEADER_BYTES + 4 + INDEX_ENTRY_BYTES
