"""The timer files of a store: the wheel, the timer log and ``timercheck``.

The book opens and recovers the files, adds units to slots, and writes changes in an order that any
crash leaves consistent.  The broker decides when a message is due, and delivers it.

The files are a cache of queue 0 of ``rmq_sys_wheel_timer``: messages that they lack are read from
that queue again.  They are written in the order timer log, wheel, timercheck, each synced before
the next.  So timer log and wheel always have everything that timercheck states.  Messages behind
that may be added a second time after a crash; two units of a slot that lead to one message count
once.

Recovery follows ``TimerMessageStore.recover`` (RocketMQ 5.4.0).  The units behind the flushed
position of the timer log are added to their slots again, except the last one where a crash has left
it in part (Java adds it).  Then the queue is read from behind the
messages of these units.  Java reads it from the checkpoint's queue offset instead and adds those
messages twice.

A wheel with another precision (``timerPrecisionMs``) is made again.  The wheel's file does not
state its precision; the units to which its slots lead do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cometmq.codec.timer import (
    TIMER_DELETE,
    TIMER_LOG_UNIT,
    TIMER_LOG_UNIT_BYTES,
    TimerCheckpoint,
    TimerLogUnit,
    encode_timer_checkpoint,
)
from cometmq.errors import StoreCorrupt
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.base.disk import make_durable_directory
from cometmq.store.timer.carried import first_behind, read_timer_checkpoint
from cometmq.store.timer.log import TIMER_LOG_BLANK_BYTES, TIMER_LOG_NAME_DIGITS, TimerLog
from cometmq.store.timer.timer_slots import SLOTS_AHEAD, SLOTS_BLANK, TimerRules
from cometmq.store.timer.wheel import WHEEL_BYTES, TimerWheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cometmq.store.base.disk import Disk, RandomFile
    from cometmq.store.message_store import MessageStore
    from cometmq.store.timer.log import TimerLogReader

__all__ = ["TimerBook", "TimerWrite"]

_LOG: Final = logging.getLogger("cometmq.store")


@dataclass(slots=True)
class TimerWrite:
    """The changes that one call of `TimerBook.write` writes."""

    pieces: list[tuple[int, bytes]]
    """Of the timer log: position and bytes."""
    pages: list[tuple[int, bytes]]
    """Of the wheel: position and bytes."""
    checkpoint: TimerCheckpoint
    log_end: int
    """Where the timer log ends with these pieces."""


class TimerBook:
    """The open timer files of one store."""

    def __init__(self, disk: Disk, root: str, log_file_bytes: int, rules: TimerRules) -> None:
        self._disk = disk
        self._root = root
        self.rules = rules
        self.wheel = TimerWheel(rules.precision_ms)
        self.log = TimerLog(disk, root, log_file_bytes)
        self.checkpoint = TimerCheckpoint()
        self.read_ms = 0
        """Time of the first slot of which not all messages are delivered."""
        self.queue_offset = 0
        """Queue offset in the timer topic of the next message to add."""
        self.placed_elsewhere = 0
        """Messages before this queue offset were placed by the master that this store followed:
        those due before `read_ms` are delivered."""
        self._wheel_file: RandomFile | None = None
        self._log_file: tuple[int, RandomFile] | None = None
        self._dropped_below = 0
        self.at: Callable[[str], None] = lambda name: None
        """A hook for tests, called with the name of each step of a write, in the worker."""

    # -- opening ---------------------------------------------------------------------------

    def load(self, store: MessageStore, now_ms: int) -> None:
        """Read and recover the files, after the store is loaded.  Blocks."""
        rules = self.rules
        self.checkpoint = check = read_timer_checkpoint(self._disk, self._root)
        has_wheel = self._load_wheel()
        misplaced: list[TimerLogUnit] = []
        last_physical_offset, first_ms = self._load_log(
            store,
            check.log_flush_position if has_wheel else 0,
            (0, 1 << 62)
            if has_wheel
            else (rules.floor(check.read_time_ms), rules.floor(now_ms) + rules.window_ms),
            misplaced,
        )
        low = store.min_queue_offset(TIMER_TOPIC, 0)
        high = store.max_queue_offset(TIMER_TOPIC, 0)
        following = check.queue_offset
        if last_physical_offset is not None:
            following = max(following, first_behind(store, low, high, last_physical_offset))
        self.queue_offset = min(max(following, low), high)
        self.placed_elsewhere = check.master_queue_offset
        self.read_ms = rules.floor(
            check.read_time_ms or min(now_ms, first_ms or now_ms, self._unread_ms(store) or now_ms)
        )
        self._add_again(misplaced, now_ms)
        self._move_old_slots(now_ms)

    def _unread_ms(self, store: MessageStore) -> int | None:
        """Return when the next message to add was stored, None without one.

        Without `timercheck`, after a first run that was short, this message may be due and even
        delivered already: reading begins at its slot, so that its delivery is recognised.
        """
        if self.queue_offset >= store.max_queue_offset(TIMER_TOPIC, 0):
            return None
        stored_ms = store.store_time_at(TIMER_TOPIC, 0, self.queue_offset)
        return stored_ms if stored_ms > 0 else None

    def _load_wheel(self) -> bool:
        """Read the wheel's file; return whether there is a usable one."""
        path = f"{self._root}/timerwheel"
        if not self._disk.exists(path):
            return False
        size = self._disk.size(path)
        if size != WHEEL_BYTES:
            _LOG.warning(
                "%s has %d bytes, a timer wheel has %d: made again from the timer log",
                path,
                size,
                WHEEL_BYTES,
            )
            self._disk.remove(path)
            return False
        self.wheel.read(self._disk.open_random(path, WHEEL_BYTES, create=False))
        if self._has_this_precision():
            return True
        _LOG.warning(
            "%s was made with another timerPrecisionMs: made again with %d from the timer log",
            path,
            self.rules.precision_ms,
        )
        self._disk.remove(path)
        self.wheel = TimerWheel(self.rules.precision_ms)
        return False

    def _has_this_precision(self) -> bool:
        """Return whether the newest unit confirms the precision of the wheel that was read."""
        newest = self.wheel.newest()
        unit = None if newest is None else self.log.reader().unit(newest[1].last)
        if newest is None or unit is None:
            return True
        return unit.slot_time_ms == newest[0] * self.rules.precision_ms

    def _add_again(self, units: list[TimerLogUnit], now_ms: int) -> None:
        """Add units that fit no slot of this precision, or lie too far ahead, to another slot."""
        write_ms = self.rules.floor(now_ms)
        for unit in units:
            if unit.slot_time_ms < self.read_ms:
                continue
            slot_ms, magic = self.rules.slot_of(self.rules.floor(unit.slot_time_ms), write_ms)
            self.add(
                slot_ms,
                write_ms,
                unit.magic | magic,
                unit.physical_offset,
                unit.message_bytes,
                unit.topic_hash,
            )

    def _load_log(
        self,
        store: MessageStore,
        flush_position: int,
        slots_ms: tuple[int, int],
        misplaced: list[TimerLogUnit],
    ) -> tuple[int | None, int | None]:
        """Find the end of the timer log, and add the units behind `flush_position` to their slots.

        A crash can leave the last unit in part, with zeros for the rest: it is not taken, and its
        message is read from the queue again.

        Args:
            slots_ms: a range of slot times.  Units before it are delivered.
            misplaced: gets the units behind that range, and those of another precision.

        Returns the largest physical offset to which a unit leads, and the time of the first slot
        with an undelivered unit; each is None without such a unit.
        """
        log, wheel = self.log, self.wheel
        starts = log.starts()
        if not starts:
            log.end = log.written = flush_position // log.file_bytes * log.file_bytes
            return None, None
        begin = min(max(flush_position, starts[0]), starts[-1] + log.file_bytes - 1)
        start = begin // log.file_bytes * log.file_bytes
        begin -= (begin - start) % TIMER_LOG_UNIT_BYTES
        end = starts[-1] + log.file_bytes
        reader = log.reader()
        last_physical_offset: int | None = None
        first_ms: int | None = None
        log_end = begin
        for position, unit in self._whole_units(store, reader, begin, end):
            log_end = position + TIMER_LOG_UNIT_BYTES
            slot_ms = unit.slot_time_ms
            last_physical_offset = max(unit.physical_offset, last_physical_offset or 0)
            if slot_ms < slots_ms[0]:
                continue
            first_ms = min(slot_ms, first_ms or slot_ms)
            if slot_ms % self.rules.precision_ms or slot_ms >= slots_ms[1]:
                misplaced.append(unit)
                continue
            change = -1 if unit.magic & TIMER_DELETE else 1
            wheel.revise(unit.slot_time_ms, position, change)
        log.end = log.written = log_end
        return last_physical_offset, first_ms

    @staticmethod
    def _whole_units(
        store: MessageStore, reader: TimerLogReader, begin: int, end: int
    ) -> Iterator[tuple[int, TimerLogUnit]]:
        """Yield units with their positions, without the last one if it was written in part."""
        last: tuple[int, TimerLogUnit] | None = None
        for position, raw in reader.blocks(begin, end):
            for number, fields in enumerate(TIMER_LOG_UNIT.iter_unpack(raw)):
                if last is not None:
                    yield last
                last = position + number * TIMER_LOG_UNIT_BYTES, TimerLogUnit._make(fields)
        if last is not None and _is_whole(store, last[1]):
            yield last

    def _move_old_slots(self, now_ms: int) -> None:
        """Move the units of old slots, which the wheel would soon use for other times, to one slot.

        That is the slot at which reading continues.  A Java broker loses these units, after it was
        stopped for about a week.
        """
        rules = self.rules
        first_ms = rules.floor(now_ms) - (SLOTS_AHEAD - SLOTS_BLANK) * rules.precision_ms
        if self.read_ms >= first_ms:
            return
        old = [slot for slot in self.wheel.used(self.read_ms) if slot[0] < first_ms]
        reader = self.log.reader()
        for slot_ms, slot in old:
            units = reader.slot(slot_ms, slot)
            for physical_offset, size, magic in zip(
                units.physical_offsets, units.sizes, units.magics, strict=True
            ):
                self.add(first_ms, rules.floor(now_ms), magic, physical_offset, size, 0)
        self.read_ms = first_ms

    # -- adding ----------------------------------------------------------------------------

    def add(
        self,
        slot_ms: int,
        write_ms: int,
        magic: int,
        physical_offset: int,
        size: int,
        topic_hash: int,
    ) -> int:
        """Add a message to a slot; return the position of its unit in the timer log."""
        position = self.log.next_position()
        self.add_run(slot_ms, write_ms, magic, [(physical_offset, size, topic_hash)])
        return position

    def add_run(
        self, slot_ms: int, write_ms: int, magic: int, units: Sequence[tuple[int, int, int]]
    ) -> None:
        """Add messages to a slot, in order, given physical offset, size and topic hash of each."""
        log, pack = self.log, TIMER_LOG_UNIT.pack
        change = -1 if magic & TIMER_DELETE else 1
        done = 0
        while done < len(units):
            file_units = units[done : done + log.room()]
            position = log.next_position()
            last = position + (len(file_units) - 1) * TIMER_LOG_UNIT_BYTES
            previous = self.wheel.add_run(slot_ms, position, last, change * len(file_units))
            # A unit has the position of the one before it in the slot.
            chain = (previous, *range(position, last, TIMER_LOG_UNIT_BYTES))
            delay_ms = slot_ms - write_ms
            log.append(
                b"".join(
                    [
                        pack(
                            TIMER_LOG_UNIT_BYTES,
                            before,
                            magic,
                            write_ms,
                            delay_ms,
                            physical_offset,
                            size,
                            topic_hash,
                            0,
                        )
                        for before, (physical_offset, size, topic_hash) in zip(
                            chain, file_units, strict=True
                        )
                    ]
                )
            )
            done += len(file_units)

    def clear(self, slot_ms: int) -> None:
        """Make a slot blank."""
        self.wheel.clear(slot_ms)

    # -- writing ---------------------------------------------------------------------------

    def take(self, read_ms: int, queue_offset: int, now_ms: int) -> TimerWrite:
        """Take all changes since the last call, with the progress that they belong to."""
        old = self.checkpoint
        has_progressed = (read_ms, queue_offset) != (old.read_time_ms, old.master_queue_offset)
        checkpoint = TimerCheckpoint(
            read_ms,
            self.log.end,
            queue_offset,
            queue_offset,
            old.state_version,
            now_ms if has_progressed else old.timestamp_ms,
            old.counter + has_progressed,
        )
        return TimerWrite(self.log.pieces(), self.wheel.take_dirty(), checkpoint, self.log.end)

    def write(self, work: TimerWrite) -> None:
        """Write and sync changes in order.  Blocks: for a worker, one call at a time."""
        disk, file_bytes = self._disk, self.log.file_bytes
        self.at("timer.before_log")
        synced: dict[int, RandomFile] = {}
        for position, raw in work.pieces:
            start = position // file_bytes * file_bytes
            file = self._open_log_file(start)
            file.write(position - start, raw)
            synced[start] = file
        for file in synced.values():
            file.sync()
        self.at("timer.log_synced")
        if work.pages:
            wheel = self._open_wheel()
            for position, raw in work.pages:
                wheel.write(position, raw)
            wheel.sync()
        self.at("timer.wheel_synced")
        make_durable_directory(disk, f"{self._root}/config")
        disk.write_atomic(
            f"{self._root}/config/timercheck", encode_timer_checkpoint(work.checkpoint)
        )
        self.at("timer.check_written")

    def wrote(self, work: TimerWrite) -> None:
        """Note that a `write` has returned; on the loop."""
        self.log.wrote(work.log_end)
        self.checkpoint = work.checkpoint

    def failed(self, work: TimerWrite) -> None:
        """Note that a `write` has raised; the next one writes everything again."""
        self.wheel.put_back_dirty(work.pages)

    def _open_log_file(self, start: int) -> RandomFile:
        if self._log_file is not None and self._log_file[0] == start:
            return self._log_file[1]
        make_durable_directory(self._disk, self.log.folder)
        path = f"{self.log.folder}/{start:0{TIMER_LOG_NAME_DIGITS}d}"
        is_new = not self._disk.exists(path)
        file = self._disk.open_random(path, self.log.file_bytes, create=is_new)
        if is_new:
            self._disk.sync_dir(self.log.folder)
        self._log_file = start, file
        return file

    def _open_wheel(self) -> RandomFile:
        if self._wheel_file is None:
            path = f"{self._root}/timerwheel"
            is_new = not self._disk.exists(path)
            self._wheel_file = self._disk.open_random(path, WHEEL_BYTES, create=is_new)
            if is_new:
                self._disk.sync_dir(self._root)
        return self._wheel_file

    def drop_expired(self, min_physical_offset: int) -> int:
        """Remove the timer-log files whose units all lead before the log's begin; return how many.

        Blocks.  The last unit of a file decides most cases.  But a unit may be newer than those of
        later messages, since units that waited at a stop are added again; so all units of a file
        are checked before it is removed.
        """
        count = 0
        if min_physical_offset <= self._dropped_below:
            return count
        reader = self.log.reader(0)
        for start in self.log.starts()[:-1]:
            if start + self.log.file_bytes > self.log.written:
                break
            count_max = (self.log.file_bytes - TIMER_LOG_BLANK_BYTES) // TIMER_LOG_UNIT_BYTES
            last = reader.unit(start + (count_max - 1) * TIMER_LOG_UNIT_BYTES)
            if last is None or last.physical_offset >= min_physical_offset:
                break
            runs = reader.arrays(start, start + self.log.file_bytes)
            if any((units["physical_offset"] >= min_physical_offset).any() for units in runs):
                break
            self._disk.remove(f"{self.log.folder}/{start:0{TIMER_LOG_NAME_DIGITS}d}")
            # A log is read from its first file on, so files must go in order, a power cut included.
            self._disk.sync_dir(self.log.folder)
            count += 1
        self._dropped_below = min_physical_offset
        return count


def _is_whole(store: MessageStore, unit: TimerLogUnit) -> bool:
    """Whether a unit was written in full: its size is that of the record to which it leads."""
    if unit.physical_offset < store.min_physical_offset:
        return unit.message_bytes > 0
    try:
        record = store.message_at(unit.physical_offset)
    except StoreCorrupt:
        return False
    return record is not None and len(record) == unit.message_bytes
