"""Binlogs merged into tables: any order, any repeats, any restart gives the same rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow.dataset
import pytest
from tests.interop.waiting import wait_until
from tests.spark.clusters import Cluster
from tests.spark.commands import Ran, run_command
from tests.unit.arrow.made_stores import MadeStore
from tests.unit.spark.generated_events import Binlog, canal_binlog, debezium_binlog

from cometmq.errors import ConfigError
from cometmq.spark.base.progress import RunProgress
from cometmq.spark.live.source import LiveSource
from cometmq.spark.pipelines.base.following import follow as follow_stream
from cometmq.spark.pipelines.base.watching import counted, row_counter
from cometmq.spark.pipelines.cdc.merger import Merger
from cometmq.spark.pipelines.cdc.table import ParquetTable, current_snapshot
from cometmq.spark.pipelines.inputs.address import parse_address
from cometmq.spark.pipelines.inputs.frames import open_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def bodies(spark: SparkSession, data: list[bytes]) -> DataFrame:
    """Messages."""
    return spark.createDataFrame([(one,) for one in data], "body binary")


def table_rows(path: Path) -> dict[int, dict[str, Any]]:
    """The Parquet table as any reader sees it."""
    table = pyarrow.dataset.dataset(current_snapshot(path), format="parquet").to_table()
    return {row["id"]: row for row in table.to_pylist()}


def delta_rows(path: Path) -> dict[int, dict[str, Any]]:
    """The Delta table without what is deleted and without our columns."""
    rows = deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return {
        row["id"]: {name: value for name, value in row.items() if not name.startswith("_")}
        for row in rows
        if not row["_deleted"]
    }


def follow(
    capsys: pytest.CaptureFixture[str], cluster: Cluster, topic: str, to: Path, *more: Any
) -> Ran:
    """`cdc --follow --once` from a live topic."""
    common = ("--follow", "--once", "--json", "-n", cluster.name_server)
    return run_command(capsys, "pipeline", "cdc", f"topic:{topic}", "--to", to, *common, *more)


@pytest.mark.full
def test_a_followed_canal_binlog_survives_restarts(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shuffled and repeated, in two runs; then the last batch comes again and changes nothing.

    The crash lies between the table's commit and Spark's own: the batch is replayed under its id,
    and the table knows it.
    """
    log = canal_binlog(21, 200)
    events = log.shaken(22, repeats=40)
    topic, to = cluster.create(2, "Binlog"), tmp_path / "orders"
    cluster.send(topic, events[:120], queues=2)
    first = follow(capsys, cluster, topic, to)
    assert (first.code, first.json["changes"] >= 120) == (0, True), first.err
    assert first.json["offsets"] == [f"{topic}: 120 of 120 in 2 queues"]
    cluster.send(topic, events[120:], queues=2)
    page = tmp_path / "page.html"
    second = follow(capsys, cluster, topic, to, "--report", page)
    assert second.code == 0, second.err
    assert table_rows(to) == log.rows
    assert second.json["rows"] == len(log.rows)
    text = page.read_text()
    assert "<h1>" + f"{second.json['upserts']:,} upsert" in text
    assert f"the table has {len(log.rows):,} rows" in text
    # A run tells of what it has read itself.
    left = len(events) - 120
    assert second.json["offsets"] == [f"{topic}: {left} of {left} in 2 queues"]
    commits = tmp_path / "orders.checkpoint" / "commits"
    newest = max(
        (one for one in commits.iterdir() if one.name.isdigit()), key=lambda p: int(p.name)
    )
    for path in (newest, commits / f".{newest.name}.crc"):
        path.unlink(missing_ok=True)
    before = json.loads((to / "_table.json").read_text())
    third = follow(capsys, cluster, topic, to)
    assert (third.code, third.json["repeated_batches"]) == (0, 1), third.err
    assert third.json["upserts"] == 0
    assert json.loads((to / "_table.json").read_text()) == before
    assert table_rows(to) == log.rows


