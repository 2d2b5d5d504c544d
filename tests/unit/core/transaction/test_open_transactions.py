"""Open transactions: the table with earlier offsets, op bodies, and the rules of check-back."""

import pytest

from cometmq.core.transaction.open_transactions import (
    CheckRules,
    HalfMessage,
    OpenHalves,
    decode_op_body,
    encode_op_body,
    end_deadline_ms,
    half_of,
    immunity_ms,
)

RULES = CheckRules(timeout_ms=6_000, check_max=15, reserved_ms=100_000)


def half(queue_offset: int, topic: str = "t", **settings: int | bool) -> HalfMessage:
    """A half message, born at 0."""
    return HalfMessage(queue_offset, queue_offset * 100, 0, "g", topic=topic, **settings)  # type: ignore[arg-type]


def test_the_table_knows_every_offset_of_a_half_message() -> None:
    """What was stored again is found by each of its offsets until it is ended."""
    halves = OpenHalves()
    first, other = half(1), half(2, "u")
    halves.add(first)
    halves.add(other)
    halves.add_earlier_offset(first, 0)
    again = half(3)
    halves.replace(first, again)
    assert [halves.find(offset) for offset in (0, 1, 2, 3, 4)] == [again, again, other, again, None]
    assert (halves.at(1), halves.at(3), len(halves)) == (None, again, 2)
    assert (halves.first(), halves.last(), halves.offsets()) == (other, again, [2, 3])
    assert halves.offsets_for("t") == [3]
    assert halves.counts == {"t": 1, "u": 1}
    assert list(halves.remove(again)) == [0, 1, 3]
    assert list(halves.remove(other)) == [2]
    assert halves.counts == {"t": 0, "u": 0}
    assert (halves.first(), halves.last(), halves.find(1)) == (None, None, None)


def test_a_half_message_that_was_ended_meanwhile_is_open_again() -> None:
    """`replace` counts it once, whether or not the older one is still in the table."""
    halves = OpenHalves()
    halves.replace(half(1), half(2))
    assert halves.counts == {"t": 1}
    assert halves.find(1) is halves.at(2)


@pytest.mark.parametrize(("offsets", "body"), [([], b"-1,"), ([10], b"10,"), ([10, 11], b"10,11,")])
def test_op_bodies(offsets: list[int], body: bytes) -> None:
    """None is written as a body that names nothing; 4.x wrote a number without a comma."""
    assert encode_op_body(offsets) == body
    assert decode_op_body(body) == offsets
    assert decode_op_body(b"12") == [12]


@pytest.mark.parametrize(
    ("message", "now_ms", "is_due"),
    [
        (half(0), 6_000, False),
        (half(0), 6_001, True),
        (half(0), -1, True),
        (half(0, check_count=15), 1, True),
        (half(0), 100_001, True),
        (half(0, has_immunity=True, immunity_s=20), 20_000, False),
        (half(0, has_immunity=True, immunity_s=20), 20_001, True),
        (half(0, has_immunity=True), 6_001, True),
    ],
)
def test_when_a_check_is_due(message: HalfMessage, now_ms: int, is_due: bool) -> None:
    """After the timeout or the message's own immunity; at once when it is to be given up."""
    assert RULES.is_due(message, now_ms) is is_due


@pytest.mark.parametrize(
    ("text", "limit_ms"),
    [(None, None), (b"", None), (b"20", 20_000), (b"1", 6_000), (b"x", 6_000)],
)
def test_immunity(text: bytes | None, limit_ms: int | None) -> None:
    """Never below the timeout; None without the property."""
    assert immunity_ms(text, 6_000) == limit_ms
    properties = b"" if text is None else b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01" + text + b"\x02"
    deadline_ms = end_deadline_ms(properties, 1_000, 6_000)
    assert deadline_ms == (None if limit_ms is None else 1_000 + limit_ms)


def test_a_half_message_from_its_properties() -> None:
    """Missing ones have their defaults; a count that is no number is none."""
    assert half_of(5, 500, 9, b"") == HalfMessage(5, 500, 9, "")
    properties = (
        b"CHECK_IMMUNITY_TIME_IN_SECONDS\x0130\x02TRANSACTION_CHECK_TIMES\x01x\x02"
        b"TRAN_PREPARED_QUEUE_OFFSET\x014\x02PGROUP\x01g\x02REAL_TOPIC\x01t\x02"
    )
    assert half_of(5, 500, 9, properties) == HalfMessage(
        5, 500, 9, "g", "t", check_count=0, immunity_s=30, has_immunity=True, first_offset=4
    )
