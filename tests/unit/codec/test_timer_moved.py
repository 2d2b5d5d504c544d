"""Properties of a record of the timer topic that replaces an earlier one."""

import pytest

from cometmq.codec.properties import decode_properties, encode_properties
from cometmq.codec.timer_moved import (
    MovedFrom,
    as_delivered,
    moved_delayed,
    moved_from,
    moved_timer,
    with_due,
    without_own,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1024", MovedFrom(1024)),
        ("1024,3,17", MovedFrom(1024, 3, 17)),
        ("1024,3", None),
        ("-1", None),
        ("x", None),
    ],
)
def test_the_replaced_record_is_read_or_the_property_is_ignored(
    text: str, expected: MovedFrom | None
) -> None:
    """One number or three; anything else is what a client may have written."""
    assert moved_from(encode_properties({"TIMER_MOVED_FROM": text})) == expected
    assert moved_from(b"KEYS\x01a\x02") is None


def test_a_timed_message_keeps_its_level_through_every_move() -> None:
    """A message of a delay level becomes a timed one, moves again, is delivered as it was."""
    raw = encode_properties({"KEYS": "a", "DELAY": "3", "TIMER_OUT_MS": "1"})
    timed = moved_delayed(raw, MovedFrom(1024, 3, 17), due_ms=5_500, out_ms=5_000)
    assert decode_properties(timed) == {
        "KEYS": "a",
        "TIMER_DUE_MS": "5500",
        "TIMER_OUT_MS": "5000",
        "TIMER_MOVED_FROM": "1024,3,17",
    }
    again = moved_timer(timed, 4096, 5_500)
    assert moved_from(again) == MovedFrom(4096, 3, 17)
    assert decode_properties(as_delivered(again)) == {
        "KEYS": "a",
        "TIMER_OUT_MS": "5000",
        "DELAY": "3",
    }


def test_a_message_with_an_exact_time_has_no_level() -> None:
    """Delivery takes out both properties of ours and adds none."""
    raw = b"KEYS\x01a"
    moved = moved_timer(raw, 2048, 7_000)
    assert decode_properties(moved) == {
        "KEYS": "a",
        "TIMER_DUE_MS": "7000",
        "TIMER_MOVED_FROM": "2048",
    }
    assert decode_properties(as_delivered(moved)) == {"KEYS": "a"}
    assert decode_properties(as_delivered(with_due(raw, 7_000))) == {"KEYS": "a"}
    assert as_delivered(raw) == raw
    assert decode_properties(without_own(moved)) == {"KEYS": "a"}
