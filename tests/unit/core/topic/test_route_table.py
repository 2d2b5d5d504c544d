"""Routing decisions: who is in a route, what a registration changes, who is given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.topic.route_table import (
    BROKER_TIMEOUT_MS,
    BrokerMember,
    BrokerRegistration,
    RegistrationResult,
    RouteTable,
)
from cometmq.model.topic import BrokerData, DataVersion, QueueData, TopicConfig

A0 = BrokerMember("c", "broker-a", 0, "10.0.0.1:10911")
A1 = BrokerMember("c", "broker-a", 1, "10.0.0.2:10911")
B0 = BrokerMember("c", "broker-b", 0, "10.0.0.3:10911")
SILENT_MS = 10**15
"""A time at which every broker has been silent for longer than its timeout."""
V1, V2 = DataVersion(1, 1), DataVersion(2, 2)
TOPICS = (TopicConfig("T", 4, 4), TopicConfig("U", 8, 2, perm=4))


def registration(
    member: BrokerMember = A0,
    topics: tuple[TopicConfig, ...] = TOPICS,
    version: DataVersion = V1,
    acting: bool | None = None,
) -> BrokerRegistration:
    """A registration with a high-availability address made from the member's."""
    return BrokerRegistration(
        member, "ha-of-" + member.address, version, topics, enable_acting_master=acting
    )


def table(*members: BrokerMember, acting: bool | None = None) -> RouteTable:
    """A table in which `members` registered at time 0, each over a connection of its own."""
    routes = RouteTable(support_acting_master=bool(acting))
    for member in members:
        assert routes.register(registration(member, acting=acting), member, 0).accepted
    return routes


def test_a_registered_topic_has_a_route() -> None:
    """With the queues and the address of its broker."""
    route = table(A0).route("T")
    assert route is not None
    assert route.queue_datas == (QueueData("broker-a", 4, 4, 6),)
    assert route.broker_datas == (BrokerData("c", "broker-a", {0: "10.0.0.1:10911"}),)
    assert table(A0).route("unknown") is None


def test_routes_come_in_the_order_of_broker_names() -> None:
    """Clients compare old and new route, so the order must not depend on history."""
    assert table(B0, A0).route("T") == table(A0, B0).route("T")


def test_slaves_are_listed_and_told_of_their_master() -> None:
    """A slave's topics do not count; the master is told nothing."""
    routes = table(A0)
    answer = routes.register(registration(A1, (TopicConfig("S"), TopicConfig("S2"))), "x", 0)
    assert answer == RegistrationResult(True, "ha-of-10.0.0.1:10911", "10.0.0.1:10911")
    assert routes.register(registration(), "y", 0) == RegistrationResult(True)
    assert routes.route("S") is None
    assert routes.member_group("broker-a") == {0: A0.address, 1: A1.address}


def test_one_topic_from_an_unknown_broker_is_refused() -> None:
    """It would hide the broker's other topics until the next full registration."""
    routes = RouteTable()
    assert not routes.register(registration(topics=TOPICS[:1]), "x", 0).accepted
    assert routes.topics() == ()
    assert routes.cluster_info() == ({}, {})


def test_one_topic_from_a_known_broker_is_added() -> None:
    """That is how a broker announces a topic at once."""
    routes = table(A0)
    assert routes.register(registration(topics=(TopicConfig("N"),), version=V2), A0, 5).accepted
    assert routes.topics() == ("N", "T", "U")


def test_the_same_data_version_changes_nothing() -> None:
    """Write permission wiped by an administrator survives until the broker's topics change."""
    routes = table(A0)
    assert routes.wipe_write_perm("broker-a") == 2
    routes.register(registration(), A0, 5)
    assert [data.perm for data in routes.route("T").queue_datas] == [4]  # type: ignore[union-attr]
    routes.register(registration(version=V2), A0, 5)
    assert [data.perm for data in routes.route("T").queue_datas] == [6]  # type: ignore[union-attr]
    assert routes.add_write_perm("broker-a") == 2
    assert routes.wipe_write_perm("nobody") == 0
    assert [data.perm for data in routes.route("U").queue_datas] == [6]  # type: ignore[union-attr]


