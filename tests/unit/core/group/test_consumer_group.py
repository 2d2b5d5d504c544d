"""Who is online: joins, leaves, losses, subscriptions, heartbeat V2."""

from collections.abc import Iterable

from cometmq.core.group.consumer_group import (
    ConsumerGroups,
    GroupMember,
    HeartbeatOutcome,
    ProducerGroups,
)
from cometmq.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData


def member(client_id: str, now_ms: int = 0) -> GroupMember:
    return GroupMember(client_id, "JAVA", 493, now_ms)


def beat(
    groups: ConsumerGroups[str],
    key: str,
    subscriptions: Iterable[SubscriptionData] | None,
    *,
    group: str = "g",
    model: MessageModel = MessageModel.CLUSTERING,
    fingerprint: int = 0,
    now_ms: int = 0,
) -> HeartbeatOutcome:
    return groups.heartbeat(
        key,
        group,
        member(f"id-{key}", now_ms),
        ConsumeType.CONSUME_PASSIVELY,
        model,
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        subscriptions,
        fingerprint,
    )


def test_join_and_repeat() -> None:
    """A new member is a change, its next heartbeat is none."""
    groups: ConsumerGroups[str] = ConsumerGroups()
    assert beat(groups, "a", [SubscriptionData("t")]).is_changed
    assert not beat(groups, "a", [SubscriptionData("t")]).is_changed
    assert beat(groups, "b", [SubscriptionData("t")]).is_changed
    group = groups.get("g")
    assert group is not None
    assert group.client_ids() == ["id-a", "id-b"]
    assert group.find_client("id-b") == "b"
    assert group.find_client("nobody") is None
    assert groups.subscribers_of("t") == ["g"]


def test_each_member_has_its_own_subscriptions() -> None:
    """Its last full heartbeat counts; the group shows all topics, each with the newest version."""
    groups: ConsumerGroups[str] = ConsumerGroups()
    beat(groups, "a", [SubscriptionData("t", "A", sub_version=5)])
    beat(groups, "b", [SubscriptionData("t", "B", sub_version=6), SubscriptionData("u")])
    group = groups.get("g")
    assert group is not None
    assert group.subscriptions["t"].sub_string == "B"
    assert set(group.subscriptions) == {"t", "u"}
    for key, text in (("a", "A"), ("b", "B"), ("stranger", "B")):
        subscription = group.subscription_of(key, "t")
        assert subscription is not None
        assert subscription.sub_string == text
    assert group.subscription_of("a", "u") is None
    revision = groups.revision
    assert not beat(groups, "a", [SubscriptionData("t", "A", sub_version=5)]).is_changed
    assert groups.revision == revision
    assert not beat(groups, "a", [SubscriptionData("t", "C", sub_version=7)]).is_changed
    assert group.subscriptions["t"].sub_string == "C"
    assert beat(groups, "a", [SubscriptionData("u")]).is_changed
    groups.leave("b", "g")
    assert set(group.subscriptions) == {"u"}
    assert groups.revision > revision


def test_heartbeat_without_subscription_keeps_the_stored_one() -> None:
    """V2 may leave it out, but not to a broker that has none (a restarted one)."""
    groups: ConsumerGroups[str] = ConsumerGroups()
    assert beat(groups, "a", None, fingerprint=7).needs_subscription
    beat(groups, "a", [SubscriptionData("t")], fingerprint=7)
    outcome = beat(groups, "a", None, fingerprint=7)
    assert not outcome.needs_subscription
    assert not outcome.is_fingerprint_new
    assert beat(groups, "a", None, fingerprint=8).is_fingerprint_new
    group = groups.get("g")
    assert group is not None
    assert set(group.subscriptions) == {"t"}


def test_group_vanishes_with_its_last_member() -> None:
    """Leaving twice is no change; a lost connection leaves all its groups."""
    groups: ConsumerGroups[str] = ConsumerGroups()
    beat(groups, "a", [SubscriptionData("t")])
    beat(groups, "b", [SubscriptionData("t")])
    beat(groups, "a", [SubscriptionData("t")], group="h")
    assert groups.leave("b", "g")
    assert not groups.leave("b", "g")
    assert groups.leave_all("a") == ["g", "h"]
    assert groups.leave_all("a") == []
    assert groups.get("g") is None
    assert dict(groups.all()) == {}


def test_broadcast_and_expiry() -> None:
    """Members without a heartbeat for the timeout are listed once."""
    groups: ConsumerGroups[str] = ConsumerGroups()
    beat(groups, "a", [SubscriptionData("t")], model=MessageModel.BROADCASTING, now_ms=0)
    beat(groups, "b", [SubscriptionData("t")], group="h", now_ms=100)
    group = groups.get("g")
    assert group is not None
    assert group.is_broadcast
    assert groups.expired(130, 120) == ["a"]


def test_producers_are_found_by_client_until_their_last_group() -> None:
    """Request-reply looks a client up by id."""
    producers: ProducerGroups[str] = ProducerGroups()
    producers.heartbeat("a", "p1", member("id-a", 0))
    producers.heartbeat("a", "p2", member("id-a", 0))
    assert producers.find_client("id-a") == "a"
    producers.leave("a", "p1")
    assert producers.get("p1") is None
    assert producers.find_client("id-a") == "a"
    assert producers.expired(200, 120) == ["a"]
    producers.leave_all("a")
    producers.leave("a", "p2")
    assert producers.find_client("id-a") is None
    assert dict(producers.all()) == {}


def test_a_producer_group_stays_while_it_has_a_member() -> None:
    """One member leaves, another expires; somebody else's leave changes nothing."""
    producers: ProducerGroups[str] = ProducerGroups()
    producers.heartbeat("a", "g", member("id-a", 0))
    producers.heartbeat("b", "g", member("id-b", 100))
    producers.leave("stranger", "g")
    assert producers.expired(130, 120) == ["a"]
    producers.leave("a", "g")
    assert producers.find_client("id-a") is None
    assert producers.find_client("id-b") == "b"
    assert set(producers.get("g") or ()) == {"b"}