@pytest.mark.full
def test_a_followed_debezium_binlog_in_a_delta_table(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MERGE by version in two runs, a new column in the second, a replayed batch left out."""
    log = debezium_binlog(23, 150)
    events = log.shaken(24, repeats=30)
    topic, to = cluster.create(2, "Changes"), tmp_path / "orders"
    cluster.send(topic, events[:100], queues=2)
    options = ("--format", "delta", "--key", "id")
    first = follow(capsys, cluster, topic, to, *options)
    assert first.code == 0, first.err
    newer = json.loads(log.bodies[-1])
    newer["source"]["pos"] += 1_000_000
    newer |= {"op": "c", "after": {"id": 77, "amount": 1.5, "paid": True, "note": "new"}}
    cluster.send(topic, [*events[100:], json.dumps(newer).encode()], queues=2)
    second = follow(capsys, cluster, topic, to, *options)
    assert second.code == 0, second.err
    assert second.json["schema_changes"] == ["column note is new (string)"]
    expected = {key: {**row, "note": None} for key, row in log.rows.items()}
    expected[77] = {**newer["after"]}
    assert delta_rows(to) == expected
    version = deltalake.DeltaTable(str(to)).version()
    commits = tmp_path / "orders.checkpoint" / "commits"
    newest = max(
        (one for one in commits.iterdir() if one.name.isdigit()), key=lambda p: int(p.name)
    )
    for path in (newest, commits / f".{newest.name}.crc"):
        path.unlink(missing_ok=True)
    third = follow(capsys, cluster, topic, to, *options)
    assert third.json["repeated_batches"] == 1, third.err
    assert deltalake.DeltaTable(str(to)).version() == version


def test_batches_by_function_and_what_a_killed_run_leaves(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A late update does not bring a deleted row back; a half-written snapshot is never seen."""
    log = Binlog(
        [
            canal("INSERT", 1, [{"id": "1", "n": "1"}, {"id": "2", "n": "2"}]),
            canal("DELETE", 5, [{"id": "1", "n": "9"}]),
        ]
    )
    table = ParquetTable(tmp_path / "t")
    merger = Merger(table)
    with table.locked():
        merger.take(bodies(spark, log.bodies))
    # What a run that was killed while it wrote the next snapshot leaves behind.
    half = tmp_path / "t" / "snapshots" / "00000002" / "state"
    half.mkdir(parents=True)
    (half / "part-0.parquet").write_bytes(b"PAR1 cut off")
    late = canal("UPDATE", 3, [{"id": "1", "n": "8"}], old=[{"n": "1"}])
    wide = canal("UPDATE", 6, [{"id": "2", "n": "2.5", "c": "x"}], n="double")
    ddl = json.dumps({"isDdl": True, "type": "ALTER", "sql": "ALTER TABLE t", "es": 6, "id": 1})
    again = Merger(ParquetTable(tmp_path / "t"))
    with table.locked():
        again.take(bodies(spark, [late, wide, ddl.encode(), b"junk"]))
    assert table_rows(tmp_path / "t") == {2: {"id": 2, "n": 2.5, "c": "x"}}
    assert again.shape == [
        "statement: ALTER TABLE t",
        "column c is new (string)",
        "column n was bigint and is double",
    ]
    assert (again.upserts, again.bad) == (2, 1)
    assert "not JSON" in again.bad_reasons[0]["example"]
    shutil.rmtree(tmp_path / "t" / "snapshots" / "00000001")
    assert table_rows(tmp_path / "t").keys() == {2}


def canal(
    kind: str, at: int, data: list[Any], *, old: list[Any] | None = None, n: str = "bigint"
) -> bytes:
    """One event of Canal."""
    event = {
        "type": kind,
        "database": "d",
        "table": "t",
        "pkNames": ["id"],
        "isDdl": False,
        "es": at,
        "id": at,
        "mysqlType": {"id": "bigint", "n": n},
        "data": data,
        "old": old,
    }
    return json.dumps(event).encode()


def errors(ran: Ran) -> list[str]:
    """The lines on stderr but for progress, which a run of ten seconds tells there."""
    return [line for line in ran.err.splitlines() if not line.startswith("cdc: ")]


@pytest.mark.full
def test_wrong_input_leaves_no_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two tables in one topic, a table that is not there, values that do not fit, bad options."""
    source = tmp_path / "events"
    orders, other = canal_binlog(1, 3).bodies, canal_binlog(2, 3, table="bills").bodies
    bodies(spark, orders + other).write.parquet(str(source))
    to = tmp_path / "to"

    def cdc(*more: Any) -> Ran:
        return run_command(capsys, "pipeline", "cdc", source, "--to", to, *more)

    both = cdc("--follow", "--once")
    assert (both.code, both.out, len(errors(both))) == (2, "", 1)
    assert "2 tables (shop.bills, shop.orders): choose one with --table" in both.err
    assert (
        "no change is of table order; there are shop.bills, shop.orders"
        in cdc("--table", "order").err
    )
    narrow = cdc("--table", "orders", "--columns", "id bigint, state bigint")
    assert narrow.code == 2
    assert len(errors(narrow)) == 1
    assert "is no list of columns" in cdc("--columns", "id bigger than").err
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.parquet").write_bytes(b"cut off")
    (broken / "a.json").write_text("no JSON")
    store = MadeStore(tmp_path / "store")
    for event in orders:
        store.put(event)
    store.write()
    store.spoil(store.records[1][0] + 4)
    for place, said in (
        (f"parquet:{broken / 'a.parquet'}", "holds no parquet data: "),
        (f"json:{broken / 'a.json'}", "holds no JSON data"),
        (f"store:{store.root}#T", "commitlog/00000000000000000000, position "),
    ):
        ran = run_command(capsys, "pipeline", "cdc", place, "--to", to)
        assert (ran.out, len(errors(ran))) == ("", 1), ran.err
        assert said in ran.err
        assert "An error occurred while calling" not in ran.err
    assert cdc("--once").code == 2
    assert "--format" in cdc("--fromat", "delta").err
    assert not (to / "_table.json").exists()
    with pytest.raises(ConfigError, match="holds no table"):
        current_snapshot(to)


@pytest.mark.full
def test_rows_are_told_while_a_followed_batch_runs(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """All messages may come in one batch: the line moves before that batch is done."""
    events = canal_binlog(41, 50).shaken(42)
    topic = cluster.create(2, "Binlog")
    cluster.send(topic, events, queues=2)
    merger = Merger(ParquetTable(tmp_path / "orders"))
    counter = row_counter(spark)
    progress = RunProgress("cdc", total=len(events), quiet=True)
    told: list[int] = []

    def take(batch: DataFrame, stream: str, batch_id: int) -> None:
        merger.take(batch, stream, batch_id, counter=counter)
        # The query still takes this batch for unfinished: only the counter can tell of it.
        wait_until(lambda: progress.rows >= counter.value)
        told.append(progress.rows)

    messages = open_input(
        spark,
        parse_address(f"topic:{topic}"),
        options={"nameServer": cluster.name_server},
        stream=True,
    )
    follow_stream(
        messages,
        take,
        checkpoint=str(tmp_path / "checkpoint"),
        once=True,
        progress=progress,
        counter=counter,
    )
    # The first batch is the empty one that fixes where the stream begins.
    assert told == [0, len(events)]
    assert progress.rows == len(events)
    again = row_counter(spark)
    assert counted(spark.range(70), again).count() == again.value == 70


SLOW_PYTHON = """#!/bin/sh
case "$*" in
*python_streaming_source_runner*) if mkdir "{hit}" 2>/dev/null; then sleep 12; fi ;;
esac
exec "{python}" "$@"
"""


@pytest.mark.full
def test_a_source_that_starts_too_slowly_is_started_again(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark gives its process ten seconds; a busy machine may need more, and loses nothing."""
    log = canal_binlog(61, 30)
    topic = cluster.create(1, "Binlog")
    cluster.send(topic, log.shaken(62), queues=1)
    slow = tmp_path / "python"
    slow.write_text(SLOW_PYTHON.format(hit=tmp_path / "hit", python=sys.executable))
    slow.chmod(0o755)

    class SlowSource(LiveSource):
        @classmethod
        def name(cls) -> str:
            return "cometmq-slow"

    context: Any = spark.sparkContext
    before, context.pythonExec = context.pythonExec, str(slow)
    try:
        spark.dataSource.register(SlowSource)
    finally:
        context.pythonExec = before
    reader = spark.readStream.format("cometmq-slow").option("nameServer", cluster.name_server)
    messages = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    merger = Merger(ParquetTable(tmp_path / "orders"))
    assert not (tmp_path / "hit").exists()
    follow_stream(messages, merger.take, checkpoint=str(tmp_path / "checkpoint"), once=True)
    assert (tmp_path / "hit").exists()
    assert "continues from its checkpoint, start 2 of 4" in caplog.text
    assert table_rows(tmp_path / "orders") == log.rows


@pytest.mark.full
def test_an_interrupt_lets_the_running_batch_finish(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """The signal comes amid a batch: that one is in the table, the query has stopped, no error."""
    log = canal_binlog(51, 20)
    topic = cluster.create(1, "Binlog")
    cluster.send(topic, log.shaken(52), queues=1)
    merger = Merger(ParquetTable(tmp_path / "orders"))
    hits: list[int] = []

    def take(batch: DataFrame, stream: str, batch_id: int) -> None:
        if batch_id == 1:
            hits.append(batch_id)
            os.kill(os.getpid(), signal.SIGINT)
        merger.take(batch, stream, batch_id)

    messages = open_input(
        spark,
        parse_address(f"topic:{topic}"),
        options={"nameServer": cluster.name_server},
        stream=True,
    )
    before = signal.getsignal(signal.SIGINT)
    followed = follow_stream(
        messages, take, checkpoint=str(tmp_path / "checkpoint"), once=False, every="1 second"
    )
    assert (hits, followed.interrupted) == ([1], True)
    assert table_rows(tmp_path / "orders") == log.rows
    assert spark.streams.active == []
    assert signal.getsignal(signal.SIGINT) is before
