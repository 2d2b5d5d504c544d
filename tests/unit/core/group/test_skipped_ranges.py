"""Skipped ranges: what pulls meet, what is copied, and what is forgotten."""

import pytest

from cometmq.core.group.skipped_ranges import (
    RANGES_MAX,
    GroupSkips,
    SkippedRange,
    SkippedRanges,
    SkipReason,
)

LAG, FRESH, RESCUE = SkipReason.LAG, SkipReason.FRESH, SkipReason.RESCUE


def skipped(*ranges: tuple[int, int, SkipReason]) -> tuple[SkippedRanges, list[SkippedRange]]:
    table = SkippedRanges()
    items = [table.skip("g", "t", 0, begin, end, why, 5, {0: 7}) for begin, end, why in ranges]
    for item in items:
        item.is_saved = True
    return table, items


def test_a_pull_goes_on_behind_the_ranges_that_it_meets() -> None:
    """Ranges that touch are passed together; those before the pull are not met."""
    table, items = skipped((10, 20, FRESH), (20, 30, LAG), (40, 50, FRESH))
    assert [table.following("g", "t", 0, at) for at in (9, 10, 25, 30, 45)] == [9, 30, 30, 30, 50]
    assert table.following("g", "t", 1, 10) == table.following("h", "t", 0, 10) == 10
    assert table.ahead("g", "t", 0, 25) == items[1:]
    assert table.ahead("g", "u", 0, 0) == []
    assert table.find("g", "t", 0, 22) is items[1]
    assert table.find("g", "t", 0, 35) is table.find("g", "t", 1, 22) is None


def test_pulls_wait_until_a_range_is_saved() -> None:
    """And nothing is copied before."""
    table = SkippedRanges()
    item = table.skip("g", "t", 0, 1, 3, FRESH, 5, {})
    assert table.is_unsaved("g", "t", 0)
    assert not table.is_unsaved("g", "t", 1)
    assert list(table.to_copy("g")) == []
    item.is_saved = True
    assert not table.is_unsaved("g", "t", 0)
    assert list(table.to_copy("g")) == [item]
    table.withdraw("g", item)
    table.withdraw("g", item)
    table.withdraw("h", item)
    assert table.ranges_of("g") == []


def test_groups_begin_and_end_to_meet_ranges() -> None:
    """`plan_revision` tells who keeps plans of pulls."""
    table, (item,) = skipped((10, 20, FRESH))
    assert table.concerns("g")
    assert not table.concerns("h")
    assert table.plan_revision == 1
    table.passed("g", "t", 0, 19)
    assert table.concerns("g")
    assert not table.would_pass("g", "t", 0, 19)
    assert table.would_pass("g", "t", 0, 20)
    table.passed("g", "t", 0, 20)
    table.passed("g", "t", 0, 21)
    assert not table.concerns("g")
    assert (table.plan_revision, item.is_passed) == (2, True)


def test_copies_are_counted_and_the_range_is_over() -> None:
    """Once they are durable and the group is behind it."""
    table, (item,) = skipped((10, 20, FRESH))
    assert (item.waiting_count, item.is_throttled) == (10, True)
    table.copied(item, 15)
    table.copied(item, 12)
    assert item.waiting_count == 5
    table.copied(item, 99)
    assert (item.next_offset, item.waiting_count) == (20, 0)
    assert table.all()["g"].is_copying
    table.settle("g", item, 15, {0: 8})
    table.settle("g", item, 20, {0: 9})
    assert table.all()["g"].retry_ends == {0: 9}
    assert not table.all()["g"].is_copying
    table.tidy("g", "t", 0, 0)
    assert table.ranges_of("g") == [item]
    table.passed("g", "t", 0, 20)
    table.tidy("g", "t", 0, 0)
    table.tidy("h", "t", 0, 0)
    assert table.ranges_of("g") == []


