"""Which entry of a user's policies decides, and what is no entry at all."""

from collections.abc import Callable

import pytest

from cometmq.core.access.accounts import Accounts
from cometmq.core.access.policies import (
    Action,
    Effect,
    Entry,
    Policy,
    PolicyType,
    Resource,
    ResourceType,
    decide,
)
from cometmq.errors import ConfigError

TOPIC = Resource(ResourceType.TOPIC, "Orders")


def entry(
    resource: str, decision: str = "Allow", *actions: str, ips: tuple[str, ...] = ()
) -> Entry:
    """An entry as a tool writes it."""
    return Entry.from_json(
        {
            "resource": resource,
            "actions": list(actions or ("Pub",)),
            "decision": decision,
            "sourceIps": list(ips),
        }
    )


def decided(*custom: Entry, default: tuple[Entry, ...] = (), ip: str = "10.0.0.1") -> str:
    """What is said of Pub on the topic Orders: the deciding resource, or why there is none."""
    policies = {
        kind: Policy(kind, entries)
        for kind, entries in ((PolicyType.CUSTOM, custom), (PolicyType.DEFAULT, default))
        if entries
    }
    verdict = decide(policies, TOPIC, [Action.PUB], ip)
    if verdict.entry is None:
        return verdict.reason
    assert verdict.is_allowed is (verdict.entry.decision is Effect.ALLOW)
    return f"{verdict.entry.resource} {verdict.is_allowed}"


def test_the_most_exact_entry_decides() -> None:
    """A type before any, a name before a beginning, a longer beginning, deny before allow."""
    assert decided(entry("*", "Deny"), entry("Topic:*")) == "Topic:* True"
    assert decided(entry("Topic:*", "Deny"), entry("Topic:Or*")) == "Topic:Or* True"
    assert decided(entry("Topic:Order*", "Deny"), entry("Topic:Or*")) == "Topic:Order* False"
    assert decided(entry("Topic:Orders"), entry("Topic:Orders*", "Deny")) == "Topic:Orders True"
    assert decided(entry("Topic:Orders"), entry("Topic:Orders", "Deny")) == "Topic:Orders False"


def test_defaults_count_only_where_nothing_else_matches() -> None:
    """Also when the custom entry speaks of another action or address."""
    default = (entry("Topic:*", "Deny"),)
    assert decided(entry("*"), default=default) == "* True"
    assert decided(entry("Topic:Orders", "Allow", "Sub"), default=default) == "Topic:* False"
    assert decided(entry("Topic:Orders", ips=("10.1.0.0/16",)), default=default) == "Topic:* False"
    assert decided() == "no matched policies."


def test_addresses() -> None:
    """Single ones and nets, of both families; what is no address matches none."""
    only = entry("Topic:Orders", ips=("10.0.0.0/8", "2001:db8::1"))
    for ip, outcome in (
        ("10.9.9.9", "Topic:Orders True"),
        ("2001:db8::1", "Topic:Orders True"),
        ("11.0.0.1", "no matched policies."),
        ("2001:db8::2", "no matched policies."),
        ("somewhere", "no matched policies."),
    ):
        assert decided(only, ip=ip) == outcome


def test_all_stands_for_every_action() -> None:
    """And one action for itself alone."""
    assert decided(entry("Topic:Orders", "Allow", "All")) == "Topic:Orders True"
    assert decided(entry("Topic:Orders", "Allow", "Get", "List")) == "no matched policies."


@pytest.mark.parametrize(
    "text", ["", "Topic", "Topic:", "topic:x", "Any:x", "Topic:a*b", "Topic:**", "Queue:x"]
)
def test_what_is_no_resource_is_refused(text: str) -> None:
    """RocketMQ drops what follows a star; here nothing is widened."""
    with pytest.raises(ConfigError):
        Resource.parse(text)


@pytest.mark.parametrize(
    "text", ["*", "Topic:*", "Topic:a*", "Group:g", "Cluster:c", "Namespace:n*"]
)
def test_resources_are_written_as_read(text: str) -> None:
    """So that tools find the entry again."""
    assert str(Resource.parse(text)) == text


