"""The consumer offset table: commits, queries, resets, removal."""

from cometmq.core.group.consumer_offsets import ENDS_KEPT_MS, ConsumerOffsetTable
from cometmq.model.names import TOOLS_GROUP
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


def test_after_a_loss_no_group_goes_on_behind_the_end() -> None:
    """A member from before the loss is told to go on at the end, and cannot commit over it."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, ConsumerOffset(10), NOW_MS)
    table.commit("g", "t", 1, ConsumerOffset(3), NOW_MS)
    table.commit("g", "gone", 0, ConsumerOffset(2), NOW_MS)
    ends = {("t", 0): ConsumerOffset(7), ("t", 1): ConsumerOffset(9)}
    assert table.begin_again(ends, NOW_MS) == 3
    assert table.all() == {"t@g": {0: 7, 1: 3}, "gone@g": {0: 0}}
    assert table.has_reset("g", "t", 0)
    assert table.deliver_reset("g", "t", 0, 10, "peer") == 7
    # It had not committed what it was about to handle: that comes again.
    assert table.deliver_reset("g", "t", 1, 5, "peer") == 3
    assert table.deliver_reset("g", "t", 0, 7, "peer") is None
    assert not table.has_reset("g", "t", 0)


def test_after_a_loss_a_member_without_a_commit_is_told_too() -> None:
    """What a group knows that has committed nothing shows in its first pull or commit."""
    table = ConsumerOffsetTable()
    table.begin_again({("t", 0): ConsumerOffset(7)}, NOW_MS)
    table.note_pull("g", "t", 0, 7, "peer", NOW_MS + 1)
    assert not table.has_reset("g", "t", 0)
    table.note_pull("g", "t", 0, 8, "other", NOW_MS + 1)
    assert table.deliver_reset("g", "t", 0, 8, "other") == 7
    assert not table.may_commit("g", "t", 1, 1, "peer", NOW_MS + 1)
    assert table.deliver_reset("g", "t", 1, 1, "peer") == 0
    # Members that begin at the end may go on with what comes; broadcasting ones never commit.
    for queue_offset in (7, 8):
        for peer in ("one", "two"):
            table.note_pull("broadcast", "t", 0, queue_offset, peer, NOW_MS + 1)
    assert not table.has_reset("broadcast", "t", 0)
    # So may a member that goes on where its group is.
    table.commit("other", "t", 0, ConsumerOffset(9), NOW_MS + 1)
    table.note_pull("other", "t", 0, 9, "peer", NOW_MS + 1)
    assert not table.has_reset("other", "t", 0)


def test_after_a_loss_a_broadcasting_member_alone_is_told() -> None:
    """Another one that is further behind goes on, and the group gets no offset."""
    table = ConsumerOffsetTable()
    table.begin_again({("t", 0): ConsumerOffset(7)}, NOW_MS)
    for peer, queue_offset, expected in (("one", 8, 7), ("two", 2, None), ("one", 7, None)):
        table.note_pull("b", "t", 0, queue_offset, peer, NOW_MS + 1, is_broadcast=True)
        assert table.deliver_reset("b", "t", 0, queue_offset, peer) == expected
    # It goes on with new messages, and comes back with another connection.
    table.note_pull("b", "t", 0, 9, "one", NOW_MS + 1, is_broadcast=True)
    assert table.deliver_reset("b", "t", 0, 9, "one") is None
    table.note_pull("b", "t", 0, 9, "again", NOW_MS + 1, is_broadcast=True)
    assert table.deliver_reset("b", "t", 0, 9, "again") == 7
    table.note_pull("b", "t", 0, 9, "later", NOW_MS + ENDS_KEPT_MS, is_broadcast=True)
    assert table.deliver_reset("b", "t", 0, 9, "later") is None
    assert table.all() == {}


def test_after_a_loss_only_who_pulls_commits() -> None:
    """A member that has lost its queue meanwhile may still know lost messages."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, ConsumerOffset(4), NOW_MS)
    table.begin_again({("t", 0): ConsumerOffset(4)}, NOW_MS)
    assert not table.may_commit("g", "t", 0, 8, "old", NOW_MS)
    table.note_pull("g", "t", 0, 4, "new", NOW_MS)
    assert table.deliver_reset("g", "t", 0, 4, "new") == 4
    table.note_pull("g", "t", 0, 4, "new", NOW_MS)
    assert table.deliver_reset("g", "t", 0, 4, "new") is None
    assert not table.may_commit("g", "t", 0, 8, "old", NOW_MS)
    assert table.may_commit("g", "t", 0, 5, "new", NOW_MS)
    assert table.may_commit("g", "t", 0, 8, "old", NOW_MS + ENDS_KEPT_MS)


def test_after_a_loss_a_member_that_gets_its_queue_back_is_told() -> None:
    """Another member took the group's reset meanwhile, and went on with new messages."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, ConsumerOffset(2), NOW_MS)
    table.begin_again({("t", 0): ConsumerOffset(3)}, NOW_MS)
    for queue_offset, expected in ((2, 2), (2, None), (3, None)):
        table.note_pull("g", "t", 0, queue_offset, "other", NOW_MS)
        assert table.deliver_reset("g", "t", 0, queue_offset, "other") == expected
    assert table.may_commit("g", "t", 0, 3, "other", NOW_MS)
    table.commit("g", "t", 0, ConsumerOffset(3), NOW_MS)
    # It had read up to 4 before the loss; a new message is at 3 now.
    assert not table.may_commit("g", "t", 0, 4, "old", NOW_MS)
    table.note_pull("g", "t", 0, 4, "old", NOW_MS)
    assert table.deliver_reset("g", "t", 0, 4, "old") == 3


def test_after_a_loss_tools_read_where_they_like() -> None:
    """A reader of one parked message that was moved would pass over it (seed 8100)."""
    table = ConsumerOffsetTable()
    table.begin_again({("t", 0): ConsumerOffset(3)}, NOW_MS)
    table.note_pull(TOOLS_GROUP, "t", 0, 9, "peer", NOW_MS)
    assert not table.has_reset(TOOLS_GROUP, "t", 0)


def test_long_after_a_loss_a_new_group_may_begin_anywhere() -> None:
    """Members that knew lost messages have come back by then."""
    table = ConsumerOffsetTable()
    table.begin_again({("t", 0): ConsumerOffset(7)}, NOW_MS)
    table.note_pull("new", "t", 0, 100, "peer", NOW_MS + ENDS_KEPT_MS)
    assert table.query("new", "t", 0) is None
    without = ConsumerOffsetTable()
    without.note_pull("new", "t", 0, 100, "peer", NOW_MS)
    assert not without.has_reset("new", "t", 0)