def test_where_the_retry_topic_ended_is_kept_while_copies_may_be_lost() -> None:
    """A later range does not hide the copies of an earlier one."""
    table, (first,) = skipped((10, 20, FRESH))
    table.copied(first, 20)
    table.skip("g", "t", 1, 0, 5, RESCUE, 6, {0: 99})
    assert table.all()["g"].retry_ends == {0: 7}
    table.settle("g", first, 20, {0: 17})
    table.settle("h", first, 20, {0: 1})
    dropped = SkippedRanges()
    dropped.skip("g", "t", 0, 0, 5, LAG, 6, {0: 1})
    dropped.skip("g", "t", 0, 5, 9, LAG, 6, {0: 2})
    assert dropped.all()["g"].retry_ends == {0: 2}


def test_dropped_messages_are_copied_after_a_replay_only() -> None:
    """Of the topics that are named, or of all."""
    table, items = skipped((10, 20, LAG), (20, 24, FRESH))
    other = table.skip("g", "u", 0, 0, 3, SkipReason.AGE, 5, {})
    other.is_saved = True
    assert list(table.to_copy("g")) == [items[1]]
    assert table.replay("g", ["u"], {0: 1}) == 3
    assert list(table.to_copy("g")) == [items[1], other]
    assert table.replay("g", [], {0: 1}) == 10
    assert table.replay("g", [], {0: 1}) == 0
    assert table.replay("h", [], {}) == 0
    assert list(table.to_copy("g")) == [*items, other]
    alone, _ = skipped((0, 5, LAG))
    alone.replay("g", [], {0: 50})
    assert alone.all()["g"].retry_ends == {0: 50}


def test_retention_forgets_dropped_ranges() -> None:
    """When the last message is gone and the group is behind."""
    table, items = skipped((10, 20, LAG), (30, 40, LAG))
    table.passed("g", "t", 0, 40)
    table.tidy("g", "t", 0, 19)
    assert table.ranges_of("g") == items
    table.tidy("g", "t", 0, 20)
    assert table.ranges_of("g") == items[1:]


def test_a_reset_forgets_what_lies_behind_it() -> None:
    """A range that it cuts keeps its beginning."""
    table, items = skipped((10, 20, FRESH), (30, 40, FRESH))
    table.copied(items[0], 18)
    table.settle("g", items[0], 17, {})
    table.forget_from("g", "t", 1, 0)
    table.forget_from("h", "t", 0, 0)
    assert table.ranges_of("g") == items
    table.forget_from("g", "t", 0, 15)
    assert table.ranges_of("g") == items[:1]
    assert (items[0].end, items[0].next_offset, items[0].safe_offset) == (15, 15, 15)


def test_groups_and_topics_are_forgotten() -> None:
    """With what pulls met of them."""
    table, _ = skipped((10, 20, FRESH))
    table.skip("g", "u", 0, 0, 5, LAG, 5, {})
    table.forget_topic("t")
    table.forget_topic("nothing")
    assert [item.topic for item in table.ranges_of("g")] == ["u"]
    table.forget("g")
    table.forget("g")
    assert not table.concerns("g")
    assert table.all() == {}


def test_the_oldest_of_many_dropped_ranges_is_forgotten() -> None:
    """So that the table has a bound."""
    table = SkippedRanges()
    for number in range(RANGES_MAX + 1):
        table.skip("g", "t", 0, 2 * number, 2 * number + 1, LAG, 5, {})
    assert len(table.ranges_of("g")) == RANGES_MAX
    assert table.ranges_of("g")[0].begin == 2


@pytest.mark.parametrize("is_passed", [False, True])
def test_ranges_are_restored(is_passed: bool) -> None:
    """Pulls meet those that the group has not passed."""
    table = SkippedRanges()
    item = SkippedRange("t", 0, 1, 5, FRESH, 9, True, 3, 3, is_saved=True, is_passed=is_passed)
    table.restore({"g": GroupSkips([item], {0: 4}, is_restored=True)})
    assert table.concerns("g") is not is_passed
    assert list(table.to_copy("g")) == [item]
