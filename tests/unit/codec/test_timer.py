"""Layouts of a Java broker's timer files; the bytes come from a broker 5.4.0."""

import pytest

from cometmq.codec.timer import (
    TIMER_DEFAULT,
    TIMER_LOG_UNIT,
    TIMER_LOG_UNIT_BYTES,
    TIMER_ROLL,
    TimerCheckpoint,
    TimerLogUnit,
    decode_timer_checkpoint,
    encode_timer_checkpoint,
    encode_timer_log_blank,
)
from cometmq.errors import CodecError

TIMERCHECK = bytes.fromhex(
    "000001a1fe0a95c8000000000000220800000000000000a600000000000000a6"
    "0000000000000000000001a1fe0a95f80000000000000060"
)


def test_timercheck_of_a_java_broker() -> None:
    """All seven numbers, and back."""
    expected = TimerCheckpoint(1795263469000, 8712, 166, 166, 0, 1795263469048, 96)
    assert decode_timer_checkpoint(TIMERCHECK) == expected
    raw = encode_timer_checkpoint(expected)
    assert len(raw) == 4096
    assert raw[:56] == TIMERCHECK
    with pytest.raises(CodecError, match="needs 56 bytes, got 55"):
        decode_timer_checkpoint(TIMERCHECK[:55])


def test_unit_of_the_timer_log() -> None:
    """52 bytes; a blank and zeros are no unit."""
    assert TIMER_LOG_UNIT.size == TIMER_LOG_UNIT_BYTES
    unit = TimerLogUnit(52, -1, TIMER_DEFAULT | TIMER_ROLL, 5_000, 1_000, 77, 100, 0, 0)
    assert TimerLogUnit._make(TIMER_LOG_UNIT.unpack(TIMER_LOG_UNIT.pack(*unit))) == unit
    assert unit.is_valid
    assert unit.slot_time_ms == 6_000
    blank = encode_timer_log_blank(60).ljust(52, b"\0")
    assert not TimerLogUnit._make(TIMER_LOG_UNIT.unpack(blank)).is_valid
    assert not TimerLogUnit._make(TIMER_LOG_UNIT.unpack(bytes(52))).is_valid
