"""A broker's pages over HTTP: what they count, what is gone when a topic is deleted, health."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from cometmq.core.group.skipped_ranges import SkipReason
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue, SubscriptionGroupConfig
from cometmq.model.message import Message
from cometmq.sync import Admin, Producer, PullConsumer
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

SETTINGS = {
    "metricsExporterType": "PROM",
    "metricsPromExporterPort": 0,
    "metricsLabel": "room:cellar,floor:-1",
}
_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (-?[0-9.e+-]+|\+Inf)\Z')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
Samples = list[tuple[str, dict[str, str], float]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests here; each uses topics of its own."""
    with threaded_cluster(SETTINGS) as running:
        yield running


def fetch(cluster: EmbeddedCluster, path: str) -> tuple[int, str]:
    """Status and content of a page."""
    port = cluster.standalone.broker.metrics_port
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(cluster: EmbeddedCluster) -> Samples:
    """Every sample of the page; a line that is none fails."""
    status, text = fetch(cluster, "/metrics")
    assert status == 200
    samples = []
    for line in text.splitlines():
        if not line.startswith("# "):
            match = _SAMPLE.match(line)
            assert match, line
            samples.append((match[1], dict(_LABEL.findall(match[2])), float(match[3])))
    return samples


def values(samples: Samples, name: str, **labels: str) -> list[float]:
    """The values of a family's samples with these labels."""
    return [
        value
        for family, own, value in samples
        if family == name and all(own.get(key) == text for key, text in labels.items())
    ]


def test_messages_backlogs_and_clients(cluster: EmbeddedCluster) -> None:
    """Counts of one topic and group, the lag after half of it, and all gone with the topic."""
    address, topic, group = cluster.name_server_address, "Counted", "counters"
    with Admin(name_server=address) as admin, Producer("p", name_server=address) as producer:
        admin.create_topic(topic, queue_count=1)
        queue = MessageQueue(topic, "broker-a", 0)
        for _ in range(10):
            producer.send(Message(topic, b"x"))
        with PullConsumer(
            group, {topic: "*"}, name_server=address, consume_from="first", auto_commit=False
        ) as consumer:
            got = 0
            while got < 10:
                got += len(consumer.poll(1000))
            admin.commit_offsets(group, {queue: 4})
            samples = scrape(cluster)
            assert values(samples, "rocketmq_messages_in_total", topic=topic) == [10]
            assert values(samples, "rocketmq_messages_out_total", consumer_group=group) == [10]
            assert values(samples, "rocketmq_consumer_lag_messages", topic=topic) == [6]
            assert values(samples, "rocketmq_consumer_inflight_messages", topic=topic) == [6]
            assert values(samples, "rocketmq_consumer_ready_messages", topic=topic) == [0]
            assert values(samples, "rocketmq_consumer_connections", language="PYTHON") == [1]
            assert values(samples, "rocketmq_producer_connections", version="5.4.0")[0] >= 1
        # A group without members waits too.
        (age_ms,) = values(
            scrape(cluster), "rocketmq_consumer_lag_latency_milliseconds", topic=topic
        )
        assert 0 <= age_ms < 3_600_000
        assert all(
            (labels["node_id"], labels["room"], labels["floor"]) == ("broker-a", "cellar", "-1")
            for _, labels, _ in samples
        )
        admin.delete_topic(topic)
    assert not [labels for _, labels, _ in scrape(cluster) if labels.get("topic") == topic]


def test_groups_have_their_counters_from_nought(cluster: EmbeddedCluster) -> None:
    """So that the first dead letter is an increase."""
    with Admin(name_server=cluster.name_server_address) as admin:
        admin.create_group(SubscriptionGroupConfig("quiet"))
    samples = scrape(cluster)
    for name in (
        "rocketmq_send_to_dlq_messages_total",
        "cometmq_parking_records_total",
        "cometmq_returned_messages_total",
    ):
        assert values(samples, name, consumer_group="quiet") == [0]


def test_histograms_and_storage(cluster: EmbeddedCluster) -> None:
    """Buckets grow, and the last one is the count."""
    samples = scrape(cluster)
    buckets = values(samples, "cometmq_event_loop_lag_seconds_bucket")
    assert buckets == sorted(buckets)
    assert buckets[-1:] == values(samples, "cometmq_event_loop_lag_seconds_count")
    (used,) = values(samples, "cometmq_disk_used_ratio")
    assert 0 < used < 1
    assert values(samples, "cometmq_metrics_left_out") == [0]


def test_health(cluster: EmbeddedCluster) -> None:
    """A lone broker is alive and ready, and not safe to stop: its messages would wait."""
    assert fetch(cluster, "/health/live") == (200, "ok\n")
    assert fetch(cluster, "/health/ready") == (200, "ok\n")
    status, text = fetch(cluster, "/health/safe-to-stop")
    assert (status, text) == (503, "it has no replica: its messages wait until it is back\n")
    assert fetch(cluster, "/other")[0] == 404


def test_a_family_that_is_too_large_is_cut_and_says_so() -> None:
    """The bound of RocketMQ's exporter holds here too."""
    with threaded_cluster(SETTINGS | {"metricsOtelCardinalityLimit": 3}) as small:
        with Admin(name_server=small.name_server_address) as admin:
            for number in range(5):
                admin.create_group(SubscriptionGroupConfig(f"group-{number}"))
        samples = scrape(small)
    assert len(values(samples, "cometmq_returned_messages_total")) == 3
    assert values(samples, "cometmq_metrics_left_out")[0] >= 2


def test_labels_that_are_none_stop_the_start() -> None:
    """The error names the setting."""
    with (
        pytest.raises(ConfigError, match="metricsLabel=room"),
        threaded_cluster(SETTINGS | {"metricsLabel": "room"}),
    ):
        pass


def test_timers_and_backlogs_have_their_figures(cluster: EmbeddedCluster) -> None:
    """A group that passed over messages, and how many timers are overdue."""
    state = cluster.standalone.broker.state
    now_ms = state.env.clock.now_ms()
    state.skipped.skip("behind", "Figures", 0, 3, 10, SkipReason.RESCUE, now_ms, {})
    cluster.standalone.broker.services.backlog.skipped_counts["behind", SkipReason.RESCUE] = 7
    samples = scrape(cluster)
    assert values(samples, "cometmq_skipped_waiting_messages", consumer_group="behind") == [7]
    assert values(samples, "cometmq_skipped_messages_total", reason="rescue") == [7]
    assert values(samples, "cometmq_timer_overdue_messages") == [0]
    assert values(samples, "cometmq_timer_deliver_rate") == [0]
    state.skipped.forget("behind")
