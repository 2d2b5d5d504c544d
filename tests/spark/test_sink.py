"""DataFrames into topics: what is written is there, once, and mistakes are told before a row."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType
from tests.interop.waiting import wait_until
from tests.spark.clusters import Cluster, new_topic, run_query

from cometmq.arrow import scan
from cometmq.client.extensions.staging.sync import BlockingPartWriter, Staging
from cometmq.errors import ConfigError
from cometmq.spark.live.sink_options import SinkOptions
from cometmq.spark.live.sink_rows import stage_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write(frame: DataFrame, cluster: Cluster, mode: str = "append", **options: str) -> None:
    """A batch write."""
    writer = frame.write.format("cometmq").mode(mode).option("nameServer", cluster.name_server)
    writer.options(**options).save()


def read(spark: SparkSession, cluster: Cluster, topic: str) -> list[str]:
    """The bodies that consumers see, sorted."""
    frame = (
        spark.read.format("cometmq")
        .option("nameServer", cluster.name_server)
        .option("subscribe", topic)
        .schema("body binary")
        .load()
    )
    return sorted(row.body.decode() for row in frame.collect())


class Copy:
    """A query from one topic to another, run as often as asked."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        folder: Path,
        source: str,
        target: str,
        **options: str,
    ) -> None:
        self.spark, self.cluster = spark, cluster
        self.source, self.target = source, target
        self.checkpoint = folder / "checkpoint"
        self.options = options

    def __call__(self) -> None:
        """Everything available now."""
        writer = (
            self.spark.readStream.format("cometmq")
            .option("nameServer", self.cluster.name_server)
            .option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "20")
            .load()
            .select("body", "tags")
            .writeStream.format("cometmq")
            .option("nameServer", self.cluster.name_server)
            .option("topic", self.target)
            .options(**self.options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
        )
        run_query(writer.start)

    def forget_newest_commit(self) -> None:
        """As a crash after the publish and before Spark wrote that the batch is done."""
        newest = max(
            (path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def test_columns_become_a_message(spark: SparkSession, cluster: Cluster) -> None:
    """Body, topic, tags, keys, properties, queue and group; a null is left out."""
    topic = cluster.create(queues=4)
    frame = spark.createDataFrame(
        [
            ("one", topic, "T", "a b", {"colour": "red"}, 3, None),
            ("two", topic, None, None, None, None, "group-7"),
            ("six", topic, None, None, None, None, "group-7"),
        ],
        "body string, topic string, tags string, keys string, properties map<string,string>,"
        " queueId int, messageGroup string",
    )
    write(frame, cluster)
    rows = (
        spark.read.format("cometmq")
        .option("nameServer", cluster.name_server)
        .option("subscribe", topic)
        .option("includeProperties", "true")
        .load()
        .collect()
    )
    found = {row.body.decode(): row for row in rows}
    assert sorted(found) == ["one", "six", "two"]
    one = found["one"]
    assert (one.tags, one.keys, one.queueId) == ("T", "a b", 3)
    assert one.properties["colour"] == "red"
    assert found["two"].queueId == found["six"].queueId
    assert found["two"].tags is None


def test_named_job_is_published_once(spark: SparkSession, cluster: Cluster) -> None:
    """A scheduler that runs the job again adds nothing; without a name each write adds."""
    topic = cluster.create(queues=2)
    frame = spark.range(6).selectExpr("cast(id as string) as body")
    job = new_topic("job-")
    write(frame, cluster, topic=topic, jobId=job)
    write(frame, cluster, topic=topic, jobId=job)
    assert read(spark, cluster, topic) == sorted("012345")
    write(frame, cluster, topic=topic)
    assert len(read(spark, cluster, topic)) == 12


def test_failed_job_shows_nothing(spark: SparkSession, cluster: Cluster) -> None:
    """One row without a body spoils the write; rows before it are never seen."""
    topic = cluster.create(queues=1)
    frame = spark.range(1000).selectExpr("case when id < 999 then cast(id as string) end as body")
    with pytest.raises(PySparkException, match="has no body: filter such rows out"):
        write(frame, cluster, topic=topic)
    assert read(spark, cluster, topic) == []


def test_query_writes_each_row_once(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """Over batches, growth, and batches that Spark runs again after a crash."""
    source, target = cluster.create(queues=2), cluster.create(queues=2)
    cluster.send(source, [b"%d" % n for n in range(50)], queues=2)
    copy = Copy(spark, cluster, tmp_path, source, target, sinkId=new_topic("sink-"))
    copy()
    expected = sorted(str(n) for n in range(50))
    assert read(spark, cluster, target) == expected
    copy.forget_newest_commit()
    copy()
    assert read(spark, cluster, target) == expected
    cluster.send(source, [b"%d" % n for n in range(50, 60)], queues=2)
    copy()
    assert read(spark, cluster, target) == sorted(str(n) for n in range(60))


@pytest.mark.full
@pytest.mark.parametrize("batches", [1, 2])
def test_new_checkpoint_under_an_old_name_is_refused(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, batches: int
) -> None:
    """Its batches would be taken for repeats and dropped without a word."""
    source, target = cluster.create(queues=1), cluster.create(queues=1)
    cluster.send(source, [b"%02d" % n for n in range(20 * batches)], queues=1)
    copy = Copy(spark, cluster, tmp_path, source, target, sinkId=new_topic("sink-"))
    copy()
    copied = read(spark, cluster, target)
    assert len(copied) == 20 * batches
    copy.checkpoint.rename(tmp_path / "old")
    with pytest.raises(PySparkException, match=r"belongs to query .* has published batch"):
        copy()
    assert read(spark, cluster, target) == copied
    shutil.rmtree(copy.checkpoint)
    (tmp_path / "old").rename(copy.checkpoint)
    cluster.send(source, [b"new"], queues=1)
    copy()
    assert read(spark, cluster, target) == [*copied, "new"]


def test_mistake_is_one_clear_error(spark: SparkSession, cluster: Cluster) -> None:
    """As Spark's user sees it, before any row is written."""
    with pytest.raises(PySparkException) as raised:
        write(spark.sql("select 'x' as boddy"), cluster, topic="T")
    assert "did you mean 'body'?" in str(raised.value)


@pytest.mark.full
def test_rows_with_a_delivery_time_come_at_that_time(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Exactly once as the others, which are there at once; a time nobody accepts writes nothing."""
    source, target = cluster.create(queues=1), cluster.create(queues=2)
    cluster.send(source, [b"at once", b"late", b"past"], queues=1)
    due_ms = time.time_ns() // 1_000_000 + 8_000  # noqa: TID251 - Spark's clock is no other
    times = {"late": due_ms, "past": 1}
    cases = " ".join(
        f"when cast(body as string) = '{name}' then {at}" for name, at in times.items()
    )

    def copy() -> None:
        frame = (
            spark.readStream.format("cometmq")
            .option("nameServer", cluster.name_server)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
        )
        writer = (
            frame.selectExpr("body", f"cast(case {cases} end as bigint) as deliverTime")
            .writeStream.format("cometmq")
            .option("nameServer", cluster.name_server)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        run_query(writer.start)

    def rows() -> dict[str, int]:
        found = scan(
            name_server=cluster.name_server, topic=target, columns=["body", "storeTimestamp"]
        ).read_all()
        stored = found["storeTimestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        bodies = [body.decode() for body in found["body"].to_pylist()]
        assert len(set(bodies)) == len(bodies)
        return dict(zip(bodies, stored.to_pylist(), strict=True))

    copy()
    assert {"at once", "past"} <= rows().keys()
    wait_until(lambda: "late" in rows(), lambda: f"only {sorted(rows())} were delivered")
    assert rows()["late"] >= due_ms
    frame = spark.createDataFrame(
        [("x", datetime(9000, 1, 1, tzinfo=UTC))], "body string, deliverTime timestamp"
    )
    with pytest.raises(PySparkException, match="max delay"):
        write(frame, cluster, topic=target)
    assert rows().keys() == {"at once", "past", "late"}


def test_big_batches_are_staged_by_columns(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of plain rows are laid out at once; odd ones among them go one by one."""
    topic = cluster.create(queues=4)
    count = 5_000
    plain = pa.record_batch(
        {
            "body": pa.array([b"row %d" % number for number in range(count)]),
            "tags": pa.array(["A", None, "täg", "", "B"] * (count // 5)),
            "keys": pa.array([f"key-{number}" for number in range(count)]),
        }
    )
    odd = plain.set_column(2, "keys", pa.array(["two keys"] * count))
    schema = StructType().add("body", "binary").add("tags", "string").add("keys", "string")
    options = SinkOptions.parse(
        {"nameServer": cluster.name_server, "topic": topic},
        schema,
        is_stream=False,
        overwrite=False,
    )
    added: list[str] = []
    add = BlockingPartWriter.add

    def note(part: BlockingPartWriter, topic: str, body: bytes, **more: Any) -> None:
        added.append(more["tags"])
        add(part, topic, body, **more)

    monkeypatch.setattr(BlockingPartWriter, "add", note)
    with Staging(cluster.name_server, new_topic("by-columns-")) as staging:
        part = staging.part(0, "0")
        stage_rows(part, iter([plain, odd.slice(0, 2_500)]), options)
        assert len(added) == 2_500
        staging.publish(0, [part.finish()])
        nothing = plain.slice(0, 3_000).set_column(0, "body", pa.nulls(3_000, pa.binary()))
        with pytest.raises(ConfigError, match="row 5000 of this partition has no body"):
            stage_rows(staging.part(1, "0"), iter([plain, nothing]), options)
    found = scan(
        name_server=cluster.name_server,
        topic=topic,
        columns=["queueId", "body", "tags", "keys", "uniqKey"],
    ).read_all()
    rows = found.to_pylist()
    assert len({row["uniqKey"] for row in rows}) == len(rows) == count + 2_500
    assert {row["queueId"] for row in rows} == {0, 1, 2, 3}
    wanted = [*plain.to_pylist(), *odd.slice(0, 2_500).to_pylist()]
    assert sorted(_named(row) for row in rows) == sorted(_named(row) for row in wanted)


def _named(row: dict[str, Any]) -> tuple[bytes, str, str]:
    return row["body"], row["tags"] or "", row["keys"]
