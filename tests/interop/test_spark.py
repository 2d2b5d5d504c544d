"""Our Spark sources and sinks on RocketMQ's own broker: they read all, and write at least once."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from interop.peers import Unavailable
from interop.servers import JavaCluster
from tests.interop.waiting import wait_until
from tests.spark.conftest import quick_settings

import cometmq.sync
from cometmq.net.env import system_environment
from cometmq.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 3_000
SETTINGS: Final = {"enablePropertyFilter": "true", "timerWheelEnable": "true"}

pytestmark = pytest.mark.full


_TOPICS = count()


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaCluster]:
    """RocketMQ's broker with SQL92 and exact timers switched on."""
    try:
        with JavaCluster(tmp_path_factory.mktemp("java"), settings=SETTINGS) as cluster:
            yield cluster
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session for this file."""
    folder = tmp_path_factory.mktemp("spark")
    running = session("cometmq-interop", master="local[2]", **quick_settings(folder))
    yield running
    running.stop()


def make_topic(java: JavaCluster, word: str) -> str:
    """A topic with four queues, of its own for each try; its name."""
    name = f"{word}{next(_TOPICS)}"
    with cometmq.sync.Admin(name_server=java.name_server) as admin:
        admin.create_topic(name, queue_count=4)
        wait_until(lambda: name in admin.topic_list())
    return name


def read(spark: "SparkSession", java: JavaCluster, topic: str, **more: str) -> "DataFrame":
    """The topic as it is now."""
    source = spark.read.format("cometmq").option("nameServer", java.name_server)
    return source.options(subscribe=topic, includeProperties="true", **more).load()


def write(frame: "DataFrame", java: JavaCluster, topic: str) -> None:
    """Send every row."""
    sink = frame.write.format("cometmq").option("nameServer", java.name_server)
    sink.option("topic", topic).mode("append").save()


def rows(spark: "SparkSession", count: int = ROWS) -> "DataFrame":
    """Messages with tag, keys and a property, numbered."""
    return spark.range(count).selectExpr(
        "encode(concat('order ', id), 'UTF-8') AS body",
        "concat('T', id % 3) AS tags",
        "concat('key-', id) AS keys",
        "map('number', CAST(id AS string)) AS properties",
    )


def test_what_is_written_is_read(spark: "SparkSession", java: JavaCluster, tmp_path: Path) -> None:
    """Every row once here; selected by tag and by SQL92 at the broker; a stream; its store."""
    topic = make_topic(java, "SparkRows")
    write(rows(spark), java, topic)
    found = read(spark, java, topic)
    columns = ("body", "tags", "keys", "properties.number")
    expected = Counter(tuple(row) for row in rows(spark).select(*columns).collect())
    assert Counter(tuple(row) for row in found.select(*columns).collect()) == expected
    assert read(spark, java, topic, tags="T1").count() == ROWS // 3
    chosen = read(spark, java, topic, sql92=f"number >= {ROWS - 500} AND TAGS = 'T0'")
    assert chosen.count() == len([n for n in range(ROWS - 500, ROWS) if n % 3 == 0])

    store = spark.read.format("cometmq-store").option("topic", topic)
    assert store.load(str(java.store_path)).count() == ROWS

    copy = make_topic(java, "SparkCopy")
    stream = spark.readStream.format("cometmq").option("nameServer", java.name_server)
    query = (
        stream.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="1000")
        .load()
        .select("body", "tags", "keys")
        .writeStream.format("cometmq")
        .option("nameServer", java.name_server)
        .options(topic=copy, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    assert query.exception() is None
    copied = Counter(bytes(row.body) for row in read(spark, java, copy).select("body").collect())
    assert copied == Counter(f"order {n}".encode() for n in range(ROWS))


def test_rows_wait_for_their_time(spark: "SparkSession", java: JavaCluster) -> None:
    """The broker's timers keep `deliverTime`: no row comes early, and all come."""
    topic = make_topic(java, "SparkTimed")
    due_ms = system_environment().clock.now_ms() + 8_000
    timed = rows(spark, 20).selectExpr("*", f"CAST({due_ms} AS bigint) AS deliverTime")
    write(timed, java, topic)
    wait_until(lambda: read(spark, java, topic).count() == 20)
    stored = read(spark, java, topic).selectExpr("unix_millis(storeTimestamp) AS at").collect()
    # Its wheel turns once a second.
    assert all(row["at"] >= due_ms - 1_000 for row in stored)
