"""Times of timed messages, and the slots they lie in."""

import pytest

from cometmq.codec.timer import TIMER_DEFAULT, TIMER_ROLL
from cometmq.store.timer.timer_slots import (
    BadTimer,
    TimerRules,
    asked_due_ms,
    due_ms_of,
    has_timer,
    precision_of,
)

NOW_MS = 1_700_000_000_000


def test_which_property_counts() -> None:
    """Seconds before milliseconds before the time itself, as RocketMQ looks for them."""
    everything = {
        "TIMER_DELAY_SEC": "2",
        "TIMER_DELAY_MS": "30",
        "TIMER_DELIVER_MS": "77",
    }
    assert asked_due_ms(everything, NOW_MS) == NOW_MS + 2000
    del everything["TIMER_DELAY_SEC"]
    assert asked_due_ms(everything, NOW_MS) == NOW_MS + 30
    del everything["TIMER_DELAY_MS"]
    assert asked_due_ms(everything, NOW_MS) == 77
    assert has_timer(everything)
    assert not has_timer({**everything, "TIMER_OUT_MS": "0"}), "it was served"
    with pytest.raises(BadTimer, match="TIMER_DELAY_MS is 'soon'"):
        asked_due_ms({"TIMER_DELAY_MS": "soon"}, NOW_MS)


@pytest.mark.parametrize(
    ("asked", "used"), [(1, 100), (199, 100), (200, 200), (500, 500), (999, 500), (5000, 1000)]
)
def test_precisions_are_those_of_rocketmq(asked: int, used: int) -> None:
    """MessageStoreConfig.setTimerPrecisionMs."""
    assert precision_of(asked) == used


def test_a_slot_lies_before_the_time() -> None:
    """A time on the second lies in the second before."""
    rules = TimerRules()
    assert rules.out_ms(NOW_MS) == NOW_MS - 1000
    assert rules.out_ms(NOW_MS + 1) == NOW_MS
    assert rules.out_ms(NOW_MS + 1000) == NOW_MS


def test_what_is_far_away_is_rolled() -> None:
    """The window itself, half of it when little is left over, an impossible one is the wheel."""
    rules = TimerRules(1000, 9)
    assert rules.slot_of(NOW_MS + 8000, NOW_MS) == (NOW_MS + 8000, TIMER_DEFAULT)
    assert rules.slot_of(NOW_MS + 9000, NOW_MS) == (NOW_MS + 4000, TIMER_DEFAULT | TIMER_ROLL)
    assert rules.slot_of(NOW_MS + 11000, NOW_MS) == (NOW_MS + 4000, TIMER_DEFAULT | TIMER_ROLL)
    assert rules.slot_of(NOW_MS + 12000, NOW_MS) == (NOW_MS + 9000, TIMER_DEFAULT | TIMER_ROLL)
    for slots in (0, 1, 604_741):
        assert TimerRules(1000, slots).window_ms == 604_740_000


def test_the_exact_time_is_found_again() -> None:
    """From what the producer asked for; what does not fit the slot is not believed."""
    out_ms, last_ms = NOW_MS, NOW_MS + 1000
    assert due_ms_of(b"TIMER_DELIVER_MS\x011700000000123\x02", out_ms, 0, 1000) == NOW_MS + 123
    assert due_ms_of(b"TIMER_DELIVER_MS\x011700000001000\x02", out_ms, 0, 1000) == last_ms
    assert due_ms_of(b"TIMER_DELIVER_MS\x011600000000123\x02", out_ms, 0, 1000) == last_ms
    assert due_ms_of(b"TIMER_DELAY_SEC\x0110\x02", out_ms, NOW_MS - 9500, 1000) == NOW_MS + 500
    assert due_ms_of(b"TIMER_DELAY_MS\x0110\x02", out_ms, NOW_MS - 9500, 1000) == last_ms
    assert due_ms_of(b"", out_ms, NOW_MS, 1000) == last_ms


def test_without_a_property_there_is_no_time() -> None:
    """The caller asks `has_timer` first."""
    with pytest.raises(BadTimer, match="no timer property"):
        asked_due_ms({"KEYS": "a"}, NOW_MS)


def test_the_exact_time_of_a_moved_message_counts_first() -> None:
    """If it lies in the slot."""
    raw = b"TIMER_DUE_MS\x015500\x02TIMER_DELIVER_MS\x015400\x02"
    assert due_ms_of(raw, 5000, 0, 1000) == 5500
    assert due_ms_of(raw.replace(b"5500", b"9999"), 5000, 0, 1000) == 5400
