"""Lag, skew and advice of real groups."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.clusters import Cluster
from tests.spark.commands import run_command

from cometmq.model import SubscriptionGroupConfig
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.sync import Admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def group_behind(cluster: Cluster, group: str) -> str:
    """A topic of three queues with 110, 5 and 0 messages to go, most of them of one key."""
    topic = cluster.create(3, "Backlog")

    def message(number: int, key: str) -> Message:
        return Message(topic, b"x" * 10, keys=key, properties={"n": str(number)})

    for queue_id, keys in (
        (0, ["small", *["big"] * 110, "small"]),
        (1, ["other"] * 9),
        (2, ["other"] * 3),
    ):
        cluster.producer.send_batch(
            [message(number, key) for number, key in enumerate(keys)],
            queue=MessageQueue(topic, cluster.broker_name, queue_id),
        )
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_group(SubscriptionGroupConfig(group))
        done = {0: 2, 1: 4, 2: 3}
        admin.commit_offsets(
            group, {MessageQueue(topic, cluster.broker_name, q): n for q, n in done.items()}
        )
    return topic


def test_lag_skew_and_advice(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures of a group that has no member, and the key that makes its queue hot."""
    topic = group_behind(cluster, "Slow")
    page = tmp_path / "page.html"
    here = ("pipeline", "backlog", "Slow", "-n", cluster.name_server, "--interval", "0.05")
    ran = run_command(capsys, *here, "--json", "--report", page)
    assert ran.code == 0, ran.err
    told = ran.json
    (group,) = told["by_group"]
    assert (group["topic"], group["lag"], group["members"], group["state"]) == (
        topic,
        115,
        0,
        "STOPPED",
    )
    assert group["drains_in_s"] is None
    lags = {row["queue_id"]: row["lag"] for row in told["by_queue"]}
    assert lags == {0: 110, 1: 5, 2: 0}
    # Only what waits is looked at: the small key was consumed, but for the last of it.
    keys = {row["key"]: row["messages"] for row in told["heavy_keys"]}
    assert keys == {"big": 109, "other": 5, "small": 1}
    assert told["messages_examined"] == 115
    assert told["offsets"] == [f"{topic}: 115 of 115 in 2 queues"]
    assert [row["queueId"] for row in told["hot_queues"]] == [0, 1]
    assert [row["producer"] for row in told["hot_producers"]] == ["127.0.0.1"]
    assert any("no member is online and 115 messages wait" in text for text in told["advice"])
    assert any("key big is 95% of the waiting messages" in text for text in told["advice"])
    text = page.read_text()
    answer = f"115 messages wait for Slow in {topic}, 96% of them in queue {cluster.broker_name}:0"
    assert f"<h1>{answer}; nothing was consumed</h1>" in text
    assert "key big is 95% of the waiting messages" in text
    assert told["oldest_waiting_seconds"] >= 0
    assert "<dt>Oldest waiting message</dt>" in text
    plain = run_command(capsys, *here, "--no-skew")
    assert plain.code == 0
    assert "ADVICE: Slow in" in plain.out
    assert "Its consumer is slow or stuck" in plain.out


def test_wrong_input(
    spark: SparkSession, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown group is answered with the nearest; nobody at the address; a wrong option."""
    with Admin(name_server=cluster.name_server) as admin:
        admin.create_group(SubscriptionGroupConfig("Billing"))
    here = ("pipeline", "backlog", "-n", cluster.name_server)
    unknown = run_command(capsys, *here, "Biling")
    assert unknown.code == 4
    assert "did you mean Billing?" in unknown.err
    nowhere = run_command(capsys, *here, "--topic", "NoSuchTopic")
    assert (nowhere.code, nowhere.err.count("\n")) == (4, 1)
    assert "no broker has the topic NoSuchTopic" in nowhere.err
    nobody = run_command(capsys, "pipeline", "backlog", "-n", "127.0.0.1:1")
    assert (nobody.code, nobody.err.count("\n")) == (3, 1)
    assert "--interval" in run_command(capsys, *here, "--intervall", "3").err
    # A key that Spark does not understand is one line.
    group_behind(cluster, "Odd")
    odd = run_command(capsys, *here, "Odd", "--interval", "0.05", "--key", "no_such(keys)")
    # Before it come lines of progress, as many as the machine needs.
    said = [line for line in odd.err.splitlines() if not line.startswith("backlog: ")]
    assert (odd.code, len(said)) == (2, 1), odd.err
