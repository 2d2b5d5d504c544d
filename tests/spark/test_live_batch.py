"""Topics of a running cluster as DataFrames: every row once, and options that choose rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from tests.spark.clusters import Cluster

from cometmq.arrow.options import COLUMNS
from cometmq.errors import CometError, OffsetOutOfRange
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.source import LiveReader
from cometmq.sync import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(
    spark: SparkSession, cluster: Cluster, schema: str | None = None, **options: str
) -> DataFrame:
    """A batch read of the cluster."""
    reader = spark.read.format("cometmq").option("nameServer", cluster.name_server)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load()


def numbers(frame: DataFrame) -> list[int]:
    """The bodies, which are numbers, sorted."""
    return sorted(int(row.body) for row in frame.select("body").collect())


def test_every_message_is_one_row_with_all_columns(spark: SparkSession, cluster: Cluster) -> None:
    """The columns hold the message and its position; properties only on request."""
    topic = cluster.create(queues=2)
    cluster.send(
        topic, [b"%d" % n for n in range(20)], queues=2, tags="T", keys="k", properties={"a": "b"}
    )
    frame = load(spark, cluster, subscribe=topic, includeProperties="true")
    rows = frame.orderBy("queueId", "queueOffset").collect()
    assert sorted(int(row.body) for row in rows) == list(range(20))
    assert [(row.queueId, row.queueOffset) for row in rows] == [
        (queue_id, n) for queue_id in range(2) for n in range(10)
    ]
    first = rows[0]
    assert (first.topic, first.broker, first.tags, first.keys) == (topic, "broker-a", "T", "k")
    assert first.properties["a"] == "b"
    assert first.storeHost == cluster.broker_address
    assert len(first.msgId) == 32
    assert first.storeTimestamp >= first.bornTimestamp
    plain = load(spark, cluster, subscribe=topic).first()
    assert plain is not None
    assert plain.properties is None


def test_schema_selects_columns(spark: SparkSession, cluster: Cluster) -> None:
    """In the order given, option names in any case."""
    topic = cluster.create(queues=1)
    cluster.send(topic, ["x"], queues=1)
    frame = load(spark, cluster, "queueOffset bigint, body binary", SUBSCRIBE=topic)
    assert frame.columns == ["queueOffset", "body"]
    assert [tuple(row) for row in frame.collect()] == [(0, bytearray(b"x"))]


def test_queues_split_into_partitions(spark: SparkSession, cluster: Cluster) -> None:
    """One partition per queue that holds something; more with minPartitions; rows stay once."""
    topic = cluster.create(queues=4)
    cluster.send(topic, [b"%d" % n for n in range(90)], queues=3)
    frame = load(spark, cluster, subscribe=topic)
    assert frame.rdd.getNumPartitions() == 3
    more = load(spark, cluster, subscribe=topic, minPartitions="7")
    assert more.rdd.getNumPartitions() >= 7
    assert numbers(more) == list(range(90))


def test_offsets_choose_rows(spark: SparkSession, cluster: Cluster) -> None:
    """Start inclusive, end exclusive, -2 and -1 as words; queues not named are read in full."""
    topic = cluster.create(queues=2)
    cluster.send(topic, [b"%d" % n for n in range(20)], queues=2)
    start = {topic: {"broker-a:0": 3, "broker-a:1": -2}}
    end = {topic: {"broker-a:0": 5, "broker-a:1": -1}}
    frame = load(
        spark,
        cluster,
        subscribe=topic,
        startingOffsets=json.dumps(start),
        endingOffsets=json.dumps(end),
    )
    assert numbers(frame) == sorted([6, 8, *range(1, 20, 2)])
    one = load(spark, cluster, assign=json.dumps({topic: ["broker-a:1"]}))
    assert numbers(one) == list(range(1, 20, 2))


def test_pattern_tags_group_and_time_choose_rows(spark: SparkSession, cluster: Cluster) -> None:
    """The other ways to choose: names, tags, a group's place, store time."""
    first, second = cluster.create(1, prefix="Apple"), cluster.create(1, prefix="Apple")
    cluster.send(first, [b"1", b"2"], queues=1, tags="red")
    cluster.send(second, [b"3"], queues=1, tags="green")
    assert numbers(load(spark, cluster, subscribePattern=f"{first}|{second}")) == [1, 2, 3]
    both = f"{first},{second}"
    assert numbers(load(spark, cluster, subscribe=both, tags="green")) == [3]
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_group(SubscriptionGroupConfig("apples"))
        admin.commit_offsets("apples", {MessageQueue(first, "broker-a", 0): 1})
    place = load(spark, cluster, subscribe=first, startingOffsets="group", groupId="apples")
    assert numbers(place) == [2]
    times = [row.storeTimestamp for row in load(spark, cluster, subscribe=both).collect()]
    after = int(max(times).timestamp() * 1000) + 60_000
    assert numbers(load(spark, cluster, subscribe=both, startingTimestamp=str(after))) == []
    assert numbers(load(spark, cluster, subscribe=both, endingTimestamp=str(after))) == [1, 2, 3]


def test_empty_topic_is_an_empty_frame(spark: SparkSession, cluster: Cluster) -> None:
    """No partition, no row, no error."""
    topic = cluster.create(queues=2)
    assert load(spark, cluster, subscribe=topic).count() == 0


def test_mistake_is_one_clear_error(spark: SparkSession, cluster: Cluster) -> None:
    """A user of Spark gets one sentence with the nearest right name."""
    with pytest.raises(PySparkException) as raised:
        load(spark, cluster, "body binary", subscrib="T").count()
    assert "did you mean 'subscribe'?" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"subscribe": "NoSuchTopicAnywhere"}, "topic 'NoSuchTopicAnywhere' is not at"),
        ({"subscribe": "T", "nameServer": "127.0.0.1:1"}, "127.0.0.1:1"),
    ],
)
def test_what_is_not_there_is_named(options: dict[str, str], what: str, cluster: Cluster) -> None:
    """An unknown topic, a name server that does not answer: when partitions are planned."""
    given = {"nameServer": cluster.name_server, **options}
    planned = LiveReader(LiveOptions.parse(given, COLUMNS, is_stream=False))
    with pytest.raises(CometError) as raised:
        planned.partitions()
    assert what in str(raised.value)


def test_offset_beyond_the_end_is_refused(cluster: Cluster) -> None:
    """With the queue's bounds in the text."""
    topic = cluster.create(queues=1)
    cluster.send(topic, ["x"], queues=1)
    options = {"startingOffsets": json.dumps({topic: {"broker-a:0": 9}})}
    given = {"nameServer": cluster.name_server, "subscribe": topic, **options}
    with pytest.raises(OffsetOutOfRange, match="holds offsets 0 up to 1, 9 is beyond"):
        LiveReader(LiveOptions.parse(given, COLUMNS, is_stream=False)).partitions()