def test_the_last_member_takes_its_topics_along() -> None:
    """Topics, broker name and cluster vanish; other brokers' queues stay."""
    routes = table(A0, A1, B0)
    routes.unregister(A0)
    assert routes.route("T") is not None
    assert routes.member_group("broker-a") == {1: A1.address}
    routes.unregister(A1)
    assert [data.broker_name for data in routes.route("T").queue_datas] == ["broker-b"]  # type: ignore[union-attr]
    routes.unregister(B0)
    routes.unregister(B0)
    assert (routes.topics(), routes.cluster_info()) == ((), ({}, {}))


def test_silence_is_noticed_after_its_timeout_only() -> None:
    """A sign of life starts the time again; an unknown broker has none."""
    routes = table(A0, B0)
    assert routes.touch("c", B0.address, 1000)
    assert not routes.touch("c", "nobody:1", 1000)
    assert routes.expired(BROKER_TIMEOUT_MS) == ()
    assert [live.member for live in routes.expired(BROKER_TIMEOUT_MS + 1)] == [A0]
    assert len(routes.expired(BROKER_TIMEOUT_MS + 1001)) == 2


def test_a_closed_connection_drops_what_registered_over_it() -> None:
    """And nothing else."""
    routes = table(A0, B0)
    assert routes.disconnect("something else") == ()
    assert routes.disconnect(A0) == (A0,)
    assert [live.member for live in routes.expired(SILENT_MS)] == [B0]


def test_a_slave_that_became_master_keeps_one_entry() -> None:
    """The same address under two ids would send producers to a slave."""
    routes = table(A0, A1)
    promoted = BrokerMember("c", "broker-a", 0, A1.address)
    routes.unregister(A0)
    routes.register(registration(promoted), "x", 0)
    assert routes.member_group("broker-a") == {0: A1.address}


def test_a_new_address_of_the_master_replaces_the_old_one() -> None:
    """Unless the old one was elected later."""
    routes = table(A0)
    moved = BrokerMember("c", "broker-a", 0, "10.0.0.9:10911")
    routes.register(registration(moved, version=DataVersion(3, 3, state_version=5)), "x", 0)
    assert routes.member_group("broker-a") == {0: moved.address}
    assert routes.data_version("c", A0.address) is None
    routes.register(registration(A0, version=DataVersion(4, 4, state_version=4)), "y", 0)
    assert routes.member_group("broker-a") == {0: moved.address}


def test_an_acting_master_is_shown_as_master_of_read_only_topics() -> None:
    """Its slaves' topics lose W, and the lowest slave answers under id 0."""
    routes = table(A0, A1, acting=True)
    routes.unregister(A0)
    route = routes.route("T")
    assert route is not None
    assert [data.perm for data in route.queue_datas] == [4]
    assert route.broker_datas[0].broker_addrs == {0: A1.address}
    assert routes.member_group("broker-a") == {1: A1.address}
    routes.register(
        registration(A1, (TopicConfig("rmq_sys_SYNC_BROKER_MEMBER_broker-a"), *TOPICS), V2, True),
        A1,
        0,
    )
    members = routes.route("rmq_sys_SYNC_BROKER_MEMBER_broker-a")
    assert members is not None
    assert members.broker_datas[0].broker_addrs == {1: A1.address}


def test_lists_of_topics() -> None:
    """By cluster, by unit flag, and the names that are topics too."""
    routes = table(B0, A0)
    unit = (TopicConfig("X", topic_sys_flag=1), TopicConfig("Y", topic_sys_flag=2))
    other = BrokerMember("d", "broker-z", 0, "10.0.0.7:1")
    routes.register(registration(other, unit), "z", 0)
    assert routes.topics() == ("T", "U", "X", "Y")
    assert routes.topics_of_cluster("c") == ("T", "U")
    assert routes.topics_of_cluster("unknown") == ()
    assert routes.topics_by_unit(unit=True) == ("X",)
    assert routes.topics_by_unit(unit_sub=True) == ("Y",)
    assert routes.topics_by_unit(unit=False, unit_sub=True) == ("Y",)
    names, address = routes.system_topics()
    assert names == ("c", "broker-a", "broker-b", "d", "broker-z")
    assert address == A0.address
    assert RouteTable().system_topics() == ((), None)
    brokers, clusters = routes.cluster_info()
    assert list(brokers) == ["broker-a", "broker-b", "broker-z"]
    assert clusters == {"c": ("broker-a", "broker-b"), "d": ("broker-z",)}


