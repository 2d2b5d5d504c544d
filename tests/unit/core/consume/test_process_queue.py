"""What a consumer holds of a queue: commit offset, sizes, limits."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.consume.process_queue import FlowLimits, ProcessQueue


def test_commit_stops_at_the_first_unfinished() -> None:
    """Out of order finishing does not let the commit pass a message still being handled."""
    queue = ProcessQueue(10, 0)
    assert queue.commit_offset == 10
    queue.add([10, 12, 13], [5, 6, 7], 15, 1)
    assert (queue.commit_offset, queue.count, queue.size_bytes, queue.span) == (10, 3, 18, 3)
    assert queue.ahead == 5
    queue.finish(13)
    queue.finish(12)
    assert (queue.commit_offset, queue.span, queue.ahead) == (10, 0, 5)
    queue.finish(10)
    assert (queue.commit_offset, queue.ahead) == (15, 0)
    queue.finish_all([13, 99])
    assert (queue.commit_offset, queue.count, queue.size_bytes) == (15, 0, 0)
    assert queue.finished_count == 3
    assert (queue.first_outstanding, queue.last_outstanding) == (None, None)


def test_filtered_pulls_move_the_end_only() -> None:
    """Nothing matched: the next pull and the commit go on, unless something is held."""
    queue = ProcessQueue(0, 0)
    queue.skip_to(7, 3)
    assert (queue.commit_offset, queue.last_pull_ms) == (7, 3)
    queue.add([7], [1], 8, 4)
    queue.skip_to(20, 5)
    assert queue.commit_offset == 7
    queue.finish(7)
    assert queue.commit_offset == 20


def test_unknown_offsets_are_ignored() -> None:
    """A message finished twice changes nothing."""
    queue = ProcessQueue(0, 0)
    queue.add([0, 1], [3, 3], 2, 0)
    queue.finish(0)
    queue.finish(0)
    queue.finish_all([1, 1, 7])
    assert (queue.count, queue.size_bytes, queue.commit_offset) == (0, 0, 2)


def test_each_limit_blocks_and_says_so() -> None:
    """The text has the measured value and the limit."""
    queue = ProcessQueue(0, 0)
    assert queue.blocked_by(FlowLimits(count_max=1)) is None
    queue.add([0, 90], [60, 60], 91, 0)
    assert queue.blocked_by(FlowLimits()) is None
    assert queue.blocked_by(FlowLimits(count_max=2)) == "2 messages held, limit 2"
    assert queue.blocked_by(FlowLimits(size_bytes_max=120)) == "120 bytes held, limit 120"
    assert queue.blocked_by(FlowLimits(span_max=90)) == "offset span 90, limit 90"


@given(st.lists(st.integers(1, 3), max_size=30), st.randoms())
def test_commit_offset_is_the_smallest_outstanding(gaps: list[int], chance) -> None:  # type: ignore[no-untyped-def]
    """Against a set: whatever the order of finishing."""
    queue = ProcessQueue(0, 0)
    offsets = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    end = (offsets[-1] if offsets else 0) + 5
    queue.add(offsets, [2] * len(offsets), end, 0)
    held = set(offsets)
    for queue_offset in chance.sample(offsets, len(offsets)):
        queue.finish(queue_offset)
        held.discard(queue_offset)
        assert queue.commit_offset == min(held, default=end)
        assert queue.size_bytes == 2 * len(held)
