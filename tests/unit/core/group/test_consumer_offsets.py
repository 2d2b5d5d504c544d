"""The consumer offset table: commits, queries, resets, removal."""

from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.model.offsets import ConsumerOffset

NOW_MS = 1_700_000_000_000


def test_commit_overwrites_also_backwards() -> None:
    """As the Java broker does; only the next offset counts."""
    table = ConsumerOffsetTable()
    assert table.query("g", "t", 0) is None
    table.commit("g", "t", 0, ConsumerOffset(10), NOW_MS)
    table.commit("g", "t", 0, ConsumerOffset(3), NOW_MS)
    assert table.query("g", "t", 0) == 3
    assert table.query("g", "t", 1) is None
    assert table.all() == {"t@g": {0: 3}}


def test_same_commit_again_is_no_change() -> None:
    """An idle consumer commits every 5 s; the file must not be written for it."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, ConsumerOffset(3), NOW_MS)
    revision = table.revision
    table.commit("g", "t", 0, ConsumerOffset(3), NOW_MS)
    assert table.revision == revision


def test_version_moves_every_step() -> None:
    """consumerOffsetUpdateVersionStep commits make one version."""
    table = ConsumerOffsetTable(version_step=3)
    for offset in range(1, 7):
        table.commit("g", "t", 0, ConsumerOffset(offset), NOW_MS)
    assert table.version.counter == 2


def test_reset_wins_until_a_pull_comes_from_there() -> None:
    """A pending reset hides commits from queries, and is told until it has been heard."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, ConsumerOffset(100), NOW_MS)
    table.reset("g", "t", 0, ConsumerOffset(5), NOW_MS)
    assert table.has_reset("g", "t", 0)
    assert table.query("g", "t", 0) == 5
    assert table.deliver_reset("g", "t", 0, 5, "one:1") == 5, (
        "it may be at 5 and have more before it"
    )
    assert table.deliver_reset("g", "t", 0, 100, "one:2") == 5, (
        "the answer was lost with its connection"
    )
    assert table.has_reset("g", "t", 0)
    assert table.deliver_reset("g", "t", 0, 5, "one:3") is None
    assert not table.has_reset("g", "t", 0)
    assert table.deliver_reset("g", "t", 0, 5, "one:3") is None


def test_who_goes_on_elsewhere_after_a_reset_may() -> None:
    """A client with offsets of its own is told once on its connection, not for ever."""
    table = ConsumerOffsetTable()
    table.reset("g", "t", 0, ConsumerOffset(5), NOW_MS)
    assert table.deliver_reset("g", "t", 0, 100, "one:1") == 5
    assert table.deliver_reset("g", "t", 0, 101, "one:1") is None
    assert not table.has_reset("g", "t", 0)


def test_topics_and_groups_are_found_and_removed() -> None:
    """Deleting a topic or a group forgets exactly its own offsets."""
    table = ConsumerOffsetTable(
        {
            "t1@g1": {0: ConsumerOffset(1)},
            "t1@g2": {0: ConsumerOffset(2)},
            "t2@g1": {0: ConsumerOffset(3)},
        }
    )
    assert sorted(table.topics_of("g1")) == ["t1", "t2"]
    assert sorted(table.groups_of("t1")) == ["g1", "g2"]
    table.clone("g1", "g3", ["t1", "t2", "t9"])
    assert table.queues("g3", "t2") == {0: 3}
    table.remove_topic("t1")
    assert set(table.all()) == {"t2@g1", "t2@g3"}
    table.remove_group("g1")
    assert set(table.all()) == {"t2@g3"}


def test_a_reset_of_another_queue() -> None:
    """It changes nothing for queues that have none."""
    table = ConsumerOffsetTable()
    assert not table.has_reset("g", "t", 0)
    table.reset("g", "t", 0, ConsumerOffset(7), NOW_MS)
    table.commit("g", "t", 1, ConsumerOffset(3), NOW_MS)
    assert table.has_reset("g", "t", 0)
    assert not table.has_reset("g", "t", 1)
    assert (table.query("g", "t", 0), table.query("g", "t", 1)) == (7, 3)
    assert table.deliver_reset("g", "t", 1, 0, "peer") is None


def test_without_a_reset_a_pull_goes_on_where_it_is() -> None:
    """Most pulls find no reset at all."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, ConsumerOffset(3), NOW_MS)
    assert table.deliver_reset("g", "t", 0, 3, "one:1") is None
