"""Commands for a backlog, against a real cluster: rules, rescue, replay, what was passed over."""

import json
import threading
from collections.abc import Iterator

import pytest
from click.testing import Result
from tests.cli.invoking import Run, invoke, rows

from cometmq import FlowLimits, ReceivedMessage
from cometmq.model.message import Message
from cometmq.sync import Admin, Producer, PushConsumer
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

LIMITS = FlowLimits(count_max=8)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests here; each uses topics and groups of its own."""
    with threaded_cluster() as running:
        yield running


@pytest.fixture
def cometmq(cluster: EmbeddedCluster) -> Run:
    """`cometmq ...` with NAMESRV_ADDR set; a CometError becomes its exit code."""

    def run(*arguments: str, code: int = 0) -> Result:
        environment = {"NAMESRV_ADDR": cluster.name_server_address}
        return invoke(arguments, environment, code=code)

    return run


class Held:
    """A member whose first handler waits, and what its handlers got."""

    def __init__(self, cluster: EmbeddedCluster, topic: str, group: str, count: int) -> None:
        self.go_on = threading.Event()
        self.bodies: list[bytes] = []
        self.began = threading.Event()
        with Admin(name_server=cluster.name_server_address) as admin:
            admin.create_topic(topic, queue_count=1)
            # Members look for new queues of a topic every half minute only.
            admin.create_topic(f"%RETRY%{group}", queue_count=2)
        with Producer("shop", name_server=cluster.name_server_address) as producer:
            for number in range(count):
                producer.send(Message(topic, b"%d" % number))
        self.consumer = PushConsumer(
            group,
            {topic: "*"},
            self.handle,
            name_server=cluster.name_server_address,
            consume_from="first",
            concurrency=1,
            flow_limits=LIMITS,
            pull_count_max=4,
        )

    def handle(self, message: ReceivedMessage) -> None:
        self.began.set()
        assert self.go_on.wait(60)
        self.bodies.append(message.body)

    def __enter__(self) -> "Held":
        self.consumer.start()
        assert self.began.wait(60)
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on.set()
        self.consumer.shutdown()


def test_rules_are_set_shown_and_removed(cometmq: Run) -> None:
    """A second setting replaces the first one."""
    cometmq("group", "set", "ruled", "--create")
    (row,) = rows(cometmq("group", "backlog", "ruled", "--drop-older-than", "90m", "--json"))
    assert (row["drop_older_than"], row["fresh_share"]) == ("90m", None)
    cometmq("group", "backlog", "ruled", "--fresh-share", "0.8", "--fresh-lag", "50")
    (row,) = rows(cometmq("group", "backlog", "ruled", "--json"))
    assert (row["drop_older_than"], row["fresh_share"], row["fresh_lag"]) == (None, 0.8, 50)
    cometmq("group", "backlog", "ruled", "--fresh-share", "1.5", code=2)
    cometmq("group", "backlog", "ruled", "--fresh-share", "0.5", "--off", code=2)
    (row,) = rows(cometmq("group", "backlog", "ruled", "--off", "--json"))
    assert set(row.values()) == {"broker-a", None}
    assert "did you mean ruled" in str(cometmq("group", "backlog", "rule", code=4).exception)


def test_a_rescue_copies_what_no_member_has(cometmq: Run, cluster: EmbeddedCluster) -> None:
    """The command ends when everything is copied; the listing has the range."""
    with Held(cluster, "Rescued", "rescued", 60) as held:
        result = cometmq("group", "rescue", "rescued", "Rescued", "--queues", "2")
        assert "messages are copied" in result.stderr
        (row,) = rows(cometmq("group", "skipped", "rescued", "--json"))
        assert (row["state"], row["because_of"], row["left"]) == ("copied", "rescue", 0)
        assert row["messages"] == 60 - row["from_offset"] >= 60 - LIMITS.count_max - 4
        with Admin(name_server=cluster.name_server_address) as admin:
            assert len(admin.topic_offsets("%RETRY%rescued")) == 2
        held.go_on.set()
        cluster.until(lambda: len(held.bodies) == 60, 60)
    assert len(set(held.bodies)) == 60


def test_dropped_messages_are_replayed(cometmq: Run, cluster: EmbeddedCluster) -> None:
    """`group skipped` lists them as dropped before."""
    with Held(cluster, "Dropped", "dropped", 60) as held:
        cometmq("group", "backlog", "dropped", "--drop-beyond", "10")

        def is_dropped() -> bool:
            return bool(rows(cometmq("group", "skipped", "dropped", "--json")))

        cluster.until(is_dropped, 60)
        (row,) = rows(cometmq("group", "skipped", "dropped", "--json"))
        assert (row["state"], row["because_of"], row["left"]) == ("dropped", "lag", row["messages"])
        cometmq("group", "backlog", "dropped", "--off")
        cometmq("group", "replay", "dropped", "Dropped")
        held.go_on.set()
        cluster.until(lambda: len(held.bodies) == 60, 60)
    assert len(set(held.bodies)) == 60


def test_what_cannot_be_done_is_refused(cometmq: Run, cluster: EmbeddedCluster) -> None:
    """With the reason; a group that passed over nothing has an empty listing."""
    cometmq("group", "set", "alone", "--create")
    with Admin(name_server=cluster.name_server_address) as admin:
        admin.create_topic("Alone", queue_count=1)
    refused = cometmq("group", "rescue", "alone", "Alone", code=1)
    assert "no member is online" in str(refused.exception)
    (row,) = rows(cometmq("group", "replay", "alone", "--json"))
    assert row == {"broker": "broker-a", "left_to_copy": 0, "copies_unfinished": 0}
    assert "has passed over nothing" in cometmq("group", "skipped", "alone").output


def test_the_lag_of_all_groups(cometmq: Run, cluster: EmbeddedCluster) -> None:
    """Most first; with the first cause and what to do."""
    with Held(cluster, "Lagging", "lagging", 30) as held:
        cluster.until(
            lambda: "lagging" in {row["group"] for row in rows(cometmq("group", "lag", "--json"))},
            60,
        )
        listing = rows(cometmq("group", "lag", "--explain", "--json"))
        (row,) = [row for row in listing if row["group"] == "lagging"]
        assert row["lag"] > 0
        assert row["cause"]
        assert row["do"]
        lags = [each["lag"] for each in listing]
        assert lags == sorted(lags, reverse=True)
        held.go_on.set()
    cometmq("group", "lag", "--topic", "Lagging", code=2)


def test_timers_are_shown(cometmq: Run, cluster: EmbeddedCluster) -> None:
    """Those that wait; the rate is the broker's setting."""
    with Producer("shop", name_server=cluster.name_server_address) as producer:
        due_ms = cluster.clock.now_ms() + 3_600_000
        producer.send(Message("Timed", b"later", deliver_time_ms=due_ms))
    broker = cluster.standalone.broker

    def is_placed() -> bool:
        return broker.timers.pending_count() == 1

    deadline = threading.Event()
    for _ in range(2_000):
        if is_placed():
            break
        deadline.wait(0.005)
    (row,) = json.loads(cometmq("cluster", "timers", "--json").stdout)
    assert row == {
        "broker": "broker-a",
        "waiting": 1,
        "overdue": 0,
        "lag_ms": row["lag_ms"],
        "delivered_per_s": row["delivered_per_s"],
        "rate_limit": None,
    }