@pytest.mark.parametrize(
    "change",
    [
        {"actions": []},
        {"actions": ["Any"]},
        {"actions": ["Pub", "Steal"]},
        {"decision": "Maybe"},
        {"decision": None},
        {"sourceIps": ["10.0.0.300"]},
        {"resource": ""},
    ],
)
def test_what_is_no_entry_is_refused(change: dict[str, object]) -> None:
    """Nothing is stored that could not be decided."""
    good: dict[str, object] = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
    Entry.from_json(good)
    with pytest.raises(ConfigError):
        Entry.from_json(good | change)


def policies(*entries: Entry, kind: str = "Custom") -> dict[str, object]:
    """A body that sets entries."""
    return {"policies": [{"policyType": kind, "entries": [each.to_json() for each in entries]}]}


def test_accounts_come_back_from_their_file() -> None:
    """Users with secrets, and policies of both types."""
    accounts = Accounts()
    accounts.create_user({"username": "root", "password": "r", "userType": "Super"}, by_super=True)
    accounts.create_user({"username": "alice", "password": "a"}, by_super=False)
    accounts.put_policies("User:alice", policies(entry("Topic:a")), replaces=False)
    accounts.put_policies("User:alice", policies(entry("Topic:b", "Deny")), replaces=False)
    accounts.put_policies("User:alice", policies(entry("*"), kind="Default"), replaces=False)
    again = Accounts.from_json(accounts.to_json())
    assert (again.users, again.policies) == (accounts.users, accounts.policies)
    assert "secret" not in repr(again.users["alice"])
    assert "password" not in again.users["alice"].to_json(with_secret=False)


def test_only_super_users_touch_super_users() -> None:
    """Neither create, nor make, nor change, nor delete one."""
    accounts = Accounts()
    accounts.create_user({"username": "root", "password": "r", "userType": "Super"}, by_super=True)
    accounts.create_user({"username": "alice", "password": "a"}, by_super=False)
    attempts: list[Callable[[], None]] = [
        lambda: accounts.create_user(
            {"username": "eve", "password": "e", "userType": "Super"}, by_super=False
        ),
        lambda: accounts.update_user({"username": "alice", "userType": "Super"}, by_super=False),
        lambda: accounts.update_user({"username": "root", "password": "x"}, by_super=False),
        lambda: accounts.delete_user("root", by_super=False),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match="super user can only be"):
            attempt()
    assert accounts.users["root"].secret == "r"
    assert not accounts.users["alice"].is_super


def test_changes_of_users_and_policies() -> None:
    """What is not given stays; an entry goes alone, or all of a type; policies go with the user."""
    accounts = Accounts()
    accounts.create_user({"username": "alice", "password": "a"}, by_super=False)
    accounts.update_user({"username": "alice", "userStatus": "disable"}, by_super=False)
    assert (accounts.users["alice"].secret, accounts.users["alice"].is_enabled) == ("a", False)
    for name in ("Topic:a", "Topic:b"):
        accounts.put_policies("User:alice", policies(entry(name)), replaces=False)
    accounts.put_policies("User:alice", policies(entry("Topic:a", "Deny")), replaces=False)
    accounts.delete_policies("User:alice", None, "Topic:b")
    kept = accounts.policies["alice"][PolicyType.CUSTOM].entries
    assert [(str(each.resource), each.decision) for each in kept] == [("Topic:a", Effect.DENY)]
    accounts.delete_policies("User:alice", "Custom", None)
    assert accounts.acl_json("User:alice") is None
    accounts.put_policies("User:alice", policies(entry("Topic:c")), replaces=True)
    accounts.delete_user("alice", by_super=False)
    assert not accounts.policies
    illegal: list[Callable[[], None]] = [
        lambda: accounts.put_policies("User:alice", policies(entry("*")), replaces=False),
        lambda: accounts.put_policies("alice", policies(entry("*")), replaces=False),
        lambda: accounts.update_user({"username": "alice"}, by_super=True),
        lambda: accounts.create_user({"username": " ", "password": "x"}, by_super=True),
        lambda: accounts.create_user({"username": "x", "password": ""}, by_super=True),
    ]
    for attempt in illegal:
        with pytest.raises(ConfigError):
            attempt()