def test_single_topics_can_be_registered_and_deleted() -> None:
    """Only for brokers that are known, and per cluster if asked."""
    routes = table(A0)
    assert routes.register_topic("N", [QueueData("broker-a", 1, 1, 6)])
    assert not routes.register_topic("M", [QueueData("nobody", 1, 1, 6)])
    assert not routes.register_topic("M", [])
    assert routes.topics() == ("N", "T", "U")
    routes.delete_topic("N", "other cluster")
    routes.delete_topic("T", "c")
    assert routes.topics() == ("N", "U")
    routes.delete_topic("N")
    routes.delete_topic("N", "c")
    assert routes.topics() == ("U",)


def test_missing_topics_are_dropped_when_configured() -> None:
    """`deleteTopicWithBrokerRegistration`: a registration is the whole truth."""
    routes = RouteTable(delete_missing_topics=True)
    routes.register(registration(), A0, 0)
    routes.register(registration(topics=(TOPICS[1],), version=V2), A0, 0)
    assert routes.topics() == ("U",)


def test_a_broker_name_can_move_to_another_cluster() -> None:
    """Its old cluster forgets it."""
    routes = table(A0)
    routes.register(registration(BrokerMember("d", "broker-a", 0, A0.address)), A0, 0)
    assert routes.cluster_info()[1] == {"d": ("broker-a",)}


_members = st.builds(
    BrokerMember,
    st.just("c"),
    st.sampled_from(["a", "b"]),
    st.integers(0, 2),
    st.sampled_from(["h1:1", "h2:1", "h3:1", "h4:1"]),
)
_events = st.one_of(
    st.tuples(st.just("register"), _members, st.integers(0, 3)),
    st.tuples(st.just("unregister"), _members, st.just(0)),
    st.tuples(st.just("disconnect"), _members, st.just(0)),
)


@given(st.lists(_events, max_size=30))
def test_every_member_in_a_route_is_alive(events: list[tuple[str, BrokerMember, int]]) -> None:
    """Whatever happens in whatever order, routes and live brokers tell the same story."""
    routes = RouteTable()
    for kind, member, version in events:
        if kind == "register":
            routes.register(
                registration(member, version=DataVersion(version, version, version % 2)),
                member.address,
                0,
            )
        elif kind == "unregister":
            routes.unregister(member)
        else:
            routes.disconnect(member.address)
        brokers, clusters = routes.cluster_info()
        listed = [
            (name, broker_id, address)
            for name, data in brokers.items()
            for broker_id, address in data.broker_addrs.items()
        ]
        alive = {live.member.address for live in routes.expired(SILENT_MS)}
        assert {address for _, _, address in listed} <= alive
        assert sorted(brokers) == sorted(name for names in clusters.values() for name in names)
        for topic in routes.topics():
            route = routes.route(topic)
            assert route is not None
            assert {data.broker_name for data in route.queue_datas} <= set(brokers)


@pytest.mark.parametrize("timeout_ms", [1, 10_000])
def test_a_broker_may_ask_for_a_shorter_timeout(timeout_ms: int) -> None:
    """As brokers with acting masters do."""
    routes = RouteTable()
    wanted = BrokerRegistration(A0, "", V1, TOPICS, timeout_ms=timeout_ms)
    routes.register(wanted, "x", 0)
    assert routes.expired(timeout_ms) == ()
    assert len(routes.expired(timeout_ms + 1)) == 1


def test_acting_masters_stand_only_in_for_a_missing_master() -> None:
    """A group with its master is shown as it is."""
    route = table(A0, A1, acting=True).route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: A0.address, 1: A1.address}


def test_a_slave_that_claims_the_masters_id_with_an_older_epoch_leaves() -> None:
    """The answer is empty and the master stays."""
    routes = RouteTable()
    routes.register(registration(A0, version=DataVersion(1, 1, 2)), "master", 0)
    routes.register(registration(A1), "slave", 0)
    claim = BrokerMember("c", "broker-a", 0, A1.address)
    answer = routes.register(registration(claim, version=DataVersion(9, 9, 1)), "slave", 0)
    assert answer == RegistrationResult(accepted=True)
    assert routes.member_group("broker-a") == {0: A0.address}


def test_a_slave_of_another_cluster_gets_no_master() -> None:
    """A live broker is known by its cluster and address."""
    routes = table(A0)
    stray = BrokerMember("other", "broker-a", 1, "10.0.0.9:10911")
    assert routes.register(registration(stray), "stray", 0) == RegistrationResult(accepted=True)
