"""Which records were appended again as timed messages, while their log file is still there.

The physical offsets of records that a newer one replaces are remembered, also over a crash, so that
no message is delivered twice.

Between the first append and the deletion of the file both records exist.  In this life the places
are in memory.  For the next one ``config/cometmqMoved.json`` is written before the first append: it
says below which physical offset messages may have been replaced, and from which queue offset of
the timer topic on the newer ones lie; each of them names what it replaces (`codec.timer_moved`).
Once the log begins behind that physical offset the file says nothing any more.
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

__all__ = ["MovedPlaces"]

log = logging.getLogger("cometmq.broker")

_NAME: Final = "cometmqMoved.json"
_READ_UNITS: Final = 512


class _Mark(msgspec.Struct, frozen=True, rename="camel"):
    below: int = 0
    timer_from: int = 0


class MovedPlaces:
    """The replaced records of one store."""

    def __init__(self, disk: Disk, store: MessageStore) -> None:
        self._disk = disk
        self._store = store
        self._folder = f"{store.config.root}/config"
        self._mark = _Mark()
        self._places = array("q")
        self.levels: dict[int, int] = {}
        """By delay level: the queue offset behind messages that were replaced before the start."""

    def __contains__(self, place: object) -> bool:
        """Whether the record at a physical offset is replaced; also for workers."""
        assert isinstance(place, int)
        places = self._places
        found = bisect_left(places, place)
        return found < len(places) and places[found] == place

    def __len__(self) -> int:
        return len(self._places)

    def raw(self) -> bytes:
        """All places, ascending, as 64-bit numbers."""
        return self._places.tobytes()

    def add(self, place: int) -> None:
        """Note that a record is replaced."""
        places = self._places
        if not places or place > places[-1]:
            places.append(place)
        elif place not in self:
            # Seldom; a worker may be looking at the old one.
            self._places = array("q", sorted([*places, place]))

    def load(self) -> None:
        """Read what a crash has left.  Blocks; call it before anything is delivered."""
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
        found: set[int] = set()
        while units := store.units(TIMER_TOPIC, 0, next_offset, _READ_UNITS):
            next_offset += len(units)
            for unit in units:
                if unit.size > 0:
                    self._take(unit.physical_offset, log_min, found)
        self._places = array("q", sorted(found))
        if found:
            log.info("%d messages were appended again before the last end", len(found))

    def _take(self, physical_offset: int, log_min: int, found: set[int]) -> None:
        try:
            record = self._store.message_at(physical_offset)
            raw = b"" if record is None else decode_message(record).raw_properties
        except (StoreError, CodecError) as error:
            log.error("the record at physical offset %d cannot be read: %s", physical_offset, error)
            return
        moved = moved_from(raw)
        if moved is None or moved.physical_offset < log_min:
            return
        found.add(moved.physical_offset)
        if moved.level:
            behind = moved.queue_offset + 1
            self.levels[moved.level] = max(behind, self.levels.get(moved.level, 0))

    def prepare(self, end: int) -> Callable[[], None]:
        """On the loop; the result, for a worker, makes a crash from now on recoverable."""
        store, mark = self._store, self._mark
        log_min = store.min_physical_offset
        keep = bisect_left(self._places, log_min)
        if keep:
            self._places = self._places[keep:]
        if mark.below > log_min:
            # What was replaced in the same file before is still to be known.
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
