"""A store directory as a DataFrame: the rows of a scan, in parallel, with damage as asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from tests.unit.arrow.made_stores import MadeStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, root: Path, schema: str | None = None, **options: str) -> DataFrame:
    """A read of a store."""
    reader = spark.read.format("cometmq-store").options(**options)
    return (reader if schema is None else reader.schema(schema)).load(str(root))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeStore:
    """Sixty records of T in three queues and six of another topic."""
    store = MadeStore(tmp_path_factory.mktemp("made") / "store")
    for number in range(60):
        tags = b"TAGS\x01%s\x02colour\x01red\x02" % (b"A" if number % 2 else b"B")
        store.put(b"%d" % number, tags, queue_id=number % 3, store_ms=1_700_000_000_000 + number)
        if number % 10 == 0:
            store.put(b"other", topic="Other")
    store.write()
    return store


def test_topic_and_whole_log(spark: SparkSession, made: MadeStore) -> None:
    """Led by queues, or by the log with every topic; parts add up to the whole."""
    frame = load(spark, made.root, topic="T", minPartitions="5", includeProperties="true")
    assert frame.rdd.getNumPartitions() >= 5
    rows = frame.collect()
    assert sorted(int(row.body) for row in rows) == list(range(60))
    assert {row.properties["colour"] for row in rows} == {"red"}
    assert {row["_corrupt_record"] for row in rows} == {None}
    counts = {
        row.topic: row["count"] for row in load(spark, made.root).groupBy("topic").count().collect()
    }
    assert counts == {"T": 60, "Other": 6}


def test_options_choose_rows(spark: SparkSession, made: MadeStore) -> None:
    """Queues, offsets, tags and times, names in any case; a schema selects columns."""
    frame = load(
        spark,
        made.root,
        "queueOffset bigint",
        TOPIC="T",
        queues="0,2",
        startingOffsets='{"T": {"broker-a:0": 15}}',
    )
    assert frame.columns == ["queueOffset"]
    assert sorted(row.queueOffset for row in frame.collect()) == sorted(
        [*range(15, 20), *range(20)]
    )
    tagged = load(spark, made.root, "body binary", topic="T", tags="A")
    assert sorted(int(row.body) for row in tagged.collect()) == list(range(1, 60, 2))
    timed = load(
        spark,
        made.root,
        "body binary",
        topic="T",
        startingTimestamp="1700000000010",
        endingTimestamp="2023-11-14T22:13:20.020Z",
    )
    assert sorted(int(row.body) for row in timed.collect()) == list(range(10, 20))


def test_damage_obeys_the_mode(spark: SparkSession, tmp_path: Path) -> None:
    """A row with the reason, no row, or an error that names the file."""
    store = MadeStore(tmp_path / "store")
    for number in range(10):
        store.put(b"%d" % number)
    store.write()
    store.spoil(store.records[4][0] + 4)
    rows = load(spark, store.root, topic="T").collect()
    damaged = [row for row in rows if row["_corrupt_record"] is not None]
    assert len(rows) == 10
    assert [row.queueOffset for row in damaged] == [4]
    assert "position" in damaged[0]["_corrupt_record"]
    dropped = load(spark, store.root, topic="T", mode="dropmalformed")
    assert dropped.count() == 9
    assert "_corrupt_record" not in dropped.columns
    with pytest.raises(PySparkException, match="commitlog"):
        load(spark, store.root, topic="T", mode="FAILFAST").count()


def test_directory_without_a_store_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """A directory without a store is refused, not read as an empty one."""
    with pytest.raises(PySparkException, match="holds no commitlog"):
        load(spark, tmp_path, "body binary").count()
