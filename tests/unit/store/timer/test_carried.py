"""Counting what waits for a Java broker, and keeping the log files it needs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tests.unit.store.stores import START_MS, Rig

from cometmq.codec.timer import (
    TIMER_DEFAULT,
    TIMER_DELETE,
    TIMER_LOG_UNIT,
    TimerCheckpoint,
    TimerLogUnit,
    encode_timer_checkpoint,
    encode_timer_log_blank,
)
from cometmq.model.names import TIMER_TOPIC
from cometmq.store.timer.carried import Carried, count_timer_messages, scan_timer_log

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

FILE_BYTES = 260
"""Four units and a blank."""


def unit(write_ms: int, delay_ms: int, place: int, magic: int = TIMER_DEFAULT) -> TimerLogUnit:
    """A unit of the timer log."""
    return TimerLogUnit(52, -1, magic, write_ms, delay_ms, place, 100, 0, 0)


def write_timers(rig: Rig, checkpoint: TimerCheckpoint, units: Iterable[TimerLogUnit]) -> None:
    """Timer log and `timercheck` as a Java broker writes them."""
    rig.disk.makedirs("/store/config")
    rig.disk.makedirs("/store/timerlog")
    rig.disk.write_atomic("/store/config/timercheck", encode_timer_checkpoint(checkpoint))
    raw = [TIMER_LOG_UNIT.pack(*one) for one in units]
    for number in range(0, max(1, len(raw)), 4):
        data = b"".join(raw[number : number + 4])
        if len(raw) > number + 4:
            data += encode_timer_log_blank(FILE_BYTES - len(data))
        name = f"{number // 4 * FILE_BYTES:020}"
        rig.disk.write_atomic(f"/store/timerlog/{name}", data.ljust(FILE_BYTES, b"\0"))


def test_timer_log_is_read_over_files_and_blanks() -> None:
    """Delivered slots, recalled messages and lost records do not count."""
    rig = Rig()
    units = [unit(1_000, 500 * n, 100 * n) for n in range(1, 7)]
    units.append(unit(2_000, 2_000, 700, TIMER_DEFAULT | TIMER_DELETE))
    write_timers(rig, TimerCheckpoint(), units)
    found = scan_timer_log(rig.disk, "/store", 2_500, 0)
    # Slots 2,500 to 4,000 are four messages, one of them recalled.
    assert (found.count, found.oldest, found.last_taken) == (3, 300, 700)
    assert scan_timer_log(rig.disk, "/store", 2_500, 450).oldest == 500
    assert scan_timer_log(rig.disk, "/store", 9_999, 0).count == 0
    # A week later the first file is not even read; what follows still says where the log ends.
    late = scan_timer_log(rig.disk, "/store", 604_800_000 + 1_500, 0)
    assert (late.count, late.oldest, late.last_taken) == (0, None, 700)
    nothing = scan_timer_log(rig.disk, "/elsewhere", 0, 0)
    assert (nothing.count, nothing.oldest, nothing.last_taken) == (0, None, None)


def test_damaged_timer_log_ends_at_the_damage() -> None:
    """As in Java's recovery, which cuts the log there."""
    rig = Rig()
    units = [unit(1_000, 500, 1), unit(1_000, 500, 2)._replace(size=51), unit(1_000, 500, 3)]
    write_timers(rig, TimerCheckpoint(), units)
    assert scan_timer_log(rig.disk, "/store", 0, 0).last_taken == 1


def test_timer_messages_in_the_wheel_and_in_their_topic() -> None:
    """What has a unit counts by its slot, what has none counts anyway."""
    rig = Rig()
    places = [rig.put(TIMER_TOPIC).physical_offset for _ in range(6)]
    assert count_timer_messages(rig.store, rig.disk) == Carried(6, places[0])
    units = [unit(START_MS, 1_000 * n, places[n]) for n in range(4)]
    write_timers(rig, TimerCheckpoint(START_MS + 2_000, 208, 6, 6), units)
    # Two slots ahead, and two messages behind the last unit.
    assert count_timer_messages(rig.store, rig.disk) == Carried(4, places[2])
    write_timers(rig, TimerCheckpoint(START_MS + 9_000, 208, 5, 5), units)
    assert count_timer_messages(rig.store, rig.disk) == Carried(2, places[4])
    # The checkpoint may be behind the units: Java takes these messages up once more.
    write_timers(rig, TimerCheckpoint(START_MS + 9_000, 208, 3, 3), units)
    assert count_timer_messages(rig.store, rig.disk) == Carried(3, places[3])
    units += [unit(START_MS, 0, place) for place in places[4:]]
    write_timers(rig, TimerCheckpoint(START_MS + 9_000, 312, 6, 6), units)
    assert count_timer_messages(rig.store, rig.disk) == Carried(0, None)


def test_a_held_log_file_outlives_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """Files in front of it go, it stays and this is said once; later it goes as well."""
    rig = Rig(commit_log_file_bytes=8_192)
    needed: list[int | None] = []
    while rig.store.max_physical_offset < 60_000:
        placed = rig.put("T", body=bytes(300)).physical_offset
        if placed > 20_000 and not needed:
            needed.append(placed)
    rig.tick(1_000)
    rig.store.hold_log("old things", lambda: needed[0])
    rig.store.hold_log("nothing", lambda: None)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            rig.store._retention.drop_files(100)
    assert rig.store.min_physical_offset == 16_384
    said = [record.getMessage() for record in caplog.records if "is kept" in record.getMessage()]
    assert len(said) == 1
    assert "00000000000000016384 has expired and is kept: old things need it from" in said[0]
    needed[0] = None
    rig.store._retention.drop_files(100)
    assert rig.store.min_physical_offset > 50_000
