"""Streams of a running cluster: no message lost or repeated over batches, restarts and replays."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.clusters import Cluster, new_topic, run_query

from cometmq.arrow.options import COLUMNS
from cometmq.errors import NoRoute, OffsetOutOfRange
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.ranges import QueueRange, SmallRanges
from cometmq.spark.live.stream_source import LiveStreamReader
from cometmq.sync import Admin
from cometmq.testing import threaded_cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL = ReadAllAvailable()


def reader(cluster: Cluster, **options: str) -> LiveStreamReader:
    """The reader as Spark's driver holds it, asked directly."""
    given = {"nameServer": cluster.name_server, "offsetsCacheMs": "0", **options}
    return LiveStreamReader(LiveOptions.parse(given, COLUMNS, is_stream=True))


def ranges(made: LiveStreamReader, start: dict, end: dict) -> list[tuple[int, int, int]]:  # type: ignore[type-arg]
    """(queue id, first, end) of the partitions."""
    found = []
    for part in made.partitions(start, end):
        for item in part.ranges if isinstance(part, SmallRanges) else (part,):
            assert isinstance(item, QueueRange)
            found.append((item.queue_id, item.start, item.end))
    return found


class Run:
    """Runs of one query, with one checkpoint, that keep what each batch held."""

    def __init__(self, spark: SparkSession, cluster: Cluster, folder: Path, **options: str) -> None:
        self.spark = spark
        self.checkpoint = folder / "checkpoint"
        self.options = {"nameServer": cluster.name_server, **options}
        self.batches: dict[int, list[int]] = {}

    def __call__(self) -> list[list[int]]:
        """Everything available now; the batches' bodies, empty ones left out."""
        self.batches.clear()
        stream = self.spark.readStream.format("cometmq").options(**self.options)
        writer = (
            stream.load()
            .select("body")
            .writeStream.foreachBatch(self._take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        run_query(writer.start)
        return [numbers for numbers in self.batches.values() if numbers]

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = sorted(int(row.body) for row in frame.collect())

    def forget_newest_commit(self) -> None:
        """As a crash between the sink's work and Spark's word about it."""
        newest = max(
            (path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


# -- the reader by itself ----------------------------------------------------------------------


def test_first_batch_is_an_anchor(cluster: Cluster) -> None:
    """A new query first plans an empty batch, which makes its first offsets durable."""
    topic = cluster.create(queues=2)
    cluster.send(topic, [b"1", b"2", b"3"], queues=2)
    made = reader(cluster, subscribe=topic, startingOffsets="earliest")
    start = made.initialOffset()
    assert start == {topic: {"broker-a:0": 0, "broker-a:1": 0}}
    assert made.latestOffset(start, ALL) == start
    assert made.initialOffset() == start
    assert ranges(made, start, start) == []
    end = made.latestOffset(start, ALL)
    assert end == {topic: {"broker-a:0": 2, "broker-a:1": 1}}
    assert ranges(made, start, end) == [(0, 0, 2), (1, 0, 1)]
    assert made.latestOffset(end, ALL) is end


def test_anchor_run_again_reads_nothing(cluster: Cluster) -> None:
    """After a crash in batch 0, a stream from latest sees later ends than it wrote down."""
    topic = cluster.create(queues=1)
    anchor = {topic: {"broker-a:0": 0}}
    cluster.send(topic, [b"1"], queues=1)
    made = reader(cluster, subscribe=topic)
    assert made.initialOffset() == {topic: {"broker-a:0": 1}}
    assert ranges(made, made.initialOffset(), anchor) == []
    assert ranges(made, anchor, made.latestOffset(anchor, ALL)) == [(0, 0, 1)]


def test_limit_is_shared_among_queues(cluster: Cluster) -> None:
    """The limit is divided in proportion to waiting rows; a queue with few rows is not starved."""
    topic = cluster.create(queues=2)
    cluster.send(topic, [b"x"] * 100, queues=1)
    cluster.send(topic, [b"x", b"x"], queues=2)
    made = reader(cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    assert made.getDefaultReadLimit() == ReadMaxRows(10)
    start = {topic: {"broker-a:0": 0, "broker-a:1": 0}}
    assert made.latestOffset(start, ReadMaxRows(10)) == {topic: {"broker-a:0": 9, "broker-a:1": 1}}


def test_available_now_freezes_the_end(cluster: Cluster) -> None:
    """What arrives during the run belongs to the next one."""
    topic = cluster.create(queues=1)
    cluster.send(topic, [b"1"], queues=1)
    made = reader(cluster, subscribe=topic)
    made.prepareForTriggerAvailableNow()
    cluster.send(topic, [b"2"], queues=1)
    assert made.latestOffset({topic: {"broker-a:0": 0}}, ALL) == {topic: {"broker-a:0": 1}}


def test_new_queues_and_topics_are_picked_up(cluster: Cluster) -> None:
    """From their first message on; an empty new queue is no reason for a batch."""
    prefix = new_topic("Grow")
    topic = cluster.create(queues=1, prefix=prefix)
    made = reader(cluster, subscribePattern=f"{prefix}.*", startingOffsets="earliest")
    start = {topic: {"broker-a:0": 0}}
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_topic(topic, queue_count=2)
    assert made.latestOffset(start, ALL) is start
    cluster.send(topic, [b"1", b"2"], queues=2)
    other = cluster.create(queues=1, prefix=prefix)
    cluster.send(other, [b"3"], queues=1)
    end = made.latestOffset(start, ALL)
    assert end == {topic: {"broker-a:0": 1, "broker-a:1": 1}, other: {"broker-a:0": 1}}
    assert ranges(made, start, end) == [(0, 0, 1), (1, 0, 1), (0, 0, 1)]


def test_a_new_broker_is_picked_up() -> None:
    """One that joins the cluster while the stream runs: its queues from their first message on."""
    with threaded_cluster() as first:
        cluster = Cluster(first.name_server_address, "", "")
        topic = cluster.create(queues=1)
        made = reader(cluster, subscribe=topic)
        start = {topic: {"broker-a:0": 0}}
        assert made.latestOffset(start, ALL) is start
        settings = {"brokerName": "broker-z", "namesrvAddr": first.name_server_address}
        with threaded_cluster(settings):
            with Admin(name_server=cluster.name_server) as admin:
                admin.create_topic(topic, queue_count=1)
            joined = Cluster(cluster.name_server, "", "", "broker-z")
            joined.send(topic, [b"1", b"2"], queues=1)
            end = made.latestOffset(start, ALL)
            assert end == {topic: {"broker-a:0": 0, "broker-z:0": 2}}
            assert ranges(made, start, end) == [(0, 0, 2)]
            joined.close()


def test_topic_made_anew_is_data_loss(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """An end before what was read stops the query, or is told and passed over."""
    topic = cluster.create(queues=1)
    cluster.send(topic, [b"1"], queues=1)
    start = {topic: {"broker-a:0": 7}}
    with pytest.raises(OffsetOutOfRange, match="was deleted and created again"):
        reader(cluster, subscribe=topic).latestOffset(start, ALL)
    made = reader(cluster, subscribe=topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = made.latestOffset(start, ALL)
    assert end == {topic: {"broker-a:0": 1}}
    assert "skipped, as failOnDataLoss is false" in caplog.text
    assert ranges(made, start, end) == []


def test_vanished_queue_is_data_loss(cluster: Cluster) -> None:
    """A deleted queue ends the query; or its offset is kept, without failOnDataLoss."""
    topic = cluster.create(queues=1)
    start = {topic: {"broker-a:0": 0, "broker-z:0": 5}}
    with pytest.raises(NoRoute, match="broker-z:0 was read up to offset 5"):
        reader(cluster, subscribe=topic).latestOffset(start, ALL)
    made = reader(cluster, subscribe=topic, failOnDataLoss="false")
    assert made.latestOffset(start, ALL) is start


def test_group_shows_progress(cluster: Cluster) -> None:
    """Lag tools see how far Spark has come, as soon as it asks for more."""
    topic = cluster.create(queues=1)
    cluster.send(topic, [b"1", b"2", b"3"], queues=1)
    made = reader(cluster, subscribe=topic, groupId="mirror", startingOffsets="earliest")
    made.latestOffset({topic: {"broker-a:0": 2}}, ALL)
    with Admin(name_server=cluster.name_server) as admin:
        stored = {queue.queue_id: at for queue, at in admin.group_offsets("mirror", topic).items()}
    assert stored[0].consumer_offset == 2
    assert stored[0].broker_offset == 3


# -- whole queries -----------------------------------------------------------------------------


def test_query_reads_each_message_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Limited batches, growth between runs, a batch run again with the same rows."""
    topic = cluster.create(queues=3)
    cluster.send(topic, [b"%d" % n for n in range(60)], queues=3)
    run = Run(
        spark,
        cluster,
        tmp_path,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="25",
        groupId="reader",
    )
    batches = run()
    assert [len(batch) for batch in batches] == [24, 24, 12]
    assert sorted(number for batch in batches for number in batch) == list(range(60))
    with Admin(name_server=cluster.name_server) as admin:
        lags = [
            row.broker_offset - (row.consumer_offset or 0)
            for row in admin.group_offsets("reader", topic).values()
        ]
    assert lags == [0, 0, 0]
    cluster.send(topic, [b"%d" % n for n in range(60, 66)], queues=3)
    assert run() == [list(range(60, 66))]
    run.forget_newest_commit()
    assert run() == [list(range(60, 66))]
    assert run() == []


@pytest.mark.full
def test_query_from_latest_misses_nothing_after_its_start(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The first run only saves its offsets; a crash in it changes nothing."""
    topic = cluster.create(queues=1)
    cluster.send(topic, [b"1"], queues=1)
    run = Run(spark, cluster, tmp_path, subscribe=topic)
    assert run() == []
    cluster.send(topic, [b"2", b"3"], queues=1)
    run.forget_newest_commit()
    assert run() == [[2, 3]]


@pytest.mark.full
def test_query_with_a_wrong_option_does_not_start(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The right name is in the error."""
    run = Run(spark, cluster, tmp_path, subscribe="T", maxOffsetPerTrigger="5")
    with pytest.raises(PySparkException) as raised:
        run()
    assert "did you mean 'maxOffsetsPerTrigger'?" in str(raised.value)


def test_few_rows_are_one_task(cluster: Cluster) -> None:
    """Rows of several queues, as long as they are few and no number of partitions is asked for."""
    topic = cluster.create(queues=2)
    cluster.send(topic, (b"%d" % n for n in range(510)), queues=2)
    begin = {topic: {"broker-a:0": 0, "broker-a:1": 0}}
    few, many = ({topic: {"broker-a:0": end, "broker-a:1": 250}} for end in (250, 251))
    made = reader(cluster, subscribe=topic)
    (part,) = made.partitions(begin, few)
    assert sum(batch.num_rows for batch in made.read(part)) == 500
    assert len(made.partitions(begin, many)) == 2
    assert ranges(made, begin, few) == [(0, 0, 250), (1, 0, 250)]
    asked = reader(cluster, subscribe=topic, minPartitions="2")
    assert len(asked.partitions(begin, few)) == 2
