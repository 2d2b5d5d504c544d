"""The filter of pulls that meet skipped ranges."""

from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import encode_message
from cometmq.core.filter.property_filter import PropertyFilter
from cometmq.core.filter.skip_filter import SkipFilter
from cometmq.core.group.skipped_ranges import SkippedRange, SkipReason

RANGES = [
    SkippedRange("t", 0, begin, end, SkipReason.LAG, 0, False, begin, begin)
    for begin, end in ((3, 5), (8, 9))
]


def record(queue_offset: int, colour: str = "red") -> memoryview:
    properties = encode_properties({"colour": colour})
    return memoryview(encode_message("t", b"", properties, queue_offset=queue_offset))


def test_records_of_skipped_ranges_are_left_out() -> None:
    """Wherever a pull begins."""
    chosen = SkipFilter(None, RANGES)
    assert [n for n in range(12) if chosen.matches(record(n))] == [0, 1, 2, 5, 6, 7, 9, 10, 11]
    assert (chosen.hint, chosen.needles) == (None, ())


def test_the_filter_of_the_pull_holds_too() -> None:
    """With what helps the store to find its records."""
    inner = PropertyFilter.of_text("colour = 'red'")
    chosen = SkipFilter(inner, RANGES)
    assert chosen.matches(record(0))
    assert not chosen.matches(record(0, "green"))
    assert not chosen.matches(record(3))
    assert chosen.needles == inner.needles != ()
