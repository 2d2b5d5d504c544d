"""Topics of one broker: automatic creation, retry topics, the first boot."""

from cometmq.core.topic.topic_table import TopicTable, system_topics
from cometmq.model.topic import DataVersion, TopicConfig

NOW_MS = 1_700_000_000_000


def seeded(**options: object) -> TopicTable:
    table = TopicTable()
    table.seed(system_topics(cluster="c", broker_name="b", **options), NOW_MS)  # type: ignore[arg-type]
    return table


def test_first_boot_has_the_topics_a_java_broker_has() -> None:
    """The set of docs/internals/store.md#topics-and-groups-at-first-boot, with queues and
    permissions."""
    table = seeded(trace_topic="RMQ_SYS_TRACE_TOPIC")
    assert {
        name: (config.write_queue_count, config.perm) for name, config in table.all().items()
    } == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "c": (16, 7),
        "b": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
        "c_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_c": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_b": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    assert table.is_reserved("c")
    assert not table.is_reserved("user")


def test_seed_keeps_what_an_operator_changed() -> None:
    """A restart adds only what is missing."""
    table = TopicTable({"TBW102": TopicConfig("TBW102", 3, 3, 7)})
    table.seed(system_topics(cluster="c", broker_name="b"), NOW_MS)
    config = table.get("TBW102")
    assert config is not None
    assert config.write_queue_count == 3


def test_automatic_creation_takes_the_smaller_count_and_drops_inherit() -> None:
    """min(client's count, template's count), perm without bit X."""
    table = seeded()
    small = table.create_from_template("t1", "TBW102", 4, NOW_MS)
    large = table.create_from_template("t2", "TBW102", 100, NOW_MS)
    assert small == TopicConfig("t1", 4, 4, 6)
    assert large == TopicConfig("t2", 8, 8, 6)
    assert table.create_from_template("t1", "TBW102", 99, NOW_MS) is small


def test_automatic_creation_needs_a_template_with_inherit() -> None:
    """No template, or one without bit X, creates nothing."""
    table = seeded()
    assert table.create_from_template("t", "NoSuchTemplate", 4, NOW_MS) is None
    assert table.create_from_template("t", "SELF_TEST_TOPIC", 4, NOW_MS) is None
    assert seeded(auto_create=False).create_from_template("t", "TBW102", 4, NOW_MS) is None
    assert "t" not in table


def test_each_change_moves_version_and_revision() -> None:
    """Name servers compare the version; persistence watches the revision."""
    table = TopicTable(version=DataVersion(1, 7))
    table.ensure("%RETRY%g", 1, NOW_MS)
    assert (table.version, table.revision) == (DataVersion(NOW_MS, 8), 1)
    table.ensure("%RETRY%g", 1, NOW_MS)
    assert table.revision == 1
    assert table.delete("%RETRY%g", NOW_MS)
    assert not table.delete("%RETRY%g", NOW_MS)
    assert table.version.counter == 9
    assert len(table) == 0


def test_a_broker_without_templates_and_a_changed_topic() -> None:
    """No automatic creation, no template topic; a change of a topic is no new topic."""
    names = {
        config.topic
        for config in system_topics(cluster="c", broker_name="b", auto_create=False, timer=False)
    }
    assert "TBW102" not in names
    table = TopicTable()
    table.put(TopicConfig("t", 1, 1), 1)
    table.put(TopicConfig("t", 2, 2), 2)
    assert (table.made_at("t"), table.changed_at("t"), table.made_at("u")) == (1, 2, 0)
    table.touch(3)
    assert (table.revision, table.changed_at("t"), table.changed_at("u")) == (3, 2, 0)
