"""Remembers which records newer ones replace, so that no message is delivered twice.

Before a log file goes, the messages that wait in it are appended again as timed messages.  From the
first append to the deletion of the file, both records of a message exist.  The physical offsets of
the older records are in memory while the broker runs.

After a crash they are found again with ``config/cometmqMoved.json``, which is written before the
first append.  It says below which physical offset records may have been replaced, and from which
queue offset of the timer topic on the newer ones lie.  Each newer record names the one it replaces
(`codec.timer_moved`).  Once the log begins behind that physical offset, the file says nothing more.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.codec.stored_message import decode_message
from cometmq.codec.timer_moved import moved_from
from cometmq.errors import CodecError, StoreError
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.disk import make_durable_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.store.base.disk import Disk
    from cometmq.store.message_store import MessageStore

__all__ = ["MovedRecords"]

log = logging.getLogger("cometmq.broker")

_NAME: Final = "cometmqMoved.json"
_READ_UNITS: Final = 512


class _Mark(msgspec.Struct, frozen=True, rename="camel"):
    below: int = 0
    timer_from: int = 0


class MovedRecords:
    """The replaced records of one store."""

    def __init__(self, disk: Disk, store: MessageStore) -> None:
        self._disk = disk
        self._store = store
        self._folder = f"{store.config.root}/config"
        self._mark = _Mark()
        self._offsets = array("q")
        self.levels: dict[int, int] = {}
        """Delay level -> queue offset behind the messages that were replaced before the start."""

    def __contains__(self, physical_offset: object) -> bool:
        """Whether the record at a physical offset is replaced; workers may ask too."""
        assert isinstance(physical_offset, int)
        offsets = self._offsets
        number = bisect_left(offsets, physical_offset)
        return number < len(offsets) and offsets[number] == physical_offset

    def __len__(self) -> int:
        return len(self._offsets)

    def raw(self) -> bytes:
        """All physical offsets, ascending, as 64-bit numbers."""
        return self._offsets.tobytes()

    def add(self, physical_offset: int) -> None:
        """Note that a record is replaced."""
        offsets = self._offsets
        if not offsets or physical_offset > offsets[-1]:
            offsets.append(physical_offset)
        elif physical_offset not in self:
            # Seldom.  A worker may be searching the old array, so that one stays as it is.
            self._offsets = array("q", sorted([*offsets, physical_offset]))

    def load(self) -> None:
        """Find the records that were replaced before a crash.  Blocks; call it before delivery."""
        try:
            self._mark = msgspec.json.decode(
                self._disk.read_bytes(f"{self._folder}/{_NAME}"), type=_Mark
            )
        except FileNotFoundError:
            return
        except msgspec.MsgspecError as error:
            log.error("%s/%s cannot be read and is passed over: %s", self._folder, _NAME, error)
            return
        store = self._store
        log_min = store.min_physical_offset
        if self._mark.below <= log_min:
            return
        next_offset = max(self._mark.timer_from, store.min_queue_offset(TIMER_TOPIC, 0))
        replaced: set[int] = set()
        while units := store.units(TIMER_TOPIC, 0, next_offset, _READ_UNITS):
            next_offset += len(units)
            for unit in units:
                if unit.size > 0:
                    self._note_replaced(unit.physical_offset, log_min, replaced)
        self._offsets = array("q", sorted(replaced))
        if replaced:
            log.info("%d messages were appended again before the last end", len(replaced))

    def _note_replaced(self, physical_offset: int, log_min: int, replaced: set[int]) -> None:
        """Add to `replaced` the record that the one at `physical_offset` replaces, if any."""
        try:
            record = self._store.message_at(physical_offset)
            raw = b"" if record is None else decode_message(record).raw_properties
        except (StoreError, CodecError) as error:
            log.error("the record at physical offset %d cannot be read: %s", physical_offset, error)
            return
        moved = moved_from(raw)
        if moved is None or moved.physical_offset < log_min:
            return
        replaced.add(moved.physical_offset)
        if moved.level:
            behind = moved.queue_offset + 1
            self.levels[moved.level] = max(behind, self.levels.get(moved.level, 0))

    def prepare(self, end: int) -> Callable[[], None]:
        """On the loop; a worker calls the result, which makes a crash from now on recoverable."""
        store, mark = self._store, self._mark
        log_min = store.min_physical_offset
        deleted_count = bisect_left(self._offsets, log_min)
        if deleted_count:
            self._offsets = self._offsets[deleted_count:]
        if mark.below > log_min:
            # Records of the same file were replaced before: the mark must cover them too.
            wanted = _Mark(max(mark.below, end), mark.timer_from)
        else:
            wanted = _Mark(end, store.end_of_queue(TIMER_TOPIC, 0))
        if wanted == mark:
            return lambda: None

        def write() -> None:
            make_durable_directory(self._disk, self._folder)
            self._disk.write_atomic(f"{self._folder}/{_NAME}", msgspec.json.encode(wanted))
            self._mark = wanted

        return write
