"""One index file: a hash table from message keys to physical offsets (codec/index.py).

The file has a head, a table of slots and a list of entries.  A slot is a hash bucket: it has the
number of the newest entry of the bucket, and each entry has the number of the one before it.  For
the same keys, the file has the same bytes as one that Java writes.

Entries are added in two ways with equal results.  `add_one` reads and writes the slot in the file.
`add_many` computes with numpy on the whole slot table in memory (20 MB, newest file only) and
returns the write of the entries as (position, bytes) for a worker.  The changed pages of the table
are written every few seconds.  After a crash, the table is completed from the entries that were
added since the last such write.

Durable when: entries and head survive the process once they are written, slots within seconds;
after a power cut the table is made again from the entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq import native
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

__all__ = ["FileWrite", "HasKey", "IndexFile", "hash_many"]

FileWrite = tuple[int, bytes]
"""Position in a file, and the bytes to write there."""
if TYPE_CHECKING:
    HasKey = Callable[[int, int], bool]
    """By hash and physical offset: whether the record there has a key of that hash."""
_INT_MAX: Final = (1 << 31) - 1
_PAGE_SLOTS: Final = 1024
# Entries read at once when a table is made from entries: 20 MB.
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
        """The slot table in native byte order, while it is in memory."""
        self.slots_known = 1
        """Entries below this number are in the file's slot table."""
        self.is_doubtful = False
        """After a crash: slots in the file may lead to entries that the head does not count."""
        self._dirty_pages: Any = None
        """For each page of the table in memory, whether the file lacks its changes."""

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
        """Whether the file's slot table has every entry."""
        return self.slots_known >= self.header.index_count and not self.is_doubtful

    def cut(self, physical_offset: int, has_key: HasKey | None = None) -> None:
        """Drop the entries of records at or behind a physical offset.

        After a power cut, the entries behind the last sync may be zeros, or entries that an earlier
        process wrote for records that are gone.  Zeros are dropped too; with `has_key`, also the
        last entries whose record does not have a key of their hash.
        """
        header = self.header
        low, high = 1, header.index_count
        while low < high:
            middle = (low + high) // 2
            # A disk may have changed an entry; then the next one tells on which side it is.
            if self._is_below(middle, physical_offset) or (
                middle + 1 < high and self._is_below(middle + 1, physical_offset)
            ):
                low = middle + 1
            else:
                high = middle
        while has_key is not None and low > 1:
            entry = self._entry(low - 1)
            is_below = self._is_below(low - 1, physical_offset)
            if entry is not None and is_below and has_key(entry[0], entry[1]):
                break
            low -= 1
        self._cut_to(low)

    def _is_below(self, number: int, physical_offset: int) -> bool:
        """Whether an entry is there and leads to a record below a physical offset."""
        entry = self._entry(number)
        return entry is not None and entry[1] < physical_offset and entry != (0, 0, 0, 0)

    def _cut_to(self, number: int) -> None:
        """Drop the entries from a number on."""
        header = self.header
        if number == header.index_count:
            return
        last = self._entry(number - 1) if number > 1 else None
        self.header = header._replace(
            index_count=number,
            end_physical_offset=header.begin_physical_offset if last is None else last[1],
            end_timestamp_ms=header.begin_timestamp_ms + (0 if last is None else last[2] * 1000),
        )
        # Slots in the file may lead to dropped entries, so the table must be made again.
        self.slots_known = 1
        if number == 1:
            self.header = IndexHeader(0, 0, 0, 0, 0, 1)
            self.slots_known = 0
        self.file.write(*self.head_write())

    def cut_unsound(self) -> bool:
        """Drop entries from the first impossible one on; return whether there was one.

        The physical offsets of entries never fall and begin at the head's, and each entry leads to
        an earlier one.  The zeros of pages that a power cut took do not fit this.
        """
        import numpy as np

        last_offset = self.header.begin_physical_offset
        for first in range(1, self.header.index_count, _MEND_ENTRIES):
            end = min(first + _MEND_ENTRIES, self.header.index_count)
            entries = self.read_entries(first, end)
            offsets = entries["offset"].astype(np.int64)
            numbers = np.arange(first, first + len(entries))
            floor = np.concatenate(([last_offset], offsets[:-1]))
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
            last_offset = int(offsets[-1])
        return False

    def _entry(self, number: int) -> tuple[int, int, int, int] | None:
        """Return hash, physical offset, seconds and previous entry; None where the file is cut."""
        raw = self.file.read(entry_position(number, self.slot_count), INDEX_ENTRY_BYTES)
        if len(raw) < INDEX_ENTRY_BYTES:
            return None
        key_hash, offset, delta, previous = INDEX_ENTRY.unpack(raw)
        return key_hash, offset, delta, previous

    def head_write(self) -> FileWrite:
        """Return the write that brings the present head into the file."""
        return 0, INDEX_HEADER.pack(*self.header)

    # -- one by one ----------------------------------------------------------------------

    def add_one(self, key_hash: int, physical_offset: int, store_ms: int) -> None:
        """Add one entry to the file; the caller writes the head."""
        header = self.header
        number = header.index_count
        slot = key_hash % self.slot_count
        position = slot_position(slot)
        if self.slots is not None:
            previous = int(self.slots[slot])
        else:
            (previous,) = INDEX_SLOT.unpack(self.file.read(position, 4))
        if not 0 < previous <= number:
            previous = 0
        delta = self._delta(store_ms)
        entry = INDEX_ENTRY.pack(key_hash, physical_offset, delta, previous)
        self.file.write(entry_position(number, self.slot_count), entry)
        self.file.write(position, INDEX_SLOT.pack(number))
        if self.slots is not None:
            self.slots[slot] = number
        if self.slots_known == number:
            self.slots_known = number + 1
        self._count(1, 0 if previous else 1, physical_offset, store_ms, physical_offset, store_ms)

    def _delta(self, store_ms: int) -> int:
        """Return the seconds since the file's first entry, as an entry states them."""
        begin_ms = self.header.begin_timestamp_ms
        if begin_ms <= 0:
            return 0
        return max(0, min((store_ms - begin_ms) // 1000, _INT_MAX))

    def _count(
        self, added: int, new_slots: int, first: int, first_ms: int, last: int, last_ms: int
    ) -> None:
        """Count added entries and newly used slots in the head."""
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
        """Read the slot table and complete it from the entries that it lacks.  Blocks."""
        import numpy as np

        raw = self.file.read(INDEX_HEADER_BYTES, self.slot_count * 4)
        slots = np.zeros(self.slot_count, dtype=np.int32)
        stored = np.frombuffer(raw[: len(raw) // 4 * 4], dtype=">i4")
        slots[: len(stored)] = stored
        begin, count = max(1, self.slots_known), self.header.index_count
        if ((slots < 0) | (slots >= count)).any():
            # A slot leads to a lost entry, so the way to the older entries of its bucket is lost.
            slots[:] = 0
            begin = 1
        for first in range(begin, count, _MEND_ENTRIES):
            entries = self.read_entries(first, min(first + _MEND_ENTRIES, count))
            slots[entries["hash"].astype(np.int64) % self.slot_count] = np.arange(
                first, first + len(entries), dtype=np.int32
            )
        return slots

    def adopt_slots(self, slots: NDArray[np.int32]) -> None:
        """Use a loaded table; no entry may have been added since it was loaded."""
        import numpy as np

        self.slots = slots
        pages = -(-self.slot_count // _PAGE_SLOTS)
        self._dirty_pages = np.zeros(pages, dtype=np.bool_)
        if not self.are_slots_known:
            # After a crash or a cut, the head's count includes slots of entries that are gone.
            self.header = self.header._replace(slot_count=int(np.count_nonzero(slots)))
            if self.is_doubtful:
                # The file's table may be wrong anywhere until this one is written.
                self.slots_known = 1
            self.is_doubtful = False
            # The table was completed in memory, and any page of the file may be wrong.
            self._dirty_pages[:] = True

    def read_entries(self, first: int, end: int) -> Any:
        """Return entries [first, end) as a numpy array with hash, offset, delta and previous."""
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
        slots = self.slots
        assert slots is not None
        start = self.header.index_count
        header_ms = self.header.begin_timestamp_ms
        # The very first entry of a file counts from the begin that the head has until then.
        begin_ms = int(times_ms[0]) if start <= 1 else header_ms
        link = self._link if native.link_entries is None else native.link_entries
        entries, new_slots = link(
            hashes, offsets, times_ms, start, header_ms, begin_ms, slots, self._dirty_pages
        )
        self._count(
            len(hashes),
            new_slots,
            int(offsets[0]),
            int(times_ms[0]),
            int(offsets[-1]),
            int(times_ms[-1]),
        )
        return entry_position(start, self.slot_count), entries

    def _link(
        self,
        hashes: NDArray[np.int64],
        offsets: NDArray[np.int64],
        times_ms: NDArray[np.int64],
        start: int,
        first_begin_ms: int,
        begin_ms: int,
        slots: NDArray[np.int32],
        dirty_pages: NDArray[np.bool_],
    ) -> tuple[bytes, int]:
        """Return entries from number `start` on, and how many slots are used for the first time.

        The slot table leads to them afterwards.
        """
        import numpy as np

        count = len(hashes)
        numbers = np.arange(start, start + count, dtype=np.int32)
        buckets = hashes % self.slot_count
        # Sorted by bucket, each entry but the first of its bucket points to its neighbour.
        order = np.argsort(buckets, kind="stable")
        sorted_buckets = buckets[order]
        previous_sorted = slots[sorted_buckets]
        is_repeated = np.zeros(count, dtype=np.bool_)
        is_repeated[1:] = sorted_buckets[1:] == sorted_buckets[:-1]
        sorted_numbers = numbers[order]
        previous_sorted[is_repeated] = sorted_numbers[np.flatnonzero(is_repeated) - 1]
        previous = np.empty(count, dtype=np.int32)
        previous[order] = previous_sorted
        slots[sorted_buckets] = sorted_numbers
        dirty_pages[sorted_buckets // _PAGE_SLOTS] = True
        entries = np.empty(count, dtype=_ENTRY_DTYPE)
        entries["hash"] = hashes
        entries["offset"] = offsets
        entries["previous"] = previous
        entries["delta"] = _seconds_since(begin_ms, times_ms)
        entries["delta"][:1] = _seconds_since(first_begin_ms, times_ms[:1])
        return entries.tobytes(), int(np.count_nonzero(previous == 0))

    def slot_writes(self) -> Callable[[], None] | None:
        """Return a function that writes the table's changed pages, for a worker; None without any.

        Entries may be added while it runs; the pages they change are written the next time.
        """
        import numpy as np

        slots = self.slots
        if slots is None or self._dirty_pages is None or not self._dirty_pages.any():
            return None
        end = self.header.index_count
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
                # Write them again: a later success covers all entries up to then.
                if self._dirty_pages is not None:
                    self._dirty_pages[pages] = True
                raise
            self.slots_known = max(self.slots_known, end)

        return write

    def write_slots_again(self) -> None:
        """Mark every page of the table as changed, after a write of pages did not happen."""
        if self._dirty_pages is not None:
            self._dirty_pages[:] = True

    def mend(self) -> None:
        """Make the file's slot table from its entries.  Blocks; nothing may be added meanwhile."""
        self.slots_known = 1
        slots = self.load_slots()
        self.header = self.header._replace(slot_count=int((slots != 0).sum()))
        self.file.write(slot_position(0), slots.astype(">i4").tobytes())
        self.file.write(*self.head_write())
        # Nothing else syncs a full file.
        self.file.sync()
        self.slots_known = self.header.index_count
        self.is_doubtful = False

    def drop_slots(self) -> None:
        """Free the table's memory; the file must have all its changes."""
        self.slots = None
        self._dirty_pages = None

    # -- queries -------------------------------------------------------------------------

    def is_in_time(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file's time range meets the query's (``IndexFile.isTimeMatched``)."""
        first, last = self.header.begin_timestamp_ms, self.header.end_timestamp_ms
        return begin_ms <= last and end_ms >= first

    def newest(self, key_hash: int) -> int | None:
        """Return the number of the newest entry in a hash's bucket, 0 for none.

        None when the slot table is not in memory.
        """
        slots = self.slots
        return None if slots is None else int(slots[key_hash % self.slot_count])

    def newest_in_file(self, key_hash: int) -> int:
        """As `newest`, by the file's table, which may lack entries added in memory.  Blocks.

        After a crash, until the table is mended, this reads the whole table.
        """
        slot = key_hash % self.slot_count
        if self.slots is None and not self.are_slots_known:
            return int(self.load_slots()[slot])
        raw = self.file.read(slot_position(slot), 4)
        return int(INDEX_SLOT.unpack(raw)[0]) if len(raw) == 4 else 0


def _seconds_since(begin_ms: int, times_ms: NDArray[np.int64]) -> Any:
    """Return the seconds of entries since the first one of their file, as entries state them."""
    return ((times_ms - begin_ms) // 1000).clip(0, _INT_MAX) if begin_ms > 0 else 0


def hash_many(texts: Sequence[str], prefixes: Sequence[int] | int) -> NDArray[np.int64]:
    """Return the index hashes of many keys: Java's hash of prefix and text.

    `prefixes` has the unsigned 32-bit hash of the prefix of each text, or is one hash for all.
    """
    import numpy as np

    count = len(texts)
    prefix_hashes = np.full(count, prefixes, dtype=np.uint32)
    result = np.zeros(count, dtype=np.uint32)
    lengths = list(map(len, texts))
    distinct_lengths = set(lengths)
    joined = "".join(texts)
    if not joined.isascii():
        wide = [index for index, text in enumerate(texts) if not text.isascii()]
        _hash_wide(texts, wide, prefix_hashes, result)
        for index in wide:
            lengths[index] = -1
        distinct_lengths = set(lengths) - {-1}
    elif len(distinct_lengths) == 1:
        return _signed(_hash_equally_long(joined, count, distinct_lengths.pop(), prefix_hashes))
    length_of = np.array(lengths)
    for length in distinct_lengths:
        members = np.flatnonzero(length_of == length)
        part = "".join([texts[index] for index in members.tolist()])
        result[members] = _hash_equally_long(part, len(members), length, prefix_hashes[members])
    return _signed(result)


def _hash_equally_long(joined: str, count: int, length: int, prefix_hashes: Any) -> Any:
    """Return the unsigned hashes of `count` ASCII keys of one length, joined in one text."""
    import numpy as np

    chars = np.frombuffer(joined.encode("ascii"), dtype=np.uint8).reshape(count, length)
    powers = np.array(
        [pow(31, length - 1 - index, 1 << 32) for index in range(length)], dtype=np.uint32
    )
    return prefix_hashes * np.uint32(pow(31, length, 1 << 32)) + (chars * powers).sum(
        axis=1, dtype=np.uint32
    )


def _signed(hashes: Any) -> NDArray[np.int64]:
    """Return the absolute values as Java's Math.abs of an int; -2**31 becomes 0."""
    import numpy as np

    signed = hashes.view(np.int32).astype(np.int64)
    positive: NDArray[np.int64] = np.abs(signed)
    positive[signed == -(1 << 31)] = 0
    return positive


def _hash_wide(texts: Sequence[str], members: list[int], prefix_hashes: Any, result: Any) -> None:
    """Put the unsigned hashes of keys beyond ASCII into `result`, computed by UTF-16 code units."""
    for index in members:
        value = int(prefix_hashes[index])
        raw = texts[index].encode("utf-16-be", "surrogatepass")
        for at in range(0, len(raw), 2):
            value = (31 * value + ((raw[at] << 8) | raw[at + 1])) & 0xFFFFFFFF
        result[index] = value


assert index_file_bytes(1, 1) == INDEX_HEADER_BYTES + 4 + INDEX_ENTRY_BYTES
