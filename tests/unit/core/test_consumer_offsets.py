"""The consumer offset table: commits, queries, resets, removal."""

from cometmq.core.consumer_offsets import ConsumerOffsetTable

NOW_MS = 1_700_000_000_000


def test_commit_overwrites_also_backwards() -> None:
    """As the Java broker does; only the next offset counts."""
    table = ConsumerOffsetTable()
    assert table.query("g", "t", 0) is None
    table.commit("g", "t", 0, 10, NOW_MS)
    table.commit("g", "t", 0, 3, NOW_MS)
    assert table.query("g", "t", 0) == 3
    assert table.query("g", "t", 1) is None
    assert table.all() == {"t@g": {0: 3}}


def test_same_commit_again_is_no_change() -> None:
    """An idle consumer commits every 5 s; the file must not be written for it."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, 3, NOW_MS)
    revision = table.revision
    table.commit("g", "t", 0, 3, NOW_MS)
    assert table.revision == revision


def test_version_moves_every_step() -> None:
    """consumerOffsetUpdateVersionStep commits make one version."""
    table = ConsumerOffsetTable(version_step=3)
    for offset in range(1, 7):
        table.commit("g", "t", 0, offset, NOW_MS)
    assert table.version.counter == 2


def test_reset_wins_until_it_is_taken() -> None:
    """A pending reset hides commits from queries and is given out once."""
    table = ConsumerOffsetTable()
    table.commit("g", "t", 0, 100, NOW_MS)
    table.reset("g", "t", 0, 5, NOW_MS)
    assert table.has_reset("g", "t", 0)
    assert table.query("g", "t", 0) == 5
    assert table.take_reset("g", "t", 0) == 5
    assert table.take_reset("g", "t", 0) is None
    assert not table.has_reset("g", "t", 0)


def test_topics_and_groups_are_found_and_removed() -> None:
    """Deleting a topic or a group forgets exactly its own offsets."""
    table = ConsumerOffsetTable({"t1@g1": {0: 1}, "t1@g2": {0: 2}, "t2@g1": {0: 3}})
    assert sorted(table.topics_of("g1")) == ["t1", "t2"]
    assert sorted(table.groups_of("t1")) == ["g1", "g2"]
    table.clone("g1", "g3", ["t1", "t2", "t9"])
    assert table.queues("g3", "t2") == {0: 3}
    table.remove_topic("t1")
    assert set(table.all()) == {"t2@g1", "t2@g3"}
    table.remove_group("g1")
    assert set(table.all()) == {"t2@g3"}
