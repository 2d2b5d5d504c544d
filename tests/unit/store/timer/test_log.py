"""Wheel and timer log: units of a slot are found however they lie, and after a restart."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from cometmq.codec.timer import (
    TIMER_DEFAULT,
    TIMER_LOG_UNIT,
    TIMER_LOG_UNIT_BYTES,
)
from cometmq.errors import StoreCorrupt
from cometmq.store.base.disk import RealDisk
from cometmq.store.timer import log as timer_log
from cometmq.store.timer.book import TimerBook
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.timer_slots import TimerRules
from cometmq.store.timer.wheel import WHEEL_BYTES, Slot, TimerWheel

if TYPE_CHECKING:
    from cometmq.store.message_store import MessageStore

NOW_MS = 1_700_000_000_000
FILE_BYTES = 4096


def book_on(path: Path) -> TimerBook:
    """Wheel and log with small files."""
    return TimerBook(RealDisk(), str(path), FILE_BYTES, TimerRules())


def fill(book: TimerBook, count: int) -> None:
    """Units in turn for three slots."""
    for number in range(count):
        slot_ms = NOW_MS + 1000 * (number % 3)
        book.add(slot_ms, NOW_MS, TIMER_DEFAULT, 100 * number, 100, 7)


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("follows", [True, False])
def test_units_of_a_slot_over_files(
    is_written: bool, follows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oldest first, by the chain or by reading what lies between; written or in memory."""
    if follows:
        monkeypatch.setattr(timer_log, "_CHAIN_UNITS_MIN", 0)
        monkeypatch.setattr(timer_log, "_CHAIN_SHARE", 0)
    book = book_on(tmp_path)
    fill(book, 300)
    if is_written:
        work = book.take(NOW_MS, 300, NOW_MS)
        book.write(work)
        book.wrote(work)
        assert len(list((tmp_path / "timerlog").iterdir())) == 4
        assert (tmp_path / "timerwheel").stat().st_size == WHEEL_BYTES
    for turn in range(3):
        slot = book.wheel.get(NOW_MS + 1000 * turn)
        assert slot is not None
        assert slot.message_count == 100
        units = book.log.reader(slot.last).slot(NOW_MS + 1000 * turn, slot)
        assert list(units.physical_offsets) == [100 * number for number in range(turn, 300, 3)]
        assert set(units.sizes) == {100}
    assert book.wheel.count_from(NOW_MS + 1000) == 200


def test_a_file_ends_with_a_blank_as_java_writes_it() -> None:
    """78 units of 52 bytes fit 4096; what remains is named, and the next file begins."""
    log = TimerLog(RealDisk(), "/nowhere", FILE_BYTES)
    for _ in range(79):
        log.append(TIMER_LOG_UNIT.pack(TIMER_LOG_UNIT_BYTES, -1, 1, NOW_MS, 0, 0, 100, 0, 0))
    first, second = log.pieces()
    assert (first[0], second[0], len(second[1])) == (0, FILE_BYTES, TIMER_LOG_UNIT_BYTES)
    blank = first[1][78 * TIMER_LOG_UNIT_BYTES :]
    remaining = FILE_BYTES - 78 * TIMER_LOG_UNIT_BYTES
    assert blank == remaining.to_bytes(4, "big") + bytes(8) + bytes.fromhex("cbd43194")


def test_a_slot_of_another_round_is_blank() -> None:
    """Fourteen days on the same place in the file means another time."""
    wheel = TimerWheel(1000)
    assert wheel.add(NOW_MS, 52, 1) == -1
    assert wheel.add(NOW_MS, 104, 1) == 52
    assert wheel.get(NOW_MS) == Slot(52, 104, 2)
    later_ms = NOW_MS + 1_209_600_000
    assert wheel.get(later_ms) is None
    assert wheel.add(later_ms, 156, 1) == -1
    assert wheel.get(NOW_MS) is None
    assert wheel.used(0) == [(later_ms, Slot(156, 156, 1))]


