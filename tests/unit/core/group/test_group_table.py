"""Subscription groups: automatic creation, system groups, forbidden topics."""

from cometmq.core.group.group_table import SubscriptionGroupTable
from cometmq.model.group import SubscriptionGroupConfig

NOW_MS = 1_700_000_000_000


def test_unknown_group_is_created_with_defaults() -> None:
    """autoCreateSubscriptionGroup is on by default."""
    table = SubscriptionGroupTable()
    assert table.find("g", NOW_MS) == SubscriptionGroupConfig("g")
    assert table.revision == 1
    assert table.find("g", NOW_MS) is table.get("g")
    assert table.revision == 1


def test_without_automatic_creation_only_system_groups_appear() -> None:
    """A user's group is then unknown (26); a system group works at once."""
    table = SubscriptionGroupTable(auto_create=False)
    assert table.find("g", NOW_MS) is None
    assert table.find("CID_RMQ_SYS_TRANS", NOW_MS) is not None


def test_illegal_name_is_never_created() -> None:
    """A bad name must not reach subscriptionGroup.json."""
    table = SubscriptionGroupTable()
    assert table.find("bad group", NOW_MS) is None
    assert table.find("g" * 121, NOW_MS) is None
    assert table.find("", NOW_MS) is None


def test_seed_adds_the_system_groups_once() -> None:
    """Eight groups exist from the first boot."""
    table = SubscriptionGroupTable()
    table.seed(NOW_MS)
    count, revision = len(table.all()), table.revision
    table.seed(NOW_MS)
    assert count == 8
    assert table.revision == revision


def test_delete_forgets_settings_and_forbidden_topics() -> None:
    """A deleted group leaves nothing behind."""
    table = SubscriptionGroupTable({"g": SubscriptionGroupConfig("g")}, forbidden={"g": {"t": 4}})
    assert table.is_read_forbidden("g", "t")
    assert table.delete("g", NOW_MS)
    assert not table.is_read_forbidden("g", "t")
    assert not table.delete("g", NOW_MS)


def test_reading_of_a_topic_is_taken_away_and_given_back() -> None:
    """Other bits of the mask stay, and only a change moves the revision."""
    table = SubscriptionGroupTable(forbidden={"g": {"u": 2, "v": 4 | 2}})
    table.forbid_reading("g", "t", True, NOW_MS)
    assert table.is_read_forbidden("g", "t")
    assert table.revision == 1
    table.forbid_reading("g", "t", True, NOW_MS)
    assert table.revision == 1
    table.forbid_reading("g", "v", False, NOW_MS)
    assert table.forbidden["g"] == {"u": 2, "t": 4, "v": 2}
    table.forbid_reading("g", "t", False, NOW_MS)
    assert table.forbidden["g"] == {"u": 2, "v": 2}
    table.forbid_reading("h", "t", True, NOW_MS)
    table.forbid_reading("h", "t", False, NOW_MS)
    assert "h" not in table.forbidden
    assert "g" not in table
    assert not table.delete("g", NOW_MS)
