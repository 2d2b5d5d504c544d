"""The trace topic to journeys, latencies and lists, by function and by command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from tests.spark.clusters import Cluster
from tests.spark.commands import run_command
from tests.unit.spark.generated_events import traced_messages
from tests.unit.spark.pipelines.trace.test_trace_contexts import captured_bodies

from cometmq.errors import ConfigError
from cometmq.spark.base import progress
from cometmq.spark.pipelines.trace.journeys import journeys, latencies, never_consumed, trace_steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def bodies(spark: SparkSession, *data: bytes) -> DataFrame:
    """A trace topic's bodies."""
    return spark.createDataFrame([(one,) for one in data], "body binary")


def made_by_hand(at: int) -> bytes:
    """Messages that need not be consumed, and two that are missed, produced at ``at`` ms."""

    def pub(name: str, at: int, kind: int = 0, sent: str = "true") -> str:
        fields = ("Pub", at, "R", "PG", "T", name, "", "", "h:1", 1, 1, kind, "OID", sent)
        return "\x01".join(map(str, fields)) + "\x02"

    def end(name: str, state: str) -> str:
        fields = ("EndTransaction", at, "R", "PG", "T", name, "", "", "h:1", 1, "TX", state, "no")
        return "\x01".join(map(str, fields)) + "\x02"

    text = (
        pub("lost", at)
        + pub("half", at, 1)
        + pub("rolled", at, 1)
        + end("rolled", "ROLLBACK_MESSAGE")
        + pub("committed", at, 1)
        + end("committed", "COMMIT_MESSAGE")
        + pub("recalled", at)
        + "\x01".join(("Recall", str(at), "R", "PG", "T", "recalled", "true"))
        + "\x02"
        + pub("unsent", at, 0, "false")
        + pub("newest", at + 10_000)
    )
    return text.encode()


def test_journeys_of_real_clients_and_what_need_not_be_consumed(spark: SparkSession) -> None:
    """Java's message that failed and came again; halves, recalls and the newest are not missed."""
    late = made_by_hand(1_800_000_000_000)
    found = journeys(trace_steps(bodies(spark, *captured_bodies(), late))).persist()
    rows = {row["msgId"]: row for row in found.collect()}
    (retried,) = (row for row in rows.values() if row["retries"])
    assert (retried["topic"], retried["keys"], retried["producerGroup"]) == (
        "J498_Trace",
        "trk5",
        "J498_PG_trace",
    )
    where = (retried["storeHost"], retried["sent"], retried["deliveries"])
    assert where == ("127.0.0.1:41011", True, 2)
    (group,) = retried["consumers"]
    assert (group["groupName"], group["successes"], group["retries"]) == ("J498_CG_trace", 1, 1)
    assert group["success"] is True
    # The one-way message has no producer's step: a journey all the same, without its beginning.
    assert {row["keys"] for row in rows.values() if row["producedMs"] is None} == {"trk4"}
    delivery = latencies(found).where("measure = 'delivery'").collect()
    assert {row["topic"] for row in delivery} == {"J498_Trace", "C540_Trace", "GO_Trace"}
    missed = {row["msgId"] for row in never_consumed(found, grace_ms=5000).collect()}
    assert missed == {"lost", "committed"}
    found.unpersist()


def test_a_topic_without_bodies_is_refused(spark: SparkSession) -> None:
    """A table without the column of bodies is refused."""
    with pytest.raises(ConfigError, match="needs a column body of type binary; there are id"):
        trace_steps(spark.range(1))


@pytest.mark.full
def test_command_on_a_live_topic(
    spark: SparkSession,
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From a running broker to JSON, Parquet and a page: lost, repeated, failed and bad ones of a
    shuffled stream are found, and nothing else."""
    monkeypatch.setattr(progress, "PLAIN_EVERY_S", 0.0)
    traced = traced_messages(12, 60)
    topic = cluster.create(2, "Traces")
    cluster.send(topic, traced.bodies, queues=2)
    page, out = tmp_path / "trace.html", tmp_path / "out"
    common = ("pipeline", "trace", "-n", cluster.name_server, "--source", f"topic:{topic}")
    ran = run_command(capsys, *common, "--grace", "0s", "--json", "--report", page, "--out", out)
    assert ran.code == 0, ran.err
    told = ran.json
    assert (told["messages"], told["bad_records"]) == (60, traced.bad)
    sent = len(traced.bodies)
    assert told["offsets"] == [f"{topic}: {sent} of {sent} in 2 queues"]
    # What the workers have counted, before the end is told.
    assert f"trace: {sent} of {sent} rows" in ran.err
    assert f"offsets {sent} of {sent} in 2 queues of {topic}" in ran.err
    assert told["trace_records"] == traced.steps + traced.bad
    assert {row["msgId"] for row in told["never_consumed_messages"]} == traced.never_consumed
    for listed, expected in (
        (told["consumed_repeatedly_messages"], traced.repeated),
        (told["failed_messages"], traced.failed),
    ):
        assert {(row["msgId"], row["groupName"]) for row in listed} == expected
    counts = (told["never_consumed"], told["consumed_repeatedly"], told["failed"])
    assert counts == (len(traced.never_consumed), len(traced.repeated), len(traced.failed))
    latency = {(row["group"], row["measure"]): row for row in told["latencies"]}
    assert latency["Billing", "delivery"]["p50_ms"] == 20
    assert latency["Mail", "delivery"]["max_ms"] == 20
    assert 1 <= latency["Shop", "send"]["p50_ms"] <= latency["Shop", "send"]["max_ms"] < 30
    slow = told["slowest_messages"]
    assert [row["total_ms"] for row in slow] == sorted((r["total_ms"] for r in slow), reverse=True)
    parts = ("send_ms", "queue_ms", "handler_ms", "retry_ms")
    assert all(row["total_ms"] == sum(row[part] for part in parts) for row in slow)
    assert all(row[part] >= 0 for row in slow for part in parts)
    text = page.read_text()
    assert f"<h1>The slowest of 60 messages took {slow[0]['total_ms'] / 1000:.1f} s to " in text
    assert "class='plot'" in text
    assert next(iter(traced.never_consumed)) in text
    kept = pyarrow.dataset.dataset(out / "journeys", format="parquet")
    assert set(kept.to_table(["msgId"]).column(0).to_pylist()) == traced.messages
    again = run_command(capsys, *common, "--out", out)
    assert (again.code, again.out) == (2, "")
    assert "is not empty" in again.err


def test_command_says_what_is_wrong_before_it_starts(
    spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody at the address, no such topic, a misspelt option and a misspelt kind of source."""
    nobody = run_command(capsys, "pipeline", "trace", "-n", "127.0.0.1:1")
    assert (nobody.code, nobody.err.count("\n")) == (3, 1)
    assert "127.0.0.1:1" in nobody.err
    here = ("pipeline", "trace", "-n", cluster.name_server)
    unknown = run_command(capsys, *here, "--source", "topic:NoSuchTopic")
    assert unknown.code == 4
    assert "NoSuchTopic" in unknown.err
    assert "did you mean topic:T" in run_command(capsys, *here, "--source", "topc:T").err
    option = run_command(capsys, *here, "--grase", "1m")
    assert option.code == 2
    assert "--grace" in option.err