def test_files_whose_messages_are_gone_go(tmp_path: Path) -> None:
    """Those that point before the log's begin only; never the newest, nor what is not written."""
    book = book_on(tmp_path)
    fill(book, 300)

    def names() -> list[int]:
        return sorted(int(path.name) for path in (tmp_path / "timerlog").iterdir())

    assert book.drop_expired(10_000) == 0
    work = book.take(NOW_MS, 300, NOW_MS)
    book.write(work)
    book.wrote(work)
    assert names() == [0, 4096, 8192, 12288]
    # A file has 78 units, so the last one of the second points to 100 * 155.
    assert book.drop_expired(15_500) == 1
    assert names() == [4096, 8192, 12288]
    assert book.drop_expired(15_501) == 1
    assert book.drop_expired(1 << 40) == 1
    assert names() == [12288]
    again = book_on(tmp_path)
    assert again.log.starts() == [12288]


def test_a_file_that_ends_with_what_was_placed_again_stays_for_its_younger_messages(
    tmp_path: Path,
) -> None:
    """A stop places messages again behind younger ones; their file names those too."""
    book = book_on(tmp_path)
    fill(book, 77)
    book.add(NOW_MS, NOW_MS, TIMER_DEFAULT, 0, 100, 7)
    fill(book, 1)
    work = book.take(NOW_MS, 1, NOW_MS)
    book.write(work)
    book.wrote(work)
    assert book.log.starts() == [0, FILE_BYTES]
    assert book.drop_expired(7_600) == 0
    assert book.drop_expired(7_601) == 1


@pytest.mark.parametrize("setting", [FILE_BYTES // 2, 104_857_600])
@pytest.mark.parametrize(
    ("size", "count"), [(FILE_BYTES, 5), (4 * FILE_BYTES, 10), (FILE_BYTES, 300)]
)
def test_the_files_say_their_size(setting: int, size: int, count: int, tmp_path: Path) -> None:
    """A book of another setting finds all units of a slot, in one file or in several."""
    book = TimerBook(RealDisk(), str(tmp_path), size, TimerRules())
    fill(book, 4 * count)
    work = book.take(NOW_MS, count, NOW_MS)
    book.write(work)
    again = TimerBook(RealDisk(), str(tmp_path), setting, TimerRules())
    assert again.log.file_bytes == size
    last = book.wheel.get(NOW_MS)
    assert last is not None
    units = again.log.reader(last.last).slot(NOW_MS, last)
    assert list(units.physical_offsets) == [100 * number for number in range(0, 4 * count, 3)]


class Log:
    """The part of a store that the recovery of timers reads: records of 300 bytes."""

    min_physical_offset = 0

    def message_at(self, physical_offset: int) -> memoryview:
        if physical_offset % 300:
            raise StoreCorrupt(f"no record begins at {physical_offset}")
        return memoryview(bytes(300))

    def min_queue_offset(self, topic: str, queue_id: int) -> int:
        return 0

    max_queue_offset = min_queue_offset

    def units(self, topic: str, queue_id: int, first: int, count: int) -> list[object]:
        return []


@pytest.mark.parametrize("kept", [17, 24, 26, 34, 35, 36, 39, 40, TIMER_LOG_UNIT_BYTES])
def test_a_unit_that_a_crash_cut_short_is_not_taken(kept: int, tmp_path: Path) -> None:
    """The last unit counts only if all of it was written; the next one takes its position."""
    book = book_on(tmp_path)
    book.write(book.take(NOW_MS, 0, NOW_MS))
    for number in range(3):
        book.add(NOW_MS + 5_000, NOW_MS, TIMER_DEFAULT, 300 * 1_000 * number, 300, 7)
    work = book.take(NOW_MS, 3, NOW_MS)
    raw = work.pieces[0][1]
    path = tmp_path / "timerlog" / f"{0:020d}"
    path.parent.mkdir(exist_ok=True)
    written = raw[: 2 * TIMER_LOG_UNIT_BYTES + kept]
    path.write_bytes(written.ljust(FILE_BYTES, b"\0"))
    again = book_on(tmp_path)
    again.load(cast("MessageStore", Log()), NOW_MS)
    # From byte 40 on only the hash of the topic is missing, by which messages are counted.
    count = 3 if kept >= 40 else 2
    assert again.wheel.count_from(NOW_MS) == count
    assert again.wheel.count_from(NOW_MS + 5_000) == count
    assert again.log.end == count * TIMER_LOG_UNIT_BYTES
