"""Names of topics, groups and sinks, and the values that describe topics."""

import pytest

from cometmq.model import names
from cometmq.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE, perm_text
from cometmq.model.topic import BrokerData, DataVersion, TopicConfig


def test_derived_topics_name_their_group() -> None:
    """Retry, dead-letter and parking topics, and the group of a retry topic."""
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.park_topic("g").endswith("g")
    assert names.reply_topic("c") == "c_REPLY_TOPIC"
    assert names.group_of_retry_topic("%RETRY%g") == "g"


def test_system_names_are_known_by_list_or_prefix() -> None:
    """Users neither create nor delete these."""
    assert names.is_system_topic("TBW102")
    assert names.is_system_topic("rmq_sys_anything")
    assert not names.is_system_topic("Orders")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert names.is_system_group("CID_RMQ_SYS_other")
    assert not names.is_system_group("g")


@pytest.mark.parametrize(
    ("check", "longest"),
    [
        (names.check_topic, names.TOPIC_LENGTH_MAX),
        (names.check_group, names.GROUP_LENGTH_MAX),
        (names.check_sink, names.GROUP_LENGTH_MAX),
    ],
)
def test_a_name_is_legal_or_its_fault_is_named(check: object, longest: int) -> None:
    """Blank, too long, or with a character that no file name may have."""
    assert callable(check)
    assert check("n" * longest) is None
    assert "longer than" in check("n" * (longest + 1))
    assert "blank" in check("")
    assert "blank" in check(" ")
    assert "illegal characters" in check("a/b")


def test_a_retry_topic_may_be_longer() -> None:
    """Than the topic of a user: the prefix comes on top of a group."""
    assert names.check_topic("t" * (names.TOPIC_LENGTH_MAX + 1)) is not None
    assert names.check_topic("%RETRY%" + "g" * (names.RETRY_TOPIC_LENGTH_MAX - 7)) is None


def test_permissions_are_printed_as_tools_do() -> None:
    """A letter for each bit."""
    assert perm_text(PERM_READ | PERM_WRITE) == "RW-"
    assert perm_text(PERM_READ) == "R--"
    assert perm_text(PERM_READ | PERM_WRITE | PERM_INHERIT) == "RWX"


def test_versions_and_topics_compute_their_properties() -> None:
    """The next version, the write permission and the master's address."""
    assert DataVersion(1, 5, 0).next(9) == DataVersion(9, 6, 0)
    assert not TopicConfig("T", perm=PERM_READ).is_writable
    assert TopicConfig("T", perm=PERM_WRITE).is_writable
    assert BrokerData("c", "b", {0: "h:1", 1: "h:2"}).master_address == "h:1"
    assert BrokerData("c", "b", {1: "h:2"}).master_address is None
