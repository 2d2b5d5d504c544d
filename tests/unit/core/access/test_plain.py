"""The accounts of ACL 1.0: what their lists and defaults let them do."""

from typing import Any

import pytest

from cometmq.core.access.plain import PlainAccount, PlainAccounts
from cometmq.core.access.policies import Action, Resource
from cometmq.errors import ConfigError

KEYS = {"accessKey": "RocketMQ", "secretKey": "12345678"}


def may(account: PlainAccount, resource: str, *actions: Action) -> bool:
    """Whether one of the actions is allowed."""
    return account.refusal(Resource.parse(resource), actions) is None


def account(**fields: Any) -> PlainAccount:
    """An account with these fields."""
    return PlainAccount.read({**KEYS, **fields})


def test_names_and_defaults() -> None:
    """The name's own permission counts, also where the default is wider."""
    used = account(
        defaultTopicPerm="SUB",
        topicPerms=["Out=PUB", "Both=PUB|SUB", "Other=SUB|PUB", "No=DENY", "Odd=ALL"],
        groupPerms=["readers=SUB"],
    )
    for resource, pub, sub in (
        ("Topic:Out", True, False),
        ("Topic:Both", True, True),
        ("Topic:Other", True, True),
        ("Topic:No", False, False),
        ("Topic:Odd", False, False),
        ("Topic:Unnamed", False, True),
        ("Group:readers", False, True),
        ("Group:others", False, False),
        ("Topic:RMQ_SYS_TRACE_TOPIC", True, True),
        ("Cluster:DefaultCluster", False, False),
    ):
        seen = may(used, resource, Action.PUB), may(used, resource, Action.SUB)
        assert seen == (pub, sub), resource
    assert may(used, "Topic:Out", Action.GET, Action.SUB)
    assert not may(used, "Topic:No", Action.PUB, Action.SUB, Action.GET)
    assert not may(used, "Topic:Both", Action.CREATE)
    assert "Need admin permission" in str(
        used.refusal(Resource.parse("Topic:Both"), [Action.DELETE])
    )
    assert "No default" in str(used.refusal(Resource.parse("Group:others"), [Action.SUB]))


def test_administrators() -> None:
    """Without lists one may do everything; with lists they hold for him too."""
    free = account(admin="true")
    assert free.is_free
    assert may(free, "Cluster:DefaultCluster", Action.UPDATE)
    listed = account(admin="true", topicPerms=["Orders=SUB"])
    assert not listed.is_free
    assert may(listed, "Cluster:DefaultCluster", Action.UPDATE)
    assert may(listed, "Topic:Orders", Action.DELETE)
    assert not may(listed, "Topic:Orders", Action.PUB)
    assert not may(listed, "Topic:Unnamed", Action.SUB)


def test_a_retry_topic_stands_for_its_group() -> None:
    """As the file may name it."""
    used = account(topicPerms=["%RETRY%readers=SUB"])
    assert may(used, "Group:readers", Action.SUB)


def test_files_are_joined() -> None:
    """Of two accounts with one key the later counts; white addresses add up."""
    read = PlainAccounts.read(
        [
            {"globalWhiteRemoteAddresses": ["10.0.0.*"], "accounts": [{**KEYS, "admin": "true"}]},
            {"globalWhiteRemoteAddresses": ["10.0.1.1", ""], "accounts": [KEYS]},
            {},
        ]
    )
    assert "10.0.0.9" in read.white
    assert "10.0.1.1" in read.white
    assert not read.accounts["RocketMQ"].is_admin


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"accounts": [{"accessKey": "short", "secretKey": "12345678"}]}, "7 characters"),
        ({"accounts": [{**KEYS, "topicPerms": "T=PUB"}]}, "topicPerms is no list"),
        ({"accounts": [{**KEYS, "groupPerms": ["G"]}]}, "not name=PERMISSION"),
        ({"accounts": {"accessKey": "x"}}, "must be lists"),
        ({"accounts": ["x"]}, "has no fields"),
        ({"globalWhiteRemoteAddresses": ["10.0.0"]}, "the white address"),
    ],
)
def test_what_is_illegal_says_so(document: dict[str, Any], text: str) -> None:
    """And never names a secret."""
    with pytest.raises(ConfigError, match=text) as failed:
        PlainAccounts.read([document])
    assert "12345678" not in str(failed.value)
